//! What a model takes of a device's memory, known before any of it is allocated.

use std::fmt;

use gpu::{DeviceMemory, Driver, GpuError};

use crate::graph::{Graph, Storage};
use kernel::object::store::Progress;
use model::checkpoint::quantized::Gain;
use model::checkpoint::{Checkpoint, Tensor};

/// Bytes by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The checkpoint's tensors.
    pub weights: usize,
    /// Those of them that are used where they lie, and take nothing.
    pub weights_in_place: usize,
    pub(crate) kv_cache: usize,
    /// Those of them that are kept for prompts that begin alike, besides blocks that nobody needs.
    pub(crate) snapshots: usize,
    /// Activations, what a step is given and what it gives.
    pub(crate) activations: usize,
    /// What kernels ask for besides.
    pub(crate) workspace: usize,
    /// What quantised matrices would save; none where nothing, or where weights take nothing as they are.
    pub gain: Option<Gain>,
    /// The device's name, and its memory before anything was allocated, where it says.
    pub device: String,
    pub(crate) memory: Option<DeviceMemory>,
}

/// It does not fit.
#[derive(Debug, thiserror::Error)]
#[error("could not fit the model into the memory of {}: {plan}", plan.device)]
pub struct DoesNotFit {
    pub plan: MemoryPlan,
}

impl hint::Hint for DoesNotFit {
    fn hint(&self) -> Option<String> {
        let MemoryPlan { weights, weights_in_place, memory, gain, .. } = &self.plan;
        let free = memory.map_or(usize::MAX, |memory| memory.free_bytes);
        let fits = gain.filter(|gain| weights - weights_in_place > free && gain.tensor_bytes[1] <= free as u64);
        if let Some(gain) = fits {
            return Some(gain.to_string());
        }
        Some(if weights - weights_in_place > free {
            "the weights alone are too large: use weights of fewer bits, or fewer `--layers` of a `--shape`".into()
        } else {
            "a smaller KV cache (`--kv-memory`), fewer sequences (`-b`) or shorter chunks (`--chunk`) need less".into()
        })
    }
}

/// Whoever watches a model being loaded. `()` watches nothing.
pub trait LoadProgress: Progress {
    /// The kernels are there and this is what the rest will take; nothing is allocated yet, and it may not fit.
    fn planned(&self, _memory: &MemoryPlan) {}
}

impl LoadProgress for () {}

impl MemoryPlan {
    /// Adds up a graph's weights.
    pub(super) fn new(graph: &Graph, checkpoint: &Checkpoint, driver: &dyn Driver) -> Result<Self, GpuError> {
        let used = graph.tensors.iter().filter_map(|tensor| match &tensor.storage {
            Storage::Weight(name) => checkpoint.tensors.get(name),
            Storage::External(_) | Storage::Arena => None,
        });
        let (mut weights, mut weights_in_place) = (0, 0);
        for tensor in used {
            weights += tensor.len_bytes();
            weights_in_place += if takes_memory(tensor, driver) { 0 } else { tensor.len_bytes() };
        }
        let (device, memory) = (driver.describe(), driver.memory()?);
        let gain = checkpoint.gain().filter(|_| weights_in_place == 0);
        Ok(Self { weights, weights_in_place, gain, device, memory, ..Self::default() })
    }

    /// What will be allocated.
    pub fn needed_bytes(&self) -> usize {
        self.weights - self.weights_in_place + self.kv_cache + self.activations + self.workspace
    }

    /// Refuses what the device has no room for.
    pub(super) fn check(&self) -> Result<(), Box<DoesNotFit>> {
        match self.memory {
            Some(memory) if self.needed_bytes() > memory.free_bytes => Err(Box::new(DoesNotFit { plan: self.clone() })),
            _ => Ok(()),
        }
    }
}

/// Bytes that the weights of a checkpoint take on a device.
pub fn weight_bytes(checkpoint: &Checkpoint, driver: &dyn Driver) -> usize {
    checkpoint.tensors.values().filter(|tensor| takes_memory(tensor, driver)).map(Tensor::len_bytes).sum()
}

fn takes_memory(tensor: &Tensor, driver: &dyn Driver) -> bool {
    tensor.bytes().is_none() || driver.copies_uploads()
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: usize| format!("{:.3} GB", bytes as f64 / 1e9);
        write!(f, "weights {}", gb(self.weights))?;
        if self.weights_in_place > 0 {
            write!(f, " ({} of them used where they are mapped)", gb(self.weights_in_place))?;
        }
        let Self { kv_cache, snapshots, activations, workspace, .. } = *self;
        write!(f, ", KV cache {}", gb(kv_cache))?;
        if snapshots > 0 {
            write!(f, " ({} of it snapshots of windows)", gb(snapshots))?;
        }
        write!(f, ", activations {}, workspace {}", gb(activations), gb(workspace))?;
        write!(f, ": {} to allocate", gb(self.needed_bytes()))?;
        match self.memory {
            Some(memory) => write!(f, ", {} of {} free", gb(memory.free_bytes), gb(memory.total_bytes)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hint::Hint;

    fn plan(free_bytes: usize) -> MemoryPlan {
        MemoryPlan {
            weights: 13_000_000_000,
            weights_in_place: 3_000_000_000,
            kv_cache: 2_000_000_000,
            snapshots: 0,
            activations: 500_000_000,
            workspace: 1_000_000,
            gain: None,
            device: "a GPU".into(),
            memory: Some(DeviceMemory { free_bytes, total_bytes: 16_000_000_000 }),
        }
    }

    #[test]
    fn a_plan_that_does_not_fit_is_refused_with_its_parts() {
        plan(12_501_000_000).check().unwrap();
        let refused = plan(12_500_999_999).check().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "could not fit the model into the memory of a GPU: weights 13.000 GB (3.000 GB of them used where they are \
             mapped), KV cache 2.000 GB, activations 0.500 GB, workspace 0.001 GB: 12.501 GB to allocate, 12.501 GB of \
             16.000 GB free"
        );
        assert!(refused.hint().unwrap().contains("--kv-memory"));
        let with = MemoryPlan { snapshots: 100_000_000, ..plan(0) }.to_string();
        assert!(with.contains("KV cache 2.000 GB (0.100 GB of it snapshots of windows), "), "{with}");
        assert!(plan(9_999_999_999).check().unwrap_err().hint().unwrap().contains("--layers"));
        MemoryPlan { memory: None, ..plan(0) }.check().unwrap();
    }
}
