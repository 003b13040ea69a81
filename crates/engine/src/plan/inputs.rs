//! A step's inputs: tensors side by side, so that one copy transfers them all.

use gpu::{ALIGNMENT_BYTES, BufferView};

use super::error::PlanError;
use kernel::pipeline::Pipeline;

/// The tensors, in one buffer.
pub(super) struct Inputs {
    all: BufferView,
    /// Name, and where it is.
    tensors: Vec<(String, std::ops::Range<usize>)>,
}

impl Inputs {
    /// Memory for tensors of these names and lengths in bytes.
    pub(crate) fn new(pipeline: &Pipeline, tensors: &[(String, usize)]) -> Result<Self, PlanError> {
        let mut next = 0;
        let place = |(name, len_bytes): &(String, usize)| {
            let begin = next;
            next = (begin + len_bytes).next_multiple_of(ALIGNMENT_BYTES);
            (name.clone(), begin..begin + len_bytes)
        };
        let tensors = tensors.iter().map(place).collect();
        let buffer = pipeline.driver().allocate(next).map_err(failed)?;
        Ok(Self { all: buffer.view(), tensors })
    }

    /// Every tensor by its name.
    pub(crate) fn views(&self) -> impl Iterator<Item = (String, BufferView)> {
        let view = |range: &std::ops::Range<usize>| self.all.slice(range.start, range.len()).expect("placed inside");
        self.tensors.iter().map(move |(name, range)| (name.clone(), view(range)))
    }

    /// Fills the starts of these, and leaves what is between and after them undefined.
    pub(crate) fn write(&self, pipeline: &Pipeline, inputs: &[(&str, &[u8])]) -> Result<(), PlanError> {
        let mut all = Vec::new();
        for (name, bytes) in inputs {
            let (_, range) = self.tensors.iter().find(|(own, _)| own == name).expect("an input of this name");
            assert!(bytes.len() <= range.len(), "`{name}` has room for {} bytes, not {}", range.len(), bytes.len());
            let end = range.start + bytes.len();
            all.resize(all.len().max(end), 0);
            all[range.start..end].copy_from_slice(bytes);
        }
        pipeline.driver().write(&self.all, &all).map_err(failed)
    }
}

fn failed(source: gpu::GpuError) -> PlanError {
    PlanError::Device { label: "inputs of a step".into(), source }
}
