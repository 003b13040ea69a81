//! The plan that launches a graph.
//!
//! - [`executor`]: a graph, chosen kernels and memory, ready to run step after step
//! - [`arena`]: one block of memory for all activations
//! - `lifetimes`: which activations there are, and for how long
//! - [`cover`]: which launches there are for how many rows: nodes, or runs of nodes that one kernel does
//! - `inputs`: what every step is told, in one copy
//! - `loading`: one place while it is loaded
//! - `buckets`: the kernels of all of them, drafted and loaded
//! - [`decisions`]: which these are, and why, without a device; [`overruled`]: own templates that are not among them
//! - `everything`: all of them that a model can have, for bundles
//! - `site`: the device, and the processor beside it; `hand_over`: what crosses between them
//! - `streaming`: what the processor has, on the device in steps of many rows
//! - `segment`: their grids and arguments for a number of rows
//! - `weights`: the checkpoint's tensors on the device
//! - [`memory`]: what all of that takes, before it is allocated
//! - `workspace`: memory that kernels ask for besides
//! - [`profile`]: where the time of the steps goes
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
