//! Tools for kernel authors that `run` does not need: [`check`] compares templates with the references, [`timing`]
//! times them on a device, [`isa`] reads machine code, [`predict`] predicts times from it, [`tune`] chooses by either,
//! [`replay`] repeats a launch of a real step, [`bench`] measures whole workloads and the machine's limits, [`eval`]
//! measures how well a model predicts a text.

pub mod bench;
pub mod check;
pub mod eval;
pub mod isa;
pub mod predict;
pub mod replay;
pub mod timing;
pub mod tune;
