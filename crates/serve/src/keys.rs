//! API keys, stored as digests and compared in constant time, and the limits of each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Server;
use super::error::ApiError;
use super::page::is_page;
use super::request_log::Record;

/// The accepted keys; without one, everyone may send requests.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    digests: Vec<[u8; 32]>,
    /// Of each, what it may do and does.
    uses: Arc<Vec<KeyUse>>,
}

/// What a key may do; what is not said has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests that are answered at a time.
    pub running: Option<u32>,
    /// Requests that begin in a minute.
    pub per_minute: Option<u32>,
}

#[derive(Debug)]
struct KeyUse {
    limits: KeyLimits,
    running: Arc<Semaphore>,
    /// Requests that may begin now, as of a time: they grow back evenly.
    left: Mutex<(f64, Instant)>,
}

impl KeyUse {
    fn new(limits: KeyLimits) -> Self {
        let running = Arc::new(Semaphore::new(limits.running.unwrap_or(0) as usize));
        let left = Mutex::new((limits.per_minute.unwrap_or(0).into(), Instant::now()));
        Self { limits, running, left }
    }

    /// Begins a request, if its key allows it; the result is held until the request ends.
    fn begin(&self, now: Instant) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let permit = match self.limits.running {
            None => None,
            Some(most) => Some(Arc::clone(&self.running).try_acquire_owned().map_err(|_| {
                let message = format!("this API key has {most} requests running, its limit");
                ApiError::too_many_requests(message, Duration::from_secs(1))
            })?),
        };
        if let Some(most) = self.limits.per_minute {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let grown = now.saturating_duration_since(left.1).as_secs_f64() * f64::from(most) / 60.0;
            *left = ((left.0 + grown).min(most.into()), now);
            if left.0 < 1.0 {
                let wait = Duration::from_secs_f64((1.0 - left.0) * 60.0 / f64::from(most.max(1)));
                let message = format!("this API key started {most} requests in the last minute, its limit");
                return Err(ApiError::too_many_requests(message, wait));
            }
            left.0 -= 1.0;
        }
        Ok(permit)
    }
}

/// Who asks: 0 where there are no keys or only one, else a number that belongs to the key. Stored things and cached
/// prefixes are theirs alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller(pub u64);

/// Paths that need no key, besides the page.
const OPEN: [&str; 5] = ["/health", "/v1/health", "/ping", "/v1/ping", "/version"];

/// Paths that need none, and where a wrong one is an error all the same: this is how people try their key.
const OPEN_WITHOUT_KEY: [&str; 2] = ["/models", "/v1/models"];

impl Keys {
    /// Remembers the digests of these keys.
    pub fn new(keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self::with_limits(keys.into_iter().map(|key| (key, KeyLimits::default())))
    }

    /// The same of keys that may not do everything.
    pub fn with_limits(keys: impl IntoIterator<Item = (impl AsRef<str>, KeyLimits)>) -> Self {
        let (digests, uses): (Vec<_>, Vec<_>) =
            keys.into_iter().map(|(key, limits)| (digest(key.as_ref()), KeyUse::new(limits))).unzip();
        Self { digests, uses: Arc::new(uses) }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Whether this is one of them.
    pub fn opens(&self, key: &str) -> bool {
        self.index(key).is_some()
    }

    /// Which of them this is, if it is one. Takes as long whichever it is.
    fn index(&self, key: &str) -> Option<usize> {
        let given = digest(key);
        let (mut is_known, mut index) = (Choice::from(0), 0_u64);
        // Of two that are the same the first counts.
        for (i, known) in self.digests.iter().enumerate().rev() {
            let is_this = known.ct_eq(&given);
            index.conditional_assign(&(i as u64), is_this);
            is_known |= is_this;
        }
        bool::from(is_known).then_some(index as usize)
    }

    /// Who a key's caller is: a number from its digest, or 0 if there is only one key.
    fn caller(&self, index: usize) -> Caller {
        let number = self.digests[index].first_chunk().copied().map_or(0, u64::from_le_bytes);
        Caller(if self.digests.len() > 1 { number } else { 0 })
    }

    /// The key that a request brought, none if it needs none.
    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
        if self.is_empty() || *method == Method::OPTIONS || OPEN.contains(&path) || is_page(path) {
            return Ok(None);
        }
        match given(headers) {
            Some(key) => self.index(key).map(Some).ok_or_else(|| ApiError::invalid_api_key("the API key is wrong")),
            None if OPEN_WITHOUT_KEY.contains(&path) => Ok(None),
            None => Err(ApiError::invalid_api_key(
                "this server needs an API key: `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            )),
        }
    }

    /// Lets a request in, if it may come: whose it is, and what is held until it ends.
    fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(Caller, Option<OwnedSemaphorePermit>), ApiError> {
        let Some(index) = self.check(method, path, headers)? else { return Ok((Caller::default(), None)) };
        let is_counted = *method == Method::POST;
        let permit = if is_counted { self.uses[index].begin(Instant::now())? } else { None };
        Ok((self.caller(index), permit))
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn given(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok().map(str::trim))
}

/// Lets only those in who may ask; handlers find who it is as an extension.
pub(super) async fn check(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let keys = &server.options.keys;
    match keys.admit(request.method(), request.uri().path(), request.headers()) {
        Ok((caller, permit)) => {
            if let Some(record) = Record::current() {
                record.set_caller(caller);
                record.hold(permit);
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), header::HeaderValue::from_static(value))])
    }

    #[test]
    fn a_key_opens_and_another_does_not() {
        let keys = Keys::new(["one", "other"]);
        let check = |path: &str, headers: &HeaderMap| keys.check(&Method::GET, path, headers);
        let caller = |headers: HeaderMap| keys.admit(&Method::GET, "/v1/x", &headers).unwrap().0;
        let one = caller(with("authorization", "Bearer one"));
        assert_ne!(one, caller(with("x-api-key", "other")));
        assert_eq!(caller(with("authorization", "bearer  one")), one);
        for headers in [with("authorization", "Bearer onee"), with("authorization", "Basic one"), HeaderMap::new()] {
            assert_eq!(check("/v1/x", &headers).unwrap_err().status.as_u16(), 401);
            assert!(check("/health", &headers).is_ok());
        }
        assert!(check("/v1/models", &HeaderMap::new()).is_ok());
        assert!(check("/v1/models", &with("x-api-key", "on")).is_err());
        assert!(keys.check(&Method::OPTIONS, "/v1/x", &HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_key_may_do_what_its_limits_say() {
        let limits = KeyLimits { running: Some(1), per_minute: Some(2) };
        let keys = Keys::with_limits([("one", limits), ("other", KeyLimits::default())]);
        let admit = |method, key| keys.admit(&method, "/v1/x", &with("x-api-key", key)).map(|(_, permit)| permit);
        let begin = |key| admit(Method::POST, key);
        let first = begin("one").unwrap();
        let refused = begin("one").unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (429, Some("rate_limit_exceeded")));
        drop(first);
        begin("one").unwrap();
        let refused = begin("one").unwrap_err();
        assert!(refused.retry_after.is_some_and(|wait| wait > Duration::from_secs(20)), "{refused:?}");
        assert!((0..9).all(|_| begin("other").unwrap().is_none() && admit(Method::GET, "one").unwrap().is_none()));
        let later = Instant::now() + Duration::from_secs(31);
        keys.uses[0].begin(later).unwrap();
    }

    #[test]
    fn a_single_key_is_nobody_in_particular_and_without_keys_any_will_do() {
        let caller = |keys: Keys| keys.admit(&Method::GET, "/v1/x", &with("x-api-key", "one")).unwrap().0;
        assert_eq!(caller(Keys::new(["one"])), Caller(0));
        assert_eq!(caller(Keys::default()), Caller(0));
    }
}
