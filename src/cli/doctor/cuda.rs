//! The CUDA driver and the GPUs that it finds.

use gpu::GpuError;

use super::super::output;
use super::{Check, State};
use crate::device::{chain, cuda};
use crate::error::Hint;

/// The check, and the arch of the first device.
pub(super) fn check() -> (Check, Option<String>) {
    let name = "CUDA driver";
    let not_usable = |state, details, hint| Check { name, state, needed: false, details, hint };
    let runtime = match cuda::runtime() {
        Ok(runtime) => runtime,
        Err(error @ GpuError::NoRuntime { .. }) => {
            return (not_usable(State::Missing, vec![error.to_string()], error.hint()), None);
        }
        Err(error) => return (not_usable(State::Failed, vec![chain(&error)], error.hint()), None),
    };
    let mut details = vec![format!("for CUDA {}, {}", runtime.version(), runtime.path().display())];
    let (mut state, mut hint, mut arch) = (State::Ok, None, None);
    for ordinal in 0..runtime.n_devices() {
        match runtime.facts(ordinal) {
            Ok(facts) => {
                details.push(format!(
                    "cuda:{ordinal}: {}, {}, {} SMs, {} of {} free",
                    facts.name,
                    facts.arch,
                    facts.compute_units,
                    output::human_bytes(facts.free_bytes as u64),
                    output::human_bytes(facts.total_bytes as u64),
                ));
                arch.get_or_insert(facts.arch);
            }
            Err(error) => {
                (state, hint) = (State::Failed, error.hint());
                details.push(chain(&error));
            }
        }
    }
    if runtime.n_devices() == 0 {
        details.push("it finds no device".into());
        state = State::Missing;
    }
    (not_usable(state, details, hint), arch)
}
