//! The forward pass and its logits.

pub mod families;
pub mod forward;
pub mod logits;
mod placement;
mod streaming;
mod tensor_parallel;
