//! gpt-oss on AMD GPUs, with kernels that are data.
//!
//! The dependencies point one way: `cli → engine → scheduler → graph → kernel → gpu`. `checkpoint`,
//! `tokenizer`, `harmony`, `tuning`, `target` and `compute_unit` know none of those. Start reading in
//! [`graph::forward`], the forward pass of the model.

pub mod chat_template;
pub mod checkpoint;
pub mod cli;
pub mod compute_unit;
pub mod config;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod git_lfs;
pub mod graph;
pub mod harmony;
pub mod json_entries;
pub mod kernel;
pub mod reference;
pub mod scheduler;
pub mod target;
pub mod tokenizer;
pub mod tuning;
