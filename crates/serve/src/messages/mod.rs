//! `POST /v1/messages`, Anthropic's API, and `count_tokens`.

mod request;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use futures_util::stream;
use serde_json::{Value, json};

use self::request::MessagesRequest;
use super::Server;
use super::answer::{AnswerDelta, Finish, Kind};
use super::body;
use super::choices::{Choices, News, Usage};
use super::error::ApiError;
use super::field::Field;
use super::keys::Caller;
use super::prompt;
use super::request_log::Record;
use super::sse::{self, Event, NamedEvent};
use super::tools::Tools;

/// The field that a prompt is made of.
const PARAM: &str = "messages";

pub(crate) fn router() -> Router<Arc<Server>> {
    Router::new().route("/messages", post(answer)).route("/messages/count_tokens", post(count_tokens))
}

fn read(server: &Server, caller: Caller, body: &Value) -> Result<MessagesRequest, ApiError> {
    MessagesRequest::read(&Field::body(body)?, &|text| server.seal.open(caller.0, text))
}

async fn count_tokens(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(mut body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    if let Some(body) = body.as_object_mut() {
        body.entry("max_tokens").or_insert(1.into());
    }
    let request = read(&server, caller, &body)?;
    drop(body);
    let (_, prompt) = prompt::of(&server, caller, request, MessagesRequest::parts, PARAM).await?;
    Ok(Json(json!({"input_tokens": prompt.ids.len()})))
}

async fn answer(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Response, ApiError> {
    let request = read(&server, caller, &body)?;
    drop(body);
    let model = server.check_model(request.ask.model.as_deref())?;
    let (request, prompt) = prompt::of(&server, caller, request, MessagesRequest::parts, PARAM).await?;
    let choices = prompt::start(&server, caller, &request.ask, prompt, 1, PARAM).await?;
    let id = server.ids.next("msg_");
    let (is_streamed, shows_thinking) = (request.ask.stream, request.shows_thinking);
    let (blocks, open, n_items) = (Vec::new(), None, 0);
    let making = Making { server, caller, choices, id, model, shows_thinking, blocks, open, n_items };
    if is_streamed {
        let telling = Telling { making, ready: Vec::new(), has_begun: false, is_over: false };
        Ok(sse::response(stream::unfold(Box::new(telling), Telling::next)))
    } else {
        Ok(Json(making.whole().await?).into_response())
    }
}

/// A part of a message.
#[derive(Clone, Debug)]
struct Block {
    kind: Kind,
    text: String,
    /// Thoughts, sealed: they come back as the model wrote them.
    signature: String,
}

/// A message in the making.
struct Making {
    server: Arc<Server>,
    caller: Caller,
    choices: Choices,
    id: String,
    model: String,
    shows_thinking: bool,
    blocks: Vec<Block>,
    /// The open block, if it is sent.
    open: Option<usize>,
    /// Items that the model began, told or not.
    n_items: usize,
}

impl Making {
    async fn whole(mut self) -> Result<Value, ApiError> {
        loop {
            let news = self.choices.next().await.unwrap_or_else(|| Err(ApiError::internal("an answer has no end")))?;
            let finish = news.finish;
            self.take(news);
            if let Some(finish) = finish {
                let content: Vec<Value> = self.blocks.iter().map(Block::json).collect();
                let mut message = self.message(&content);
                message["stop_reason"] = self.stop_reason(finish).into();
                message["stop_sequence"] = self.choices.answer(0).stop_found().into();
                return Ok(message);
            }
        }
    }

    fn message(&self, content: &[Value]) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(self.choices.usage()),
        })
    }

    fn stop_reason(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::Length => "max_tokens",
            Finish::ToolCalls => "tool_use",
            Finish::Stop if self.choices.answer(0).stop_found().is_some() => "stop_sequence",
            Finish::Stop => "end_turn",
        }
    }

    /// Takes some news, and gives the events that tell of it.
    fn take(&mut self, news: News) -> Vec<NamedEvent> {
        let mut events = Vec::new();
        for step in news.steps {
            match step {
                AnswerDelta::Opened(kind) => {
                    self.n_items += 1;
                    self.open = (self.shows_thinking || kind != Kind::Reasoning).then_some(self.blocks.len());
                    if let Some(index) = self.open {
                        let block = Block { kind, text: String::new(), signature: String::new() };
                        events.push(event("content_block_start", index, "content_block", block.json()));
                        self.blocks.push(block);
                    }
                }
                AnswerDelta::Text { text, .. } => {
                    if let Some((index, block)) = self.open_block() {
                        block.text += &text;
                        let delta = match block.kind {
                            Kind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
                            Kind::Message(_) => json!({"type": "text_delta", "text": text}),
                            Kind::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
                        };
                        events.push(event("content_block_delta", index, "delta", delta));
                    }
                }
                AnswerDelta::Closed { .. } => {
                    let made = self.choices.answer(0).turn().get(self.n_items - 1);
                    let sealed = made.and_then(|made| self.server.seal.close(self.caller.0, made));
                    if let Some((index, block)) = self.open_block() {
                        if block.kind == Kind::Reasoning {
                            block.signature = sealed.unwrap_or_default();
                            let delta = json!({"type": "signature_delta", "signature": block.signature});
                            events.push(event("content_block_delta", index, "delta", delta));
                        }
                        events.push(("content_block_stop", json!({"type": "content_block_stop", "index": index})));
                    }
                    self.open = None;
                }
            }
        }
        if let Some(finish) = news.finish {
            let stop = self.choices.answer(0).stop_found();
            let delta = json!({"stop_reason": self.stop_reason(finish), "stop_sequence": stop});
            let usage = usage(self.choices.usage());
            events.push(("message_delta", json!({"type": "message_delta", "delta": delta, "usage": usage})));
            events.push(("message_stop", json!({"type": "message_stop"})));
        }
        events
    }

    fn open_block(&mut self) -> Option<(usize, &mut Block)> {
        let index = self.open?;
        Some((index, self.blocks.get_mut(index)?))
    }
}

fn event(kind: &'static str, index: usize, what: &str, value: Value) -> NamedEvent {
    (kind, json!({"type": kind, "index": index, what: value}))
}

impl Block {
    fn json(&self) -> Value {
        match &self.kind {
            Kind::Reasoning => json!({"type": "thinking", "thinking": self.text, "signature": self.signature}),
            Kind::Message(_) => json!({"type": "text", "text": self.text}),
            Kind::Call { id, function } => {
                let name = Tools::name_in_prompt(&function.name, function.namespace.as_deref());
                json!({"type": "tool_use", "id": id, "name": name, "input": self.input()})
            }
        }
    }

    /// The arguments of a call, which have to be an object: others, and those that were cut, are in one as a text.
    fn input(&self) -> Value {
        let input = serde_json::from_str(&self.text).ok().filter(Value::is_object);
        let is_empty = self.text.trim().is_empty();
        input.unwrap_or_else(|| if is_empty { json!({}) } else { json!({"raw_arguments": self.text}) })
    }
}

/// Tokens that were computed before are apart from the others.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.n_prompt - usage.n_cached,
        "cache_read_input_tokens": usage.n_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.n_answer,
    })
}

/// The stream of a message. Boxed, because it is moved for every event.
struct Telling {
    making: Making,
    ready: Vec<NamedEvent>,
    has_begun: bool,
    is_over: bool,
}

impl Telling {
    async fn next(mut self: Box<Self>) -> Option<(Event, Box<Self>)> {
        loop {
            if let Some(events) = Event::of_ready(&mut self.ready) {
                return Some((events, self));
            }
            if self.is_over {
                return None;
            }
            let news = self.making.choices.next().await?;
            if !self.has_begun {
                self.has_begun = true;
                let mut message = self.making.message(&[]);
                message["usage"]["output_tokens"] = 0.into();
                self.ready.push(("message_start", json!({"type": "message_start", "message": message})));
            }
            match news {
                Ok(news) => {
                    self.is_over = news.finish.is_some();
                    let events = self.making.take(news);
                    self.ready.extend(events);
                }
                Err(error) => {
                    self.ready.push(("error", shaped(&error, None)));
                    self.is_over = true;
                }
            }
        }
    }
}

/// An error as this API has it.
fn shaped(error: &ApiError, request_id: Option<&str>) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        408 => "timeout_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id})
}

/// Gives errors of this API's paths its form, wherever they come from.
pub(crate) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let is_ours = path == "/messages" || path == "/messages/count_tokens";
    let id = Record::current().map(|record| record.id.clone());
    let response = next.run(request).await;
    match response.extensions().get::<Arc<ApiError>>().cloned() {
        Some(error) if is_ours => {
            let (mut head, _) = response.into_parts();
            let body = Json(shaped(&error, id.as_deref())).into_response();
            head.headers.remove(axum::http::header::CONTENT_LENGTH);
            Response::from_parts(head, body.into_body())
        }
        _ => response,
    }
}
