//! Objects: compilers in processes of their own, and the cache.

pub mod bundle;
pub mod cache;
pub mod compile;
pub mod faults;
pub mod hiprtc;
