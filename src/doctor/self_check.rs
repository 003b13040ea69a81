//! Takes one small kernel all the way: rendered, compiled, loaded, launched, and compared with the reference.

use std::time::Duration;

use anyhow::{Context, bail};
use gpu::host::HostDriver;

use crate::CHECK_WORKER;
use kernel::object::cache::Cache;
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::Library;
use system::bounded_process::this_program;
use workbench::check::parent::Children;
use workbench::check::{Checked, Checker, Runner, Selection, child};

/// Small, and in every model.
const OP: &str = "rmsnorm";

/// How long the kernel may run in one case.
const DEADLINE: Duration = Duration::from_secs(60);

/// The op's first template that fits this machine, and what it takes to check it.
struct Setup {
    library: Library,
    target: Target,
    store: Store,
    variant: String,
}

impl Setup {
    /// The cache is left alone, so that the compiler really runs.
    fn new() -> anyhow::Result<Self> {
        let library = crate::args::source::library(&Library::default_search(None))?;
        let target = Target::host();
        let folder = format!("{OP}/");
        if let Some(broken) = library.broken().into_iter().find(|broken| broken.name.starts_with(&folder)) {
            return Err(broken.to_error().into());
        }
        let fits = library.templates_where(|ops, _| ops == OP).find(|template| template.fits_target(&target).is_ok());
        let variant = fits.with_context(|| format!("no template of `{OP}` fits {}", target.id()))?.variant.clone();
        let store = Store::new(Cache::in_memory(), CompilerOptions::default());
        Ok(Self { library, target, store, variant })
    }

    fn checker<'a>(&'a self, runner: Option<Runner<'a>>) -> Checker<'a> {
        let Self { library, target, store, .. } = self;
        Checker { library, target, store, runner, compute_unit: None }
    }

    fn selection(&self) -> Selection {
        let (op, variant) = (vec![OP.into()], vec![self.variant.clone()]);
        Selection { op, variant, first_shape: true, ..Selection::default() }
    }
}

/// Checks the kernel as `kernels check` would, at one shape: in a process that it may end.
pub(super) fn run() -> anyhow::Result<Vec<String>> {
    let setup = Setup::new()?;
    let words = vec![CHECK_WORKER.into(), "doctor".into()];
    let children = Children {
        program: this_program(),
        words,
        deadline: DEADLINE,
        stops_at_hang: true,
        stop: Default::default(),
        until: None,
    };
    let checked = setup.checker(None).check_in_children(&setup.selection(), &children, &mut |_| {})?;
    told(&setup.variant, &checked)
}

/// That process.
///
/// # Errors
/// If the check cannot be set up.
pub(crate) fn work() -> anyhow::Result<()> {
    let setup = Setup::new()?;
    let driver = HostDriver::new(0)?;
    let runner = Some(Runner { target: &setup.target, driver: &driver });
    Ok(child::run(&setup.checker(runner), &setup.selection())?)
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
