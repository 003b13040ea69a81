//! One small kernel, all the way: rendered, compiled, loaded, launched, and compared with the reference.

use anyhow::{Context, bail};
use gpu::host::HostDriver;

use crate::object::cache::Cache;
use crate::object::compile::CompilerOptions;
use crate::object::store::Store;
use crate::target::Target;
use crate::template::library::Library;
use crate::workbench::check::{Checked, Checker, Runner, Selection};

/// Small, and in every model.
const OP: &str = "rmsnorm";

/// Checks the op's first template that fits this machine, as `kernels check` would. The cache is left alone, so that
/// the compiler really runs.
pub(super) fn run() -> anyhow::Result<Vec<String>> {
    let library = crate::cli::source::library(&Library::default_search(None))?;
    let target = Target::host();
    let folder = format!("{OP}/");
    if let Some(broken) = library.broken().iter().find(|broken| broken.name.starts_with(&folder)) {
        return Err(broken.to_error().into());
    }
    let fits = library.templates().iter().find(|t| t.ops == [OP] && t.fits_target(&target).is_ok());
    let variant = fits.with_context(|| format!("no template of `{OP}` fits {}", target.id()))?.variant.clone();
    let store = Store::new(Cache::in_memory(), CompilerOptions::default());
    let driver = HostDriver::new(0)?;
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let selection = Selection { op: Some(OP.into()), variant: Some(variant.clone()), ..Selection::default() };
    told(&variant, &checker.check(&selection, &mut |_| {}))
}

fn told(variant: &str, checked: &[Checked]) -> anyhow::Result<Vec<String>> {
    if let Some(failure) = checked.iter().flat_map(|one| &one.failures).next() {
        bail!("{OP}/{variant} {failure}");
    }
    let sum = |of: fn(&Checked) -> usize| checked.iter().map(of).sum::<usize>();
    let (compiled, cases) = (sum(|one| one.n_compiled), sum(|one| one.n_cases));
    if compiled == 0 || cases == 0 {
        bail!("{OP}/{variant}: nothing was compiled or nothing ran ({compiled} kernels, {cases} cases)");
    }
    let ran = format!("{OP}/{variant}: {compiled} kernels compiled, {cases} launches agree with the reference");
    Ok(vec![ran])
}
