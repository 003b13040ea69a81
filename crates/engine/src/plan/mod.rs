//! The plan that launches a graph.
//!
//! - [`executor`]: a graph, chosen kernels and memory, ready to run step after step
//! - [`arena`]: one block of memory for all activations
//! - `lifetimes`: the activations of a step, and how long each is needed
//! - [`cover`]: the launches for each range of row counts: nodes, or runs of nodes that one kernel does
//! - `inputs`: the inputs of a step, in one copy
//! - `loading`: one place during loading
//! - `buckets`: the kernels of all buckets, drafted and loaded
//! - [`decisions`]: the chosen kernels, with reasons, without a device; [`overruled`]: user templates that lose to a
//!   row
//! - `everything`: all kernels that a model can use, for bundles
//! - `site`: the device, and the processor beside it; `hand_over`: copies between the two
//! - `streaming`: experts in main memory, computed on the device in steps of many rows
//! - `segment`: grids and arguments of a segment's launches for a number of rows
//! - `weights`: the checkpoint's tensors on the device
//! - [`memory`]: the memory of all of that, before it is allocated
//! - `workspace`: further memory that kernels need
//! - [`profile`]: where a step's time goes
//! - [`capture`]: one launch with what it reads and writes

pub(crate) mod arena;
mod buckets;
pub mod capture;
pub mod cover;
pub mod decisions;
pub mod error;
pub(crate) mod everything;
pub mod executor;
mod hand_over;
mod inputs;
mod lifetimes;
mod loading;
pub mod memory;
pub(crate) mod options;
pub mod overruled;
pub mod profile;
mod replay;
mod segment;
mod site;
pub(crate) mod streaming;
mod weights;
mod workspace;

pub use executor::Executor;
