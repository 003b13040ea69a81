//! gpt-oss on AMD and NVIDIA GPUs and on processors, with kernels that are data.
//!
//! `ARCHITECTURE.md` has the table of these modules and of what each may use. Start reading in [`graph::forward`], the
//! forward pass of the model.

pub mod batch;
pub mod bounded_process;
pub mod chat;
pub mod chat_format;
pub mod chat_template;
pub mod checkpoint;
pub mod choice;
pub mod cli;
pub mod config;
pub mod device;
pub mod embedded;
pub mod engine;
pub mod error;
pub mod family;
pub mod git_lfs;
pub mod grammar;
pub mod graph;
pub mod harmony;
pub mod json_entries;
pub mod kernel_driver;
pub mod launcher;
pub mod lock_file;
pub mod new_file;
pub mod object;
pub mod pipeline;
pub mod replica;
pub mod scheduler;
pub mod serve;
pub mod target;
pub mod template;
pub mod tokenizer;
pub mod tuning;
pub mod units;
pub mod workbench;

// `crates/reference`: the rooms `dtype` and `reference`, which use no other.
pub use ::reference::{self, dtype};
