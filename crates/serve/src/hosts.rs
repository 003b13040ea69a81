//! The host names that the server accepts.
//!
//! A page of another site may let its own name resolve to a loopback address (DNS rebinding). Its requests then come
//! here, while its browser takes them for requests to that site. They still have that name in `Host`. So a server that
//! only this machine should reach accepts only this machine's names.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Server;
use super::error::ApiError;

/// The hosts that requests may name, besides this machine's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    allowed: Vec<Allowed>,
}

impl Default for Hosts {
    fn default() -> Self {
        Self { allowed: vec![Allowed::All] }
    }
}

/// Host names to accept: one, a domain with its subdomains, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    All,
    /// This one, [`normal`].
    Host(String),
    /// This one and all names below it, in lower case.
    Domain(String),
}

impl Allowed {
    /// Reads `chat.example.com`, `.example.com` (that and all below it) or `*`.
    ///
    /// # Errors
    /// It is none of them, in words.
    pub fn read(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::All);
        }
        let in_brackets = text.strip_prefix('[').and_then(|inside| inside.strip_suffix(']'));
        let address = in_brackets.map_or_else(|| text.parse().ok(), |inside| inside.parse().map(IpAddr::V6).ok());
        if let Some(address) = address {
            return Ok(Self::Host(address.to_string()));
        }
        let name = normal(text);
        match name.strip_prefix('.') {
            Some(domain) if is_name(domain) && domain.parse::<IpAddr>().is_err() => Ok(Self::Domain(domain.to_owned())),
            None if is_name(&name) => Ok(Self::Host(name)),
            _ => Err(
                "expected a host without scheme and port, such as chat.example.com, `.example.com` for all below it, \
                      or `*`"
                    .into(),
            ),
        }
    }

    fn is(&self, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Host(name) => name == host,
            Self::Domain(domain) => {
                host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        }
    }
}

impl Hosts {
    /// Those of a server that listens on an address, which was asked for by the name `asked`. Without `more` all hosts
    /// are right where the address is not of this machine alone.
    pub fn for_address(address: IpAddr, asked: &str, more: &[Allowed]) -> Self {
        if !address.to_canonical().is_loopback() && more.is_empty() {
            return Self::default();
        }
        let own = [address.to_string(), normal(asked)].map(Allowed::Host);
        Self { allowed: [&own, more].concat() }
    }

    /// Whether a request is for one of them. One that names no host comes from no browser.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get_all(header::HOST).iter().map(|host| String::from_utf8_lossy(host.as_bytes()));
        let named = named.chain(uri.authority().map(|authority| authority.as_str().into()));
        for name in named {
            let host = normal(without_port(&name));
            if !is_of_this_machine(&host) && !self.allowed.iter().any(|allowed| allowed.is(&host)) {
                return Err(ApiError::host_not_allowed(&host));
            }
        }
        Ok(())
    }
}

/// Names that resolve to this machine wherever they are resolved.
fn is_of_this_machine(host: &str) -> bool {
    host == "localhost"
        || host.strip_suffix(".localhost").is_some_and(is_name)
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn is_name(text: &str) -> bool {
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.split('.').all(|label| !label.is_empty() && label.bytes().all(is_of_label))
}

/// What `Host` says without the port, and without the brackets of an IPv6 address. All of it, if it is neither.
fn without_port(name: &str) -> &str {
    let is_port = |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number);
    if let Some((address, rest)) = name.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        return if is_port(rest) && address.parse::<Ipv6Addr>().is_ok() { address } else { name };
    }
    match name.rsplit_once(':') {
        // Several colons are an address without brackets.
        Some((host, port)) if !host.contains(':') && is_number(port) => host,
        _ => name,
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The one way to write a host: a name in lower case and without the dot that may end it, an address as it is printed.
fn normal(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    }
}

/// Lets only requests in that are for this server.
pub(super) async fn check(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    match server.options.hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn allows(hosts: &Hosts, host: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())]);
        hosts.check(&Uri::from_static("/v1/models"), &headers).is_ok()
    }

    #[test]
    fn on_a_loopback_address_only_names_of_this_machine_are_served() {
        let more = ["chat.example.com", ".lan", "[fd00:0::7]"].map(|name| Allowed::read(name).unwrap());
        let hosts = Hosts::for_address([127, 0, 0, 1].into(), "MyBox", &more);
        for host in [
            "localhost",
            "localhost:8000",
            "LOCALHOST.",
            "a.localhost:1",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]:8000",
            "::1",
            "[::ffff:127.0.0.1]",
            "mybox:8000",
            "chat.example.com",
            "Chat.Example.Com:443",
            "box.lan",
            "lan",
            "[fd00::7]:80",
        ] {
            assert!(allows(&hosts, host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "192.168.0.7",
            "[::1].evil.example",
            "[localhost]:80",
            "[127.0.0.1",
            "localhost:evil.example",
            "evil.example#.localhost",
            "x.chat.example.com",
            "evil-lan",
            "",
            ":8000",
            "localhost@evil.example",
            "[::2]",
        ] {
            assert!(!allows(&hosts, host), "{host}");
        }
        let absolute = Uri::from_static("http://evil.example/v1/models");
        assert!(hosts.check(&absolute, &HeaderMap::new()).is_err());
        assert!(hosts.check(&Uri::from_static("/"), &HeaderMap::new()).is_ok(), "a probe of HTTP/1.0");
        let mut both = HeaderMap::new();
        both.append(header::HOST, HeaderValue::from_static("localhost"));
        both.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(hosts.check(&Uri::from_static("/"), &both).is_err());
    }

    #[test]
    fn elsewhere_all_are_served_unless_some_are_named() {
        let address = IpAddr::from([192, 168, 0, 7]);
        assert!(allows(&Hosts::for_address(address, "192.168.0.7", &[]), "evil.example"));
        let named = Hosts::for_address(address, "192.168.0.7", &[Allowed::Host("box.lan".into())]);
        assert!(["box.lan", "192.168.0.7:8000", "localhost"].iter().all(|host| allows(&named, host)));
        assert!(!allows(&named, "evil.example"));
        assert!(allows(&Hosts::for_address([127, 0, 0, 1].into(), "localhost", &[Allowed::All]), "evil.example"));
        assert!(!allows(
            &Hosts::for_address("::ffff:127.0.0.1".parse().unwrap(), "::ffff:127.0.0.1", &[]),
            "evil.example"
        ));
        assert_eq!(Allowed::read("Example.COM."), Ok(Allowed::Host("example.com".into())));
        assert_eq!(Allowed::read(".Example.COM."), Ok(Allowed::Domain("example.com".into())));
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            ".",
            "https://a.example",
            "a.example:80",
            "192.168.0.7:80",
            "[::1",
            "[a.example]",
            ".192.168.0.7",
            "a b",
            "*.example.com",
            "a/b",
        ] {
            assert!(Allowed::read(text).is_err(), "{text}");
        }
    }
}
