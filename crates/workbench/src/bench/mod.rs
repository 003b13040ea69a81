//! Tokens per second, compared with the machine's limits.
//!
//! [`suite`] lists the workloads and [`measure`] runs them. [`roofline`] counts bytes and operations from the model's
//! dimensions. Measured in the same run are the limits ([`limits`]), the load of other programs ([`machine`]), and the
//! links between devices ([`links`]).

pub mod limits;
pub mod links;
pub(crate) mod machine;
pub mod measure;
pub mod roofline;
pub mod suite;
