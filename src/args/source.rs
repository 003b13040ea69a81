//! Flags that several commands share: where templates and tuning tables come from, and the target.

use std::path::PathBuf;

use kernel::object::bundle::host_target;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use system::bounded_process::this_program;

/// Folders that go before the built-in templates and tables.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SourceArgs {
    /// A folder of templates, searched before all others
    #[arg(long, value_name = "DIR")]
    pub(crate) templates: Option<PathBuf>,

    /// A folder of tuning tables, searched before all others
    #[arg(long, value_name = "DIR")]
    pub(crate) tuning: Option<PathBuf>,
}

/// The same, and a target that need not be here.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// Target: a GPU (`gfx1100`, `sm_90`), a GPU in the simulator (`sim:gfx1100`), an x86-64 level (`x86-64-v3`,
    /// `x86-64-v4+amx_bf16`) [default: this machine's cores]
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<String>,
}

impl SourceArgs {
    pub(crate) fn library(&self) -> anyhow::Result<Library> {
        library(&Library::default_search(self.templates.as_deref()))
    }

    pub(crate) fn tables(&self) -> anyhow::Result<TuningTables> {
        Ok(TuningTables::load(&TuningTables::default_search(self.tuning.as_deref()))?)
    }
}

/// The templates of these folders, and the built-in ones. This program, started again, renders the former.
pub(crate) fn library(search: &[PathBuf]) -> anyhow::Result<Library> {
    Ok(Library::load(search)?.with_program(this_program()))
}

impl TargetArgs {
    /// Whether any of the flags was given.
    pub(crate) fn are_given(&self) -> bool {
        self.source.templates.is_some() || self.source.tuning.is_some() || self.arch.is_some()
    }

    /// The target of compilation.
    pub(crate) fn target(&self, tables: &TuningTables) -> anyhow::Result<Target> {
        self.arch.as_deref().map_or_else(|| Ok(host_target()), |arch| named_target(arch, tables))
    }
}

/// A target by its name, which need not be here: `gfx1100`, `sim:gfx1100`, `x86-64-v3`.
///
/// # Errors
/// If nothing is known about it.
pub(crate) fn named_target(arch: &str, tables: &TuningTables) -> anyhow::Result<Target> {
    match arch.strip_prefix("sim:") {
        Some(arch) => Ok(tables.gpu(arch)?.simulated()),
        None if arch.starts_with("gfx") || arch.starts_with("sm_") => Ok(tables.gpu(arch)?),
        None => Ok(Target::named(arch)?),
    }
}
