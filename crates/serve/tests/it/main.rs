//! The endpoints, over HTTP, before a model that says what a test wrote down.

extern crate gptoss_jit_serve as serve;

mod batches;
mod bodies;
mod carried;
mod custom_tools;
mod errors;
mod event_rules;
mod fields;
mod masks;
mod messages;
mod scripted;
mod streams;
mod turns;
