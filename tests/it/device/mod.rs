//! Devices: a HIP runtime that is not one, and the simulator.

pub mod hip;
pub mod simulator;
mod simulator_words;
