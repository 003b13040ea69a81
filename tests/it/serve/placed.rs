//! A server whose processor computes a part of the model beside a device: many clients at once have what each alone
//! has. `tests/clients/load.py` does the same with more of them, for longer.

use std::thread;

use serde_json::{Value, json};

use super::resting::BESIDE;
use crate::fixtures::http::{post, stream};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

fn body(i: usize, is_streamed: bool) -> Value {
    let prompt = ["Once upon a time", "There was a", "Lily and Tom", "The red kite is in the park and"][i % 4];
    let temperature = if i.is_multiple_of(2) { 0.0 } else { 1.0 };
    json!({"prompt": prompt, "max_tokens": 3 + i % 4 * 3, "temperature": temperature, "seed": 7, "stream": is_streamed})
}

#[test]
fn many_clients_of_a_model_in_two_places_have_what_each_has_alone() {
    let server = Server::start(&BESIDE);
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    let alone: Vec<String> = (0..4).map(|i| text(&post(server.address, PATH, &body(i, false)).ok())).collect();
    assert!(alone.iter().all(|text| !text.is_empty()), "{alone:?}");
    thread::scope(|scope| {
        let (server, alone) = (&server, &alone);
        for i in 0..24 {
            scope.spawn(move || {
                let mut events = stream(server.address, PATH, &body(i, true));
                if i % 6 == 5 {
                    return drop(events.next()); // leaves in the midst of it
                }
                if i % 3 == 0 {
                    drop(events);
                    let answer = post(server.address, PATH, &body(i, false)).ok();
                    return assert_eq!(text(&answer), alone[i % 4]);
                }
                let parts = events.filter_map(|event| serde_json::from_str::<Value>(&event).ok());
                assert_eq!(parts.map(|event| text(&event)).collect::<String>(), alone[i % 4]);
            });
        }
    });
    server.wait_until_idle();
    let usage = server.metrics("gptoss_kv_cache_usage_perc");
    assert_eq!(usage.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [0.0]);
}
