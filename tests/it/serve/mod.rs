//! The server, over HTTP.

mod asking;
mod completions;
mod dashboard;
mod doors;
mod leaving;
mod limits;
mod placed;
mod prefixes;
mod replicas;
pub mod resting;
mod shutdown;
