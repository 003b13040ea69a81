//! The body of `POST /v1/responses`.

use serde_json::{Map, Value, json};

use super::items::{self, KnownItems};
use crate::ask::Ask;
use crate::conversation::ConversationItem;
use crate::error::ApiError;
use crate::field::{Field, refuse};
use crate::form::TextFormat;
use crate::tools::{Hosted, Tools};
use chat::request_fields::Place;
use engine::scheduler::Sampling;

/// What answers have only if they are asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    Logprobs,
    Sealed,
}

/// What `include` may name. What this server never has is satisfied by leaving it out.
const INCLUDABLE: [(&str, Option<Include>); 8] = [
    ("message.output_text.logprobs", Some(Include::Logprobs)),
    ("reasoning.encrypted_content", Some(Include::Sealed)),
    ("file_search_call.results", None),
    ("web_search_call.results", None),
    ("web_search_call.action.sources", None),
    ("message.input_image.image_url", None),
    ("computer_call_output.output.image_url", None),
    ("code_interpreter_call.outputs", None),
];

/// A request for a response. What becomes of fields that are not read here is in [`chat::request_fields`].
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    /// What it has in common with others.
    pub(crate) ask: Ask,
    /// Instructions of this request alone.
    pub(crate) instructions: Option<String>,
    /// What it adds to the conversation.
    pub(crate) entries: Vec<ConversationItem>,
    /// The same as items, as they came.
    pub(crate) input: Vec<Value>,
    /// The response that it follows.
    pub(crate) previous: Option<String>,
    /// Whether others may follow it.
    pub(crate) store: bool,
    /// Messages tell how probable their tokens were.
    pub(crate) has_logprobs: bool,
    /// Reasoning is sealed for the client to carry.
    pub(crate) is_sealed: bool,
    /// Leave out the oldest of a conversation that is too long.
    pub(crate) truncates: bool,
    /// What the response repeats of it.
    pub(crate) echo: Map<String, Value>,
}

impl ResponsesRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// What is missing, wrong or not supported, with its path.
    pub(crate) fn read(body: &Field, known: &dyn KnownItems) -> Result<Self, ApiError> {
        refuse(body, Place::Responses)?;
        let tools = Tools::read(body, Hosted::LeftOut)?;
        let text = body.get("text");
        let format = TextFormat::of_request(body, text.as_ref().and_then(|text| text.get("format")))?;
        let includes = body.get("include").map_or(Ok(Vec::new()), |include| include.list())?;
        let includes: Vec<_> = includes.iter().map(|name| name.one_of(&INCLUDABLE)).collect::<Result<_, _>>()?;
        let has_logprobs = includes.contains(&Some(Include::Logprobs));
        let top_logprobs = Ask::top_logprobs(body)?;
        let ask = Ask {
            max_tokens: Ask::max_tokens(body, &["max_output_tokens"])?,
            n_logprobs: has_logprobs.then(|| top_logprobs.unwrap_or(0)),
            ..Ask::read(body, tools, format)?
        };
        let (entries, input) = items::read(body.get("input"), known)?;
        let text_of = |name: &str| -> Result<Option<String>, ApiError> {
            body.get(name).map(|field| field.text().map(str::to_owned)).transpose()
        };
        Ok(Self {
            instructions: text_of("instructions")?.filter(|instructions| !instructions.is_empty()),
            previous: text_of("previous_response_id")?,
            store: body.get("store").map_or(Ok(true), |store| store.flag())?,
            truncates: body
                .get("truncation")
                .map_or(Ok(false), |way| way.one_of(&[("auto", true), ("disabled", false)]))?,
            has_logprobs,
            is_sealed: includes.contains(&Some(Include::Sealed)),
            entries,
            input,
            echo: echo(body, &ask)?,
            ask,
        })
    }
}

/// What a response says of its request, with what holds where that said nothing.
fn echo(body: &Field, ask: &Ask) -> Result<Map<String, Value>, ApiError> {
    let given = |name: &str| body.get(name).map_or(Value::Null, |field| field.value().clone());
    let or = |name: &str, absent: Value| body.get(name).map_or(absent, |field| field.value().clone());
    let mut text = or("text", json!({}));
    if let Some(text) = text.as_object_mut().filter(|text| text.get("format").is_none_or(Value::is_null)) {
        text.insert("format".to_owned(), json!({"type": "text"}));
    }
    let reasoning = body.get("reasoning");
    let of_reasoning = |name: &str| reasoning.as_ref().and_then(|reasoning| reasoning.get(name));
    let effort = of_reasoning("effort").map_or_else(|| json!("medium"), |effort| effort.value().clone());
    let summary = of_reasoning("summary").map_or(Value::Null, |summary| summary.value().clone());
    // What is said back is of the types that the API has, whoever reads it.
    if let Some(metadata) = body.get("metadata") {
        for name in metadata.object()?.value().as_object().into_iter().flat_map(Map::keys) {
            metadata.need(name)?.text()?;
        }
    }
    for name in ["prompt_cache_key", "safety_identifier", "user"] {
        body.get(name).map(|field| field.text()).transpose()?;
    }
    for name in ["parallel_tool_calls", "store"] {
        body.get(name).map(|field| field.flag()).transpose()?;
    }
    body.get("max_tool_calls").map(|field| field.integer(1..=i64::MAX)).transpose()?;
    let echo = json!({
        "background": false,
        "instructions": given("instructions"),
        "max_output_tokens": given("max_output_tokens"),
        "max_tool_calls": given("max_tool_calls"),
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": given("previous_response_id"),
        "prompt_cache_key": given("prompt_cache_key"),
        "reasoning": {"effort": effort, "summary": summary},
        "safety_identifier": given("safety_identifier"),
        "service_tier": "default",
        "store": or("store", json!(true)),
        "temperature": ask.sampling.wishes.temperature.unwrap_or(Sampling::ADVISED.temperature),
        "text": text,
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": tools(body)?,
        "top_logprobs": or("top_logprobs", json!(0)),
        "top_p": ask.sampling.wishes.top_p.unwrap_or(Sampling::ADVISED.top_p),
        "truncation": or("truncation", json!("disabled")),
    });
    let Value::Object(mut echo) = echo else { unreachable!("it is written as one above") };
    // The API's description lets this be absent, and not null.
    echo.extend(body.get("user").map(|user| ("user".to_owned(), user.value().clone())));
    Ok(echo)
}

/// The tools that a model is offered, with what the API's schema wants of functions. Hosted ones are left out here too.
fn tools(body: &Field) -> Result<Value, ApiError> {
    let mut tools = body.get("tools").map_or(Ok(Vec::new()), |tools| tools.list())?;
    tools.retain(|tool| ["function", "namespace", "custom"].iter().any(|kind| tool.value()["type"] == *kind));
    let whole = |tool: &Field| {
        let mut tool = tool.value().clone();
        let is_function = tool["type"] == "function";
        if let Some(custom) = tool.as_object_mut().filter(|tool| tool["type"] == "custom") {
            custom.retain(|_, value| !value.is_null());
        }
        if let Some(function) = tool.as_object_mut().filter(|_| is_function) {
            function.entry("parameters").or_insert(Value::Null);
            let strict = function.entry("strict").or_insert(Value::Bool(true));
            if strict.is_null() {
                *strict = Value::Bool(true);
            }
        }
        tool
    };
    Ok(tools.iter().map(whole).collect())
}
