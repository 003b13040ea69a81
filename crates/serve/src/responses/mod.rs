//! `POST /v1/responses`, and the endpoints of stored responses.

pub(crate) mod items;
pub(crate) mod object;
pub(crate) mod output;
pub(crate) mod request;
pub mod store;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures_util::stream;
use serde_json::{Value, json};

use self::items::KnownItems;
use self::object::ResponseObject;
use self::output::Output;
use self::request::ResponsesRequest;
use self::store::{Page, Stored};
use super::Server;
use super::answer::AnswerDelta;
use super::body;
use super::choices::{Choices, News};
use super::conversation::ConversationItem;
use super::error::ApiError;
use super::field::Field;
use super::history::Scope;
use super::keys::Caller;
use super::prompt;
use super::sse::{self, Event, NamedEvent};
use chat::chat_format::Prompt;
use chat::{AssistantMessage, MessagePart};

/// The field that a prompt is made of.
const PARAM: &str = "input";

pub(crate) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/responses", post(respond))
        .route("/responses/input_tokens", post(input_tokens))
        .route("/responses/{id}", get(stored).delete(delete))
        .route("/responses/{id}/cancel", post(cancel))
        .route("/responses/{id}/input_items", get(input_items))
}

async fn respond(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Response, ApiError> {
    let request = ResponsesRequest::read(&Field::body(&body)?, &Scoped { server: &server, scope: caller.0 })?;
    drop(body);
    let model = server.check_model(request.ask.model.as_deref())?;
    let Prompted { request, entries, prompt } = prompted(&server, caller, request).await?;
    let choices = prompt::start(&server, caller, &request.ask, prompt, 1, PARAM).await?;
    let id = server.ids.next("");
    let mut echo = request.echo;
    echo.insert("model".to_owned(), model.into());
    let object = ResponseObject {
        output: Output::new(id.clone(), server.tokenizer.clone(), request.has_logprobs),
        id: store::response_id(&id),
        created_at: super::now(),
        echo,
        n_events: 0,
    };
    let stream = request.ask.stream;
    let keep = request.store.then(|| (input_with_ids(&id, request.input), entries));
    let making = Making { server, caller, choices, object, keep, is_sealed: request.is_sealed };
    if stream {
        Ok(sse::response(stream::unfold(Box::new(Telling::new(making)), Telling::next)))
    } else {
        Ok(Json(making.whole().await?).into_response())
    }
}

async fn input_tokens(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    let request = ResponsesRequest::read(&Field::body(&body)?, &Scoped { server: &server, scope: caller.0 })?;
    drop(body);
    let Prompted { prompt, .. } = prompted(&server, caller, request).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": prompt.ids.len()})))
}

/// A request, the conversation that it goes on with, less its instructions, and its prompt.
struct Prompted {
    request: ResponsesRequest,
    entries: Vec<ConversationItem>,
    prompt: Prompt,
}

async fn prompted(server: &Arc<Server>, caller: Caller, request: ResponsesRequest) -> Result<Prompted, ApiError> {
    let mut entries = match &request.previous {
        None => Vec::new(),
        Some(id) => {
            let previous = server.responses.get(caller.0, id).ok_or_else(|| {
                let message = format!("there is no response `{id}` to follow: it was not stored, or has expired");
                ApiError::bad_request("previous_response_not_found", message).with_param("previous_response_id")
            })?;
            previous.continued()
        }
    };
    entries.extend(request.entries.iter().cloned());
    if entries.is_empty() {
        return Err(ApiError::missing(PARAM));
    }
    let (shared, is_long) = (Arc::clone(server), prompt::is_long(&entries));
    let work = move |is_wanted: &dyn Fn() -> bool| {
        let instructions = request.instructions.clone().map(ConversationItem::Developer);
        let prompt = |entries: &[&ConversationItem]| {
            let all: Vec<&ConversationItem> = instructions.iter().chain(entries.iter().copied()).collect();
            prompt::build(&shared, caller, &request.ask, &all, PARAM, is_wanted)
        };
        let (left_out, prompt) = shortest_cut(&entries, request.truncates, prompt)?;
        entries.drain(left_out);
        Ok(Prompted { request, entries, prompt })
    };
    server.long_work.run(is_long, work).await?
}

/// The prompt of a conversation and what had to be left out for it, if that is wanted: as few as can be of the oldest
/// things that the person said, each with all that followed up to what the person said next.
fn shortest_cut<T>(
    entries: &[ConversationItem],
    truncates: bool,
    prompt: impl Fn(&[&ConversationItem]) -> Result<T, ApiError>,
) -> Result<(Range<usize>, T), ApiError> {
    let first = entries.iter().take_while(|entry| matches!(entry, ConversationItem::Developer(_))).count();
    let all: Vec<&ConversationItem> = entries.iter().collect();
    let too_long = match prompt(&all) {
        Err(error) if truncates && is_too_long(&error) => error,
        whole => return whole.map(|prompt| (first..first, prompt)),
    };
    let cuts = cuts(entries, first);
    let mut best = Err(too_long);
    // The more is left out, the shorter: cuts that do not do come before those that do.
    let (mut from, mut to) = (0, cuts.len());
    while from < to {
        // The longest cut first: there may be none that does.
        let middle = if best.is_err() { to - 1 } else { usize::midpoint(from, to) };
        match prompt(&[&all[..first], &all[cuts[middle]..]].concat()) {
            Err(error) if is_too_long(&error) && best.is_err() => return Err(error),
            Err(error) if is_too_long(&error) => from = middle + 1,
            fits => (to, best) = (middle, Ok((first..cuts[middle], fits?))),
        }
    }
    best
}

/// The things that the person said after `first` up to which entries can be left out: what stays has a call for every
/// result, by id, as [`super::conversation`] wants it. Ids may come again.
fn cuts(entries: &[ConversationItem], first: usize) -> Vec<usize> {
    // From the end: by id how many more results than calls there are, and how many ids have more.
    let (mut more, mut n_lacking) = (HashMap::<&str, isize>::new(), 0);
    let mut cuts = Vec::new();
    for (i, entry) in entries.iter().enumerate().skip(first + 1).rev() {
        let mut count = |id, n| {
            let more = more.entry(id).or_default();
            let was = *more > 0;
            *more += n;
            n_lacking = n_lacking + usize::from(*more > 0) - usize::from(was);
        };
        match entry {
            ConversationItem::Assistant(turn) => turn.iter().filter_map(call_id).for_each(|id| count(id, -1)),
            ConversationItem::Made(turn) => turn.iter().filter_map(call_id).for_each(|id| count(id, -1)),
            ConversationItem::Result { call_id, .. } => count(call_id, 1),
            ConversationItem::User(_) if n_lacking == 0 => cuts.push(i),
            ConversationItem::User(_) | ConversationItem::Developer(_) => {}
        }
    }
    cuts.reverse();
    cuts
}

fn call_id(made: &AssistantMessage) -> Option<&str> {
    if let MessagePart::Call { id, .. } = &made.part { Some(id) } else { None }
}

fn is_too_long(error: &ApiError) -> bool {
    error.code == Some("context_length_exceeded")
}

/// What the server has for a caller.
struct Scoped<'a> {
    server: &'a Server,
    scope: Scope,
}

impl KnownItems for Scoped<'_> {
    fn item(&self, id: &str) -> Option<Value> {
        let stored = self.server.responses.get(self.scope, &store::response_of(id)?)?;
        stored.item(id).cloned()
    }

    fn sealed(&self, text: &str) -> Option<AssistantMessage> {
        self.server.seal.open(self.scope, text)
    }
}

/// The items as they can be asked for again. Ids of those that have none are made of the response's `id`, by which they
/// are found.
fn input_with_ids(id: &str, mut input: Vec<Value>) -> Vec<Value> {
    for (i, item) in input.iter_mut().enumerate() {
        let Some(item) = item.as_object_mut() else { continue };
        item.entry("type").or_insert_with(|| "message".into());
        if item.get("id").is_none_or(Value::is_null) {
            item.insert("id".to_owned(), format!("msg_{id}-input-{i}").into());
        }
    }
    input
}

fn not_found(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no response `{id}`: it was not stored, or has expired"))
}

async fn stored(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let stored = server.responses.get(caller.0, &id).ok_or_else(|| not_found(&id))?;
    Ok(Json(stored.response.clone()))
}

async fn delete(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if server.responses.delete(caller.0, &id) {
        Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
    } else {
        Err(not_found(&id))
    }
}

/// Only what runs in the background can be cancelled, and nothing does: who leaves a response ends it.
async fn cancel(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    server.responses.get(caller.0, &id).ok_or_else(|| not_found(&id))?;
    let message = format!("`{id}` does not run in the background: close its connection to cancel it");
    Err(ApiError::bad_request("invalid_value", message))
}

async fn input_items(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, ApiError> {
    let stored = server.responses.get(caller.0, &id).ok_or_else(|| not_found(&id))?;
    Ok(Json(page.json(&stored.input)))
}

/// A response in the making.
struct Making {
    server: Arc<Server>,
    caller: Caller,
    choices: Choices,
    object: ResponseObject,
    /// Its input and the conversation before it, if it is to be stored.
    keep: Option<(Vec<Value>, Vec<ConversationItem>)>,
    /// Reasoning is sealed for the client.
    is_sealed: bool,
}

impl Making {
    /// Seals the open item, if it is reasoning. An item has the place that its message has in the turn.
    fn seal(&mut self) {
        let output = &mut self.object.output;
        let made = output.open_index().and_then(|index| self.choices.answer(0).turn().get(index));
        output.set_sealed(made.and_then(|made| self.server.seal.close(self.caller.0, made)));
    }

    async fn whole(mut self) -> Result<Value, ApiError> {
        loop {
            let news = self.choices.next().await.unwrap_or_else(|| Err(ApiError::internal("an answer has no end")))?;
            let (_, response) = self.take(news);
            if let Some(response) = response {
                return Ok(response);
            }
        }
    }

    /// Takes some news: its events, and the response if it is complete.
    fn take(&mut self, news: News) -> (Vec<NamedEvent>, Option<Value>) {
        let News { steps, finish, .. } = news;
        let mut events = Vec::new();
        for step in steps {
            if self.is_sealed && matches!(step, AnswerDelta::Closed { .. }) {
                self.seal();
            }
            events.extend(self.object.take(step));
        }
        let response = finish.map(|finish| self.object.finished(finish, self.choices.usage()));
        if let (Some(response), Some((input, entries))) = (&response, self.keep.take_if(|_| response.is_some())) {
            let turn = Arc::new(self.choices.answer(0).turn().clone());
            let stored = Stored { response: response.clone(), input, entries, turn };
            self.server.responses.keep(self.caller.0, &self.object.id, stored);
        }
        (events, response)
    }
}

/// The stream of a response. Boxed, because it is moved for every event.
struct Telling {
    making: Making,
    ready: Vec<NamedEvent>,
    is_over: bool,
}

impl Telling {
    fn new(mut making: Making) -> Self {
        let ready = making.object.begin();
        Self { making, ready, is_over: false }
    }

    async fn next(mut self: Box<Self>) -> Option<(Event, Box<Self>)> {
        loop {
            if let Some(events) = Event::of_ready(&mut self.ready) {
                return Some((events, self));
            }
            if self.is_over {
                return None;
            }
            match self.making.choices.next().await? {
                Ok(news) => {
                    let (events, response) = self.making.take(news);
                    self.ready.extend(events);
                    if let Some(response) = response {
                        self.ready.push(self.making.object.end(&response));
                        self.is_over = true;
                    }
                }
                Err(error) => {
                    self.ready.push(self.making.object.fail(&error));
                    self.is_over = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> ConversationItem {
        ConversationItem::User(text.into())
    }

    fn call(id: &str) -> ConversationItem {
        let (id, name, arguments) = (id.into(), "f".into(), "{}".into());
        ConversationItem::Assistant(vec![MessagePart::Call { id, name, arguments, is_text: false }.into()])
    }

    fn result(call_id: &str) -> ConversationItem {
        ConversationItem::Result { call_id: call_id.into(), text: "3".into(), path: "input[0]".into() }
    }

    /// Bytes of what the person says, at most `max`; a result without its call is another error.
    fn prompt(entries: &[&ConversationItem], max: usize) -> Result<usize, ApiError> {
        let n_calls = |id: &str| entries.iter().filter(|entry| **entry == &call(id)).count();
        for entry in entries {
            if let ConversationItem::Result { call_id, .. } = entry
                && entries.iter().filter(|entry| **entry == &result(call_id)).count() > n_calls(call_id)
            {
                return Err(ApiError::invalid("input", "no call"));
            }
        }
        let n = entries.iter().map(|entry| if let ConversationItem::User(text) = entry { text.len() } else { 0 }).sum();
        if n > max { Err(ApiError::more_than_context("input", max)) } else { Ok(n) }
    }

    /// For every length of the context: one cut after the other, as few as can be.
    fn check(entries: &[ConversationItem], cuts: &[usize], n_bytes: usize) {
        for max in 0..25 {
            let of = |at: usize| prompt(&entries[..1].iter().chain(&entries[at..]).collect::<Vec<_>>(), max);
            let want = cuts.iter().find_map(|&at| of(at).ok().map(|n| (1..at, n)));
            let found = shortest_cut(entries, true, |entries| prompt(entries, max));
            match want {
                Some(want) => assert_eq!(found, Ok(want), "{max}"),
                None => assert!(found.is_err_and(|error| is_too_long(&error)), "{max}"),
            }
            let whole = shortest_cut(entries, false, |entries| prompt(entries, max));
            assert_eq!(whole.is_ok(), max >= n_bytes, "{max}");
        }
    }

    #[test]
    fn as_little_is_left_out_as_can_be_and_no_result_is_without_its_call() {
        let entries = [
            ConversationItem::Developer("d".into()),
            user("aaaaaaaa"),
            user("bb"),
            call("1"),
            user("ccc"),
            result("1"),
            user("d"),
            user("eeee"),
            call("2"),
            result("2"),
            user("f"),
        ];
        check(&entries, &[1, 2, 6, 7, 10], 19);
    }

    #[test]
    fn ids_of_calls_may_come_again() {
        let entries = [
            ConversationItem::Developer("d".into()),
            user("aaaaaaaa"),
            call("0"),
            result("0"),
            user("bb"),
            call("0"),
            user("ccc"), // what is behind it has more results than calls
            result("0"),
            user("dddd"),
            call("0"),
            result("0"),
        ];
        check(&entries, &[1, 4, 8], 17);
    }
}
