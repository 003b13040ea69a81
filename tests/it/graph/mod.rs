//! The forward pass and its logits.

pub mod families;
pub mod forward;
pub mod logits;
mod tensor_parallel;
