//! The server, over HTTP.

mod errors;
mod event_rules;
mod scripted;
mod streams;
mod turns;
