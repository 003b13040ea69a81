//! Memory for inputs, outputs and workspaces while kernels are timed.
//!
//! What a step reads from memory is cold: weights, and keys and values. There are enough copies of them that
//! consecutive launches touch more than the last cache holds. Activations were just written in a real step, so they
//! stay in place.

use std::collections::BTreeMap;

use gpu::{ALIGNMENT_BYTES, Argument, ArgumentKind, Buffer, BufferView, Driver, GpuError, Kernel, Launch};

use super::gate::Gate;
use super::{Captured, Setup};
use expression::ExpressionError;
use format::Dtype;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::render::Rendered;
use kernel::template::work::Work;
use reference::{Tensor, Tensors};

/// Most copies of the weights; the smallest ones stay in the cache all the same.
const MAX_COPIES: usize = 512;

/// Most bytes of the copies of one tensor: of a large one that is hardly touched one is enough.
const MAX_BYTES: usize = 4 << 30;

/// Most launches of one replay.
const MAX_LAUNCHES: usize = 1024;

/// Share of a launch's bytes below which it does not matter whether weights are cold, as those of a norm of many rows:
/// hundreds of copies would make a round of hundreds of long launches.
const COLD_SHARE: f64 = 1e-3;

/// Times the last cache that a round of launches touches.
const CACHES: f64 = 2.0;

/// What an output and a workspace hold before: NaN as a float, far out of range as an index.
pub(super) const POISON: u8 = 0xff;

/// Weights of a problem, kept on the device from one number of rows to the next.
#[derive(Default)]
pub struct Weights {
    tensors: Tensors,
    copies: BTreeMap<String, Vec<BufferView>>,
}

impl Weights {
    /// Puts the kept weights in the place of new ones of the same size, and keeps those that are new.
    pub(super) fn keep(
        &mut self,
        args: &[ArgSpec],
        scalars: &BTreeMap<String, u64>,
        inputs: &mut Tensors,
    ) -> Result<(), ExpressionError> {
        for arg in args {
            let Some(tensor) = inputs.get_mut(&arg.name).filter(|_| arg.access == Access::Read) else { continue };
            if !is_streamed(arg, scalars)? {
                continue;
            }
            match self.tensors.get(&arg.name) {
                Some(kept) if kept.len() == tensor.len() && kept.dtype() == tensor.dtype() => *tensor = kept.clone(),
                _ => {
                    self.copies.remove(&arg.name);
                    self.tensors.insert(arg.name.clone(), tensor.clone());
                }
            }
        }
        Ok(())
    }

    /// So many copies of a weight.
    fn copies(&mut self, driver: &dyn Driver, name: &str, n_copies: usize) -> Result<Vec<BufferView>, GpuError> {
        if let Some(copies) = self.copies.get(name).filter(|copies| copies.len() >= n_copies) {
            return Ok(copies.clone());
        }
        self.copies.remove(name); // its memory is needed
        let bytes = self.tensors[name].to_bytes();
        let step = bytes.len().next_multiple_of(ALIGNMENT_BYTES);
        let buffer = driver.allocate(step * n_copies)?.view();
        let copies: Vec<BufferView> = (0..n_copies).map(|i| part(&buffer, i * step, bytes.len())).collect();
        copies.iter().try_for_each(|copy| driver.write(copy, &bytes))?;
        self.copies.insert(name.to_owned(), copies.clone());
        Ok(copies)
    }
}

/// Whether a step reads the tensor from memory: it is as large for one row as for many, and no list of indices.
fn is_streamed(arg: &ArgSpec, scalars: &BTreeMap<String, u64>) -> Result<bool, ExpressionError> {
    let mut one_more = scalars.clone();
    one_more.entry("n_tokens".into()).and_modify(|n| *n += 1);
    let is_index = matches!(arg.dtype, Dtype::U32 | Dtype::I32);
    let is_tensor = !arg.is_scalar() && arg.access == Access::Read;
    Ok(is_tensor && !is_index && arg.len_elements(scalars)? == arg.len_elements(&one_more)?)
}

/// Everything but workspaces, which each kernel has for itself.
pub(super) struct Memory {
    /// Of each argument the copies; one of those that are not cold.
    places: BTreeMap<String, Vec<BufferView>>,
    /// What arguments that are read and written held at first.
    before: BTreeMap<String, Vec<u8>>,
    n_copies: usize,
}

/// Copies of what is cold, of which a launch touches so many bytes, and of all so many.
fn copies(touched: f64, all: f64, cache_bytes: usize) -> usize {
    if touched == 0.0 || touched < COLD_SHARE * all {
        return 1;
    }
    (1.0 + CACHES * cache_bytes as f64 / touched).ceil().min(MAX_COPIES as f64) as usize
}

impl Memory {
    pub(crate) fn new(
        driver: &dyn Driver,
        args: &[ArgSpec],
        setup: &Setup,
        inputs: &Tensors,
        work: &Work,
        weights: &mut Weights,
    ) -> Result<Self, super::TimingError> {
        let streamed: Vec<bool> = args.iter().map(|arg| is_streamed(arg, &setup.scalars)).collect::<Result<_, _>>()?;
        let cold = args.iter().zip(&streamed).filter(|(_, streamed)| **streamed);
        let touched: f64 = cold.map(|(arg, _)| work.bytes.get(&arg.name).copied().unwrap_or(0.0)).sum();
        let n_copies = copies(touched, work.total_bytes(), setup.cache_bytes);
        let mut largest = 1;
        for (arg, _) in args.iter().zip(&streamed).filter(|(_, streamed)| **streamed) {
            largest = largest.max(arg.len_bytes(&setup.scalars)?);
        }
        let n_copies = n_copies.min((MAX_BYTES / largest).max(1));
        let mut memory = Self { places: BTreeMap::new(), before: BTreeMap::new(), n_copies };
        for (arg, streamed) in args.iter().zip(streamed).filter(|(arg, _)| !arg.is_scalar()) {
            let copies = if streamed {
                weights.copies(driver, &arg.name, n_copies)?
            } else {
                vec![memory.place(driver, arg, &setup.scalars, inputs)?.view()]
            };
            memory.places.insert(arg.name.clone(), copies);
        }
        Ok(memory)
    }

    fn place(
        &mut self,
        driver: &dyn Driver,
        arg: &ArgSpec,
        scalars: &BTreeMap<String, u64>,
        inputs: &Tensors,
    ) -> Result<Buffer, super::TimingError> {
        let buffer = driver.allocate(arg.len_bytes(scalars)?)?;
        if let Some(tensor) = inputs.get(&arg.name).filter(|_| arg.access != Access::Write) {
            let bytes = tensor.to_bytes();
            driver.write(&buffer.view(), &bytes)?;
            if arg.access == Access::ReadWrite {
                self.before.insert(arg.name.clone(), bytes);
            }
        }
        Ok(buffer)
    }

    pub(crate) fn n_copies(&self) -> usize {
        self.n_copies
    }

    /// The memory of an argument that is written.
    pub(crate) fn written(&self, name: &str) -> &BufferView {
        &self.places[name][0]
    }

    /// Poisons what the gate will look at, and gives back their contents to arguments that are read and written.
    pub(crate) fn reset(&self, driver: &dyn Driver, gate: &Gate) -> Result<(), GpuError> {
        for view in gate.looked_at(self) {
            driver.fill(&view, POISON)?;
        }
        self.before.iter().try_for_each(|(name, bytes)| driver.write(self.written(name), bytes))
    }

    /// A kernel's launches, one for each copy of the weights.
    pub(crate) fn launches(
        &self,
        driver: &dyn Driver,
        kernel: &Rendered,
        scalars: &BTreeMap<String, u64>,
    ) -> Result<Launches, super::CandidateError> {
        let mut workspace = BTreeMap::new();
        for arg in &kernel.workspace {
            let buffer = driver.allocate(arg.len_bytes(scalars)?)?.view();
            driver.fill(&buffer, if arg.is_zeroed { 0 } else { POISON })?;
            workspace.insert(&arg.name, buffer);
        }
        // What a template of a run writes between its ops for others, here for nobody.
        let is_kept = |arg: &&ArgSpec| !arg.is_scalar() && !self.places.contains_key(&arg.name);
        for arg in kernel.all_args().filter(is_kept) {
            if !workspace.contains_key(&arg.name) {
                workspace.insert(&arg.name, driver.allocate(arg.len_bytes(scalars)?)?.view());
            }
        }
        let argument = |arg: &ArgSpec, copy: usize| {
            let value = scalars.get(&arg.name).copied().unwrap_or_default();
            Ok(match arg.argument().kind {
                ArgumentKind::U32 => Argument::U32(value as u32),
                ArgumentKind::I32 => Argument::I32(value as i32),
                ArgumentKind::F32 => Argument::F32(value as f32),
                ArgumentKind::Read | ArgumentKind::Write => {
                    let own = workspace.get(&arg.name).cloned();
                    let view = own.unwrap_or_else(|| {
                        let copies = &self.places[&arg.name];
                        copies[copy % copies.len()].clone()
                    });
                    Argument::Memory { view, required_bytes: arg.len_bytes(scalars)? }
                }
            })
        };
        let arguments = |copy| kernel.all_args().map(|arg| argument(arg, copy)).collect::<Result<_, ExpressionError>>();
        Ok(Launches {
            args: (0..self.n_copies).map(arguments).collect::<Result<_, _>>()?,
            n: self.n_copies,
            grid: kernel.launch.grid(scalars)?,
            scratch_bytes: kernel.launch.scratch_bytes(scalars)? as usize,
        })
    }
}

/// Launches of one kernel, going round in the copies of the weights.
pub(super) struct Launches {
    args: Vec<Vec<Argument>>,
    n: usize,
    grid: [u32; 3],
    scratch_bytes: usize,
}

impl Launches {
    /// At least so many, in whole rounds.
    pub(crate) fn repeat(&mut self, at_least: usize) {
        let rounds = at_least.min(MAX_LAUNCHES).div_ceil(self.args.len());
        self.n = self.args.len() * rounds.max(1);
    }

    pub(crate) fn len(&self) -> usize {
        self.n
    }

    pub(crate) fn nth(&self, i: usize) -> Launch<'_> {
        let args = &self.args[i % self.args.len()];
        Launch { grid: self.grid, scratch_bytes: self.scratch_bytes, args }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = Launch<'_>> {
        (0..self.n).map(|i| self.nth(i))
    }

    pub(crate) fn all<'k>(&'k self, kernel: &'k Kernel) -> Captured<'k> {
        self.each().map(|launch| (kernel, launch)).collect()
    }
}

/// A part of a view that is known to be in it.
pub(super) fn part(view: &BufferView, offset_bytes: usize, len_bytes: usize) -> BufferView {
    view.slice(offset_bytes, len_bytes).expect("the part lies in its buffer")
}

/// Elements at these places of bytes as they lie in memory.
pub(super) fn elements(dtype: Dtype, bytes: &[u8], places: &[usize]) -> Tensor {
    let size = dtype.len_bytes(1);
    let picked: Vec<u8> = places.iter().flat_map(|&i| bytes[i * size..][..size].iter().copied()).collect();
    Tensor::from_bytes(dtype, &picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_hardly_count_need_no_copies() {
        let cache = 50_000_000;
        // 2880 x 5120 in bf16 and one row: twice the cache is touched before a copy's turn comes again.
        assert_eq!(copies(29_491_200.0, 29_517_440.0, cache), 5);
        // The scale of a norm, in bf16, of one row of 2880 and of 4096.
        assert_eq!(copies(5_760.0, 23_040.0, cache), MAX_COPIES);
        assert_eq!(copies(5_760.0, 70_784_640.0, cache), 1);
        assert_eq!(copies(0.0, 1e6, cache), 1);
    }
}
