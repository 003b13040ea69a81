//! Commands: what they refuse, and what they tell of this machine.

pub mod bad_input;
pub mod doctor;
