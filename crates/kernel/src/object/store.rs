//! Key to object: cached or freshly compiled, many at once.
//!
//! The one place that knows both the [`Cache`] and the [`Compilers`]. Nothing is printed here: see [`Progress`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use std::{env, thread};

use super::cache::{Cache, CacheEntry, CacheError, CacheLimits, Folder, Lookup, NewObject};
use super::compile::error::{log_lines, source_line};
use super::compile::{CompileError, Compiled, CompilerOptions, Compilers, Request, blames_the_source, compiler_for};
use super::key::{Digest, KernelKey};
use crate::target::Target;
use hint::Hint;

/// The cache, and the compiler for what it lacks.
#[derive(Debug)]
pub struct Store {
    cache: Cache,
    compiler: Compilers,
    jobs: NonZeroUsize,
    /// How many compilers may be started yet, whoever asks.
    turns: Turns,
    retry_failed: bool,
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
    _entry: CacheEntry,
}

/// Where an object came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOrigin {
    /// From the cache, perhaps because another process compiled it a moment ago.
    Cache,
    /// Compiled by this process.
    Compiled,
}

/// Distinct kernels that a process asked for, by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub from_cache: usize,
    pub compiled: usize,
}

/// Whoever watches [`Store::get_all`]. Called from several threads. `()` watches nothing.
pub trait Progress: Sync {
    /// So many distinct kernels are wanted.
    fn started(&self, _n_kernels: usize) {}
    /// Whether somebody waits for them: others let them go first.
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
        /// What the compiler said then.
        log: String,
    },
    /// There is no place for a cache.
    #[error(transparent)]
    Cache(Arc<CacheError>),
    /// `$GPTOSS_JIT_JOBS` is not a number.
    #[error("could not use `GPTOSS_JIT_JOBS={text}`: expected a number of processes, 1 or more")]
    Jobs { text: String },
}

impl StoreError {
    /// Whether no other kernel would fare better.
    pub fn is_hopeless(&self) -> bool {
        matches!(self, Self::Compile(error) if error.is_hopeless())
    }

    /// What the compiler said, now or before.
    pub fn log(&self) -> &str {
        match self {
            Self::Compile(error) => error.log(),
            Self::FailedBefore { log, .. } => log,
            Self::Cache(_) | Self::Jobs { .. } => "",
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
            Self::Jobs { .. } => Some("leave it unset to compile one kernel per processor at a time".into()),
        }
    }
}

/// One distinct kernel of a batch.
struct Task<'a> {
    request: &'a Request,
    key: KernelKey,
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
        let store = Self::new(cache, CompilerOptions::default());
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
        Self { cache, compiler, jobs, turns, retry_failed: false, origins: Mutex::default() }
    }

    /// Compiles at most so many kernels at a time.
    pub fn with_jobs(self, jobs: NonZeroUsize) -> Self {
        Self { jobs, turns: Turns::new(jobs), ..self }
    }

    /// Compiles again what is remembered to have failed.
    pub fn retrying_failed(self, retry_failed: bool) -> Self {
        Self { retry_failed, ..self }
    }

    /// The cache below.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The compilers below.
    pub fn compiler(&self) -> &Compilers {
        &self.compiler
    }

    /// How many distinct kernels came from where so far.
    pub fn stats(&self) -> Stats {
        let origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |wanted| origins.values().filter(|origin| **origin == wanted).count();
        Stats { from_cache: count(ObjectOrigin::Cache), compiled: count(ObjectOrigin::Compiled) }
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
        Ok(KernelKey {
            source: request.source.clone(),
            options: request.options.clone(),
            target: request.target.clone(),
            entry: request.entry.clone(),
            compiler_name: request.compiler.into(),
            compiler: self.compiler.identity(request.compiler, &request.target)?.id.clone(),
        })
    }

    /// The objects, in the order of the requests. Equal requests share one; what the cache lacks is compiled in
    /// parallel, longest source first. Of several processes that lack the same kernel, one compiles it.
    pub fn get_all(&self, requests: &[Request], progress: &dyn Progress) -> Vec<Result<Loaded, StoreError>> {
        let mut tasks: Vec<Task> = Vec::new();
        let mut known: HashMap<Digest, usize> = HashMap::new();
        let mut place = |request| -> Result<usize, StoreError> {
            let key = self.key(request)?;
            let digest = key.digest();
            Ok(*known.entry(digest).or_insert_with(|| {
                tasks.push(Task { request, key, digest, result: OnceLock::new() });
                tasks.len() - 1
            }))
        };
        let places: Vec<Result<usize, StoreError>> = requests.iter().map(&mut place).collect();
        progress.started(tasks.len());
        self.compile_misses(self.probe(&tasks, progress), progress);
        let result = |task: &Task| task.result.get().expect("every task was finished").clone();
        places.into_iter().map(|place| place.and_then(|i| result(&tasks[i]))).collect()
    }

    /// Throws an object away, from the disk too, and compiles it once more.
    ///
    /// # Errors
    /// [`StoreError`], as of any other compile.
    pub(crate) fn compile_again(&self, request: &Request, thrown_away: Loaded) -> Result<Loaded, StoreError> {
        let digest = thrown_away.digest;
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

    fn look_up(&self, task: &Task) -> Option<Result<Loaded, StoreError>> {
        match self.cache.get(&task.key) {
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

    fn compile_misses(&self, mut misses: Vec<&Task>, progress: &dyn Progress) {
        misses.sort_by_key(|task| Reverse(task.key.source.len()));
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
        match self.compile_by_key(task, is_urgent) {
            // It has another identity now, and with it the kernel another key.
            Err(StoreError::Compile(CompileError::CompilerChanged { .. })) => {
                let key = self.key(task.request)?;
                let digest = key.digest();
                let task = Task { request: task.request, key, digest, result: OnceLock::new() };
                self.compile_by_key(&task, is_urgent)
            }
            result => result,
        }
    }

    fn compile_by_key(&self, task: &Task, is_urgent: bool) -> Result<Loaded, StoreError> {
        // Before the lock: whoever wants the same kernel urgently is not to wait for one that lets others go first.
        let _turn = self.turns.take(is_urgent);
        let _lock = self.cache.lock(&task.digest);
        // The wait may have been for the process that made it.
        if let Some(result) = self.look_up(task) {
            return result;
        }
        let label = &task.request.label;
        match self.compiler.compile(task.request) {
            Ok(Compiled { object, log, compile_ms }) => {
                let compiler = self.compiler.identity(&task.key.compiler_name, &task.key.target)?.description();
                let about = task.request.about.clone();
                let made = NewObject { object, log, label: label.clone(), about, compile_ms, compiler };
                Ok(Loaded::new(self.cache.publish(&task.key, &made), ObjectOrigin::Compiled))
            }
            Err(error) => {
                if error.is_deterministic() {
                    self.cache.remember_failure(&task.key, label, error.log());
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

/// So many at a time, the urgent ones first.
#[derive(Debug)]
struct Turns {
    /// How many are free, and how many that are urgent wait for one.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

/// One of them, given back when it is dropped.
struct Turn<'a>(&'a Turns);

impl Turns {
    fn new(n: NonZeroUsize) -> Self {
        Self { state: Mutex::new((n.get(), 0)), changed: Condvar::new() }
    }

    fn take(&self, is_urgent: bool) -> Turn<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += usize::from(is_urgent);
        let must_wait = |(n_free, n_urgent): &mut (usize, usize)| *n_free == 0 || (!is_urgent && *n_urgent > 0);
        let mut state = self.changed.wait_while(state, must_wait).unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        state.1 -= usize::from(is_urgent);
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
        self.0.changed.notify_all();
    }
}

impl Loaded {
    fn new(entry: CacheEntry, origin: ObjectOrigin) -> Self {
        Self { digest: entry.digest, object: Arc::clone(&entry.object), origin, _entry: entry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_urgent_goes_first_though_another_waited_longer() {
        let turns = Turns::new(NonZeroUsize::MIN);
        let order = Mutex::new(Vec::new());
        let go = |is_urgent| {
            let _turn = turns.take(is_urgent);
            order.lock().expect("whole").push(is_urgent);
        };
        thread::scope(|scope| {
            let held = turns.take(true);
            scope.spawn(|| go(false));
            scope.spawn(|| go(true));
            while turns.state.lock().expect("whole").1 == 0 {
                thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(order.into_inner().expect("whole"), [true, false]);
    }
}
