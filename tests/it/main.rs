//! Integration tests, one binary: a module per room.

mod hiprtc;
mod cache;
mod compile;
mod kernels;
mod templates;
