//! How much of a device's memory a model takes, and how much main memory for the processor, before any is allocated.

use std::collections::BTreeSet;
use std::fmt;

use gpu::{DeviceMemory, Driver, GpuError};

use crate::graph::placement::Place;
use crate::graph::{Graph, Storage};
use kernel::object::store::Progress;
use kernel::pipeline::Pipeline;
use model::checkpoint::quantized::Gain;
use model::checkpoint::{Checkpoint, Tensor};

/// Bytes by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The checkpoint's tensors.
    pub weights: usize,
    /// Those of them that are used where they lie, and take nothing.
    pub weights_in_place: usize,
    /// Others of the checkpoint's tensors, which the device reads in main memory.
    pub zero_copy: usize,
    pub(crate) kv_cache: usize,
    /// Of these, bytes of snapshots for prompts with a common beginning, in addition to idle blocks.
    pub(crate) snapshots: usize,
    /// Activations, what a step is given and what it gives.
    pub(crate) activations: usize,
    /// Workspaces of kernels.
    pub(crate) workspace: usize,
    /// Room for weights that are brought from main memory, a layer's while another one's are used.
    pub streaming: usize,
    /// What quantised matrices would save; none if nothing, or where weights take nothing as they are.
    pub gain: Option<Gain>,
    /// Whether the model has experts, which can stay in main memory.
    pub(crate) has_experts: bool,
    /// What the processor computes beside the device, if anything.
    pub host: Option<HostPlan>,
    /// The device's name, and its memory before anything was allocated, where it says.
    pub device: String,
    pub(crate) memory: Option<DeviceMemory>,
}

/// What the processor has of a model: experts, in main memory. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// Layers whose experts it computes, and those that have any.
    pub n_layers: [usize; 2],
    pub weights: usize,
    /// Those of them that are used where a file is mapped.
    pub weights_in_place: usize,
    /// About how many bytes of these are still on the disk.
    pub not_in_memory: usize,
    /// Weights that a step for one token reads here, and all that it reads.
    pub bytes_per_token: [u64; 2],
    /// Activations, and what kernels ask for besides.
    pub(crate) activations: usize,
    /// Main memory before anything was allocated, where the system says.
    pub(crate) memory: Option<DeviceMemory>,
}

impl HostPlan {
    /// Bytes that will be allocated.
    fn needed_bytes(&self) -> usize {
        self.weights - self.weights_in_place + self.activations
    }

    /// Whether files that are mapped are larger than the memory that could hold them.
    pub fn is_read_again(&self) -> bool {
        self.memory.is_some_and(|memory| self.weights + self.activations > memory.free_bytes)
    }
}

/// The memory plan of a model that exceeds its device.
#[derive(Debug, thiserror::Error)]
#[error("could not fit the model into the memory of {}: {plan}", plan.place_without_room())]
pub struct DoesNotFit {
    pub plan: MemoryPlan,
}

impl hint::Hint for DoesNotFit {
    fn hint(&self) -> Option<String> {
        if self.plan.missing_bytes() == 0 {
            let cures = "free some of it, use weights with fewer bits, or lower `--n-cpu-moe`";
            return Some(format!("main memory has no room for these experts: {cures}"));
        }
        let MemoryPlan { weights, weights_in_place, memory, gain, .. } = &self.plan;
        let free = memory.map_or(usize::MAX, |memory| memory.free_bytes);
        let fits = gain.filter(|gain| weights - weights_in_place > free && gain.tensor_bytes[1] <= free as u64);
        if let Some(gain) = fits {
            return Some(gain.to_string());
        }
        Some(if weights - weights_in_place > free {
            let experts = if self.plan.host.is_none() && self.plan.has_experts {
                "`--n-cpu-moe auto` leaves experts in main memory, "
            } else {
                ""
            };
            format!(
                "the weights alone are too large: {experts}`--device cpu` computes on the processor, or use weights with fewer bits"
            )
        } else {
            "a smaller KV cache (`--kv-memory`), fewer sequences (`-b`) or shorter chunks (`--chunk`) need less".into()
        })
    }
}

/// An observer of a model's loading. `()` observes nothing.
pub trait LoadProgress: Progress {
    /// The kernels are there and this is what the rest will take; nothing is allocated yet, and it may not fit.
    fn planned(&self, _memory: &MemoryPlan) {}
}

impl LoadProgress for () {}

impl MemoryPlan {
    /// Adds up those of a graph's weights that the device has.
    ///
    /// - `zero_copies`: whether it reads a weight in main memory, for each tensor
    pub(super) fn new(
        graph: &Graph,
        zero_copies: &[bool],
        checkpoint: &Checkpoint,
        pipeline: &Pipeline,
    ) -> Result<Self, GpuError> {
        let driver = pipeline.driver();
        let used = graph.used_at(Place::Device);
        let [weights, weights_in_place] = bytes_of(graph, checkpoint, driver, |i| used[i] && !zero_copies[i]);
        let [zero_copy, _] = bytes_of(graph, checkpoint, driver, |i| used[i] && zero_copies[i]);
        let (device, memory) = (driver.describe(), pipeline.memory()?);
        let gain = checkpoint.gain().filter(|_| weights_in_place == 0);
        let has_experts = !checkpoint.expert_bytes().is_empty();
        Ok(Self { weights, weights_in_place, zero_copy, gain, has_experts, device, memory, ..Self::default() })
    }

    /// Bytes that will be allocated.
    pub fn needed_bytes(&self) -> usize {
        self.weights - self.weights_in_place + self.kv_cache + self.activations + self.workspace + self.streaming
    }

    /// Bytes that the device lacks.
    pub fn missing_bytes(&self) -> usize {
        self.memory.map_or(0, |memory| self.needed_bytes().saturating_sub(memory.free_bytes))
    }

    /// Whether main memory has no room for what the processor needs.
    fn host_lacks_room(&self) -> bool {
        let lacks = |host: &HostPlan| host.memory.is_some_and(|memory| host.needed_bytes() > memory.free_bytes);
        self.host.as_ref().is_some_and(lacks)
    }

    fn place_without_room(&self) -> &str {
        if self.missing_bytes() == 0 && self.host_lacks_room() { "this machine" } else { &self.device }
    }

    /// Refuses what the device, or the processor, has no room for.
    pub(super) fn check(&self) -> Result<(), Box<DoesNotFit>> {
        let fits = self.missing_bytes() == 0 && !self.host_lacks_room();
        if fits { Ok(()) } else { Err(Box::new(DoesNotFit { plan: self.clone() })) }
    }
}

impl HostPlan {
    /// Adds up those of a graph's weights that the processor uses.
    pub(super) fn new(graph: &Graph, checkpoint: &Checkpoint, driver: &dyn Driver) -> Result<Self, GpuError> {
        let used = graph.used_at(Place::Host);
        let [weights, weights_in_place] = bytes_of(graph, checkpoint, driver, |i| used[i]);
        let of_host = graph.nodes.iter().filter(|node| node.place == Place::Host);
        let family = checkpoint.config.family;
        let layers: BTreeSet<usize> = of_host.filter_map(|node| graph.expert_layer(family, node)).collect();
        let all = checkpoint.expert_bytes().len();
        let bytes_per_token = [checkpoint.bytes_per_token_of_last_experts(layers.len()), checkpoint.bytes_per_token()];
        let (n_layers, memory) = ([layers.len(), all], driver.memory()?);
        let of_host = weights_where(graph, checkpoint, |i| used[i]);
        let in_place = of_host.filter(|tensor| !takes_memory(tensor, driver));
        let not_in_memory = in_place.map(Tensor::not_in_memory).sum();
        Ok(Self { n_layers, weights, weights_in_place, not_in_memory, bytes_per_token, memory, activations: 0 })
    }
}

/// Bytes of those of a graph's weights that are chosen, and of those among them that are used where they lie.
fn bytes_of(
    graph: &Graph,
    checkpoint: &Checkpoint,
    driver: &dyn Driver,
    is_chosen: impl Fn(usize) -> bool,
) -> [usize; 2] {
    weights_where(graph, checkpoint, is_chosen).fold([0, 0], |[weights, in_place], tensor| {
        let own = tensor.len_bytes();
        [weights + own, in_place + if takes_memory(tensor, driver) { 0 } else { own }]
    })
}

/// Those of a graph's weights that are chosen.
fn weights_where<'a>(
    graph: &'a Graph,
    checkpoint: &'a Checkpoint,
    is_chosen: impl Fn(usize) -> bool,
) -> impl Iterator<Item = &'a Tensor> {
    let chosen = graph.tensors.iter().enumerate().filter(move |(i, _)| is_chosen(*i));
    chosen.filter_map(|(_, tensor)| match &tensor.storage {
        Storage::Weight(name) => checkpoint.tensors.get(name),
        Storage::External(_) | Storage::Arena => None,
    })
}

/// Bytes that the weights of a checkpoint take on a device, and those of them that are not of experts.
pub fn weight_bytes(checkpoint: &Checkpoint, driver: &dyn Driver) -> [usize; 2] {
    let taking = checkpoint.tensors.values().filter(|tensor| takes_memory(tensor, driver));
    taking.fold([0, 0], |[all, dense], tensor| {
        let is_of_experts = checkpoint.config.family.expert_layer(&tensor.name).is_some();
        [all + tensor.len_bytes(), dense + if is_of_experts { 0 } else { tensor.len_bytes() }]
    })
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
        let Self { kv_cache, snapshots, activations, workspace, zero_copy, .. } = *self;
        if zero_copy > 0 {
            write!(f, ", {} more in main memory for the device", gb(zero_copy))?;
        }
        write!(f, ", KV cache {}", gb(kv_cache))?;
        if snapshots > 0 {
            write!(f, " ({} of it snapshots of windows)", gb(snapshots))?;
        }
        write!(f, ", activations {}, workspace {}", gb(activations), gb(workspace))?;
        if self.streaming > 0 {
            write!(f, ", room for experts from main memory {}", gb(self.streaming))?;
        }
        write!(f, ": {} to allocate", gb(self.needed_bytes()))?;
        if let Some(memory) = self.memory {
            write!(f, ", {} of {} free", gb(memory.free_bytes), gb(memory.total_bytes))?;
        }
        let Some(host) = &self.host else { return Ok(()) };
        let [n, all] = host.n_layers;
        write!(f, "; experts of the last {n} of {all} layers in main memory: weights {}", gb(host.weights))?;
        if host.weights_in_place > 0 {
            write!(f, " ({} of them used where they are mapped)", gb(host.weights_in_place))?;
        }
        write!(f, ", activations {}", gb(host.activations))?;
        match host.memory {
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
            has_experts: false,
            weights: 13_000_000_000,
            weights_in_place: 3_000_000_000,
            zero_copy: 0,
            kv_cache: 2_000_000_000,
            snapshots: 0,
            activations: 500_000_000,
            workspace: 1_000_000,
            streaming: 0,
            gain: None,
            host: None,
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
        let beside = MemoryPlan { zero_copy: 1_158_000_000, ..plan(0) };
        assert_eq!(beside.needed_bytes(), plan(0).needed_bytes());
        assert!(beside.to_string().contains("mapped), 1.158 GB more in main memory for the device, KV"), "{beside}");
        assert!(plan(9_999_999_999).check().unwrap_err().hint().unwrap().contains("--device cpu"));
        MemoryPlan { memory: None, ..plan(0) }.check().unwrap();
    }

    #[test]
    fn experts_are_read_again_where_main_memory_is_smaller_than_they_are() {
        let memory = |free_bytes| Some(DeviceMemory { free_bytes, total_bytes: 64_000 });
        let plan = HostPlan { weights: 30_000, activations: 500, ..HostPlan::default() };
        let is_read_again = |memory| HostPlan { memory, ..plan.clone() }.is_read_again();
        assert_eq!([memory(30_499), memory(30_500), None].map(is_read_again), [true, false, false]);
    }

    fn main_memory(free_bytes: usize) -> Option<HostPlan> {
        let memory = Some(DeviceMemory { free_bytes, total_bytes: 64_000 });
        Some(HostPlan { weights: 30_000, activations: 500, memory, ..HostPlan::default() })
    }

    #[test]
    fn what_main_memory_has_no_room_for_is_refused_by_the_name_of_the_place() {
        let fitting = 12_501_000_000;
        let check =
            |free_bytes, host| MemoryPlan { host, ..plan(free_bytes) }.check().map_err(|error| error.to_string());
        check(fitting, main_memory(30_500)).expect("to the byte");
        let begins = |free_bytes, host, place: &str| {
            let error = check(free_bytes, host).expect_err("too large");
            assert!(error.starts_with(&format!("could not fit the model into the memory of {place}: ")), "{error}");
        };
        begins(fitting, main_memory(30_499), "this machine");
        begins(fitting - 1, main_memory(30_500), "a GPU");
        begins(fitting - 1, main_memory(30_499), "a GPU");
    }

    #[test]
    fn quantising_is_advised_where_weights_do_not_fit_and_would() {
        use model::checkpoint::encoding::Encoding;
        use model::config::NamedShape;

        let shape = NamedShape::gpt_oss_20b().config_with(&[]);
        let checkpoint = Checkpoint::random(shape, Encoding::Mxfp4, 1).expect("a model");
        let mut gain = checkpoint.gain().expect("of its bf16 matrices");
        gain.tensor_bytes = [13_000_000_000, 5_000_000_000];
        let gain = Some(gain);
        let hint =
            |free_bytes| MemoryPlan { gain, ..plan(free_bytes) }.check().expect_err("too large").hint().expect("one");
        for (free_bytes, advice) in [
            (10_000_000_000, "--kv-memory"), // 10 GB of weights fit, alone
            (9_999_999_999, "--quantize"),
            (5_000_000_000, "--quantize"),
            (4_999_999_999, "--device cpu"),
        ] {
            assert!(hint(free_bytes).contains(advice), "{free_bytes}: {}", hint(free_bytes));
        }
    }
}
