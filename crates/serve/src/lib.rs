//! `gptoss-jit serve`: OpenAI's API over HTTP.
//!
//! One thread owns the engine ([`engine_thread`]); it puts tokens into mailboxes ([`mailbox`]) and never waits,
//! formats or encodes. The tasks at the other end do everything else (JSON, templates, parsing). They see a
//! [`backend::Backend`], which may be a script ([`replay`]) instead. There is a file per endpoint; [`Server`] is what
//! all of them share.

mod about;
pub(crate) mod answer;
pub(crate) mod ask;
pub mod backend;
pub mod batches;
pub mod body;
pub(crate) mod chat;
pub(crate) mod choices;
pub(crate) mod completions;
pub(crate) mod conversation;
pub mod engine_thread;
pub(crate) mod error;
pub mod failing;
pub(crate) mod field;
#[cfg(test)]
mod fields_walk;
pub(crate) mod form;
mod health;
pub mod history;
pub mod hosts;
pub mod ids;
pub mod intake;
pub mod keys;
pub mod listener;
pub(crate) mod logprobs;
pub mod long_work;
pub(crate) mod lru_map;
pub mod mailbox;
mod messages;
pub mod metrics;
mod models;
mod page;
pub(crate) mod prompt;
pub(crate) mod prompts;
pub mod replay;
pub mod replica;
mod request_log;
pub mod responses;
pub(crate) mod sampling;
pub mod seal;
pub(crate) mod sse;
pub(crate) mod stop_text;
pub(crate) mod tokens;
pub(crate) mod tools;
mod watched_body;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

use self::backend::Backend;
use self::batches::Batches;
use self::body::BodyRoom;
use self::error::ApiError;
use self::history::History;
use self::hosts::Hosts;
use self::ids::Ids;
use self::keys::Keys;
use self::long_work::{LONG_TEXT_BYTES, LongWork};
use self::mailbox::{Generation, Pace, Timeouts};
use self::metrics::Metrics;
use self::request_log::Record;
use self::responses::store::Store;
use self::seal::Seal;
use ::chat::chat_format::{ChatFormat, ChatFormatError};
use ::chat::grammar::Grammars;
use ::chat::today;
use engine::scheduler::Request;
use hint::Hint;
use model::tokenizer::limit::Limit;
use model::tokenizer::{Tokenizer, TokenizerError};

/// What all handlers share.
pub struct Server {
    pub backend: Arc<dyn Backend>,
    /// Chats to prompts and back, or why there is no way.
    pub chat: Result<Chat, ChatFormatError>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The tokens after which the model is done, whatever it writes.
    pub ends: Vec<u32>,
    /// What was asked for on the command line.
    pub options: Options,
    pub metrics: Metrics,
    pub ids: Ids,
    /// Turns that were made lately, for when they come back.
    pub history: History,
    /// Responses that others may follow.
    pub responses: Store,
    /// Seals what clients carry instead.
    pub seal: Seal,
    /// Files and batches, if there is a folder for them.
    pub batches: Batches,
    /// Where long texts become tokens.
    pub long_work: LongWork,
    pub body_room: BodyRoom,
    /// A copy for every request that is being answered.
    pub open: Arc<()>,
}

/// What chats need of a model.
pub struct Chat {
    /// How they are written and read.
    pub format: Arc<dyn ChatFormat>,
    /// Which tokens may come next.
    pub grammars: Arc<Grammars>,
}

/// What was asked for on the command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Names that the model goes by; the first is the one it says of itself.
    pub model_names: Vec<String>,
    /// Whether every name is taken.
    pub any_model: bool,
    /// The date in system messages.
    pub date: Date,
    pub keys: Keys,
    /// What a request may call this machine.
    pub hosts: Hosts,
    /// How long requests may take.
    pub timeouts: Timeouts,
    /// How often streams have events.
    pub pace: Pace,
    /// Web pages from these origins may ask; `*` is all.
    pub cors_origins: Vec<HeaderValue>,
    /// What the names of metrics begin with.
    pub metrics_prefix: String,
    /// Whether prompts and answers are logged.
    pub log_content: bool,
}

/// The date in system messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Date {
    /// That of the day, in UTC.
    #[default]
    Today,
    Fixed(String),
    Omitted,
}

impl Server {
    /// Queues a request of the HTTP request that is being answered. `param` is the field that its prompt is made of.
    ///
    /// # Errors
    /// The client's error, before any head is sent.
    pub(crate) fn submit(&self, mut request: Request, param: &str) -> Result<Generation, ApiError> {
        let record = Record::current();
        request.cache_salt ^= record.as_ref().map_or(0, |record| record.caller().0);
        request.is_background = record.as_ref().is_some_and(|record| record.is_background);
        // Who waits for nobody to come first has no time to wait at most.
        let timeouts = if request.is_background { Timeouts::default() } else { self.options.timeouts };
        let content = self.options.log_content.then(|| self.tokenizer.clone());
        if let (Some(tokenizer), Some(record)) = (&content, &record) {
            let prompt = tokenizer.decode_all(&request.prompt).unwrap_or_default();
            tracing::info!(id = record.id, prompt = %String::from_utf8_lossy(&prompt), "content");
        }
        let generation = self.backend.submit(request).map_err(|refused| refused.into_error(param))?;
        Ok(generation.within(timeouts, record, content).at_pace(self.options.pace))
    }

    /// Whether so many answers can be had at once: a request for more would find the queue full whenever it came.
    ///
    /// # Errors
    /// 400, which names `param`.
    pub(crate) fn check_answers(&self, n: usize, param: &str) -> Result<(), ApiError> {
        let most = self.backend.model().most_answers;
        if n > most {
            let message = format!("the request asks for {n} answers; at most {most} can run and wait");
            return Err(ApiError::invalid(param, message));
        }
        Ok(())
    }

    /// The name that the client used, if it is one of the model's; the model's own if it used none.
    ///
    /// # Errors
    /// `model_not_found`.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<String, ApiError> {
        let names = &self.options.model_names;
        match asked.filter(|asked| !asked.is_empty()) {
            None => Ok(names.first().cloned().unwrap_or_default()),
            Some(asked) if self.options.any_model || names.iter().any(|name| name == asked) => Ok(asked.to_owned()),
            Some(asked) => Err(ApiError::model_not_found(asked, names)),
        }
    }

    /// The date for a system message, if one is wanted.
    pub(crate) fn current_date(&self) -> Option<String> {
        match &self.options.date {
            Date::Today => Some(today()),
            Date::Fixed(date) => Some(date.clone()),
            Date::Omitted => None,
        }
    }

    /// What chats need.
    ///
    /// # Errors
    /// The model has no chat format: completions are all that it can do.
    pub(crate) fn chat(&self) -> Result<&Chat, ApiError> {
        self.chat.as_ref().map_err(|error| {
            let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
            ApiError::bad_request("unsupported_value", format!("this model has no chat format: {error}{hint}"))
        })
    }

    /// The ids after which a model is done in a chat, or waits.
    pub(crate) fn chat_stop_ids(&self) -> Vec<u32> {
        let waits = self.chat.iter().flat_map(|chat| chat.format.stop_ids());
        let mut ids = self.ends.clone();
        ids.extend(waits.filter(|id| !self.ends.contains(id)));
        ids
    }

    /// No text that fits the context has more bytes.
    pub(crate) fn max_text_bytes(&self) -> usize {
        self.backend.model().context_tokens.saturating_mul(self.tokenizer.max_token_length())
    }

    /// Ids of a text, at most as many as the context has; names of special tokens in it are these tokens only with
    /// `parse_special`.
    ///
    /// # Errors
    /// `context_length_exceeded`; `invalid_value`, where the tokenizer does not take the text.
    pub(crate) async fn encode(&self, text: String, parse_special: bool, param: &str) -> Result<Vec<u32>, ApiError> {
        let (context_tokens, max_bytes) = (self.backend.model().context_tokens, self.max_text_bytes());
        if text.len() > max_bytes {
            let what = format!("`{param}`");
            return Err(ApiError::too_many_bytes(&what, text.len(), max_bytes, context_tokens).with_param(param));
        }
        let (tokenizer, is_long) = (self.tokenizer.clone(), text.len() > LONG_TEXT_BYTES);
        let encode = move |is_wanted: &dyn Fn() -> bool| {
            let limit = Limit { max_tokens: context_tokens, is_wanted };
            if parse_special {
                return tokenizer.encode_with_specials_within(text.as_bytes(), &limit);
            }
            tokenizer.encode_prompt_within(text.as_bytes(), &limit)
        };
        self.long_work.run(is_long, encode).await?.map_err(|error| told(&error, param))
    }
}

/// The client's error for a text that cannot be encoded.
fn told(error: &TokenizerError, param: &str) -> ApiError {
    match error {
        TokenizerError::TooManyTokens { max_tokens } => ApiError::more_than_context(param, *max_tokens),
        error => ApiError::invalid(param, format!("`{param}`: {error}")),
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What is made of a digest for `system_fingerprint`.
pub fn fingerprint(digest: &[u8]) -> String {
    digest[..6].iter().fold("fp_".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// All endpoints, each with `/v1` and without.
pub fn router(server: Arc<Server>) -> Router {
    let api = Router::new()
        .merge(about::router())
        .merge(batches::router())
        .merge(chat::router())
        .merge(completions::router())
        .merge(messages::router())
        .merge(health::router())
        .merge(models::router())
        .merge(responses::router())
        .merge(tokens::router());
    let all = Router::new()
        .nest("/v1", api.clone())
        .merge(api)
        .merge(page::router())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(server.clone(), keys::check))
        .layer(from_fn(messages::shape_errors));
    let all = match cors(&server.options.cors_origins) {
        Some(layer) => all.layer(layer),
        None => all,
    };
    all.layer(from_fn_with_state(server.clone(), hosts::check))
        .layer(from_fn_with_state(server.clone(), request_log::track))
        .with_state(server)
}

async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is no `{method} {}` here", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("`{}` does not take `{method}`", uri.path()))
}

/// Without origins there are no CORS headers, and browsers keep pages of other sites away. Allowed headers are listed,
/// because `*` does not include `Authorization`.
fn cors(origins: &[HeaderValue]) -> Option<CorsLayer> {
    let headers = AllowHeaders::mirror_request();
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(headers).expose_headers([request_log::REQUEST_ID]);
    match origins {
        [] => None,
        origins if origins.iter().any(|origin| origin == "*") => Some(layer.allow_origin(Any)),
        origins => Some(layer.allow_origin(origins.to_vec())),
    }
}
