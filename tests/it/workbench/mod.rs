//! What `run` does not need: checking, reading and timing kernels.

mod amd_page;
pub mod attention;
pub mod bench;
mod chosen_params;
mod compared;
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
mod said;
mod same_bits;
mod shown;
mod stale;
pub mod tune;
mod tuner;
mod tuner_limits;
mod watch;
