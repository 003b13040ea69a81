//! The server, over HTTP.

mod asking;
mod completions;
mod errors;
mod event_rules;
mod leaving;
mod limits;
mod scripted;
mod shutdown;
mod streams;
mod turns;
