//! Files of weights: read, refused, written, decoded.

pub mod export;
pub mod fuzzed;
pub mod hostile;
pub mod kinds;
pub mod mxfp4;
pub mod reading;
pub mod weights;
