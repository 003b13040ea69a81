//! What kernel authors need and `run` does not: [`check`] holds templates against the references, [`timing`] times them
//! on a device, [`isa`] reads what the compiler made of them, [`predict`] says from that how long they would take,
//! [`tune`] chooses by either, [`replay`] makes a launch of a real step again, [`bench`] measures whole works beside
//! the limits of the machine, [`eval`] says how well a model predicts a text.

pub mod bench;
pub mod check;
pub mod eval;
pub mod isa;
pub mod predict;
pub mod replay;
pub mod timing;
pub mod tune;
