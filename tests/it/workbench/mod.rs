//! What `run` does not need: checking, reading and timing kernels.

mod amd_page;
pub mod attention;
pub mod bench;
mod chosen_params;
pub mod deadly_kernels;
mod debugging;
mod eval;
pub mod gpu_kernels;
pub mod isa;
pub mod kernels;
mod limits;
mod mutated;
pub mod occupancy;
mod ordering;
mod predict;
mod replay;
mod same_bits;
mod shown;
pub mod tune;
mod tuner;
mod watch;
