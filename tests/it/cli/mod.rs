//! Commands: what they refuse, and what they tell of this machine.

mod adversary;
pub mod bad_input;
pub mod completions;
pub mod doctor;
mod ended;
mod examples;
pub mod hub;
mod many;
mod models;
mod no_files;
pub mod plan;
pub mod run_input;
