//! A response as an object, and the stream of events that builds it.

use serde_json::{Map, Value, json};

use super::output::{Output, StreamEvent, status};
use crate::answer::{AnswerDelta, Finish};
use crate::choices::Usage;
use crate::error::ApiError;

/// A response in the making.
#[derive(Clone, Debug)]
pub(crate) struct ResponseObject {
    pub(crate) id: String,
    /// When it was asked for, in seconds since 1970.
    pub(crate) created_at: u64,
    /// What it repeats of the request.
    pub(crate) echo: Map<String, Value>,
    pub(crate) output: Output,
    /// Events that were told.
    pub(crate) n_events: u64,
}

impl ResponseObject {
    /// The events before anything is known.
    pub(crate) fn begin(&mut self) -> Vec<(&'static str, Value)> {
        let response = self.json("in_progress", Value::Null, Value::Null, Value::Null);
        let told = |kind| StreamEvent { kind, fields: json!({ "response": response }) };
        [told("response.created"), told("response.in_progress")].map(|event| self.numbered(event)).into()
    }

    /// Takes a step of the answer.
    pub(crate) fn take(&mut self, step: AnswerDelta) -> Vec<(&'static str, Value)> {
        self.output.take(step).into_iter().map(|event| self.numbered(event)).collect()
    }

    pub(crate) fn finished(&self, finish: Finish, usage: Usage) -> Value {
        let (status, reason) = status(finish);
        self.json(status, reason, usage_json(usage), Value::Null)
    }

    pub(crate) fn end(&mut self, response: &Value) -> (&'static str, Value) {
        let is_whole = response["status"] == "completed";
        let kind = if is_whole { "response.completed" } else { "response.incomplete" };
        self.numbered(StreamEvent { kind, fields: json!({ "response": response }) })
    }

    /// The last event of a response that came to nothing.
    pub(crate) fn fail(&mut self, error: &ApiError) -> (&'static str, Value) {
        let error = json!({"code": "server_error", "message": error.message});
        let response = self.json("failed", Value::Null, Value::Null, error);
        self.numbered(StreamEvent { kind: "response.failed", fields: json!({ "response": response }) })
    }

    fn numbered(&mut self, event: StreamEvent) -> (&'static str, Value) {
        let mut fields = json!({"type": event.kind, "sequence_number": self.n_events});
        self.n_events += 1;
        if let (Some(all), Value::Object(own)) = (fields.as_object_mut(), event.fields) {
            all.extend(own);
        }
        (event.kind, fields)
    }

    fn json(&self, status: &str, incomplete_reason: Value, usage: Value, error: Value) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": null,
            "error": error,
            "incomplete_details": incomplete_reason,
            "output": self.output.json(),
            "usage": usage,
        });
        if status == "completed" {
            response["completed_at"] = crate::now().into();
        }
        if let Some(response) = response.as_object_mut() {
            response.extend(self.echo.clone());
        }
        response
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
        "output_tokens": usage.n_answer,
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_answer,
    })
}
