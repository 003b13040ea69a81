//! Errors of an engine.

use super::blueprint::BlueprintError;
use super::extras::ExtrasError;
use super::prompt_error::PromptError;
use crate::graph::forward::ForwardError;
use crate::graph::kv_cache::KvTooLarge;
use crate::plan::error::PlanError;
use hint::Hint;
use model::checkpoint::tensor_parallel::TensorParallelError;

/// What can go wrong in an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The KV cache does not fit.
    #[error(transparent)]
    Kv(#[from] KvTooLarge),
    /// The family's layer cannot be written down.
    #[error("could not build the forward pass")]
    Forward(#[from] ForwardError),
    /// A kernel could not be had, or a launch failed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model cannot be cut for this many devices.
    #[error(transparent)]
    Part(#[from] TensorParallelError),
    /// Several devices compute the model together, and the processor was to compute a part of it.
    #[error("the processor computes a part of a model beside one device, not beside several")]
    HostWithPeers,
    /// Something that a step launched went wrong, which is known when its tokens are waited for.
    #[error("could not finish a step")]
    Step(#[source] gpu::GpuError),
    /// The model's sums are no numbers any more: a NaN, or beyond the largest.
    #[error("a logit is not a number{}", where_.as_ref().map_or_else(String::new, |place| format!(": {place}")))]
    NotANumber {
        /// The first node of the step that gave such a thing, where it did so when the step ran again.
        where_: Option<String>,
    },
    /// A prompt that no sequence can begin with.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// A request that asks the sampler for what cannot be.
    #[error(transparent)]
    Extras(#[from] ExtrasError),
}

impl EngineError {
    /// Whether the device ran out of memory: [`super::Engine::recover`] then continues.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Plan(error) => error.is_out_of_memory(),
            Self::Step(source) => source.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<BlueprintError> for EngineError {
    fn from(error: BlueprintError) -> Self {
        match error {
            BlueprintError::Kv(error) => Self::Kv(error),
            BlueprintError::Forward(error) => Self::Forward(error),
        }
    }
}

impl Hint for EngineError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Kv(error) => error.hint(),
            Self::Forward(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Part(error) => error.hint(),
            Self::Extras(error) => error.hint(),
            Self::Step(source) if source.is_out_of_memory() => source.hint(),
            Self::Step(_) => Some(
                "a kernel failed before, or the GPU was lost (for AMD, see `sudo dmesg | grep amdgpu`); `run --profile` waits for each kernel, so that the error names it"
                    .into(),
            ),
            Self::NotANumber { .. } => Some(
                "the weights contain NaN or infinity, or belong to another model; `inspect` shows the file, `logits --trace` every node"
                    .into(),
            ),
            Self::Prompt(error) => error.hint(),
            Self::HostWithPeers => None,
        }
    }
}
