//! Objects: what compilers make of rendered source, and the cache that keeps it.
//!
//! - [`key`]: everything that can change the bytes a compiler returns
//! - [`compile`]: worker processes around `cc`, hipRTC, NVRTC and the simulator's C++ compiler
//! - [`cache`]: the on-disk cache of objects
//! - [`bundle`]: objects that were compiled elsewhere
//! - [`store`]: key → cached or freshly compiled object, many at once
//! - [`resources`]: what a compiled GPU kernel uses, against its contract and its template's limits

pub mod bundle;
pub mod cache;
pub mod compile;
pub mod key;
pub mod resources;
pub mod store;
mod turns;
