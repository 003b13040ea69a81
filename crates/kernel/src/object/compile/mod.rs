//! Worker processes around the compilers.
//!
//! No compiler runs in the process that owns the model: hipRTC holds a global lock, and some inputs make it kill
//! its process. The program starts itself again as a hidden command, one process per compile ([`process`]), with a
//! cleared environment, a private folder and a deadline; the worker ([`worker`]) calls one of the compilers
//! ([`host`], [`hiprtc`], [`nvrtc`], [`sim`]) and leaves a checked [`answer`]. [`identity`] says who a compiler is.
//! Nothing here knows the cache: that is [`crate::object::store`].

mod answer;
mod compiler;
mod disassembly;
pub(super) mod error;
mod evidence;
mod folder;
mod hiprtc;
mod host;
mod identity;
mod job;
mod nvrtc;
mod process;
mod rtc;
mod sim;
mod stamp;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fmt};

use super::key::Digest;
use crate::target::Target;
use crate::template::Params;
use crate::template::render::Rendered;

pub use compiler::{Canary, Compiler};
pub use error::CompileError;
pub use identity::Identity;
pub use job::signal_name;
pub use job::{CompileJob, CompileOutput, Failure, How, Stated, Toolchain};
pub use process::{COMMAND, temporary_room};
pub use sim::{instead_of, is_of_hip, known_words, unknown_word};
pub use worker::follow_parent;
pub use worker::run as run_worker;

/// All compilers, each for targets of its own.
pub(crate) static COMPILERS: [&dyn Compiler; 4] = [&host::Host, &hiprtc::Hiprtc, &nvrtc::Nvrtc, &sim::Simulator];

/// The compiler for a target.
pub fn compiler_for(target: &Target) -> &'static dyn Compiler {
    *COMPILERS.iter().find(|compiler| compiler.compiles_for(target)).expect("a compiler for every target")
}

/// Whether there is a C compiler, by its name alone: it is not asked.
pub(super) fn has_c_compiler() -> bool {
    host::Host.find(&CompilerOptions::default()).is_ok()
}

/// The compiler of a name.
fn named(name: &str) -> Option<&'static dyn Compiler> {
    COMPILERS.iter().find(|compiler| compiler.name() == name).copied()
}

/// The options that a kernel is compiled with for a target, in order: the target's for its precision, then the
/// template's own.
pub fn options(kernel: &Rendered, target: &Target) -> Vec<String> {
    let mut options = compiler_for(target).options(target, kernel.precision);
    options.extend(kernel.options.iter().cloned());
    options
}

/// One kernel to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What people call it: `linear/gemv`. Not part of what is compiled.
    pub label: String,
    /// Dims, types and parameters, for people. Not part of what is compiled either.
    pub about: String,
    /// The rendered source, whole.
    pub source: String,
    /// The name of the kernel in the object.
    pub entry: String,
    /// Compiler options, in order.
    pub options: Vec<String>,
    /// The full target id. On the host the options say what to compile for; hipRTC gets it as `--offload-arch=`, NVRTC
    /// as `--gpu-architecture=`.
    pub target: String,
    /// The name of the compiler.
    pub compiler: &'static str,
    /// The parameters that it was rendered with, for people.
    pub params: Params,
}

/// What this program adds to a kernel's own text and options, whatever the compiler is: a part of a compiler's
/// identity, and of the keys of kernels that were compiled elsewhere.
pub(super) fn additions(backend: &str) -> String {
    match backend {
        "hiprtc" => Digest::of(hiprtc::HEADER.as_bytes()).to_string(),
        "host" => format!("{:?} {:?}", host::BEFORE, host::AFTER),
        _ => String::new(),
    }
}

impl Request {
    /// The request for a rendered kernel.
    pub fn new(kernel: &Rendered, target: &Target) -> Self {
        Self {
            label: kernel.label.clone(),
            about: kernel.about.clone(),
            source: kernel.source.clone(),
            entry: kernel.entry.clone(),
            options: options(kernel, target),
            target: target.id(),
            compiler: compiler_for(target).name(),
            params: kernel.params.clone(),
        }
    }
}

/// The result of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    pub object: Vec<u8>,
    /// Warnings, and what else the compiler printed.
    pub log: String,
    /// Wall time in the worker, in milliseconds.
    pub(crate) compile_ms: u64,
}

/// How compilers are found and run.
#[derive(Clone, Debug)]
pub struct CompilerOptions {
    /// The program that has the hidden worker command; without it this one.
    pub worker: Option<PathBuf>,
    /// When a worker is killed.
    pub deadline: Duration,
    /// Address space that a worker and each process it starts may use.
    pub memory_bytes: u64,
    /// The C compiler; without it `$CC` (which may be several words), then `cc`, `gcc` and `clang` on the `PATH`.
    pub cc: Option<PathBuf>,
    pub hiprtc: Toolchain,
    pub nvrtc: Toolchain,
    /// The folder in which identities are remembered, so that a warm start runs no compiler.
    pub identities: Option<PathBuf>,
}

impl CompilerOptions {
    /// With another program as the worker than this one.
    pub fn new(worker: PathBuf) -> Self {
        Self { worker: Some(worker), ..Self::default() }
    }
}

impl Default for CompilerOptions {
    /// What a program uses that is its own worker: 120 s and 8 GiB per compile, compilers from the environment.
    fn default() -> Self {
        Self {
            worker: None,
            deadline: Duration::from_secs(120),
            memory_bytes: 8 << 30,
            cc: None,
            hiprtc: Toolchain::new(hiprtc::Hiprtc.name(), None),
            nvrtc: Toolchain::new(nvrtc::Nvrtc.name(), None),
            identities: None,
        }
    }
}

/// A compiler's name, and the target that it is asked for.
type Way = (String, String);

/// The compilers of this machine, each in worker processes. Shared between threads; every compile is a separate
/// process, so as many run at once as threads request.
pub struct Compilers {
    options: CompilerOptions,
    known: Mutex<BTreeMap<Way, Result<KnownCompilers, CompileError>>>,
    /// What is remembered of those that are not known yet.
    remembered: Mutex<BTreeMap<Way, Option<Arc<Identity>>>>,
    /// By compiler, the kernels at which it was stopped at the deadline since it answered last.
    stopped: Mutex<BTreeMap<&'static str, Vec<String>>>,
    /// When nothing is compiled any more.
    until: Mutex<Option<Instant>>,
    swept: Once,
}

/// After so many kernels in a row at which a compiler was stopped, it is not waited for any more: one may be too much
/// for a compiler that works.
const MAX_STOPPED: usize = 2;

/// What a process knows of a compiler. One that does not work is not asked again and again.
#[derive(Clone)]
struct KnownCompilers {
    identity: Arc<Identity>,
    /// What it was asked for, by which toolchain.
    toolchain: Toolchain,
    stated: Option<Stated>,
    /// It was there once, and is not now: what the cache has of it is all that there is.
    absence: Option<CompileError>,
}

impl fmt::Debug for Compilers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compilers").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Compilers {
    /// Nothing is looked for until it is needed.
    pub fn new(options: CompilerOptions) -> Self {
        Self {
            options,
            known: Mutex::default(),
            remembered: Mutex::default(),
            stopped: Mutex::default(),
            until: Mutex::default(),
            swept: Once::new(),
        }
    }

    /// From then on nothing is compiled or disassembled, and what is under way is stopped:
    /// [`CompileError::TimeIsOver`].
    pub fn compile_until(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() >= until)
    }

    /// Who compiles for a target. Found out once per process: remembered on disk while the compiler's files stay as
    /// they are, else by compiling a canary kernel.
    ///
    /// # Errors
    /// When there is no compiler, or when it cannot compile the canary: then it does not know the target.
    pub fn identity(&self, compiler: &str, target: &str) -> Result<Arc<Identity>, CompileError> {
        Ok(self.known(compiler, target)?.identity)
    }

    /// The same, as far as it is known without compiling anything.
    pub(crate) fn remembered(&self, compiler: &str, target: &str) -> Option<Arc<Identity>> {
        let way = (compiler.to_owned(), target.to_owned());
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&way) {
            return known.as_ref().ok().map(|known| Arc::clone(&known.identity));
        }
        let recall = || match self.toolchain(compiler) {
            Ok(toolchain) => identity::recalled(&self.options, &toolchain, target),
            Err(_) => identity::last_known(&self.options, compiler, target),
        };
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.entry(way).or_insert_with(|| recall().map(Arc::new)).clone()
    }

    /// Whether there is a compiler for a target: an identity that is only remembered is none.
    ///
    /// # Errors
    /// As [`Self::identity`], and when it is not there any more.
    pub(crate) fn is_there(&self, compiler: &str, target: &str) -> Result<(), CompileError> {
        self.known(compiler, target)?.absence.map_or(Ok(()), Err)
    }

    fn known(&self, compiler: &str, target: &str) -> Result<KnownCompilers, CompileError> {
        self.swept.call_once(|| folder::sweep(&env::temp_dir()));
        // Held while probing: threads that ask at the same time wait for one canary.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let toolchain = self.toolchain(compiler)?;
            let (identity, files) = identity::find(&self.options, &toolchain, target)?;
            let stated = (!files.is_empty()).then(|| Stated { facts: identity.facts.clone(), files });
            Ok(KnownCompilers { identity: Arc::new(identity), toolchain, stated, absence: None })
        };
        let find = || find().or_else(|error| self.absent(compiler, target, error));
        known.entry((compiler.to_owned(), target.to_owned())).or_insert_with(find).clone()
    }

    /// The identity of a compiler that is not there any more, for what the cache has of it.
    fn absent(&self, compiler: &str, target: &str, error: CompileError) -> Result<KnownCompilers, CompileError> {
        let last = error.is_absence().then(|| identity::last_known(&self.options, compiler, target)).flatten();
        let Some(identity) = last else { return Err(error) };
        tracing::warn!("{} is missing: kernels come only from the cache", title(compiler));
        let (identity, toolchain) = (Arc::new(identity), Toolchain::new(compiler, None));
        Ok(KnownCompilers { identity, toolchain, stated: None, absence: Some(error) })
    }

    /// Who compiles for a target and in which files it was found, by compiling a canary kernel now.
    ///
    /// # Errors
    /// As [`Self::identity`].
    pub fn probe(&self, compiler: &str, target: &str) -> Result<(Identity, Vec<PathBuf>), CompileError> {
        identity::probe(&self.options, &self.toolchain(compiler)?, target)
    }

    /// Compiles one kernel in a worker. A worker that dies or answers garbage is started once more. A compiler that is
    /// not done by the deadline, time and again, is not waited for any more.
    ///
    /// # Errors
    /// When there is no compiler, or no object. [`CompileError::is_deterministic`] says whether it is worth trying
    /// again; after [`CompileError::CompilerChanged`] the compiler has another identity.
    pub fn compile(&self, request: &Request) -> Result<Compiled, CompileError> {
        let known = self.known(request.compiler, &request.target)?;
        if let Some(absence) = known.absence {
            return Err(absence);
        }
        let identity = Arc::clone(&known.identity);
        let job = self.job(request, known);
        if let Some(error) = self.given_up(request) {
            return Err(error);
        }
        let over = || CompileError::TimeIsOver { kernel: request.label.as_str().into() };
        if self.is_over() {
            return Err(over());
        }
        let start = Instant::now();
        let made = self.attempt_twice(&request.label, &job);
        if self.is_over() && matches!(made, Err(CompileError::Failed { how: How::TimedOut { .. }, .. })) {
            return Err(over());
        }
        self.count_stops(request, &made);
        let made = made?;
        if made.facts != identity.facts {
            self.forget(request, &job.toolchain, &identity);
            return Err(CompileError::CompilerChanged { compiler: title(request.compiler) });
        }
        Ok(Compiled { object: made.object, log: made.log, compile_ms: start.elapsed().as_millis() as u64 })
    }

    /// Forgets who a compiler was, unless that was found out anew since.
    fn forget(&self, request: &Request, toolchain: &Toolchain, identity: &Arc<Identity>) {
        identity::forget(&self.options, toolchain, &request.target);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let way = (request.compiler.to_owned(), request.target.clone());
        if known.get(&way).is_some_and(|known| known.as_ref().is_ok_and(|known| Arc::ptr_eq(&known.identity, identity)))
        {
            known.remove(&way);
        }
    }

    fn given_up(&self, request: &Request) -> Option<CompileError> {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = stopped.get(request.compiler).filter(|stopped| stopped.len() >= MAX_STOPPED)?;
        Some(CompileError::GivenUp {
            kernel: request.label.as_str().into(),
            target: request.target.as_str().into(),
            compiler: request.compiler,
            stopped_at: stopped.clone(),
            deadline_s: self.options.deadline.as_secs(),
        })
    }

    fn count_stops(&self, request: &Request, made: &Result<CompileOutput, CompileError>) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = stopped.entry(request.compiler).or_default();
        match made {
            Err(CompileError::Failed { how: How::TimedOut { .. }, .. }) => stopped.push(request.label.clone()),
            Ok(_) | Err(CompileError::Failed { .. }) => stopped.clear(),
            Err(_) => {} // it was not asked
        }
    }

    fn job(&self, request: &Request, known: KnownCompilers) -> CompileJob {
        CompileJob {
            toolchain: known.toolchain,
            source: request.source.clone(),
            entry: request.entry.clone(),
            target: request.target.clone(),
            options: request.options.clone(),
            memory_bytes: self.options.memory_bytes,
            stated: known.stated,
            reads: None,
        }
    }

    /// The machine code of a kernel in an object for a GPU of AMD's, as text: `0000000000001700 <entry>:`, then of each
    /// instruction a line of a tab, its text, `// `, its address, `:` and, of a branch, ` <entry+0x1c>`. With lines,
    /// one of `; ` and the places in the source (`kernel.hip:41`, and after it where that was inlined) goes before an
    /// instruction of others than the one before. comgr, which hipRTC brings, reads it in a worker.
    ///
    /// # Errors
    /// If there is no hipRTC, or its comgr cannot read the object.
    pub fn disassemble(
        &self,
        object: &[u8],
        entry: &str,
        target: &str,
        with_lines: bool,
    ) -> Result<String, CompileError> {
        let job = CompileJob {
            toolchain: self.toolchain(hiprtc::Hiprtc.name())?,
            source: String::new(),
            entry: entry.to_owned(),
            target: target.to_owned(),
            options: Vec::new(),
            memory_bytes: self.options.memory_bytes,
            stated: None,
            reads: Some(job::Reads { object: object.to_vec(), with_lines }),
        };
        match process::compile_until(&self.options, &format!("the code of `{entry}`"), &job, self.until())? {
            Ok(made) => Ok(String::from_utf8_lossy(&made.object).into_owned()),
            Err(Failure { how, log }) => {
                Err(CompileError::NoCode { entry: entry.into(), target: target.into(), how, log })
            }
        }
    }

    fn toolchain(&self, compiler: &str) -> Result<Toolchain, CompileError> {
        named(compiler).expect("one of COMPILERS").find(&self.options)
    }

    fn attempt_twice(&self, label: &str, job: &CompileJob) -> Result<CompileOutput, CompileError> {
        let compile = || process::compile_until(&self.options, &format!("kernel `{label}`"), job, self.until());
        let first = match compile()? {
            Ok(made) => return Ok(made),
            Err(failure) => failure,
        };
        if !matches!(first.how, How::Crashed { .. } | How::Exited { .. } | How::Garbage { .. }) {
            return Err(CompileError::failed(label, job, first));
        }
        tracing::debug!("kernel {label}: {}; trying once more", first.how);
        compile()?.map_err(|second| CompileError::failed(label, job, second))
    }
}

/// Whether a log of the compiler of this name holds an error at a line of the source.
pub(super) fn blames_the_source(log: &str, compiler: &str) -> bool {
    named(compiler).is_some_and(|compiler| evidence::blames_the_source(log, &compiler.names_in_diagnostics()))
}

/// What people call the compiler of a name.
fn title(name: &str) -> &'static str {
    named(name).map_or("the compiler", Compiler::title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_one_compiler() {
        let gpus = ["gfx1100", "gfx942", "sm_90"].map(|arch| Target::gpu(arch).expect("known"));
        let simulated = gpus.iter().cloned().map(Target::simulated);
        for target in simulated.chain(gpus.iter().cloned()).chain([Target::host()]) {
            let names = COMPILERS.iter().filter(|compiler| compiler.compiles_for(&target)).map(|one| one.name());
            assert_eq!(names.collect::<Vec<_>>(), [compiler_for(&target).name()], "{}", target.id());
        }
        assert!(has_c_compiler(), "tests have compiled with one");
    }

    #[test]
    fn what_is_known_is_remembered_and_a_compiler_that_is_gone_is_not_there() {
        let compilers = Compilers::new(CompilerOptions::new("/no/such/worker".into()));
        let identity = Arc::new(Identity { id: "1".into(), facts: Vec::new(), canary: "2".into() });
        let gone = Toolchain::nvrtc_in(std::path::Path::new("/no/such/folder")).expect_err("nothing is there");
        for (target, absence) in [("here", None), ("gone", Some(gone))] {
            let toolchain = Toolchain::new("nvrtc", None);
            let known = KnownCompilers { identity: Arc::clone(&identity), toolchain, stated: None, absence };
            compilers.known.lock().expect("alone").insert(("nvrtc".into(), target.into()), Ok(known));
            assert_eq!(compilers.remembered("nvrtc", target).as_ref(), Some(&identity));
        }
        assert!(compilers.is_there("nvrtc", "here").is_ok() && compilers.is_there("nvrtc", "gone").is_err());
    }
}
