//! Requests to tokens, from the first start on.

mod drafts;
pub mod extras;
pub mod generate;
pub mod getp;
mod kv_dtype;
pub mod not_numbers;
pub mod seeds;
mod sharing;
pub mod startup;
pub mod tiny;
