//! A kernel's arguments and work, for one op or for a run of ops that it does together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Setup, TimingError, case};
use format::Dtype;
use kernel::template::Problem;
use kernel::template::contract::Arg;
use kernel::template::launch::ArgSpec;
use kernel::template::library::Library;
use kernel::template::library_error::LibraryError;
use kernel::template::signature::Signature;
use kernel::template::work::{Elements, Work};
use reference::{self, Tensors};

/// The arguments that a kernel for the problem has by the contracts, in order.
pub(super) fn arguments(library: &Library, problem: &Problem) -> Result<Vec<Arg>, TimingError> {
    let contracts: Result<Vec<_>, LibraryError> = problem.ops.iter().map(|op| library.contract(op).cloned()).collect();
    let mut signature = Signature::join(&contracts?)?;
    problem.keeps.iter().try_for_each(|path| signature.keep(path)).map_err(TimingError::Keep)?;
    let mut args = Vec::new();
    for arg in signature.args {
        if arg.is_there(problem)? {
            args.push(arg);
        }
    }
    Ok(args)
}

/// The axes along which the outputs of all of its ops know nothing of each other.
pub(super) fn sample_axes(library: &Library, problem: &Problem) -> Result<Vec<String>, LibraryError> {
    let mut axes: Option<Vec<String>> = None;
    for op in &problem.ops {
        let own = &library.contract(op)?.work.sample;
        let both =
            axes.take().map_or_else(|| own.clone(), |axes| axes.into_iter().filter(|a| own.contains(a)).collect());
        axes = Some(both);
    }
    Ok(axes.unwrap_or_default())
}

/// What a launch has to do at least: the operations of all ops, and each argument's bytes once. What one op hands to
/// the next is no argument.
///
/// # Errors
/// If an op has no contract or reference, or a shape does not come to a number.
pub fn work(library: &Library, problem: &Problem, setup: &Setup) -> Result<Work, TimingError> {
    let mut is_counted = false;
    for op in &problem.ops {
        is_counted |= library.contract(op)?.work.counted().next().is_some();
    }
    let inputs = is_counted.then(|| reference::inputs(&problem.ops, &case(problem, setup), setup.seed)).transpose()?;
    let specs: Vec<ArgSpec> = arguments(library, problem)?.iter().map(|arg| ArgSpec::of(arg, problem)).collect();
    work_of(library, problem, &specs, &setup.scalars, &inputs.unwrap_or_default())
}

/// The same, of inputs that are there.
pub(super) fn work_of(
    library: &Library,
    problem: &Problem,
    args: &[ArgSpec],
    scalars: &BTreeMap<String, u64>,
    inputs: &Tensors,
) -> Result<Work, TimingError> {
    let mut left: Vec<ArgSpec> = args.to_vec();
    let mut total = Work::default();
    for op in &problem.ops {
        let contract = library.contract(op)?;
        let is_own = |arg: &ArgSpec| contract.args.iter().any(|own| own.name == arg.name);
        let (own, others): (Vec<ArgSpec>, Vec<ArgSpec>) = left.into_iter().partition(is_own);
        left = others;
        let is_whole = |arg: &&ArgSpec| arg.dtype == Dtype::U32 && !arg.is_scalar();
        let elements = own.iter().filter(is_whole).filter_map(|arg| {
            let elements = inputs.get(&arg.name)?.values().iter().map(|&value| value as i64);
            Some((arg.name.clone(), elements.collect()))
        });
        let elements: Elements = elements.collect();
        let work = contract.work.count(problem, &own, scalars, &elements)?;
        Arc::make_mut(&mut total.inputs).extend(elements);
        total.flop = work.flop.map(|flop| total.flop.unwrap_or_default() + flop).or(total.flop);
        total.bytes.extend(work.bytes);
    }
    for arg in left.iter().filter(|arg| !arg.is_scalar()) {
        total.bytes.insert(arg.name.clone(), arg.len_bytes(scalars)? as f64);
    }
    Ok(total)
}
