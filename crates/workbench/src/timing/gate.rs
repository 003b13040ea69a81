//! Checks that a candidate is right on the inputs that it is timed on: nothing wrong is ever timed.
//!
//! If the reference would take long, it computes a sample of the outputs: some entries, the first and the last among
//! them, of the axes along which outputs do not depend on each other (the contract's `[work] sample`).

use std::cell::RefCell;
use std::collections::BTreeMap;

use gpu::{BufferView, Driver};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use super::memory::{Memory, elements, part};
use crate::check::{self, Wrong, whole};
use expression::ExpressionError;
use kernel::object::key::Digest;
use kernel::template::contract::{Access, Arg};
use kernel::template::launch::ArgSpec;
use kernel::template::render::Rendered;
use kernel::template::work::Work;
use kernel::template::{Precision, Problem};
use reference::{self, Case, Output, Outputs, Tensor, Tensors};

/// Operations of the reference that are not too many.
const MOST_FLOP: f64 = 1e8;

/// Operations in whose time an output is stored, hashed and compared, whatever it takes to compute: 12 million of
/// `rmsnorm` took 5 and 6 s on a busy host.
const FLOP_OF_OUTPUT: f64 = 400.0;

/// Bytes that a GPU copies to the host in the time of another copy, whatever its size: some 15 us at 7 GB/s.
const COPY_BYTES: usize = 100_000;

/// Entries of the last axis that a sample of two axes has.
const OF_LAST_AXIS: usize = 64;

/// Entries of an axis that are computed, rising.
type Picks = BTreeMap<String, Vec<usize>>;

/// What the sampled outputs should be.
pub(super) struct Gate {
    /// The arguments that are written.
    written: Vec<Written>,
    want: Outputs,
    /// In bf16 precision, what the op gives of rounded activations.
    of_rounded: Option<Outputs>,
    description: String,
    /// SHA-256 of what is looked at and what was wanted, that goes on with what is found.
    wanted: Sha256,
    /// What is read back, which may be much more than what is looked at.
    bytes: RefCell<Vec<u8>>,
}

/// A kernel that is right.
pub(super) struct Passed {
    /// The largest error, as a fraction of the tolerance.
    pub(crate) worst: f64,
    /// SHA-256 of what was looked at, the tolerance, what was wanted and what was found, in hex.
    pub(crate) evidence: String,
}

struct Written {
    spec: ArgSpec,
    /// Of each axis the entries that are looked at.
    entries: Vec<Vec<usize>>,
    /// Length of each axis.
    shape: Vec<usize>,
}

impl Gate {
    pub(crate) fn new(
        args: &[Arg],
        axes: &[String],
        problem: &Problem,
        case: &Case,
        inputs: &Tensors,
        work: &Work,
    ) -> Result<Self, super::TimingError> {
        // Elements count as well: of all experts' weights a few rows need few operations, and making all takes long.
        let n_elements: usize = inputs.values().map(Tensor::len).sum();
        let sample = Sample { args: args.iter().collect(), problem, case };
        let of_outputs = FLOP_OF_OUTPUT * sample.n_outputs()? as f64;
        let flop = work.flop.unwrap_or(work.total_bytes()).max(n_elements as f64).max(of_outputs);
        let picks = picks(axes, case, flop);
        let want = sample.run(&picks, inputs)?;
        let names = sample.args.iter().filter(|arg| !arg.is_scalar()).map(|arg| arg.name.as_str());
        let rounded = check::rounded(inputs, names).filter(|_| problem.precision == Precision::Bf16);
        let of_rounded = rounded.map(|inputs| sample.run(&picks, &inputs)).transpose()?;
        let mut written = Vec::new();
        for arg in sample.args.iter().filter(|arg| arg.access != Access::Read) {
            let (shape, entries) = sample.entries(arg, &picks)?;
            written.push(Written { spec: ArgSpec::of(arg, problem), entries, shape });
        }
        let of = |(name, picks): (&String, &Vec<usize>)| format!("{} of {} {name}", picks.len(), sample.extent(name));
        let description = match picks.is_empty() {
            true => "all outputs".to_owned(),
            false => picks.iter().map(of).collect::<Vec<_>>().join(", "),
        };
        let mut wanted = Sha256::new();
        wanted.update(format!("{description}\n"));
        for Written { spec, .. } in &written {
            add(&mut wanted, &format!("{} wanted", spec.name), &want[&spec.name].values);
        }
        Ok(Self { written, want, of_rounded, description, wanted, bytes: RefCell::default() })
    }

    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// The memory that is looked at, of arguments that are only written.
    pub(crate) fn looked_at(&self, memory: &Memory) -> Vec<BufferView> {
        let only_written = self.written.iter().filter(|written| written.spec.access == Access::Write);
        only_written.flat_map(|written| written.rows(memory)).collect()
    }

    /// Holds what a launch left against the reference.
    pub(crate) fn check(&self, driver: &dyn Driver, memory: &Memory, kernel: &Rendered) -> Result<Passed, Wrong> {
        let mut worst: f64 = 0.0;
        let mut evidence = self.wanted.clone();
        evidence.update(format!("{:?}\n", kernel.tolerance));
        let mut all = Tensors::new();
        for written in &self.written {
            let name = &written.spec.name;
            let got = written.read(driver, memory, &mut self.bytes.borrow_mut())?;
            let shape: Vec<u64> = written.entries.iter().map(|entries| entries.len() as u64).collect();
            add(&mut evidence, &format!("{name} found"), got.values());
            worst = worst.max(check::output(&written.spec, &shape, got.values(), &self.want[name], kernel.tolerance)?);
            all.insert(name.clone(), got);
        }
        self.of_rounded.as_ref().map(|of_rounded| check::examine_rounding(&all, &self.want, of_rounded)).transpose()?;
        Ok(Passed { worst, evidence: Digest::finish(evidence).to_string() })
    }
}

impl Written {
    /// Bytes of an entry of the outermost axis, with all of the others.
    fn row_bytes(&self) -> usize {
        self.spec.dtype.len_bytes(self.shape[1..].iter().product())
    }

    /// Whether all is read though not all of it is looked at: many small copies take longer than a large one.
    fn is_read_whole(&self) -> bool {
        let n_rows = self.entries[0].len();
        n_rows == self.shape[0] || self.shape[0] * self.row_bytes() <= n_rows * COPY_BYTES
    }

    /// The memory of the entries of the outermost axis that are looked at.
    fn rows(&self, memory: &Memory) -> Vec<BufferView> {
        let (view, row_bytes) = (memory.written(&self.spec.name), self.row_bytes());
        match self.is_read_whole() {
            true => vec![view.clone()],
            false => self.entries[0].iter().map(|row| part(view, row * row_bytes, row_bytes)).collect(),
        }
    }

    fn read(&self, driver: &dyn Driver, memory: &Memory, bytes: &mut Vec<u8>) -> Result<Tensor, Wrong> {
        let mut end = 0;
        for row in self.rows(memory) {
            let at = end;
            end += row.len_bytes();
            bytes.resize(end.max(bytes.len()), 0); // once: it stays as long as it was
            driver.read(&row, &mut bytes[at..end])?;
        }
        let (mut shape, mut entries) = (self.shape.clone(), self.entries.clone());
        if !self.is_read_whole() {
            // Of what was read, all entries of the outermost axis are wanted.
            shape[0] = entries[0].len();
            entries[0] = (0..shape[0]).collect();
        }
        Ok(elements(self.spec.dtype, bytes, &places(&shape, &entries)))
    }
}

/// A problem that is computed in part.
struct Sample<'a> {
    /// The arguments that the problem has.
    args: Vec<&'a Arg>,
    problem: &'a Problem,
    case: &'a Case,
}

impl Sample<'_> {
    /// The reference on the picked entries, on all cores: each takes some entries of the axis with the most.
    fn run(&self, picks: &Picks, inputs: &Tensors) -> Result<Outputs, super::TimingError> {
        let Some((axis, all)) = picks.iter().max_by_key(|(_, entries)| entries.len()) else {
            return Ok(reference::run(&self.problem.ops, self.case, inputs)?);
        };
        let n_parts = rayon::current_num_threads().min(all.len());
        let parts: Vec<Vec<usize>> = (0..n_parts).map(|i| (i..all.len()).step_by(n_parts).collect()).collect();
        let run = |part: &Vec<usize>| {
            let mut picks = picks.clone();
            picks.insert(axis.clone(), part.iter().map(|&i| all[i]).collect());
            self.run_part(&picks, inputs)
        };
        let outputs: Vec<Outputs> = parts.par_iter().map(run).collect::<Result<_, _>>()?;
        let mut joined = Outputs::new();
        for arg in self.args.iter().filter(|arg| arg.access != Access::Read) {
            let parts = parts.iter().zip(&outputs).map(|(part, outputs)| (part.as_slice(), &outputs[&arg.name]));
            joined.insert(arg.name.clone(), self.join(arg, picks, axis, parts)?);
        }
        Ok(joined)
    }

    fn run_part(&self, picks: &Picks, inputs: &Tensors) -> Result<Outputs, super::TimingError> {
        let mut sampled = Tensors::new();
        for arg in self.args.iter().filter(|arg| inputs.contains_key(&arg.name)) {
            let tensor = &inputs[&arg.name];
            let (shape, entries) = self.entries(arg, picks)?;
            let is_whole = shape.iter().zip(&entries).all(|(len, entries)| *len == entries.len());
            let part = if is_whole { tensor.clone() } else { tensor.gather(places(&shape, &entries).into_iter()) };
            sampled.insert(arg.name.clone(), part);
        }
        Ok(reference::run(&self.problem.ops, &self.part_of_case(picks), &sampled)?)
    }

    /// Outputs of parts that have these of the entries of an axis, as one.
    fn join<'p>(
        &self,
        arg: &Arg,
        picks: &Picks,
        axis: &str,
        parts: impl Iterator<Item = (&'p [usize], &'p Output)>,
    ) -> Result<Output, super::TimingError> {
        let (_, entries) = self.entries(arg, picks)?;
        let shape: Vec<usize> = entries.iter().map(Vec::len).collect();
        let len = shape.iter().product();
        let mut joined = Output { values: vec![0.0; len], scale: vec![0.0; len] };
        for (part, output) in parts {
            let entries: Vec<Vec<usize>> = self
                .groups(arg, picks)?
                .into_iter()
                .zip(&shape)
                .map(|(group, &len)| match group {
                    Some((name, group)) if name == axis => grouped(part, group),
                    _ => (0..len).collect(),
                })
                .collect();
            for (i, place) in places(&shape, &entries).into_iter().enumerate() {
                joined.values[place] = output.values[i];
                joined.scale[place] = output.scale[i];
            }
        }
        Ok(joined)
    }

    /// Elements of all arguments that are written.
    fn n_outputs(&self) -> Result<u64, ExpressionError> {
        let written = self.args.iter().filter(|arg| arg.access != Access::Read);
        let len =
            |arg: &&Arg| Ok(ArgSpec::of(arg, self.problem).shape(&whole(&self.case.scalars))?.iter().product::<u64>());
        written.map(len).sum()
    }

    /// The case with as many entries of each picked axis as there are picks.
    fn part_of_case(&self, picks: &Picks) -> Case {
        let mut case = self.case.clone();
        for (axis, entries) in picks {
            case.dims.entry(axis.clone()).and_modify(|dim| *dim = entries.len() as u32);
            case.scalars.entry(axis.clone()).and_modify(|scalar| *scalar = entries.len() as f64);
        }
        case
    }

    /// Length of an axis that can be picked from.
    fn extent(&self, axis: &str) -> usize {
        extent(self.case, axis)
    }

    /// An argument's shape, and the entries of each of its axes.
    fn entries(&self, arg: &Arg, picks: &Picks) -> Result<(Vec<usize>, Vec<Vec<usize>>), ExpressionError> {
        let shape = ArgSpec::of(arg, self.problem).shape(&whole(&self.case.scalars))?;
        let shape: Vec<usize> = shape.into_iter().map(|len| len as usize).collect();
        let entries = self.groups(arg, picks)?.into_iter().zip(&shape).map(|(group, &len)| match group {
            Some((axis, group)) => grouped(&picks[&axis], group),
            None => (0..len).collect(),
        });
        let entries = entries.collect();
        Ok((shape, entries))
    }

    /// Of each of an argument's axes the picked axis that it is made of, and how many of its entries belong to one of
    /// that.
    fn groups(&self, arg: &Arg, picks: &Picks) -> Result<Vec<Option<(String, usize)>>, ExpressionError> {
        let shape = ArgSpec::of(arg, self.problem).shape(&whole(&self.case.scalars))?;
        let axes = arg.shape.iter().flatten().zip(shape);
        let of = |(axis, len): (&expression::Expression, u64)| {
            let name = picks.keys().find(|name| axis.names().contains(*name))?;
            Some((name.clone(), len as usize / self.extent(name)))
        };
        Ok(axes.map(of).collect())
    }
}

fn extent(case: &Case, axis: &str) -> usize {
    let dim = case.dims.get(axis).map(|&dim| dim as usize);
    dim.or_else(|| case.scalars.get(axis).map(|&scalar| scalar as usize)).unwrap_or(1).max(1)
}

/// Which entries of which axes are computed: none if all of them are.
fn picks(axes: &[String], case: &Case, flop: f64) -> Picks {
    if flop <= MOST_FLOP || axes.is_empty() {
        return Picks::new();
    }
    let all: f64 = axes.iter().map(|axis| extent(case, axis) as f64).product();
    let mut left = (all * MOST_FLOP / flop).max(2.0);
    let mut picks = Picks::new();
    for (i, axis) in axes.iter().enumerate() {
        let extent = extent(case, axis);
        // What the later axes will have at most.
        let later: f64 = axes[i + 1..].iter().map(|axis| self::extent(case, axis).min(OF_LAST_AXIS) as f64).product();
        let n = ((left / later) as usize).clamp(1, extent);
        left /= n as f64;
        picks.insert(axis.clone(), spread(extent, n));
    }
    picks
}

/// So many of the numbers below `len`: the first, the last, and others at odd distances.
fn spread(len: usize, n: usize) -> Vec<usize> {
    match n {
        1 => vec![len / 2],
        _ if n >= len => (0..len).collect(),
        _ => {
            let mut picked: Vec<usize> = (0..n).map(|i| i * (len - 1) / (n - 1)).collect();
            // Inside, not always at the same place of a tile.
            for (i, place) in picked.iter_mut().enumerate().take(n - 1).skip(1) {
                let room = (len - 1) / (n - 1);
                *place += (i * 7) % room.max(1);
            }
            picked.sort_unstable();
            picked.dedup();
            picked.retain(|&place| place < len);
            picked
        }
    }
}

/// Adds values to a digest under a name.
fn add(digest: &mut Sha256, name: &str, values: &[f64]) {
    digest.update(format!("{name} {}\n", values.len()));
    for some in values.chunks(1024) {
        // One call for each value would take longer than what it computes.
        let bytes: Vec<u8> = some.iter().flat_map(|value| value.to_le_bytes()).collect();
        digest.update(&bytes);
    }
}

/// The entries of an axis of which so many belong to each of these.
fn grouped(entries: &[usize], group: usize) -> Vec<usize> {
    entries.iter().flat_map(|entry| entry * group..(entry + 1) * group).collect()
}

/// Where the elements of these entries lie, in row-major order.
fn places(shape: &[usize], entries: &[Vec<usize>]) -> Vec<usize> {
    let mut places = vec![0];
    for (len, entries) in shape.iter().zip(entries) {
        places = places.iter().flat_map(|place| entries.iter().map(move |entry| place * len + entry)).collect();
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_row_major() {
        assert_eq!(places(&[3, 4], &[vec![0, 2], vec![1, 3]]), [1, 3, 9, 11]);
        assert_eq!(places(&[2], &[vec![0, 1]]), [0, 1]);
        assert_eq!(grouped(&[0, 3], 2), [0, 1, 6, 7]);
    }

    #[test]
    fn of_many_outputs_some_rows_are_looked_at() {
        let case = Case { scalars: BTreeMap::from([("n_tokens".to_owned(), 4096.0)]), ..Case::default() };
        let picked = picks(&["n_tokens".to_owned()], &case, FLOP_OF_OUTPUT * 4096.0 * 2880.0);
        assert_eq!(picked["n_tokens"].len(), 86); // 1e8 / (400 * 2880)
        assert!(picks(&["n_tokens".to_owned()], &case, FLOP_OF_OUTPUT * 64.0 * 2880.0).is_empty());
    }

    #[test]
    fn a_spread_has_both_ends_and_no_number_twice() {
        for (len, n) in [(1, 1), (2, 2), (100, 2), (100, 7), (2880, 64), (65, 64), (5, 9)] {
            let picked = spread(len, n);
            assert!(picked.windows(2).all(|pair| pair[0] < pair[1]), "{picked:?}");
            assert!(picked.len() <= n && picked.iter().all(|&place| place < len), "{len} {n}: {picked:?}");
            assert!(n < 2 || (picked[0] == 0 && *picked.last().expect("some") == len - 1), "{picked:?}");
        }
    }
}
