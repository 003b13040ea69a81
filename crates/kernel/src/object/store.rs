//! Key to object: cached, bundled or freshly compiled, many at once.
//!
//! The one place that knows the [`Cache`], the [`Bundles`] and the [`Compilers`]. Nothing is printed here: see
//! [`Progress`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use std::{env, thread};

use super::bundle::{self, Bundles};
use super::cache::{Cache, CacheEntry, CacheError, CacheLimits, Folder, Lookup, NewObject};
use super::compile::error::{log_lines, source_line};
use super::compile::{CompileError, Compiled, CompilerOptions, Compilers, Request, blames_the_source, compiler_for};
use super::key::{Digest, KernelKey};
use super::turns::Turns;
use crate::target::Target;
use hint::Hint;

/// The cache, bundles for what it lacks, and the compiler for what these lack.
#[derive(Debug)]
pub struct Store {
    cache: Cache,
    bundles: Arc<Bundles>,
    compiler: Compilers,
    jobs: NonZeroUsize,
    /// Limits the number of running compilers, for all callers.
    turns: Turns,
    retry_failed: bool,
    never_compiles: bool,
    /// Where each kernel of this process came from first.
    origins: Mutex<HashMap<Digest, ObjectOrigin>>,
}

/// A compiled kernel, ready to be loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The digest of its key.
    pub digest: Digest,
    /// The object's bytes, checked against the cache's digest or fresh from the compiler.
    pub object: Arc<[u8]>,
    pub origin: ObjectOrigin,
    /// Keeps the entry from being evicted.
    _entry: Option<CacheEntry>,
}

/// Where an object came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOrigin {
    /// From the cache, perhaps because another process compiled it a moment ago.
    Cache,
    Bundle,
    /// Compiled by this process.
    Compiled,
}

/// Distinct kernels that a process asked for, by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub from_cache: usize,
    pub from_bundles: usize,
    pub compiled: usize,
}

/// An observer of [`Store::get_all`]. Called from several threads. `()` observes nothing.
pub trait Progress: Sync {
    /// So many distinct kernels are wanted.
    fn started(&self, _n_kernels: usize) {}
    /// Whether a caller waits for them: others let them go first.
    fn is_urgent(&self) -> bool {
        true
    }

    /// One of them is there, or will not be; `elapsed_ms` includes waiting for other processes.
    fn finished(&self, _label: &str, _result: &Result<Loaded, StoreError>, _elapsed_ms: u64) {}
}

impl Progress for () {}

/// No object. Cloneable, because several requests may ask for the same kernel.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It did not compile some other time, with the same compiler, and would not now.
    #[error("could not compile kernel `{kernel}` for {target}: it failed before{}{}", source_line(.source_path), log_lines(.log))]
    FailedBefore {
        kernel: Box<str>,
        target: Box<str>,
        /// Where the rendered source was kept, if it was.
        source_path: Option<PathBuf>,
        /// The compiler's output at that time.
        log: String,
    },
    /// There is no place for a cache.
    #[error(transparent)]
    Cache(Arc<CacheError>),
    /// They are neither in the cache nor in a bundle, and nothing is to be compiled.
    #[error("nothing is compiled here, and {} in no bundle and not in the cache:{}", they_are(.0), lines(.0))]
    Missing(Arc<Vec<MissingKernel>>),
    /// A variable that says whether anything is compiled says neither.
    #[error("could not use `{NO_COMPILE_VARIABLE}={text}`: expected 1 (nothing is compiled) or 0")]
    NoCompile { text: String },
    /// `$GPTOSS_JIT_JOBS` is not a number.
    #[error("could not use `GPTOSS_JIT_JOBS={text}`: expected a number of processes, 1 or more")]
    Jobs { text: String },
}

/// Has a process compile nothing, if it is 1: what is neither in the cache nor in a bundle is an error.
pub const NO_COMPILE_VARIABLE: &str = "GPTOSS_JIT_NO_COMPILE";

static NEVER_COMPILES: AtomicBool = AtomicBool::new(false);

/// Has the stores of this process that come from the environment compile nothing.
pub fn never_compile() {
    NEVER_COMPILES.store(true, Ordering::Relaxed);
}

/// Whether this process may not compile, by [`never_compile`] or by the environment.
pub fn never_compiles() -> bool {
    NEVER_COMPILES.load(Ordering::Relaxed) || env::var_os(NO_COMPILE_VARIABLE).is_some_and(|text| text == "1")
}

/// A kernel that is nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKernel {
    /// `linear/gemv`.
    pub label: String,
    /// As `kernels plan` has them: `tile_n=6 tile_r=4`.
    pub params: String,
    /// The full target id, as the compiler gets it: `gfx90a:sramecc+:xnack-`.
    pub target: String,
}

impl MissingKernel {
    fn new(request: &Request) -> Self {
        let params: Vec<String> = request.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Self { label: request.label.clone(), params: params.join(" "), target: request.target.clone() }
    }
}

fn they_are(missing: &[MissingKernel]) -> String {
    if missing.len() == 1 { "one kernel is".into() } else { format!("{} kernels are", missing.len()) }
}

fn lines(missing: &[MissingKernel]) -> String {
    let line =
        |one: &MissingKernel| format!("\n  {} for {} {}", one.label, one.target, one.params).trim_end().to_owned();
    missing.iter().map(line).collect()
}

impl StoreError {
    /// Whether no other kernel would fare better.
    pub fn is_hopeless(&self) -> bool {
        matches!(self, Self::Missing(_)) || matches!(self, Self::Compile(error) if error.is_hopeless())
    }

    /// What the compiler said, now or before.
    pub fn log(&self) -> &str {
        match self {
            Self::Compile(error) => error.log(),
            Self::FailedBefore { log, .. } => log,
            Self::Cache(_) | Self::Jobs { .. } | Self::Missing(_) | Self::NoCompile { .. } => "",
        }
    }
}

impl Hint for StoreError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Compile(error) => error.hint(),
            Self::FailedBefore { kernel, .. } => {
                Some(format!("`gptoss-jit kernels show {kernel}` prints the rendered source with line numbers"))
            }
            Self::Cache(error) => error.hint(),
            Self::Missing(missing) => Some(format!(
                "on a machine with a compiler, `gptoss-jit bundle --arch {} --model MODEL -o kernels.tar.zst` compiles what a model needs; then name the file in `{}` here",
                missing.first()?.target,
                bundle::VARIABLE
            )),
            Self::NoCompile { .. } => Some("leave it unset to compile what is missing".into()),
            Self::Jobs { .. } => Some("leave it unset to compile one kernel per processor at a time".into()),
        }
    }
}

/// One distinct kernel of a batch.
struct Task<'a> {
    request: &'a Request,
    /// None if the compiler's identity is not known yet and need not be.
    key: Option<KernelKey>,
    /// Of the key, with the compiler's identity or without.
    digest: Digest,
    result: OnceLock<Result<Loaded, StoreError>>,
}

impl Store {
    /// What a program uses that is its own worker: the user's cache, the machine's compilers, the environment's word
    /// (`$GPTOSS_JIT_CACHE`, `$GPTOSS_JIT_CACHE_SIZE`, `$GPTOSS_JIT_JOBS`, `$CC`).
    ///
    /// # Errors
    /// When a variable is no good, or no cache folder is known.
    pub fn from_env() -> Result<Self, StoreError> {
        let of_cache = |error| StoreError::Cache(Arc::new(error));
        let limits = CacheLimits::from_env().map_err(of_cache)?;
        let cache = match Cache::default_root() {
            Ok(root) => Cache::open(&root, limits),
            Err(error @ CacheError::NoHome) => {
                tracing::warn!("kernels will not be cached on disk: {error}");
                Cache::in_memory()
            }
            Err(error) => return Err(of_cache(error)),
        };
        let no_compile =
            env::var_os(NO_COMPILE_VARIABLE).filter(|text| !["", "0", "1"].iter().any(|word| text == word));
        if let Some(text) = no_compile {
            return Err(StoreError::NoCompile { text: text.to_string_lossy().into_owned() });
        }
        let store = Self::new(cache, CompilerOptions::default()).with_bundles(Arc::clone(Bundles::here()));
        let store = Self { never_compiles: never_compiles(), ..store };
        match env::var_os("GPTOSS_JIT_JOBS").filter(|text| !text.is_empty()) {
            None => Ok(store),
            Some(text) => match text.to_string_lossy().parse() {
                Ok(jobs) => Ok(store.with_jobs(jobs)),
                Err(_) => Err(StoreError::Jobs { text: text.to_string_lossy().into_owned() }),
            },
        }
    }

    /// A store that compiles one kernel per processor at a time. The compilers' identities are remembered in the
    /// cache's folder, unless the options name another.
    pub fn new(cache: Cache, mut options: CompilerOptions) -> Self {
        let folder = cache.folder().map(Folder::identities_folder);
        options.identities = options.identities.or(folder);
        let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let (compiler, turns) = (Compilers::new(options), Turns::new(jobs));
        let (bundles, retry_failed, never_compiles) = (Arc::default(), false, false);
        Self { cache, bundles, compiler, jobs, turns, retry_failed, never_compiles, origins: Mutex::default() }
    }

    /// Asks these bundles for what the cache lacks.
    pub fn with_bundles(self, bundles: Arc<Bundles>) -> Self {
        Self { bundles, ..self }
    }

    /// The same without bundles, for tests of this machine's compilers.
    pub fn without_bundles(self) -> Self {
        self.with_bundles(Arc::default())
    }

    /// Compiles at most `jobs` kernels at a time.
    pub fn with_jobs(self, jobs: NonZeroUsize) -> Self {
        Self { jobs, turns: Turns::new(jobs), ..self }
    }

    /// Compiles again what is remembered to have failed.
    pub fn retrying_failed(self, retry_failed: bool) -> Self {
        Self { retry_failed, ..self }
    }

    /// Objects that were compiled ahead; they are looked up before the cache.
    pub fn bundles(&self) -> &Bundles {
        &self.bundles
    }

    /// The cache folder, where compiled objects stay from run to run.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The compilers for objects that are in neither.
    pub fn compiler(&self) -> &Compilers {
        &self.compiler
    }

    /// How many distinct kernels came from where so far.
    pub fn stats(&self) -> Stats {
        let origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |wanted| origins.values().filter(|origin| **origin == wanted).count();
        Stats {
            from_cache: count(ObjectOrigin::Cache),
            from_bundles: count(ObjectOrigin::Bundle),
            compiled: count(ObjectOrigin::Compiled),
        }
    }

    /// Tries the compiler for a target on a small kernel, if that was not done before: who will have much compiled
    /// knows at once what is missing.
    ///
    /// # Errors
    /// When there is no compiler, or it cannot compile for the target.
    pub fn try_compiler(&self, target: &Target) -> Result<(), CompileError> {
        self.compiler.is_there(compiler_for(target).name(), &target.id())
    }

    /// The key that a request is looked up by.
    ///
    /// # Errors
    /// When there is no compiler: without its identity there is no key, and so no hit either.
    pub fn key(&self, request: &Request) -> Result<KernelKey, CompileError> {
        Ok(KernelKey::new(request, &self.compiler.identity(request.compiler, &request.target)?.id))
    }

    /// The key, if the compiler's identity is known without compiling anything; none if a bundle, or nothing, has
    /// the kernel instead.
    fn key_if_needed(&self, request: &Request) -> Result<Option<KernelKey>, CompileError> {
        if !self.never_compiles && !self.bundles.has(request) {
            return self.key(request).map(Some);
        }
        let identity = self.compiler.remembered(request.compiler, &request.target);
        Ok(identity.map(|identity| KernelKey::new(request, &identity.id)))
    }

    /// The objects, in the order of the requests. Equal requests share one; what the cache lacks is compiled in
    /// parallel, longest source first. Of several processes that lack the same kernel, one compiles it.
    pub fn get_all(&self, requests: &[Request], progress: &dyn Progress) -> Vec<Result<Loaded, StoreError>> {
        let mut tasks: Vec<Task> = Vec::new();
        let mut known: HashMap<Digest, usize> = HashMap::new();
        let mut place = |request| -> Result<usize, StoreError> {
            let key = self.key_if_needed(request)?;
            let digest = key.as_ref().map_or_else(|| bundle::key(request), KernelKey::digest);
            Ok(*known.entry(digest).or_insert_with(|| {
                tasks.push(Task { request, key, digest, result: OnceLock::new() });
                tasks.len() - 1
            }))
        };
        let places: Vec<Result<usize, StoreError>> = requests.iter().map(&mut place).collect();
        progress.started(tasks.len());
        let misses = self.probe(&tasks, progress);
        if self.never_compiles {
            self.give_up(&misses, progress);
        } else {
            self.compile_misses(misses, progress);
        }
        let result = |task: &Task| task.result.get().expect("every task was finished").clone();
        places.into_iter().map(|place| place.and_then(|i| result(&tasks[i]))).collect()
    }

    /// Throws an object away, from the disk too, and compiles it once more.
    ///
    /// # Errors
    /// [`StoreError`], as of any other compile.
    pub(crate) fn compile_again(&self, request: &Request, thrown_away: Loaded) -> Result<Loaded, StoreError> {
        let digest = thrown_away.digest;
        if thrown_away.origin == ObjectOrigin::Bundle {
            self.bundles.forget(request);
        }
        drop(thrown_away); // and with it the hold on the entry
        self.cache.forget(&digest);
        self.origins.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
        self.get_all(std::slice::from_ref(request), &()).remove(0)
    }

    /// Finishes what the cache has; returns the rest.
    fn probe<'t, 'a>(&self, tasks: &'t [Task<'a>], progress: &dyn Progress) -> Vec<&'t Task<'a>> {
        let mut misses = Vec::new();
        for task in tasks {
            let start = Instant::now();
            match self.look_up(task) {
                Some(result) => self.finish(task, result, start, progress),
                None => misses.push(task),
            }
        }
        misses
    }

    /// What the cache has, or a bundle after it.
    fn look_up(&self, task: &Task) -> Option<Result<Loaded, StoreError>> {
        let cached = task.key.as_ref().and_then(|key| self.look_up_in_cache(task, key));
        match cached {
            // What fails here may have been compiled elsewhere.
            Some(Err(failed)) => Some(self.look_up_in_bundles(task).and_then(Result::ok).ok_or(failed)),
            cached => cached.or_else(|| self.look_up_in_bundles(task)),
        }
    }

    fn look_up_in_bundles(&self, task: &Task) -> Option<Result<Loaded, StoreError>> {
        let found = self.bundles.get(task.request)?;
        let (digest, origin) = (task.digest, ObjectOrigin::Bundle);
        Some(match found.object {
            Some(object) => Ok(Loaded { digest, object, origin, _entry: None }),
            None => Err(StoreError::FailedBefore {
                kernel: task.request.label.as_str().into(),
                target: task.request.target.as_str().into(),
                source_path: None,
                log: format!("when the bundle `{}` was made", found.bundle.path().display()),
            }),
        })
    }

    fn look_up_in_cache(&self, task: &Task, key: &KernelKey) -> Option<Result<Loaded, StoreError>> {
        match self.cache.get(key) {
            Lookup::Hit(entry) => Some(Ok(Loaded::new(entry, ObjectOrigin::Cache))),
            // What is not the kernel's fault is not held against it, whoever wrote it down.
            Lookup::Failed { log } if !self.retry_failed && blames_the_source(&log, task.request.compiler) => {
                Some(Err(StoreError::FailedBefore {
                    kernel: task.request.label.as_str().into(),
                    target: task.request.target.as_str().into(),
                    source_path: self.saved_source(task),
                    log,
                }))
            }
            Lookup::Failed { .. } | Lookup::Miss => None,
        }
    }

    /// Tells of all that are missing at once.
    fn give_up(&self, misses: &[&Task], progress: &dyn Progress) {
        let missing = Arc::new(misses.iter().map(|task| MissingKernel::new(task.request)).collect());
        for task in misses {
            self.finish(task, Err(StoreError::Missing(Arc::clone(&missing))), Instant::now(), progress);
        }
    }

    fn compile_misses(&self, mut misses: Vec<&Task>, progress: &dyn Progress) {
        misses.sort_by_key(|task| Reverse(task.request.source.len()));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(task) = misses.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                let result = self.compile(task, progress.is_urgent());
                self.finish(task, result, start, progress);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.jobs.get().min(misses.len()) {
                // Where no more threads are to be had, those that are do the work.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    fn compile(&self, task: &Task, is_urgent: bool) -> Result<Loaded, StoreError> {
        let anew = || -> Result<Loaded, StoreError> {
            let key = self.key(task.request)?;
            let digest = key.digest();
            let task = Task { request: task.request, key: None, digest, result: OnceLock::new() };
            self.compile_by_key(&task, &key, is_urgent)
        };
        match task.key.as_ref().map(|key| self.compile_by_key(task, key, is_urgent)) {
            // It has another identity now, and with it the kernel another key. Or the bundle that has it is damaged.
            Some(Err(StoreError::Compile(CompileError::CompilerChanged { .. }))) | None => anew(),
            Some(result) => result,
        }
    }

    fn compile_by_key(&self, task: &Task, key: &KernelKey, is_urgent: bool) -> Result<Loaded, StoreError> {
        // Before the lock: whoever wants the same kernel urgently is not to wait for one that lets others go first.
        let _turn = self.turns.take(is_urgent);
        let _lock = self.cache.lock(&task.digest);
        // The wait may have been for the process that made it.
        if let Some(result) = self.look_up_in_cache(task, key) {
            return result;
        }
        let label = &task.request.label;
        match self.compiler.compile(task.request) {
            Ok(Compiled { object, log, compile_ms }) => {
                let compiler = self.compiler.identity(&key.compiler_name, &key.target)?.description();
                let about = task.request.about.clone();
                let made = NewObject { object, log, label: label.clone(), about, compile_ms, compiler };
                Ok(Loaded::new(self.cache.publish(key, &made), ObjectOrigin::Compiled))
            }
            Err(error) => {
                if error.is_deterministic() {
                    self.cache.remember_failure(key, label, error.log());
                }
                Err(error.with_source_path(self.saved_source(task)).into())
            }
        }
    }

    fn finish(&self, task: &Task, result: Result<Loaded, StoreError>, start: Instant, progress: &dyn Progress) {
        if let Ok(loaded) = &result {
            let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
            origins.entry(loaded.digest).or_insert(loaded.origin);
        }
        progress.finished(&task.request.label, &result, start.elapsed().as_millis() as u64);
        assert!(task.result.set(result).is_ok(), "a task is finished once");
    }

    /// Where the cache keeps the source, if it does.
    fn saved_source(&self, task: &Task) -> Option<PathBuf> {
        Some(self.cache.folder()?.entry_path(&task.digest).join("source")).filter(|path| path.is_file())
    }
}

impl Loaded {
    fn new(entry: CacheEntry, origin: ObjectOrigin) -> Self {
        Self { digest: entry.digest, object: Arc::clone(&entry.object), origin, _entry: Some(entry) }
    }
}
