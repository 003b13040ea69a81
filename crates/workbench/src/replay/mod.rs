//! Repeats a launch of a real step, with any kernel that does its problem, on any device. [`file`] stores a launch.
//! The outputs are compared with those of the captured launch, and with the reference if that is cheap.

pub mod file;

use std::collections::BTreeMap;

use bytes::Bytes;
use gpu::code_object::KernelFacts;
use gpu::{Argument, Buffer, Driver, GpuError, Launch};

use crate::check::{self, Difference};
use crate::timing::{self, Setup};
use data::Place;
use engine::plan::capture::{CapturedArg, CapturedLaunch};
use expression::ExpressionError;
use format::Dtype;
use kernel::object::compile::Request;
use kernel::object::resources::{ObjectError, examine};
use kernel::object::store::{Store, StoreError};
use kernel::target::Target;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::library::Library;
use kernel::template::origins::Origins;
use kernel::template::render::{RenderError, Rendered, render};
use kernel::template::{Params, Resources, Template};
use reference::{Tensor, Tensors};

/// Launches that are timed.
const N_TIMED: usize = 21;

/// The reference computes in f64, element by element: so much of it takes seconds.
const MOST_FLOP: f64 = 2e9;
const MOST_ELEMENTS: usize = 64 << 20;

/// Elements that are compared at a time.
const CHUNK: usize = 1 << 16;

/// What memory holds that a kernel is to write.
const POISON: u8 = 0xff;

/// Most bytes of a workspace: the file has no tensor with which its length could be compared.
const MOST_WORKSPACE_BYTES: usize = 4 << 30;

/// On what a launch is made again.
pub struct On<'a> {
    pub library: &'a Library,
    pub store: &'a Store,
    pub target: &'a Target,
    pub driver: &'a dyn Driver,
    /// Compiler options after all others.
    pub options: &'a [&'a str],
}

/// Outputs, errors and times of a replayed launch.
#[derive(Debug)]
pub struct Replayed {
    /// The parameters, complete.
    pub params: Params,
    /// What the launch wrote, beside what it wrote before.
    pub outputs: Vec<ReplayedOutput>,
    pub reference: AgainstReference,
    /// Microseconds of each timed launch, rising; empty in the simulator.
    pub times_us: Vec<f64>,
    /// What a GPU's object uses.
    pub uses: Option<KernelFacts>,
}

/// An output, beside that of the captured launch.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayedOutput {
    pub name: String,
    /// Those that are compared.
    pub n_elements: usize,
    /// Those that the contract leaves open, as far as the reference is known.
    pub n_open: usize,
    /// Those that are not the same number.
    pub n_different: usize,
    /// The largest difference; infinite where one of the two is no number.
    pub largest: f64,
    /// The norm of the difference over that of what was captured.
    pub relative: f64,
}

/// Beside the reference, by the contract's tolerance.
#[derive(Clone, Debug, PartialEq)]
pub enum AgainstReference {
    /// The largest error, as a fraction of the tolerance.
    Right(f64),
    Wrong(Difference),
    /// Why there was no comparison.
    Unknown(String),
}

/// Why a launch cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(transparent)]
    Compile(#[from] StoreError),
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The object is not what its contract says.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The device refuses it, or what watches it stopped it.
    #[error("{error}{}", of_line(place.as_ref(), show))]
    Device {
        error: GpuError,
        /// The template's line.
        place: Option<Place>,
        /// What prints the rendered text.
        show: String,
    },
    /// The file has another tensor than the kernel asks for.
    #[error("`{name}` has {found} bytes in the file, expected {expected}")]
    Argument { name: String, expected: usize, found: usize },
    #[error("`{name}` is {found} in the file, expected {expected}")]
    Dtype { name: String, expected: Dtype, found: Dtype },
    #[error("`{name}` is {value} in the file, expected at most {}", u32::MAX)]
    Scalar { name: String, value: u64 },
    #[error("the workspace `{name}` would have {found} bytes, expected at most {MOST_WORKSPACE_BYTES}")]
    Workspace { name: String, found: usize },
    #[error("the file has no `{name}`, which `{label}` asks for")]
    Missing { name: String, label: String },
}

impl hint::Hint for ReplayError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Render(error) => error.hint(),
            Self::Argument { .. }
            | Self::Dtype { .. }
            | Self::Scalar { .. }
            | Self::Workspace { .. }
            | Self::Missing { .. } => {
                Some("the contract or the file has changed since the capture: capture the launch again".into())
            }
            _ => None,
        }
    }
}

impl From<GpuError> for ReplayError {
    fn from(error: GpuError) -> Self {
        Self::Device { error, place: None, show: String::new() }
    }
}

fn of_line(place: Option<&Place>, show: &str) -> String {
    place.map_or(String::new(), |place| format!("\n  the line comes from {place}\n  `{show}` prints it"))
}

/// The arguments of a launch on a device.
struct Placed {
    args: Vec<Argument>,
    /// Those that are put back before each launch: where, and what.
    changed: Vec<(Buffer, Bytes)>,
    /// Outputs, by their places among the arguments.
    written: Vec<(usize, ArgSpec)>,
    _buffers: Vec<Buffer>,
}

/// Makes a launch again by a template.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    stored: &CapturedLaunch,
    on: &On<'_>,
    template: &Template,
    params: &Params,
) -> Result<Replayed, ReplayError> {
    let On { library, store, target, driver, options } = *on;
    let kernel = render(library, template, &stored.problem, params, target)?;
    check_lengths(stored, &kernel)?;
    let mut request = Request::new(&kernel, target);
    request.options.extend(options.iter().map(|option| (*option).to_owned()));
    let object = store.get_all(&[request], &()).remove(0)?.object;
    let is_real = target.is_real_gpu();
    let uses =
        is_real.then(|| examine(&object, &kernel.spec(), &Resources { max_spills: None }, target)).transpose()?;
    let loaded = driver.load(&object, kernel.spec())?;
    let placed = Placed::new(stored, &kernel, driver)?;
    let grid = kernel.launch.grid(&stored.scalars)?;
    let scratch_bytes = kernel.launch.scratch_bytes(&stored.scalars)? as usize;
    let launch = Launch { grid, scratch_bytes, args: &placed.args };
    let told = |error: GpuError| {
        let line = if let GpuError::Fault { lines, .. } = &error { lines.first().copied() } else { None };
        let origins = line.and_then(|_| Origins::trace(library, template, &stored.problem, params, target, &kernel));
        let place = line.and_then(|line| origins?.of_line(line as usize).cloned());
        let show = check::show_command(&kernel.label, &stored.problem, &kernel.params, target, "--line-numbers");
        ReplayError::Device { error, place, show }
    };
    let mut launched = Ok(());
    driver.enter(&mut || launched = driver.launch(&loaded, &launch));
    launched.map_err(told)?;
    let mut got: BTreeMap<String, (Dtype, Vec<u8>)> = BTreeMap::new();
    for (i, spec) in &placed.written {
        let Argument::Memory { view, required_bytes } = &placed.args[*i] else { continue };
        let mut bytes = vec![0; *required_bytes];
        driver.read(view, &mut bytes)?;
        got.insert(spec.name.clone(), (spec.dtype, bytes));
    }
    let mut open = Open::new();
    let reference = against_reference(stored, library, &kernel, &got, &mut open)?;
    let outputs = stored.args.iter().filter_map(|arg| {
        let (dtype, bytes) = got.get(&arg.name)?;
        let open = open.get(&arg.name).map_or(&[][..], Vec::as_slice);
        Some(ReplayedOutput::new(&arg.name, *dtype, bytes, arg.after.as_ref()?, open))
    });
    let outputs = outputs.collect();
    let mut times_us = Vec::new();
    if !target.is_simulated {
        for _ in 0..N_TIMED {
            placed.changed.iter().try_for_each(|(buffer, bytes)| driver.write(&buffer.view(), bytes))?;
            let mut timed = Ok(Default::default());
            driver.enter(&mut || timed = driver.launch_timed(&loaded, &launch));
            times_us.push(1e6 * timed?.as_secs_f64());
        }
        times_us.sort_by(f64::total_cmp);
    }
    Ok(Replayed { params: kernel.params, outputs, reference, times_us, uses })
}

impl Replayed {
    /// Whether the reference says that it is right, or where that was not asked, it is what was captured.
    pub fn is_right(&self) -> bool {
        match &self.reference {
            AgainstReference::Right(_) => true,
            AgainstReference::Wrong(_) => false,
            AgainstReference::Unknown(_) => {
                !self.outputs.is_empty() && self.outputs.iter().all(|output| output.relative <= NEAR)
            }
        }
    }

    /// The time in the middle, in microseconds, and by how much of it the middle half of all times differs.
    pub fn median_us(&self) -> Option<(f64, f64)> {
        let at = |part: usize| self.times_us.get(self.times_us.len() * part / 4).copied();
        let median = at(2)?;
        Some((median, (at(3)? - at(1)?) / median))
    }
}

/// How far the norm of what two kernels give may be apart where there is no reference: a rounding of bf16.
pub const NEAR: f64 = 1.0 / 128.0;

impl ReplayedOutput {
    /// `open`: of each element whether the contract leaves it open; shorter where none of the others is.
    fn new(name: &str, dtype: Dtype, got: &[u8], captured: &[u8], open: &[bool]) -> Self {
        let n_open = open.iter().filter(|is_open| **is_open).count();
        let mut all = Self {
            name: name.to_owned(),
            n_elements: dtype.elements_in(captured.len()) - n_open,
            n_open,
            n_different: 0,
            largest: 0.0,
            relative: 0.0,
        };
        if got == captured {
            return all;
        }
        let (mut off, mut norm) = (0.0, 0.0);
        let chunk_bytes = dtype.len_bytes(CHUNK);
        let mut open = open.iter().copied().chain(std::iter::repeat(false));
        for (got, captured) in got.chunks(chunk_bytes).zip(captured.chunks(chunk_bytes)) {
            let [got, captured] = [got, captured].map(|bytes| Tensor::from_bytes(dtype, bytes));
            for ((got, captured), is_open) in got.values().iter().zip(captured.values()).zip(&mut open) {
                if is_open {
                    continue;
                }
                if captured.is_finite() {
                    norm += captured * captured;
                }
                if got == captured || got.is_nan() && captured.is_nan() {
                    continue;
                }
                let difference = (got - captured).abs();
                all.n_different += 1;
                all.largest = all.largest.max(if difference.is_nan() { f64::INFINITY } else { difference });
                off += difference * difference;
            }
        }
        all.relative = match all.n_different {
            0 => 0.0,
            _ if !all.largest.is_finite() => f64::INFINITY,
            _ => (off / norm.max(f64::MIN_POSITIVE)).sqrt(),
        };
        all
    }
}

impl Placed {
    fn new(stored: &CapturedLaunch, kernel: &Rendered, driver: &dyn Driver) -> Result<Self, ReplayError> {
        let mut placed = Self { args: Vec::new(), changed: Vec::new(), written: Vec::new(), _buffers: Vec::new() };
        for (i, spec) in kernel.all_args().enumerate() {
            if spec.is_scalar() {
                let value = *stored.scalars.get(&spec.name).ok_or_else(|| missing(spec, kernel))?;
                let value = u32::try_from(value).map_err(|_| ReplayError::Scalar { name: spec.name.clone(), value })?;
                placed.args.push(Argument::U32(value));
                continue;
            }
            let len_bytes = spec.len_bytes(&stored.scalars)?;
            let is_workspace = i >= kernel.args.len();
            let buffer = match spec.access {
                _ if is_workspace => {
                    let fill = if spec.is_zeroed { 0 } else { POISON };
                    placed.filled(driver, Bytes::from(vec![fill; len_bytes]))?
                }
                Access::Write => placed.filled(driver, Bytes::from(vec![POISON; len_bytes]))?,
                Access::Read => driver.upload(before(stored, spec, kernel)?)?,
                Access::ReadWrite => placed.filled(driver, before(stored, spec, kernel)?)?,
            };
            if !is_workspace && spec.access != Access::Read {
                placed.written.push((i, spec.clone()));
            }
            placed.args.push(Argument::Memory { view: buffer.view(), required_bytes: len_bytes });
            placed._buffers.push(buffer);
        }
        Ok(placed)
    }

    /// Memory that the launch changes.
    fn filled(&mut self, driver: &dyn Driver, bytes: Bytes) -> Result<Buffer, ReplayError> {
        let buffer = driver.allocate(bytes.len())?;
        driver.write(&buffer.view(), &bytes)?;
        self.changed.push((buffer.clone(), bytes));
        Ok(buffer)
    }
}

fn missing(spec: &ArgSpec, kernel: &Rendered) -> ReplayError {
    ReplayError::Missing { name: spec.name.clone(), label: kernel.label.clone() }
}

/// What a tensor held before.
fn before(stored: &CapturedLaunch, spec: &ArgSpec, kernel: &Rendered) -> Result<Bytes, ReplayError> {
    let stored = stored.args.iter().find(|arg| arg.name == spec.name).and_then(|arg| arg.before.clone());
    stored.ok_or_else(|| missing(spec, kernel))
}

/// Holds all that a file says of its tensors against the contract, before anything is allocated or launched.
fn check_lengths(stored: &CapturedLaunch, kernel: &Rendered) -> Result<(), ReplayError> {
    for spec in kernel.args.iter().filter(|spec| !spec.is_scalar()) {
        let missing = || missing(spec, kernel);
        let name = || spec.name.clone();
        let arg = stored.args.iter().find(|arg| arg.name == spec.name).ok_or_else(missing)?;
        if arg.dtype != spec.dtype {
            return Err(ReplayError::Dtype { name: name(), expected: spec.dtype, found: arg.dtype });
        }
        let expected = spec.len_bytes(&stored.scalars)?;
        let is_read = spec.access != Access::Write;
        let is_written = spec.access != Access::Read;
        for bytes in
            [(&arg.before, is_read), (&arg.after, is_written)].into_iter().filter_map(|(it, is)| is.then_some(it))
        {
            let found = bytes.as_ref().ok_or_else(missing)?.len();
            if found != expected {
                return Err(ReplayError::Argument { name: name(), expected, found });
            }
        }
    }
    for spec in &kernel.workspace {
        let found = spec.len_bytes(&stored.scalars)?;
        if found > MOST_WORKSPACE_BYTES {
            return Err(ReplayError::Workspace { name: spec.name.clone(), found });
        }
    }
    Ok(())
}

/// Of each element of an output whether the contract leaves it open.
type Open = BTreeMap<String, Vec<bool>>;

/// Computes it in f64, where that takes seconds and not minutes.
fn against_reference(
    stored: &CapturedLaunch,
    library: &Library,
    kernel: &Rendered,
    got: &BTreeMap<String, (Dtype, Vec<u8>)>,
    open: &mut Open,
) -> Result<AgainstReference, ReplayError> {
    let unknown = |why: String| Ok(AgainstReference::Unknown(why));
    // Those that were held against the contract.
    let is_known = |name: &str| kernel.args.iter().any(|spec| spec.name == name && spec.access != Access::Write);
    let read = stored.args.iter().filter(|arg| is_known(&arg.name));
    let read: Vec<_> = read.filter_map(|arg| Some((arg, arg.before.as_ref()?))).collect();
    let n_elements: usize = read.iter().map(|(arg, bytes)| arg.dtype.elements_in(bytes.len())).sum();
    let setup = Setup { scalars: stored.scalars.clone(), inputs: None, cache_bytes: 0, seed: 0 };
    let flop = timing::work(library, &stored.problem, &setup).ok().and_then(|work| work.flop).unwrap_or_default();
    if n_elements > MOST_ELEMENTS || flop > MOST_FLOP {
        return unknown(format!(
            "not compared with the reference: {n_elements} numbers and {flop:.1e} operations would take long"
        ));
    }
    let tensor = |(arg, bytes): &(&CapturedArg, &Bytes)| (arg.name.clone(), Tensor::from_bytes(arg.dtype, bytes));
    let inputs: Tensors = read.iter().map(tensor).collect();
    let case = timing::case(&stored.problem, &setup);
    let mut want = match reference::run(&stored.problem.ops, &case, &inputs) {
        Ok(want) => want,
        Err(error) => return unknown(format!("the reference does not take it: {error}")),
    };
    for (name, want) in &want {
        open.insert(name.clone(), want.scale.iter().map(|&scale| scale == f64::INFINITY).collect());
    }
    let (mut worst, mut n_compared): (f64, usize) = (0.0, 0);
    for arg in kernel.args.iter().filter(|arg| !arg.is_scalar() && arg.access != Access::Read) {
        let (Some((dtype, bytes)), Some(want)) = (got.get(&arg.name), want.get_mut(&arg.name)) else { continue };
        let got = Tensor::from_bytes(*dtype, bytes);
        if got.len() != want.values.len() {
            return unknown(format!(
                "the reference gives {} elements of `{}`, the kernel {}",
                want.values.len(),
                arg.name,
                got.len()
            ));
        }
        // Of a cache that a real step had: positions that nobody wrote yet hold no number, and still do.
        for ((got, want), scale) in got.values().iter().zip(&want.values).zip(&mut want.scale) {
            if got.is_nan() && want.is_nan() {
                *scale = f64::INFINITY;
            }
        }
        let shape = arg.shape(&stored.scalars)?;
        match check::output(arg, &shape, got.values(), want, kernel.tolerance) {
            Ok(fraction) => (worst, n_compared) = (worst.max(fraction), n_compared + 1),
            Err(difference) => {
                let before = inputs.get(&arg.name).filter(|_| arg.access == Access::ReadWrite);
                return Ok(AgainstReference::Wrong(match before {
                    Some(before) => difference.beside(before, &shape),
                    None => difference,
                }));
            }
        }
    }
    if n_compared == 0 {
        return unknown("the reference gives nothing that the kernel writes".to_owned());
    }
    Ok(AgainstReference::Right(worst))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn an_output_is_told_by_how_far_it_is_from_what_was_captured() {
        let new = |got: &[f32], captured: &[f32], open: &[bool]| {
            ReplayedOutput::new("y", Dtype::F32, &bytes(got), &bytes(captured), open)
        };
        let same = new(&[1.0, f32::NAN], &[1.0, f32::NAN], &[]);
        assert_eq!((same.n_elements, same.n_different, same.relative), (2, 0, 0.0));
        let off = new(&[3.0, 4.5], &[3.0, 4.0], &[]);
        assert_eq!((off.n_different, off.largest, off.relative), (1, 0.5, 0.1));
        let open = new(&[3.0, f32::NAN, 4.5], &[3.0, 7.0, 4.0], &[false, true]);
        assert_eq!((open.n_elements, open.n_open, open.n_different, open.largest), (2, 1, 1, 0.5));
        let lost = new(&[f32::NAN], &[4.0], &[]);
        assert_eq!((lost.n_different, lost.largest, lost.relative), (1, f64::INFINITY, f64::INFINITY));
    }
}
