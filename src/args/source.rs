//! Where templates and tuning tables come from, and what is compiled for: flags that several commands have.

use std::path::PathBuf;

use kernel::target::Target;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use system::bounded_process::this_program;

/// Folders that go before the built-in templates and tables.
#[derive(clap::Args, Clone, Debug)]
pub struct SourceArgs {
    /// A folder of templates that go before all others
    #[arg(long, value_name = "DIR")]
    pub templates: Option<PathBuf>,

    /// A folder of tuning tables that go before all others
    #[arg(long, value_name = "DIR")]
    pub tuning: Option<PathBuf>,
}

/// The same, and a target that need not be here.
#[derive(clap::Args, Clone, Debug)]
pub struct TargetArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Target: a GPU (`gfx1100`, `sm_90`), a GPU in the simulator (`sim:gfx1100`), an x86-64 level (`x86-64-v3`,
    /// `x86-64-v4+amx_bf16`); left out: this machine's cores
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<String>,
}

impl SourceArgs {
    /// All templates.
    pub fn library(&self) -> anyhow::Result<Library> {
        library(&Library::default_search(self.templates.as_deref()))
    }

    /// All tuning tables.
    pub fn tables(&self) -> anyhow::Result<TuningTables> {
        Ok(TuningTables::load(&TuningTables::default_search(self.tuning.as_deref()))?)
    }
}

/// The templates of these folders, and the built-in ones. This program, started again, renders the former.
pub fn library(search: &[PathBuf]) -> anyhow::Result<Library> {
    Ok(Library::load(search)?.with_program(this_program()))
}

impl TargetArgs {
    /// Whether any of the flags was given.
    pub fn are_given(&self) -> bool {
        self.source.templates.is_some() || self.source.tuning.is_some() || self.arch.is_some()
    }

    /// What is compiled for.
    pub fn target(&self, tables: &TuningTables) -> anyhow::Result<Target> {
        self.arch.as_deref().map_or_else(|| Ok(Target::host()), |arch| named_target(arch, tables))
    }
}

/// A target by its name, which need not be here: `gfx1100`, `sim:gfx1100`, `x86-64-v3`.
///
/// # Errors
/// If nothing is known about it.
pub fn named_target(arch: &str, tables: &TuningTables) -> anyhow::Result<Target> {
    match arch.strip_prefix("sim:") {
        Some(arch) => Ok(tables.gpu(arch)?.simulated()),
        None if arch.starts_with("gfx") || arch.starts_with("sm_") => Ok(tables.gpu(arch)?),
        None => Ok(Target::named(arch)?),
    }
}
