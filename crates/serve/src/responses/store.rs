//! Stored responses, which clients can ask for again and later requests can refer to.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use crate::conversation::ConversationItem;
use crate::history::{AssistantTurn, Scope, size_bytes};
use crate::lru_map::{LruLimits, LruMaps};
use crate::request_log;

const LIMITS: LruLimits =
    LruLimits { max_entries: 10_000, max_bytes: 256 << 20, max_age: Duration::from_secs(24 * 60 * 60) };

/// The id of the response whose items have ids made of `id`.
pub(crate) fn response_id(id: &str) -> String {
    format!("resp_{id}")
}

/// The response that an item's id is made of: `rs_ID-0` is of `resp_ID`.
pub(crate) fn response_of(item_id: &str) -> Option<String> {
    let (_, id) = item_id.split_once('_')?;
    Some(response_id(id.split_once('-')?.0))
}

/// A response and what led to it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) response: Value,
    /// The items that it was asked with, each with an id.
    pub(crate) input: Vec<Value>,
    /// The conversation before it, less the instructions.
    pub(crate) entries: Vec<ConversationItem>,
    /// What the model made.
    pub(crate) turn: Arc<AssistantTurn>,
}

/// The responses of the last day, as far as there is room. Responses of batches have their own room.
#[derive(Debug)]
pub struct Store {
    responses: Mutex<LruMaps<(Scope, String), Arc<Stored>>>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(LIMITS)
    }
}

impl Store {
    pub(crate) fn new(limits: LruLimits) -> Self {
        Self { responses: Mutex::new(LruMaps::new(limits)) }
    }

    pub(crate) fn keep(&self, scope: Scope, id: &str, stored: Stored) {
        let bytes = stored.size_bytes();
        self.lock().insert((scope, id.to_owned()), Arc::new(stored), bytes, request_log::is_background());
    }

    /// The response of this id, if it is there and of this scope.
    pub(crate) fn get(&self, scope: Scope, id: &str) -> Option<Arc<Stored>> {
        self.lock().get(&(scope, id.to_owned())).cloned()
    }

    /// Forgets a response; false if there was none.
    pub(crate) fn delete(&self, scope: Scope, id: &str) -> bool {
        self.lock().remove(&(scope, id.to_owned())).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, LruMaps<(Scope, String), Arc<Stored>>> {
        self.responses.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Stored {
    /// The conversation that the next response goes on with.
    pub(crate) fn continued(&self) -> Vec<ConversationItem> {
        let mut entries = self.entries.clone();
        entries.push(ConversationItem::Made(Arc::clone(&self.turn)));
        entries
    }

    /// The item of this id, of the response or of its input.
    pub(crate) fn item(&self, id: &str) -> Option<&Value> {
        let output = self.response["output"].as_array().into_iter().flatten();
        output.chain(&self.input).find(|item| item["id"] == id)
    }

    fn size_bytes(&self) -> usize {
        let json = |value: &Value| value.to_string().len();
        let entries: usize = self.entries.iter().map(ConversationItem::size_bytes).sum();
        json(&self.response) + self.input.iter().map(json).sum::<usize>() + entries + size_bytes(&self.turn)
    }
}

/// A part of a list, as the API pages through lists.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub(crate) struct Page {
    /// Items at most, clamped to 1 to 100; `None` is 20.
    pub(crate) limit: Option<usize>,
    /// `asc`, or `desc`: the last item first.
    pub(crate) order: Option<String>,
    /// Items after the one with this id.
    pub(crate) after: Option<String>,
}

impl Page {
    /// The items of the page.
    pub(crate) fn json(&self, items: &[Value]) -> Value {
        let mut items: Vec<&Value> = items.iter().collect();
        if self.order.as_deref() != Some("asc") {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let found = items.iter().position(|item| item["id"] == after.as_str());
            items.drain(..found.map_or(items.len(), |found| found + 1));
        }
        let limit = self.limit.unwrap_or(20).clamp(1, 100);
        let has_more = items.len() > limit;
        items.truncate(limit);
        let id = |item: Option<&&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        json!({
            "object": "list", "first_id": id(items.first()), "last_id": id(items.last()), "has_more": has_more,
            "data": items,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_paged_from_either_end() {
        let items: Vec<Value> = ["a", "b", "c"].iter().map(|id| json!({ "id": id })).collect();
        let page = |limit, order: &str, after: Option<&str>| {
            let page = Page { limit, order: Some(order.to_owned()), after: after.map(str::to_owned) }.json(&items);
            let ids: Vec<&str> =
                page["data"].as_array().expect("a list").iter().filter_map(|item| item["id"].as_str()).collect();
            (ids.concat(), page["has_more"] == true)
        };
        assert_eq!(page(None, "desc", None), ("cba".into(), false));
        assert_eq!(page(Some(2), "asc", None), ("ab".into(), true));
        assert_eq!(page(Some(2), "asc", Some("b")), ("c".into(), false));
        assert_eq!(page(None, "asc", Some("x")), (String::new(), false));
    }

    #[test]
    fn a_response_is_there_for_its_scope_until_it_is_deleted() {
        let store = Store::new(LruLimits::for_tests());
        let response = json!({"id": "resp_1"});
        store.keep(7, "resp_1", Stored { response, input: Vec::new(), entries: Vec::new(), turn: Arc::default() });
        assert!(store.get(8, "resp_1").is_none());
        assert_eq!(store.get(7, "resp_1").expect("kept").response["id"], "resp_1");
        assert!(!store.delete(8, "resp_1") && store.delete(7, "resp_1") && !store.delete(7, "resp_1"));
        assert!(store.get(7, "resp_1").is_none());
    }
}
