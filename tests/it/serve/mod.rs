//! The server, over HTTP.

mod asking;
mod completions;
mod dashboard;
mod doors;
mod leaving;
mod limits;
mod replicas;
mod shutdown;
