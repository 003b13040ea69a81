//! The forward pass and its logits.

mod families;
pub mod forward;
pub mod logits;
mod tensor_parallel;
