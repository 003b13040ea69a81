//! Integration tests, one binary: a module per room.

mod checkpoint;
mod tokenizer;
mod hiprtc;
mod cache;
mod compile;
mod kernels;
mod cache;
mod compile;
mod hiprtc;
mod templates;
