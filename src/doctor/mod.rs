//! `gptoss-jit doctor`: checks what is installed and what is missing, says what to do, and tries whether `run` works.
//!
//! With `--json`, one object: `schema` (1), `ready` (whether `run` works), `device` (on which it does, or would),
//! `verdicts`, a list of `device`, `works`, `said` (on what it ran, or why it did not), `why` (it is this one) and
//! `hint`, the one that `run` takes first, and `checks`, a list of `name`, `state` (`ok`, `missing` or `failed`),
//! `needed` (whether that device needs it), `details` (lines) and `hint` (null where there is none). Compilers are
//! tried in workers, the checked kernel and the tiny model are run by other processes, as always: nothing is opened in
//! this one but the runtimes of GPUs.

mod child;
mod report;
mod runtimes;
mod self_check;
mod verdict;

use std::path::PathBuf;
use std::thread;

use anyhow::Context as _;
use gpu::Runtime;
use serde::Serialize;

pub(super) use self_check::work;

use self::verdict::Verdict;
use super::output::Output;
use super::report as errors;
use data::Origin;
use engine::device::Device;
use engine::kernel_driver::KernelDriver;
use hint::Hint;
use kernel::object::bundle::{Bundle, Bundles};
use kernel::object::cache::{Cache, CacheLimits, Folder};
use kernel::object::compile::{CompileError, CompilerOptions, Compilers, compiler_for, temporary_room};
use kernel::object::store::Store;
use kernel::target::{self, Target};
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use system::units::human_bytes;
use workbench::isa::llvm::Llvm;
use workbench::isa::speed::IssueModel;

/// Check this machine: what is installed, what is missing, and whether `run` works; exit 1 if it does not
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write a readable report to send: this machine, checks, generated texts and measurements of a device
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "gptoss-jit-report.md")]
    report: Option<PathBuf>,

    /// The device to check or report on [default: as `run`]
    #[arg(long, value_name = "DEVICE", default_value = "auto", hide_default_value = true)]
    device: Device,

    /// Most seconds for the report
    #[arg(long, value_name = "N", requires = "report", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// Whether the device that `run` takes needs it.
    needed: bool,
    details: Vec<String>,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Missing,
    Failed,
}

/// `run` does not work.
#[derive(Debug, thiserror::Error)]
#[error("`run` does not work here, on {device}: {why}")]
pub(super) struct NotReady {
    device: String,
    why: String,
    hint: Option<String>,
}

impl Hint for NotReady {
    fn hint(&self) -> Option<String> {
        Some(self.hint.clone().unwrap_or_else(|| "the lines above say what is missing".into()))
    }
}

/// Runs the command.
///
/// # Errors
/// [`NotReady`], or what printing gives.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    if let Some(file) = &args.report {
        return report::run(file, &args.device, args.seconds, output);
    }
    let compiler = Compilers::new(CompilerOptions::default());
    let own = [
        cpu(),
        memory(),
        Check::from_result("C compiler", true, c_compiler(&compiler)),
        Check::from_result("C++ compiler", false, cpp_compiler(&compiler)),
        llvm_mca(),
        Check::from_result("temporary", true, temporary()),
        cache(),
        bundles(),
        Check::from_result("templates", true, templates()),
        Check::from_result("tuning", true, tuning()),
        Check::from_result("self-check", true, self_check::run()),
    ];
    let driver = KernelDriver::here();
    let of_gpus = Runtime::ALL.into_iter().flat_map(|runtime| runtimes::checks(runtime, &driver, &compiler));
    let mut checks: Vec<Check> = own.into_iter().chain([runtimes::amd_driver(&driver)]).chain(of_gpus).collect();
    let verdicts = verdict::all(&args.device, &checks)?;
    let taken = &verdicts[0];
    for check in &mut checks {
        check.needed = verdict::devices_of(check.name).map_or(check.needed, |its| taken.device.starts_with(its));
    }
    if output.is_json() {
        #[derive(Serialize)]
        struct Report<'a> {
            schema: u32,
            ready: bool,
            device: &'a str,
            verdicts: &'a [Verdict],
            checks: &'a [Check],
        }
        let (ready, device, verdicts) = (taken.works, taken.device.as_str(), &verdicts);
        output.json(&Report { schema: 1, ready, device, verdicts, checks: &checks })?;
    } else {
        let run = Verdict::check(&verdicts);
        output.text(&checks.iter().chain([&run]).map(|check| check.text(taken.works)).collect::<String>())?;
    }
    if !taken.works {
        let Verdict { device, said, hint, .. } = taken;
        return Err(NotReady { device: device.clone(), why: said.clone(), hint: hint.clone() }.into());
    }
    output.note(&format!("`run` works here, on {}", taken.said));
    Ok(())
}

impl Check {
    fn ok(name: &'static str, details: Vec<String>) -> Self {
        Self { name, state: State::Ok, needed: true, details, hint: None }
    }

    fn from_result(name: &'static str, needed: bool, result: anyhow::Result<Vec<String>>) -> Self {
        let error = match result {
            Ok(details) => return Self { needed, ..Self::ok(name, details) },
            Err(error) => error,
        };
        let state = if error.chain().any(is_absence) { State::Missing } else { State::Failed };
        let details = error.chain().flat_map(|cause| lines(&cause.to_string())).collect();
        Self { name, state, needed, details, hint: error.chain().find_map(errors::hint) }
    }

    /// `ok       C compiler   gcc version …`; further lines below the first, the hint last.
    fn text(&self, run_works: bool) -> String {
        let state = match self.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Failed => "failed",
        };
        let hint = self.hint.iter().map(|hint| format!("hint: {hint}"));
        let unneeded =
            (self.state != State::Ok && (run_works || !self.needed)).then(|| "`run` does not need it".to_owned());
        let lines = self.details.iter().cloned().chain(unneeded).chain(hint).enumerate();
        lines
            .map(|(i, line)| (i, line.trim_end().to_owned()))
            .map(|(i, line)| match i {
                0 => format!("{state:<7}  {:<11}  {line}\n", self.name),
                _ => format!("{:<7}  {:<11}  {line}\n", "", ""),
            })
            .collect()
    }
}

/// Whether the error says that something is not there, as opposed to not working.
fn is_absence(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref().is_some_and(CompileError::is_absence)
}

fn lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

fn cpu() -> Check {
    let cores = thread::available_parallelism().map_or_else(|_| "?".into(), |n| n.to_string());
    Check::ok("cpu", vec![format!("{}, {cores} cores", Target::host().id())])
}

fn memory() -> Check {
    let size = |bytes: Option<usize>| bytes.map_or_else(|| "?".into(), |bytes| human_bytes(bytes as u64));
    let memory = gpu::host::memory();
    let (free, total) = (memory.map(|memory| memory.free_bytes), memory.map(|memory| memory.total_bytes));
    Check::ok("memory", vec![format!("{} of {} free", size(free), size(total))])
}

/// The version it states, and where its parts are.
fn c_compiler(compiler: &Compilers) -> anyhow::Result<Vec<String>> {
    let (identity, files) = compiler.probe(compiler_for(&Target::host()).name(), &Target::host().id())?;
    let mut details = vec![identity.description()];
    details.extend(files.iter().map(|file| file.display().to_string()));
    Ok(details)
}

/// AMD's GPUs that have a table.
fn amd_archs() -> impl Iterator<Item = String> {
    target::built_in().into_iter().map(|(name, _)| name).filter(|name| name.starts_with("gfx"))
}

/// The compiler of simulated GPUs, on which kernels are checked where there is none.
fn cpp_compiler(compiler: &Compilers) -> anyhow::Result<Vec<String>> {
    let target = Target::gpu(&amd_archs().next().context("no GPU is built in")?)?.simulated();
    let (identity, _) = compiler.probe(compiler_for(&target).name(), &target.id())?;
    Ok(vec![identity.description()])
}

/// What predicts times for AMD's GPUs that are not here.
fn llvm_mca() -> Check {
    let found: Vec<IssueModel> = amd_archs().map(|arch| IssueModel::find(&arch)).collect();
    match found.iter().find_map(IssueModel::notice) {
        None => Check { needed: false, ..Check::ok("llvm-mca", vec![Llvm::find().version()]) },
        Some(notice) => Check { state: State::Missing, needed: false, ..Check::ok("llvm-mca", lines(&notice)) },
    }
}

/// The small kernels of the self-check may have room where those of a model do not.
fn temporary() -> anyhow::Result<Vec<String>> {
    let (folder, free_bytes) = temporary_room()?;
    let free = free_bytes.map_or_else(|| "?".into(), human_bytes);
    Ok(vec![format!("{}: {free} free for compilers' files", folder.display())])
}

/// A folder that cannot be used is no obstacle: kernels are then compiled at every start. A variable that makes no
/// sense is.
fn cache() -> Check {
    match Store::from_env() {
        Err(error) => Check::from_result("cache", true, Err(error.into())),
        Ok(_) => Check::from_result("cache", false, cache_folder()),
    }
}

fn cache_folder() -> anyhow::Result<Vec<String>> {
    let (root, limit) = (Cache::default_root()?, human_bytes(CacheLimits::from_env()?.max_bytes));
    let entries = Folder::open(&root)?.list()?;
    let bytes = human_bytes(entries.iter().map(|entry| entry.size_bytes).sum());
    Ok(vec![format!("{}: usable, {} entries, {bytes} of at most {limit}", root.display(), entries.len())])
}

/// The bundles that are here: what they are for, and why others are not used.
fn bundles() -> Check {
    let bundles = Bundles::here();
    let told = |bundle: &Bundle| {
        let targets: Vec<&str> = bundle.targets().collect();
        format!("{}: {} kernels, for {}", bundle.path().display(), bundle.n_kernels(), targets.join(", "))
    };
    let refused = bundles.refused().iter().map(|(path, error)| format!("{}: {}", path.display(), hint::chain(error)));
    let mut details: Vec<String> = bundles.all().iter().map(told).chain(refused).collect();
    if details.is_empty() {
        details.push("none".into());
    }
    let check = Check { needed: false, ..Check::ok("bundles", details) };
    match bundles.refused().first() {
        Some((_, error)) => Check { state: State::Failed, hint: error.hint(), ..check },
        None => check,
    }
}

/// The folders in the order in which they are searched, and what each gives.
fn templates() -> anyhow::Result<Vec<String>> {
    let search = Library::default_search(None);
    let library = crate::args::source::library(&search)?;
    let origins = search.into_iter().map(Origin::Folder).chain([Origin::BuiltIn]);
    let count = |origin: &Origin| library.templates().filter(|t| t.file.origin == *origin).count();
    let mut details: Vec<String> = origins.map(|origin| format!("{origin}: {} templates", count(&origin))).collect();
    details.extend(library.broken().iter().map(|broken| format!("broken: {}", broken.error)));
    Ok(details)
}

/// The folders in the order in which they are searched.
fn tuning() -> anyhow::Result<Vec<String>> {
    let search = TuningTables::default_search(None);
    if let Some(broken) = TuningTables::load(&search)?.broken().next() {
        return Err(broken.clone().into());
    }
    Ok(search.iter().map(|folder| folder.display().to_string()).chain(["built in".to_owned()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::object::compile::How;

    #[test]
    fn what_is_not_there_is_missing_and_what_does_not_work_has_failed() {
        let absent = CompileError::NoHostCompiler { looked_for: vec!["`cc`".into()] };
        let check = Check::from_result("C compiler", true, Err(absent.into()));
        assert_eq!(check.state, State::Missing);
        assert!(check.hint.as_ref().is_some_and(|hint| hint.contains("apt install gcc")), "{check:?}");

        let broken = CompileError::Canary {
            compiler: "hipRTC",
            hint: "a hint".into(),
            target: "gfx1100".into(),
            how: How::Crashed { signal: 6 },
            log: "first\n\nsecond".into(),
        };
        let check = Check::from_result("hipRTC", false, Err(broken.into()));
        assert_eq!(check.state, State::Failed);
        let text = check.text(false);
        assert!(text.starts_with("failed   hipRTC       could not compile"), "{text}");
        assert!(text.contains("\n                      second\n"), "{text}");
        assert!(text.contains("`run` does not need it"), "{text}");
    }
}
