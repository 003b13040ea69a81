//! The checkpoint's tensors in the place where they are used: copied, used from the mapped file, or generated there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpu::{Argument, BufferView, Driver, Launch};

use super::error::PlanError;
use crate::graph::placement::Place;
use crate::graph::{Graph, Storage};
use format::Dtype;
use kernel::choice::KernelRequest;
use kernel::object::store::Progress;
use kernel::pipeline::{LoadedKernel, Pipeline};
use kernel::step::StepKind;
use kernel::template::launch::ArgSpec;
use kernel::template::{Precision, Problem};
use model::checkpoint::random::RandomNumbers;
use model::checkpoint::{Checkpoint, Elements, Tensor};

/// Places tensors; has the kernels that make random ones.
pub(super) struct Weights {
    kernels: BTreeMap<Dtype, Arc<LoadedKernel>>,
}

impl Weights {
    /// Loads the kernels for those of a graph's random tensors that nodes of a place use.
    pub(crate) fn new(
        graph: &Graph,
        place: Place,
        checkpoint: &Checkpoint,
        pipeline: &Pipeline,
        progress: &dyn Progress,
    ) -> Result<Self, PlanError> {
        let dtypes = random_dtypes(graph, place, checkpoint)?;
        let kernels = pipeline.load_all(&requests(&dtypes), progress).map_err(|none| none.source)?;
        Ok(Self { kernels: dtypes.into_iter().zip(kernels).collect() })
    }

    /// A tensor's place on the device, or in main memory where the device reads it. One that is made there may still be
    /// in the making: launches come after it.
    pub(crate) fn place(
        &self,
        checkpoint: &Checkpoint,
        name: &str,
        zero_copy: bool,
        driver: &dyn Driver,
    ) -> Result<BufferView, PlanError> {
        let tensor = tensor_of(checkpoint, name)?;
        let len_bytes = tensor.len_bytes();
        let failed = |source| PlanError::Device { label: name.to_owned(), source };
        let in_main_memory = |bytes: &[u8]| {
            let buffer = driver.zero_copy(len_bytes, bytes).map_err(failed)?;
            buffer.ok_or_else(|| PlanError::NotPinned { name: name.to_owned(), len_bytes })
        };
        if let Elements::Random(numbers) = &tensor.elements {
            let buffer = if zero_copy { in_main_memory(&[])? } else { driver.allocate(len_bytes).map_err(failed)? };
            let view = buffer.view();
            self.make(name, tensor, numbers, &view, driver)?;
            return Ok(view.read_only());
        }
        // What has to be made of a file is made here: a device that copies lets go of it at once, another one keeps it.
        let bytes = tensor.read()?.expect("only random weights have no bytes");
        if zero_copy {
            return in_main_memory(&bytes).map(|buffer| buffer.view().read_only());
        }
        driver.upload(bytes).map(|buffer| buffer.view()).map_err(failed)
    }

    /// Launches the kernel that fills a tensor.
    fn make(
        &self,
        name: &str,
        tensor: &Tensor,
        numbers: &RandomNumbers,
        view: &BufferView,
        driver: &dyn Driver,
    ) -> Result<(), PlanError> {
        let loaded = &self.kernels[&tensor.dtype];
        let scalars = scalars(tensor, numbers.stream);
        let argument = |spec: &ArgSpec| match (spec.name.as_str(), scalars.get(&spec.name)) {
            (_, Some(&value)) => Argument::U32(value as u32),
            ("centre", _) => Argument::F32(numbers.centre),
            ("step", _) => Argument::F32(numbers.step),
            _ => Argument::Memory { view: view.clone(), required_bytes: tensor.len_bytes() },
        };
        let args: Vec<Argument> = loaded.rendered.all_args().map(argument).collect();
        let launch = Launch {
            grid: loaded.rendered.launch.grid(&scalars)?,
            scratch_bytes: loaded.rendered.launch.scratch_bytes(&scalars)? as usize,
            args: &args,
        };
        let mut result = Ok(());
        driver.enter(&mut || result = driver.launch(&loaded.kernel, &launch));
        result.map_err(|source| PlanError::Device { label: name.to_owned(), source })
    }
}

/// The types of those of a graph's random tensors that nodes of a place use.
pub(super) fn random_dtypes(graph: &Graph, place: Place, checkpoint: &Checkpoint) -> Result<Vec<Dtype>, PlanError> {
    let mut dtypes: Vec<Dtype> = Vec::new();
    for (tensor, _) in graph.tensors.iter().zip(graph.used_at(place)).filter(|(_, is_used)| *is_used) {
        let Storage::Weight(name) = &tensor.storage else { continue };
        let tensor = tensor_of(checkpoint, name)?;
        if matches!(tensor.elements, Elements::Random(_)) && !dtypes.contains(&tensor.dtype) {
            dtypes.push(tensor.dtype);
        }
    }
    Ok(dtypes)
}

/// The kernels that make random elements of these types.
pub(super) fn requests(dtypes: &[Dtype]) -> Vec<KernelRequest> {
    let request = |dtype: &Dtype| KernelRequest { problem: problem(*dtype), n_rows: 1, step: StepKind::Decode };
    dtypes.iter().map(request).collect()
}

fn tensor_of<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<&'a Tensor, PlanError> {
    checkpoint.tensors.get(name).ok_or_else(|| PlanError::NoTensor { name: name.to_owned() })
}

/// The op that makes elements of a type. Weights depend on their seed alone: whatever the model's precision, this one
/// is exact.
fn problem(dtype: Dtype) -> Problem {
    Problem {
        ops: vec!["random_weights".into()],
        dims: BTreeMap::new(),
        constants: BTreeMap::new(),
        flags: BTreeMap::new(),
        dtypes: BTreeMap::from([("value".into(), dtype)]),
        precision: Precision::F32,
        keeps: BTreeSet::new(),
    }
}

/// Its whole-number arguments.
fn scalars(tensor: &Tensor, stream: u64) -> BTreeMap<String, u64> {
    let row_len = tensor.shape.last().copied().unwrap_or(1);
    let scalars = [
        ("n_rows", (tensor.len() / row_len.max(1)) as u64),
        ("row_len", row_len as u64),
        ("stream_low", stream & u64::from(u32::MAX)),
        ("stream_high", stream >> 32),
    ];
    scalars.map(|(name, value)| (name.to_owned(), value)).into()
}
