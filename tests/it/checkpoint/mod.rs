//! Files of weights: read, refused, written, decoded.

pub mod downloads;
pub mod export;
mod f8;
mod families;
pub mod fuzzed;
pub mod hostile;
pub mod kinds;
mod mixed_types;
pub mod mxfp4;
pub mod odd_sizes;
mod parts;
mod quantize;
pub mod reading;
mod smollm2;
mod spellings;
pub mod weights;
