//! Integration tests, one binary: a module per room.

mod architecture;
mod cache;
mod checkpoint;
mod compile;
mod doctor;
mod hiprtc;
mod kernels;
mod seeds;
mod templates;
mod tokenizer;
