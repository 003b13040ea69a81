//! A launch with guards: every tensor is between two red zones, outputs are poisoned, and all of it is checked
//! afterwards. If the device has such memory and a child runs the kernel, one side is not a red zone but an
//! inaccessible page: this also catches a read whose value is masked away.
//!
//! Guards and poison are NaNs if elements are floats: a kernel that reads past an end, or an element that it never
//! wrote, spoils its result. Guards of whole numbers are small numbers, so that such a kernel survives to be reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use gpu::{Argument, ArgumentKind, Buffer, BufferView, Driver, GpuError, Kernel, Launch};

use super::Wrong;
use super::lds::LdsFill;
use super::trial::{Scalars, whole};
use format::Dtype;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::render::Rendered;
use reference::{Tensor, Tensors};

/// Length of a red zone, in bytes.
const GUARD_BYTES: usize = 4096;

/// Alignment that kernels may count on everywhere but in a checkpoint that is used where it lies, in bytes.
const MIN_ALIGNMENT_BYTES: usize = 64;

/// The most that an argument of a test may have, in bytes: its shapes are small.
const MAX_LEN_BYTES: usize = 1 << 30;

/// What an output and the workspace hold before: NaN as a float, far out of range as an index.
pub(super) const POISON: u8 = 0xff;

/// How arguments lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every tensor aligned to what memory of the device is, at least to 64 bytes, none in the memory of another.
    Plain,
    /// As unfriendly as a model may be: where a device uses a checkpoint where it lies, its tensors aligned to their
    /// elements only (its data begin at byte 60), and each argument that may alias another in its memory.
    Awkward,
}

impl Placement {
    /// Whether there is an awkward placement of a kernel's arguments.
    pub(super) fn is_awkward(kernel: &Rendered, weights: &BTreeSet<String>, driver: &dyn Driver) -> bool {
        (driver.alignment_bytes() < MIN_ALIGNMENT_BYTES && !weights.is_empty())
            || kernel.args.iter().any(|arg| arg.may_alias.is_some())
    }

    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Awkward => ", weights unaligned where they can be, aliases in place",
        }
    }
}

/// The side on which a tensor touches an inaccessible page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// Its first byte is right after one.
    Begin,
    /// Its last byte is right before one, or as near as its alignment allows.
    End,
}

/// The bytes of all outputs of a launch, with their type.
pub(super) type Written = BTreeMap<String, (Dtype, Vec<u8>)>;

pub(super) fn tensors(written: &Written) -> Tensors {
    written.iter().map(|(name, (dtype, bytes))| (name.clone(), Tensor::from_bytes(*dtype, bytes))).collect()
}

pub(super) struct Setting<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) kernel: &'a Rendered,
    /// Names of the arguments that come from the checkpoint.
    pub(crate) weights: &'a BTreeSet<String>,
    pub(crate) scalars: &'a Scalars,
    pub(crate) placement: Placement,
    /// Where tensors touch forbidden pages, on a device that has such memory.
    pub(crate) fence: Option<Edge>,
    /// Whether a kernel with workspace is launched once more over what it left there.
    pub(crate) is_twice: bool,
    /// Fills LDS before each launch, where the device does not by itself.
    pub(crate) lds: Option<&'a LdsFill>,
}

/// On which side of an argument memory was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before its first byte.
    Before,
    /// After its last byte.
    After,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
        })
    }
}

impl Setting<'_> {
    /// Launches the kernel on these inputs and gives the tensors that it writes; one with workspace twice, if asked to:
    /// the second time over what the first left there, as in a model.
    pub(crate) fn launch(&self, loaded: &Kernel, inputs: &Tensors) -> Result<Vec<Written>, Wrong> {
        let mut memory = self.place_all(inputs)?;
        let n_launches = if self.kernel.workspace.is_empty() || !self.is_twice { 1 } else { 2 };
        let mut outputs = Vec::new();
        for i in 0..n_launches {
            if i > 0 {
                self.restore(&mut memory)?;
            }
            outputs.push(self.launch_once(loaded, &memory)?);
        }
        Ok(outputs)
    }

    /// All memory as it was before the first launch, but for the workspace.
    fn restore(&self, memory: &mut BTreeMap<String, Guarded>) -> Result<(), Wrong> {
        for (name, guarded) in memory.iter_mut().filter(|(_, guarded)| guarded.is_written) {
            if self.kernel.workspace.iter().any(|arg| arg.name == *name) {
                self.driver.read(&guarded.buffer.view(), &mut guarded.before)?;
            } else {
                self.driver.write(&guarded.buffer.view(), &guarded.before)?;
            }
        }
        Ok(())
    }

    fn launch_once(&self, loaded: &Kernel, memory: &BTreeMap<String, Guarded>) -> Result<Written, Wrong> {
        let arguments: Vec<Argument> = self.args().map(|arg| self.argument(arg, memory)).collect();
        let grid = self.kernel.launch.grid(&whole(self.scalars))?;
        if let Some(lds) = self.lds {
            lds.launch(self.driver)?;
        }
        let mut result = Ok(());
        let scratch_bytes = self.kernel.launch.scratch_bytes(&whole(self.scalars))? as usize;
        let launch = Launch { grid, scratch_bytes, args: &arguments };
        self.driver.enter(&mut || result = self.driver.launch(loaded, &launch));
        result?;
        let mut outputs = Written::new();
        for arg in self.args().filter(|arg| memory.contains_key(&arg.name)) {
            let contents = memory[&arg.name].contents_after(self.driver, &arg.name)?;
            if let (true, Some(offset_bytes)) = (arg.is_zeroed, contents.iter().position(|byte| *byte != 0)) {
                return Err(Wrong::NotZero { argument: arg.name.clone(), offset_bytes });
            }
            if arg.access != Access::Read && !self.is_workspace(arg) {
                outputs.insert(arg.name.clone(), (arg.dtype, contents));
            }
        }
        Ok(outputs)
    }

    fn args(&self) -> impl Iterator<Item = &ArgSpec> {
        self.kernel.args.iter().chain(&self.kernel.workspace)
    }

    fn is_workspace(&self, arg: &ArgSpec) -> bool {
        self.kernel.workspace.iter().any(|other| other.name == arg.name)
    }

    /// The argument in whose memory this one is placed.
    fn host_of<'a>(&self, arg: &'a ArgSpec) -> Option<&'a String> {
        arg.may_alias.as_ref().filter(|_| self.placement == Placement::Awkward)
    }

    /// Memory for every tensor but those that lie in another's.
    fn place_all(&self, inputs: &Tensors) -> Result<BTreeMap<String, Guarded>, Wrong> {
        let mut memory = BTreeMap::new();
        for arg in self.args().filter(|arg| !arg.is_scalar() && self.host_of(arg).is_none()) {
            let guest = self.kernel.args.iter().find(|other| self.host_of(other) == Some(&arg.name));
            let held = guest.unwrap_or(arg);
            let len_bytes = arg.len_bytes(&whole(self.scalars))?;
            if len_bytes > MAX_LEN_BYTES {
                return Err(Wrong::TooLarge { argument: arg.name.clone(), shape: arg.shape_text(), len_bytes });
            }
            let contract = arg.len_elements(&whole(self.scalars))? as usize;
            let contents = if held.is_zeroed {
                vec![0; len_bytes]
            } else if held.access == Access::Write || self.is_workspace(held) {
                vec![POISON; len_bytes]
            } else {
                inputs.get(&held.name).map(Tensor::to_bytes).unwrap_or_default()
            };
            let reference = arg.dtype.elements_in(contents.len());
            if reference != contract {
                return Err(Wrong::Length { argument: held.name.clone(), contract, reference });
            }
            memory.insert(arg.name.clone(), self.guarded(arg, contents)?);
        }
        Ok(memory)
    }

    /// A tensor with guards around it, and with a forbidden page on one side where there is such memory.
    fn guarded(&self, arg: &ArgSpec, contents: Vec<u8>) -> Result<Guarded, GpuError> {
        if let Some(edge) = self.fence
            && let Some(buffer) = self.driver.fenced(contents.len())?
        {
            let is_unaligned = self.offset_bytes(arg) > 0;
            return Guarded::fenced(self.driver, arg, contents, buffer, edge, is_unaligned);
        }
        Guarded::new(self.driver, arg, contents, self.offset_bytes(arg))
    }

    fn argument(&self, arg: &ArgSpec, memory: &BTreeMap<String, Guarded>) -> Argument {
        let value = self.scalars.get(&arg.name).copied().unwrap_or_default();
        match arg.argument().kind {
            ArgumentKind::U32 => Argument::U32(value as u32),
            ArgumentKind::I32 => Argument::I32(value as i32),
            ArgumentKind::F32 => Argument::F32(value as f32),
            ArgumentKind::Read | ArgumentKind::Write => {
                let guarded = &memory[self.host_of(arg).unwrap_or(&arg.name)];
                Argument::Memory { view: guarded.view(), required_bytes: guarded.contents.len() }
            }
        }
    }

    /// Bytes by which a tensor misses the alignment that all others have.
    fn offset_bytes(&self, arg: &ArgSpec) -> usize {
        match self.placement {
            _ if self.driver.alignment_bytes() >= MIN_ALIGNMENT_BYTES => 0,
            Placement::Awkward if self.weights.contains(&arg.name) => match arg.dtype.size_bits() {
                32 => 60,
                16 => 2,
                _ => 1,
            },
            Placement::Awkward | Placement::Plain => 0,
        }
    }
}

/// Red zones of a tensor's kind, and the tensor between them.
fn fill(memory: &mut [u8], dtype: Dtype, contents: &[u8], offset_bytes: usize) {
    let guard: &[u8] = match dtype {
        Dtype::U32 | Dtype::I32 => &[3, 0, 0, 0], // an index that is in bounds
        _ => &[POISON],                           // NaN, and as the scale of a block too
    };
    let (before, rest) = memory.split_at_mut(offset_bytes);
    let (tensor, after) = rest.split_at_mut(contents.len());
    tensor.copy_from_slice(contents);
    for zone in [before, after] {
        zone.copy_from_slice(&guard.repeat(zone.len().div_ceil(guard.len()))[..zone.len()]);
    }
}

/// A tensor between two red zones.
struct Guarded {
    buffer: Buffer,
    /// Where the tensor begins.
    offset_bytes: usize,
    /// What it held before.
    contents: Vec<u8>,
    /// All of the memory as it was before, red zones included.
    before: Vec<u8>,
    /// Whether the kernel may change the tensor itself.
    is_written: bool,
}

impl Guarded {
    fn new(driver: &dyn Driver, arg: &ArgSpec, contents: Vec<u8>, offset_bytes: usize) -> Result<Self, GpuError> {
        let mut before = vec![0; 2 * GUARD_BYTES + 128 + contents.len()];
        // Memory of the driver's own is aligned; what a driver uses where it lies begins anywhere.
        let is_written = arg.access != Access::Read;
        let is_copied = is_written || driver.alignment_bytes() >= MIN_ALIGNMENT_BYTES;
        let base = if is_copied { 0 } else { before.as_ptr() as usize };
        let offset_bytes = (base + GUARD_BYTES).next_multiple_of(MIN_ALIGNMENT_BYTES) - base + offset_bytes;
        fill(&mut before, arg.dtype, &contents, offset_bytes);
        let buffer = if is_written {
            let buffer = driver.allocate(before.len())?;
            driver.write(&buffer.view(), &before)?;
            buffer
        } else {
            let copy = before.clone();
            // The vector that was aligned is the one that is used; the copy is kept to compare with.
            let used = std::mem::replace(&mut before, copy);
            driver.upload(Bytes::from(used))?
        };
        Ok(Self { buffer, offset_bytes, contents, before, is_written })
    }

    /// In memory between forbidden pages. A tensor that ends at one begins where its alignment allows, a red zone of
    /// less than that between; one that may be unaligned ends right there, unless that would align it.
    fn fenced(
        driver: &dyn Driver,
        arg: &ArgSpec,
        contents: Vec<u8>,
        buffer: Buffer,
        edge: Edge,
        is_unaligned: bool,
    ) -> Result<Self, GpuError> {
        let room = buffer.len_bytes() - contents.len();
        let offset_bytes = match edge {
            Edge::Begin => 0,
            Edge::End if !is_unaligned => room / MIN_ALIGNMENT_BYTES * MIN_ALIGNMENT_BYTES,
            Edge::End if room.is_multiple_of(MIN_ALIGNMENT_BYTES) => room.saturating_sub(arg.dtype.len_bytes(1)),
            Edge::End => room,
        };
        let mut before = vec![0; buffer.len_bytes()];
        fill(&mut before, arg.dtype, &contents, offset_bytes);
        driver.write(&buffer.view(), &before)?;
        Ok(Self { buffer, offset_bytes, contents, before, is_written: arg.access != Access::Read })
    }

    fn view(&self) -> BufferView {
        self.buffer.view().slice(self.offset_bytes, self.contents.len()).expect("the tensor lies in its buffer")
    }

    /// The tensor after the launch, if nothing else changed.
    fn contents_after(&self, driver: &dyn Driver, argument: &str) -> Result<Vec<u8>, Wrong> {
        let mut after = vec![0; self.before.len()];
        driver.read(&self.buffer.view(), &mut after)?;
        let end = self.offset_bytes + self.contents.len();
        let is_changed = |zone: Range<usize>| after[zone.clone()] != self.before[zone];
        let changed = |i: &usize| after[*i] != self.before[*i];
        let outside = |side, offset_bytes| Wrong::OutOfBounds { argument: argument.to_owned(), side, offset_bytes };
        if is_changed(0..self.offset_bytes)
            && let Some(i) = (0..self.offset_bytes).rev().find(changed)
        {
            return Err(outside(Side::Before, self.offset_bytes - i));
        }
        if is_changed(end..after.len())
            && let Some(i) = (end..after.len()).find(changed)
        {
            return Err(outside(Side::After, i - end));
        }
        if !self.is_written && after[self.offset_bytes..end] != self.contents {
            return Err(Wrong::ReadOnly { argument: argument.to_owned() });
        }
        Ok(after[self.offset_bytes..end].to_vec())
    }
}
