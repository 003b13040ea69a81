//! One small kernel, all the way: chosen, rendered, compiled, loaded, launched, and compared with the reference.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::ensure;
use gpu::host::HostDriver;
use gpu::{Argument, BufferView, Driver, Launch};

use crate::dtype::Dtype;
use crate::kernel::cache::Cache;
use crate::kernel::compile::CompilerOptions;
use crate::kernel::contract::Contract;
use crate::kernel::library::Library;
use crate::kernel::pipeline::{LoadedKernel, Pipeline};
use crate::kernel::store::Store;
use crate::kernel::{Precision, Problem};
use crate::reference::{self, Case, Output, Tensor, Tensors};
use crate::target::Target;
use crate::tuning::TuningTables;

const OP: &str = "rmsnorm";
const PRECISION: Precision = Precision::F32;

/// Runs the op at the first test shape of its contract. The cache is left alone, so that the compiler really runs.
pub(super) fn run() -> anyhow::Result<Vec<String>> {
    let driver = Arc::new(HostDriver::new(0)?);
    let library = Library::load(&Library::default_search(None))?;
    let tables = TuningTables::load(&TuningTables::default_search(None))?;
    let case = first_case(library.contract(OP)?)?;
    let store = Store::new(Cache::in_memory(), CompilerOptions::for_this_program()?);
    let pipeline = Pipeline::new(library, tables, Target::host(), store, driver);
    check(&pipeline, &case)
}

/// The contract's first test, with the first of the scalar values and of the dtypes.
fn first_case(contract: &Contract) -> anyhow::Result<Case> {
    let test = contract.tests.first().ok_or_else(|| anyhow::anyhow!("`{OP}/op.toml` has no tests"))?;
    let scalars = test.scalars.iter().filter_map(|(name, given)| Some((name.clone(), *given.values().first()? as u64)));
    Ok(Case {
        dims: test.dims.clone(),
        constants: test.constants.clone(),
        flags: test.flags.clone(),
        dtypes: contract.dtypes.iter().map(|(name, allowed)| (name.clone(), allowed[0])).collect(),
        scalars: scalars.collect(),
    })
}

fn check(pipeline: &Pipeline, case: &Case) -> anyhow::Result<Vec<String>> {
    let problem = Problem {
        ops: vec![OP.to_owned()],
        dims: case.dims.clone(),
        constants: case.constants.clone(),
        flags: case.flags.clone(),
        dtypes: case.dtypes.clone(),
        precision: PRECISION,
    };
    let n_rows = case.scalars.get("n_tokens").copied().unwrap_or(1) as usize;
    let inputs = reference::inputs(&problem.ops, case, 1)?;
    let wanted = reference::run(&problem.ops, case, &inputs)?;
    let [kernel] = &pipeline.load_all(&[(problem, n_rows)], &())?[..] else { unreachable!("one for each") };
    let got = launch(pipeline.driver(), kernel, case, &inputs)?;
    let tolerance = kernel.rendered.tolerance;
    let mut worst = 0.0_f64;
    for (name, want) in &wanted {
        worst = worst.max(largest_error(&got[name], want, tolerance.rtol, tolerance.atol));
    }
    let shape: Vec<String> = case.dims.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let (label, shape) = (&kernel.rendered.label, shape.join(", "));
    ensure!(worst <= 1.0, "`{label}` at {shape}: an error of {worst:.1} times the tolerance against the reference");
    Ok(vec![format!("{label} at {shape}: compiled, ran, and agrees with the reference")])
}

/// Runs the kernel once. Gives every tensor that is not among the inputs.
fn launch(driver: &dyn Driver, kernel: &LoadedKernel, case: &Case, inputs: &Tensors) -> anyhow::Result<Tensors> {
    let mut args = Vec::new();
    let mut written: BTreeMap<String, (Dtype, BufferView, usize)> = BTreeMap::new();
    for spec in kernel.rendered.all_args() {
        if spec.is_scalar() {
            args.push(Argument::U32(case.scalars[&spec.name] as u32));
            continue;
        }
        let required_bytes = spec.len_bytes(&case.scalars)?;
        let view = driver.allocate(required_bytes)?.view();
        match inputs.get(&spec.name) {
            Some(tensor) => driver.write(&view, &tensor.to_bytes())?,
            None => drop(written.insert(spec.name.clone(), (spec.dtype, view.clone(), required_bytes))),
        }
        args.push(Argument::Memory { view, required_bytes });
    }
    driver.launch(&kernel.kernel, &Launch { grid: kernel.rendered.launch.grid(&case.scalars)?, args: &args })?;
    let read = |(name, (dtype, view, len_bytes)): (String, (Dtype, BufferView, usize))| -> anyhow::Result<_> {
        let mut bytes = vec![0; len_bytes];
        driver.read(&view, &mut bytes)?;
        Ok((name, Tensor::from_bytes(dtype, &bytes)))
    };
    written.into_iter().map(read).collect()
}

/// In units of what is allowed; infinite for a number that is none.
fn largest_error(got: &Tensor, want: &Output, rtol: f64, atol: f64) -> f64 {
    let allowed = want.scale.iter().map(|scale| atol + rtol * scale);
    let errors = got.values().iter().zip(&want.values).map(|(got, want)| (got - want).abs());
    let ratios = errors.zip(allowed).map(|(error, allowed)| if error == 0.0 { 0.0 } else { error / allowed });
    ratios.map(|ratio| if ratio.is_nan() { f64::INFINITY } else { ratio }).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_seen() {
        let want = Output { values: vec![1.0, 0.0], scale: vec![1.0, 1.0] };
        let error = |values: Vec<f64>| largest_error(&Tensor::rounded(Dtype::F32, values), &want, 0.5, 0.0);
        assert_eq!(error(vec![1.0, 0.0]), 0.0);
        assert_eq!(error(vec![1.0, 0.25]), 0.5);
        assert_eq!(error(vec![3.0, 0.0]), 4.0);
        assert_eq!(error(vec![f64::NAN, 0.0]), f64::INFINITY);
    }
}
