//! How well a model predicts a text, and how far its predictions are from those of another: the numbers of llama.cpp's
//! `llama-perplexity`.
//!
//! [`windows`] cuts the text, [`distribution`] makes probabilities of logits and compares them, [`tally`] adds up what
//! each token gave, [`base_file`] is the file in which llama.cpp keeps a model's probabilities.

pub mod base_file;
pub mod distribution;
pub mod tally;
pub mod windows;
