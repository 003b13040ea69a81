//! Errors of making a plan from a graph.

use gpu::GpuError;

use super::memory::DoesNotFit;
use expression::ExpressionError;
use hint::Hint;
use kernel::pipeline::PipelineError;
use kernel::template::library_error::LibraryError;
use kernel::template::render::RenderError;
use model::checkpoint::CheckpointError;

/// What can go wrong between a graph and its launches.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A kernel could not be chosen, compiled or loaded.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// An op has no contract, or a broken one.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A launch or a shape did not come to a number.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// A shape or a grid did not come to a number.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The device has no room for all of it.
    #[error(transparent)]
    Memory(#[from] Box<DoesNotFit>),
    /// Weights were to stay in main memory, where the device reads them.
    #[error("could not keep `{name}` in main memory for the device: no {len_bytes} bytes can be pinned")]
    NotPinned { name: String, len_bytes: usize },
    #[error("could not run `{label}`")]
    Device {
        /// The node, or what was being done.
        label: String,
        #[source]
        source: GpuError,
    },
    /// A kernel takes a scalar that the graph does not give.
    #[error("`{label}`: the kernel takes the scalar `{name}`, which the graph does not give")]
    NoScalar {
        label: String,
        /// The scalar argument.
        name: String,
    },
    /// A tensor could not be made of what the checkpoint's files hold.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// One of several devices of a model is gone, or never was.
    #[error("a device that computes a part of the model is lost")]
    NoThread,
    /// The checkpoint lacks a tensor.
    #[error("the checkpoint has no tensor `{name}`")]
    NoTensor { name: String },
}

impl PlanError {
    /// Whether the device had no memory for a launch or a copy.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Device { source, .. } if source.is_out_of_memory())
    }
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Pipeline(error) => error.hint(),
            Self::Library(error) => error.hint(),
            Self::Render(error) => error.hint(),
            Self::Expression(error) => error.hint(),
            Self::Memory(error) => error.hint(),
            Self::Weights(error) => error.hint(),
            Self::NotPinned { .. } => Some("`--embedding device` keeps it on the device".into()),
            Self::Device { source, .. } if source.is_out_of_memory() => source.hint(),
            Self::Device { .. } | Self::NoScalar { .. } | Self::NoTensor { .. } | Self::NoThread => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_memory_is_told_from_other_failures() {
        let full = GpuError::OutOfMemory { device: "a GPU".into(), len_bytes: 1, free_bytes: None };
        assert!(PlanError::Device { label: "a copy".into(), source: full }.is_out_of_memory());
        assert!(!PlanError::NoThread.is_out_of_memory());
    }
}
