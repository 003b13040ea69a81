//! Integration tests, one binary: a module per room.

mod cache;
mod checkpoint;
mod compile;
mod hiprtc;
mod kernels;
mod templates;
mod tokenizer;
