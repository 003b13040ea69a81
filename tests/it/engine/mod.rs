//! Requests to tokens, from the first start on.

pub mod generate;
pub mod getp;
pub mod seeds;
pub mod startup;
pub mod tiny;
