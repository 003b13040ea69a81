//! Errors as OpenAI's API shapes them: `{"error": {"message", "type", "param", "code"}}`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::mailbox::Failed;

/// An error for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    pub(crate) kind: &'static str,
    /// What programs tell errors apart by.
    pub(crate) code: Option<&'static str>,
    /// What happened, for people.
    pub(crate) message: String,
    /// The path of the field that is wrong: `messages[2].content[0].type`.
    pub(crate) param: Option<String>,
    /// When it is worth trying again.
    pub(crate) retry_after: Option<Duration>,
}

impl ApiError {
    fn request(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = shortened(message.into(), MAX_MESSAGE);
        Self { status, kind: "invalid_request_error", code: Some(code), message, param: None, retry_after: None }
    }

    fn server(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: "server_error", ..Self::request(status, code, message) }
    }

    /// The same, about this field.
    pub(crate) fn with_param(self, param: impl Into<String>) -> Self {
        Self { param: Some(shortened(param.into(), MAX_PARAM)), ..self }
    }

    /// 400: a field has a value that it may not have.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(param)
    }

    /// 400: a field that must be there is not.
    pub(crate) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::request(StatusCode::BAD_REQUEST, "missing_required_parameter", format!("`{param}` is missing"))
            .with_param(param)
    }

    /// 400: the field is part of the API and nothing here does it.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, "unsupported_parameter", message).with_param(param)
    }

    /// 400: the field is supported, this value of it is not.
    pub(crate) fn unsupported_value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, "unsupported_value", message).with_param(param)
    }

    /// 400 with a code of its own.
    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, code, message)
    }

    /// 400: the body is not JSON.
    pub(crate) fn invalid_json(message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, "invalid_json", message)
    }

    /// 400: the prompt alone does not fit the context.
    pub(crate) fn context_length(param: impl Into<String>, n_prompt: usize, context_tokens: usize) -> Self {
        let message = format!("the prompt has {n_prompt} tokens, the context of this model has {context_tokens}");
        Self::too_long(message).with_param(param)
    }

    /// 400: the prompt has more tokens than the context; it was not encoded to its end.
    pub(crate) fn more_than_context(param: impl Into<String>, context_tokens: usize) -> Self {
        let param = param.into();
        let message = format!("`{param}` has more than {context_tokens} tokens, which is the context of this model");
        Self::too_long(message).with_param(param)
    }

    /// 400: `what` has more bytes than are taken for the context, whatever their tokens are.
    pub(crate) fn too_many_bytes(what: &str, n_bytes: usize, max_bytes: usize, context_tokens: usize) -> Self {
        Self::too_long(format!(
            "{what} has {n_bytes} bytes, at most {max_bytes} are taken for a context of {context_tokens} tokens"
        ))
    }

    fn too_long(message: String) -> Self {
        Self::request(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
    }

    /// 403: `Host` names a host that this server does not serve.
    pub(crate) fn host_not_allowed(host: &str) -> Self {
        let host: String = host.chars().take(100).collect();
        let message = format!(
            "this server does not answer for the host `{host}`; `--allowed-hosts` names those that it answers for besides \
             `localhost`, loopback addresses and `--host`"
        );
        Self::request(StatusCode::FORBIDDEN, "host_not_allowed", message)
    }

    /// 403: a page of another site sends a form.
    pub(crate) fn origin_not_allowed(origin: &str) -> Self {
        let origin: String = origin.chars().take(100).collect();
        let message = format!("pages of `{origin}` may not send files here; `--cors-origin` allows an origin");
        Self::request(StatusCode::FORBIDDEN, "origin_not_allowed", message)
    }

    /// 401: the API key is missing or wrong.
    pub(crate) fn invalid_api_key(message: impl Into<String>) -> Self {
        Self::request(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// 404: no such path or stored thing.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::request(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 404: no such model.
    pub(crate) fn model_not_found(asked: &str, served: &[String]) -> Self {
        let names = served.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("the model `{asked}` is not served here; served: {names}");
        Self::request(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    /// 405: the path does not take the method.
    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::request(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// 408: the body did not come in time.
    pub(crate) fn body_timeout(seconds: u64) -> Self {
        let message = format!("the body did not arrive within {seconds} s");
        Self::request(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    /// 413: the body has more bytes than the limit.
    pub(crate) fn body_too_large(limit_bytes: usize) -> Self {
        let message = format!("the body is larger than {} MiB", limit_bytes >> 20);
        Self::request(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// 413: what a body is made of takes much more memory than its bytes.
    pub(crate) fn too_many_values(limit_bytes: usize) -> Self {
        let message = format!("the lists and objects of the body would take more than {} MiB", limit_bytes >> 20);
        Self::request(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// 413: a file of requests is longer than files may be.
    pub(crate) fn file_too_large(limit_bytes: u64) -> Self {
        let message = format!("the file is larger than {limit_bytes} bytes");
        Self::request(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", message)
    }

    /// 415. `found` is what the request says of its body, if it does.
    pub(crate) fn not_json(found: Option<&str>) -> Self {
        let found = match found {
            Some(found) => format!("the request says `{}`", found.chars().take(100).collect::<String>()),
            None => "the request has no `Content-Type`".to_owned(),
        };
        let message = format!("the body has to be `application/json`, {found}");
        Self::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 415: the body is compressed, and not with gzip.
    pub(crate) fn unknown_coding(found: &str) -> Self {
        let found: String = found.chars().take(100).collect();
        let message = format!("the body is encoded as `{found}`, expected `gzip`, or none");
        Self::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 429: this key has as much under way as it may, or asked too often.
    pub(crate) fn too_many_requests(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::request(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        Self { kind: "rate_limit_error", retry_after: Some(retry_after), ..error }
    }

    /// 500: a mistake of this program's.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// 507: something could not be kept on the disk.
    pub(crate) fn storage(message: impl Into<String>) -> Self {
        Self::server(StatusCode::INSUFFICIENT_STORAGE, "storage_error", message)
    }

    /// 503 with one of the codes that clients may wait on: `overloaded`, `loading`, `shutting_down`, `engine_failed`,
    /// `load_failed`, `out_of_memory`, `timeout`.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::server(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }

    /// 503: no replica takes requests until one of them is there again.
    pub(crate) fn restarting() -> Self {
        let message = "no replica of the model is running; they are being restarted";
        Self::unavailable("loading", message, Some(Duration::from_secs(1)))
    }

    /// The JSON that tells of it, as a body or as an event of a stream.
    pub(crate) fn body(&self) -> Value {
        let Self { kind, code, message, param, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

/// Messages and paths may hold what a client sent, which may be of any length: they end after so many bytes.
const MAX_MESSAGE: usize = 2000;
const MAX_PARAM: usize = 500;

fn shortened(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes));
        text.push('…');
    }
    text
}

impl From<Failed> for ApiError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Engine(why) => Self::unavailable("engine_failed", format!("the engine failed: {why}"), None),
            Failed::NoMemory(why) => {
                let message = format!("the device had no memory for this request: {why}");
                Self::unavailable("out_of_memory", message, Some(Duration::from_secs(1)))
            }
            Failed::Load(why) => {
                let message = format!("the model could not be loaded again: {why}");
                Self::unavailable("load_failed", message, Some(Duration::from_secs(5)))
            }
            Failed::ShuttingDown => {
                Self::unavailable("shutting_down", "the server is shutting down", Some(Duration::from_secs(1)))
            }
            Failed::QueueTimeout(limit) => {
                let message = format!("the request waited {} s for its turn", limit.as_secs_f64());
                Self::unavailable("overloaded", message, Some(Duration::from_secs(1)))
            }
            Failed::RequestTimeout(limit) => {
                let message = format!("the request took longer than {} s", limit.as_secs_f64());
                Self::unavailable("timeout", message, None)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs_f64().ceil().max(1.0) as u64));
        }
        // What failed by a mistake here fails again; SDKs would generate all of it three times.
        if matches!(self.code, Some("internal_error" | "timeout" | "storage_error")) {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_does_not_come_back_at_any_length() {
        let error = ApiError::model_not_found(&"é".repeat(1 << 20), &[]).with_param("x".repeat(1 << 20));
        assert!((MAX_MESSAGE..MAX_MESSAGE + 4).contains(&error.message.len()));
        assert_eq!(error.param.map(|param| param.len()), Some(MAX_PARAM + '…'.len_utf8()));
        assert_eq!(ApiError::invalid("n", "short").message, "short");
    }
}
