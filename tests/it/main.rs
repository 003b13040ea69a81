//! Integration tests, one binary: a module per room.

mod cache;
mod compile;
mod hiprtc;
mod templates;
