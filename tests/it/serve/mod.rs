//! The server, over HTTP.

mod asking;
mod bodies;
mod carried;
mod completions;
mod custom_tools;
mod dashboard;
mod doors;
mod errors;
mod event_rules;
mod leaving;
mod limits;
mod masks;
mod replicas;
mod scripted;
mod shutdown;
mod streams;
mod turns;
