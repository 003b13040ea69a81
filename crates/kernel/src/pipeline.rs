//! The whole path of a kernel: a template is chosen, rendered, keyed, compiled or found in the cache, and loaded. The
//! graph calls nothing else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use gpu::code_object::KernelFacts;
use gpu::{DeviceMemory, Driver, GpuError, Kernel};

use crate::choice::{self, Choice, Chooser, KernelRequest, NoKernel, Ranking, Rankings};
use crate::object::compile::Request;
use crate::object::resources::{ObjectError, examine};
use crate::object::store::{Loaded, ObjectOrigin, Progress, Store, StoreError};
use crate::target::Target;
use crate::template::library::Library;
use crate::template::library_error::LibraryError;
use crate::template::render::{RenderError, Rendered, render};
use crate::template::{Params, Problem};
use crate::tuning::{TuningError, TuningTables, stale_warning};
use hint::{Hint, chain};

/// Says what was noticed while kernels were chosen, once: a process may choose for many engines, as `bench` does for
/// each work.
pub fn warn_once(warning: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.to_owned()) {
        tracing::warn!("{warning}");
    }
}

/// Templates, tables, target, store and device.
pub struct Pipeline {
    chooser: Chooser,
    store: Store,
    driver: Arc<dyn Driver>,
    /// Bytes of the device's memory that may be used.
    most_bytes: usize,
}

/// A kernel on the device, and what it was made from.
#[derive(Debug)]
pub struct LoadedKernel {
    /// Ready to be launched.
    pub kernel: Kernel,
    /// Source, arguments, geometry.
    pub rendered: Rendered,
    /// Where the object came from.
    pub origin: ObjectOrigin,
    /// What a GPU's object uses.
    pub uses: Option<KernelFacts>,
}

/// Errors of getting a kernel.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The library has no fitting template, or a broken one in its place.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The template could not be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The source could not be compiled.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object is not what its contract says, or uses more than its template allows.
    #[error("the object of kernel `{label}` cannot be used")]
    Object {
        label: String,
        #[source]
        source: ObjectError,
    },
    /// The device refuses the object.
    #[error("could not load kernel `{label}`")]
    Load {
        label: String,
        #[source]
        source: GpuError,
    },
}

impl PipelineError {
    /// Whether the object is none, or none for this device: compiled anew it may be.
    fn is_of_the_object(&self) -> bool {
        match self {
            Self::Load { source, .. } => matches!(source, GpuError::NoBinary { .. } | GpuError::NotLoadable { .. }),
            Self::Object { source, .. } => matches!(source, ObjectError::Metadata(_)),
            _ => false,
        }
    }

    /// Whether no other template would fare better.
    fn is_hopeless(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_hopeless())
    }
}

impl From<NoKernel<LibraryError>> for NoKernel<PipelineError> {
    fn from(NoKernel { problem, source }: NoKernel<LibraryError>) -> Self {
        Self { problem, source: source.into() }
    }
}

impl Hint for PipelineError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Library(error) => error.hint(),
            Self::Render(error) => error.hint(),
            Self::Store(error) => error.hint(),
            Self::Object { source, .. } => source.hint(),
            Self::Load { source, .. } => source
                .hint()
                .or_else(|| Some("`gptoss-jit cache verify` checks the cache; `cache clear` empties it".into())),
        }
    }
}

/// One kernel to be had: for this problem, by the first choice that works.
pub(crate) struct Attempt<T> {
    problem: Problem,
    pub(crate) choices: Vec<Choice>,
    /// The choice that is tried now.
    pub(crate) at: usize,
    loaded: Option<Arc<T>>,
    /// Why the first choice failed.
    first_error: Option<PipelineError>,
}

/// The kernels for rankings.
pub(crate) struct Served<T> {
    pub(crate) attempts: Vec<Attempt<T>>,
    /// For each ranking the index of its own.
    attempt_of_ranking: Vec<usize>,
}

impl Pipeline {
    /// Joins the parts.
    ///
    /// # Errors
    /// If a table that concerns the target could not be read.
    pub fn new(
        library: Library,
        tables: TuningTables,
        target: Target,
        store: Store,
        driver: Arc<dyn Driver>,
    ) -> Result<Self, TuningError> {
        Ok(Self { chooser: Chooser::new(library, tables, target)?, store, driver, most_bytes: usize::MAX })
    }

    /// The same, with the device's memory limited to `most_bytes`.
    #[must_use]
    pub fn with_memory(self, most_bytes: usize) -> Self {
        Self { most_bytes, ..self }
    }

    /// The usable part of the device's memory; `None` if unknown.
    ///
    /// # Errors
    /// The device's words.
    pub fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        let most = |bytes: usize| bytes.min(self.most_bytes);
        let capped = |memory: DeviceMemory| DeviceMemory {
            free_bytes: most(memory.free_bytes),
            total_bytes: most(memory.total_bytes),
        };
        Ok(self.driver.memory()?.map(capped))
    }

    /// Which template and parameters each problem gets on this target.
    pub fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// The templates and contracts that kernels are chosen from.
    pub fn library(&self) -> &Library {
        self.chooser.library()
    }

    /// The target of compilation.
    pub fn target(&self) -> &Target {
        self.chooser.target()
    }

    /// The cache and the compiler.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The device that kernels are loaded on.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The device, for owners that outlive this.
    pub fn shared_driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.driver)
    }

    /// Chooses and loads a kernel for everything that is wanted.
    ///
    /// # Errors
    /// A problem that no choice serves, and why the first of them does not.
    pub fn load_all(
        &self,
        wanted: &[KernelRequest],
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<LoadedKernel>>, NoKernel<PipelineError>> {
        self.load_ranked(&self.chooser.rank_all(wanted)?, progress)
    }

    /// Renders, compiles or finds, and loads a kernel for everything that was ranked; many at once, and one where
    /// several
    /// come to the same. A choice that cannot be rendered, compiled or loaded falls to the next one, with a warning.
    ///
    /// # Errors
    /// A problem that no choice serves, and why the first of them does not.
    pub fn load_ranked(
        &self,
        rankings: &Rankings,
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<LoadedKernel>>, NoKernel<PipelineError>> {
        let load = |rendered, object| self.load_or_recompile(rendered, object);
        let Served { attempts, attempt_of_ranking } = served(&self.chooser, &self.store, rankings, progress, &load)?;
        let kernels = rankings.distinct.iter().zip(&attempt_of_ranking);
        let taken = kernels.filter_map(|((_, ranking), &i)| {
            let attempt = &attempts[i];
            let source = &attempt.loaded.as_ref().filter(|_| attempt.at == 0)?.rendered.source;
            // The simulator's own text is in the source: it is not what was measured, nor could it be measured again.
            let row = ranking.row().filter(|_| !self.target().is_simulated);
            row.filter(|row| choice::is_stale(row, &attempt.problem, source))
        });
        if let Some(warning) = stale_warning(taken, self.target()) {
            warn_once(&warning);
        }
        let loaded = |&ranking: &usize| {
            let attempt = &attempts[attempt_of_ranking[ranking]];
            Arc::clone(attempt.loaded.as_ref().expect("just loaded"))
        };
        Ok(rankings.indices.iter().map(loaded).collect())
    }

    /// Puts an object on the device. One that is not fresh and does not load, or that the device says is not for it, is
    /// thrown away and compiled once more: the key says what it should be, so it is not what it should be.
    fn load_or_recompile(&self, rendered: Rendered, object: Loaded) -> Result<LoadedKernel, PipelineError> {
        match self.load(rendered.clone(), &object.object, object.origin) {
            Err(error) if object.origin != ObjectOrigin::Compiled && error.is_of_the_object() => {
                let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), chain);
                tracing::warn!("`{}` is compiled again: {why}", rendered.label);
                let again = self.store.compile_again(&self.request(&rendered), object)?;
                self.load(rendered, &again.object, again.origin)
            }
            result => result,
        }
    }

    /// The compiler's request for a rendered kernel.
    pub fn request(&self, rendered: &Rendered) -> Request {
        Request::new(rendered, self.target())
    }

    /// Renders one template at given parameters.
    ///
    /// # Errors
    /// [`RenderError`].
    pub fn render_with(&self, label: &str, problem: &Problem, params: &Params) -> Result<Rendered, RenderError> {
        let template = self.library().template(label, self.target().language())?;
        render(self.library(), template, problem, params, self.target())
    }

    /// Puts an object on the device.
    ///
    /// # Errors
    /// [`PipelineError::Object`] (GPUs) or [`PipelineError::Load`].
    pub fn load(&self, rendered: Rendered, object: &[u8], origin: ObjectOrigin) -> Result<LoadedKernel, PipelineError> {
        let spec = rendered.spec();
        let label = rendered.label.clone();
        let is_of_gpu = self.target().is_real_gpu();
        let examined = is_of_gpu.then(|| examine(object, &spec, &rendered.resources, self.target()));
        let uses = examined.transpose().map_err(|source| PipelineError::Object { label: label.clone(), source })?;
        let kernel = self.driver.load(object, spec).map_err(|source| PipelineError::Load { label, source })?;
        Ok(LoadedKernel { kernel, rendered, origin, uses })
    }
}

/// Has every ranking served by the first of its choices that renders, compiles and is loaded by `load`.
///
/// # Errors
/// A problem that no choice serves, and why the first of them does not.
pub(crate) fn served<T>(
    chooser: &Chooser,
    store: &Store,
    rankings: &Rankings,
    progress: &dyn Progress,
    load: &dyn Fn(Rendered, Loaded) -> Result<T, PipelineError>,
) -> Result<Served<T>, NoKernel<PipelineError>> {
    let mut attempts: Vec<Attempt<T>> = Vec::new();
    let mut attempt_of_ranking = Vec::with_capacity(rankings.distinct.len());
    for (request, ranking) in &rankings.distinct {
        ranking.warnings.iter().for_each(|warning| warn_once(warning));
        attempt_of_ranking.push(index_of(&mut attempts, request, ranking));
    }
    while attempts.iter().any(|attempt| attempt.loaded.is_none()) {
        // One round: everything that is not loaded yet, by its current choice.
        let mut open: Vec<(&mut Attempt<T>, Rendered)> = Vec::new();
        for attempt in attempts.iter_mut().filter(|attempt| attempt.loaded.is_none()) {
            match attempt.rendered(attempt.at, chooser) {
                Ok(rendered) => open.push((attempt, rendered)),
                Err(error) => attempt.fall_to_next(error.into())?,
            }
        }
        let requests: Vec<Request> =
            open.iter().map(|(_, rendered)| Request::new(rendered, chooser.target())).collect();
        let objects = store.get_all(&requests, progress);
        for ((attempt, rendered), object) in open.into_iter().zip(objects) {
            match object.map_err(PipelineError::from).and_then(|object| load(rendered, object)) {
                Ok(loaded) => attempt.loaded = Some(Arc::new(loaded)),
                Err(error) => attempt.fall_to_next(error)?,
            }
        }
    }
    Ok(Served { attempts, attempt_of_ranking })
}

/// The index of the attempt that has these choices, which may be a new one.
fn index_of<T>(attempts: &mut Vec<Attempt<T>>, request: &KernelRequest, ranking: &Ranking) -> usize {
    let same = |attempt: &Attempt<T>| {
        attempt.problem == request.problem && choice::are_same(&attempt.choices, &ranking.choices)
    };
    attempts.iter().position(same).unwrap_or_else(|| {
        let (problem, choices) = (request.problem.clone(), ranking.choices.clone());
        attempts.push(Attempt { problem, choices, at: 0, loaded: None, first_error: None });
        attempts.len() - 1
    })
}

impl<T> Attempt<T> {
    /// A choice of it as text.
    pub(crate) fn rendered(&self, at: usize, chooser: &Chooser) -> Result<Rendered, RenderError> {
        let Choice { template, params, .. } = &self.choices[at];
        render(chooser.library(), template, &self.problem, params, chooser.target())
    }

    pub(crate) fn problem(&self) -> Box<Problem> {
        Box::new(self.problem.clone())
    }

    /// The next choice, with a warning that says why; or the error of the first, when there is none left.
    fn fall_to_next(&mut self, error: PipelineError) -> Result<(), NoKernel<PipelineError>> {
        if error.is_hopeless() {
            return Err(NoKernel { problem: Box::new(self.problem.clone()), source: error });
        }
        let failed = self.choices[self.at].template.label();
        self.at += 1;
        if let Some(next) = self.choices.get(self.at) {
            tracing::warn!("`{failed}` is replaced by `{}`: {}", next.template.label(), chain(&error));
            self.first_error.get_or_insert(error);
            return Ok(());
        }
        Err(NoKernel { problem: Box::new(self.problem.clone()), source: self.first_error.take().unwrap_or(error) })
    }
}
