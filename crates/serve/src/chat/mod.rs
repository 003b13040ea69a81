//! `POST /v1/chat/completions`.

pub(crate) mod message;
pub(crate) mod request;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use futures_util::stream;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::message::ChatMessage;
use self::request::ChatRequest;
use super::Server;
use super::answer::Finish;
use super::body;
use super::choices::{Choices, News, Usage};
use super::error::ApiError;
use super::field::Field;
use super::keys::Caller;
use super::prompt;
use super::sse::{self, Event};
use super::tokens;
use engine::scheduler::Wish;

/// The field that a prompt is made of.
const PARAM: &str = "messages";

pub(crate) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/chat/completions", post(complete))
        .route("/chat/completions/input_tokens", post(input_tokens))
        .route("/apply-template", post(apply_template))
}

fn request_of(body: &Value) -> Result<ChatRequest, ApiError> {
    ChatRequest::read(&Field::body(body)?)
}

/// The prompt of a chat, and what it says of how its answer is drawn, by name.
pub(crate) async fn prompt_of(
    server: &Arc<Server>,
    caller: Caller,
    body: &Value,
) -> Result<(Map<String, Value>, Vec<u32>), ApiError> {
    let (request, prompt) = prompt::of(server, caller, request_of(body)?, ChatRequest::parts, PARAM).await?;
    let room = server.backend.model().context_tokens - prompt.ids.len();
    let max_tokens = request.ask.max_tokens.map_or(room, |most| most.min(room));
    let mut said = Map::from_iter([("max_tokens".to_owned(), Value::from(max_tokens))]);
    let mut wishes = request.ask.sampling.wishes;
    for (name, wish) in wishes.fields() {
        let value = match wish {
            Wish::Number(value, _) => value.map(Value::from),
            Wish::Count(value) | Wish::Bits(value) => value.map(Value::from),
        };
        said.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok((said, prompt.ids))
}

async fn input_tokens(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    let request = request_of(&body)?;
    drop(body);
    let (_, prompt) = prompt::of(&server, caller, request, ChatRequest::parts, PARAM).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": prompt.ids.len()})))
}

async fn apply_template(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    let request = request_of(&body)?;
    drop(body);
    let (_, prompt) = prompt::of(&server, caller, request, ChatRequest::parts, PARAM).await?;
    tokens::applied(&server, &prompt.ids)
}

async fn complete(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Response, ApiError> {
    let request = request_of(&body)?;
    drop(body);
    let model = server.check_model(request.ask.model.as_deref())?;
    let (request, prompt) = prompt::of(&server, caller, request, ChatRequest::parts, PARAM).await?;
    let choices = prompt::start(&server, caller, &request.ask, prompt, request.n, PARAM).await?;
    let head = Head {
        id: server.ids.next("chatcmpl-"),
        created: super::now(),
        model,
        system_fingerprint: server.backend.model().fingerprint.clone(),
    };
    let messages = vec![ChatChoice::default(); choices.count()];
    let chunk_head = sse::Head::new(&head.json("chat.completion.chunk"));
    let answers = Answers { head, chunk_head, messages, server, choices, request };
    if answers.request.ask.stream {
        Ok(sse::response(stream::unfold(Box::new(Telling::new(answers)), Telling::next)))
    } else {
        Ok(Json(answers.whole().await?).into_response())
    }
}

/// What an answer and all of its chunks say.
struct Head {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

/// The answers of a request, as far as they are known.
struct Answers {
    server: Arc<Server>,
    request: ChatRequest,
    head: Head,
    chunk_head: sse::Head,
    choices: Choices,
    messages: Vec<ChatChoice>,
}

#[derive(Clone, Debug, Default)]
struct ChatChoice {
    message: ChatMessage,
    has_begun: bool,
    finish: Option<Finish>,
}

impl Answers {
    async fn whole(mut self) -> Result<Value, ApiError> {
        while let Some(news) = self.choices.next().await {
            let News { index, steps, finish } = news?;
            let said = &mut self.messages[index];
            for step in steps {
                said.message.take(step);
            }
            said.finish = finish;
        }
        let choices: Vec<Value> =
            self.messages.iter().enumerate().map(|(index, said)| self.choice(index, said)).collect();
        let mut answer = self.head.json("chat.completion");
        answer["service_tier"] = "default".into();
        answer["choices"] = choices.into();
        answer["usage"] = usage_json(self.choices.usage());
        Ok(answer)
    }

    fn choice(&self, index: usize, said: &ChatChoice) -> Value {
        let wants_logprobs = self.request.ask.n_logprobs.is_some();
        let logprobs = if wants_logprobs { said.message.logprobs(&self.server.tokenizer) } else { Value::Null };
        json!({
            "index": index,
            "message": said.message.json(self.request.exclude_reasoning),
            "logprobs": logprobs,
            "finish_reason": said.finish.map(Finish::name),
        })
    }

    /// The chunks of some news.
    fn chunks(&mut self, news: News) -> Event {
        let News { index, steps, finish } = news;
        let mut chunks = Event::default();
        if !self.messages[index].has_begun && (self.choices.answer(index).n_tokens() > 0 || finish.is_some()) {
            self.messages[index].has_begun = true;
            chunks.push(&self.chunk(index, json!({"role": "assistant", "content": ""}), Value::Null, None));
        }
        for step in steps {
            let Some(delta) = self.messages[index].message.take(step) else { continue };
            if delta.is_reasoning() && self.request.exclude_reasoning {
                continue;
            }
            let logprobs = delta.logprobs(&self.server.tokenizer);
            chunks.push(&self.chunk(index, delta.json(), logprobs, None));
        }
        if let Some(finish) = finish {
            chunks.push(&self.chunk(index, json!({}), Value::Null, Some(finish)));
        }
        chunks
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Option<Finish>) -> Event {
        let usage = match (self.request.continuous_usage, self.request.include_usage) {
            (true, _) => Some(usage_json(self.choices.usage())),
            (false, true) => Some(Value::Null),
            (false, false) => None,
        };
        let choice = ChunkChoice { index, delta, logprobs, finish_reason: finish.map(Finish::name) };
        self.chunk_head.event(&Chunk { choices: &[choice], usage })
    }

    fn usage_chunk(&self) -> Event {
        let usage = Some(usage_json(self.choices.usage()));
        self.chunk_head.event(&Chunk { choices: &[], usage })
    }
}

/// What follows the head of a chunk.
#[derive(Serialize)]
struct Chunk<'a> {
    choices: &'a [ChunkChoice],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Value,
    logprobs: Value,
    finish_reason: Option<&'static str>,
}

/// The stream of the answers. Boxed, because it is moved for every event.
struct Telling {
    answers: Answers,
    is_over: bool,
}

impl Telling {
    fn new(answers: Answers) -> Self {
        Self { answers, is_over: false }
    }

    /// The events for the next steps that are sent.
    async fn next(mut self: Box<Self>) -> Option<(Event, Box<Self>)> {
        while !self.is_over {
            let events = match self.answers.choices.next().await {
                Some(Ok(news)) => self.answers.chunks(news),
                // The head was sent: an error is a chunk, and no `[DONE]` comes after it.
                Some(Err(error)) => {
                    self.is_over = true;
                    Event::data(&error.body().to_string())
                }
                None => {
                    self.is_over = true;
                    let usage = self.answers.request.include_usage.then(|| self.answers.usage_chunk());
                    let mut last = usage.unwrap_or_default();
                    last.push(&Event::data("[DONE]"));
                    last
                }
            };
            if !events.is_empty() {
                return Some((events, self));
            }
        }
        None
    }
}

impl Head {
    fn json(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        })
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_answer,
        "total_tokens": usage.n_prompt + usage.n_answer,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached},
        "completion_tokens_details": {"reasoning_tokens": usage.n_reasoning},
    })
}
