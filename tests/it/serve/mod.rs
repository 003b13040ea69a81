//! The server, over HTTP.

mod asking;
mod completions;
mod leaving;
mod limits;
mod shutdown;
