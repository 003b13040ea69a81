//! How well a model predicts a text, and how far its predictions are from another model's: the numbers of llama.cpp's
//! `llama-perplexity`.
//!
//! [`windows`] cuts the text, [`distribution`] makes probabilities of logits and compares them, [`tally`] adds up the
//! tokens' results, [`base_file`] is llama.cpp's file of a model's probabilities.

pub mod base_file;
pub mod distribution;
pub mod tally;
pub mod windows;
