//! Tokens per second beside what the machine could do at most.
//!
//! [`suite`] says what is measured and [`measure`] does it. Bytes and operations are counted from the model's
//! dimensions ([`roofline`]); the limits that they are held against are measured in the same run ([`limits`]), and so
//! is what other programs took of the cores ([`machine`]), and what several devices are to each other ([`links`]).

pub mod limits;
pub mod links;
pub(crate) mod machine;
pub mod measure;
pub mod roofline;
pub mod suite;
