//! The sentence that is the program: a template is chosen, rendered, keyed, compiled or found in the cache, and
//! loaded. What the graph asks, and all it asks.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpu::code_object::KernelFacts;
use gpu::{Driver, GpuError, Kernel};

use super::choice::{self, Choice, Ranking, choose};
use super::compile::Request;
use super::library::Library;
use super::library_error::LibraryError;
use super::render::{RenderError, Rendered, render};
use super::resources::{ObjectError, examine};
use super::signature::Signature;
use super::store::{Loaded, Origin, Progress, Store, StoreError};
use super::{Params, Problem};
use crate::error::Hint;
use crate::target::{Backend, Target};
use crate::tuning::TuningTables;
use crate::tuning::table::StepKind;

/// Templates, tables, target, store and device.
pub struct Pipeline {
    library: Library,
    tables: TuningTables,
    target: Target,
    store: Store,
    driver: Arc<dyn Driver>,
}

/// A kernel on the device, and what it was made from.
#[derive(Debug)]
pub struct LoadedKernel {
    /// Ready to be launched.
    pub kernel: Kernel,
    /// Source, arguments, geometry.
    pub rendered: Rendered,
    /// Where the object came from.
    pub origin: Origin,
    /// What a GPU's object uses.
    pub uses: Option<KernelFacts>,
}

/// Why a kernel could not be had.
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
    #[error("the object of kernel `{label}` is not to be used")]
    Object {
        /// The template.
        label: String,
        /// What is wrong with it.
        #[source]
        source: ObjectError,
    },
    /// The device refuses the object.
    #[error("could not load kernel `{label}`")]
    Load {
        /// The template.
        label: String,
        /// The device's words.
        #[source]
        source: GpuError,
    },
}

/// A problem for which no kernel could be had.
#[derive(Debug, thiserror::Error)]
#[error("no kernel could be had for `{}`", problem.ops.join("+"))]
pub struct Unserved {
    /// The problem.
    pub problem: Box<Problem>,
    /// Why its first choice does not serve.
    #[source]
    pub source: PipelineError,
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
                .or_else(|| Some("`gptoss-jit cache verify` checks what is kept; `cache clear` starts anew".into())),
        }
    }
}

/// A kernel that is wanted: for this problem, from this row count on, in steps of this kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What it is to do.
    pub problem: Problem,
    /// Rows of the smallest launch.
    pub n_rows: usize,
    /// What the rows are to each other.
    pub step: StepKind,
}

/// One kernel to be had: for this problem, by the first choice that works.
struct Wish {
    problem: Problem,
    choices: Vec<Choice>,
    /// The choice that is tried now.
    at: usize,
    loaded: Option<Arc<LoadedKernel>>,
    /// Why the first choice failed.
    first_error: Option<PipelineError>,
}

impl Pipeline {
    /// Joins the parts.
    pub fn new(library: Library, tables: TuningTables, target: Target, store: Store, driver: Arc<dyn Driver>) -> Self {
        Self { library, tables, target, store, driver }
    }

    /// The templates.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// What is compiled for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The cache and the compiler.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The device.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The runs of ops that templates for the target fuse, the longest first.
    pub fn fusions(&self) -> Vec<Arc<Signature>> {
        self.library.fusions(&self.target)
    }

    /// The templates that fit a problem, the one that is taken for a number of rows first.
    ///
    /// # Errors
    /// If none fits, or a broken file could be one of them.
    pub fn ranking(&self, problem: &Problem, n_rows: usize, step: StepKind) -> Result<Ranking, LibraryError> {
        choose(&self.library, &self.tables, problem, n_rows as u32, step, &self.target)
    }

    /// Row counts from which a tuning row for this problem begins to hold in steps of this kind.
    pub fn bucket_starts(&self, problem: &Problem, step: StepKind) -> Vec<usize> {
        let edges = self.tables.token_edges(&problem.query(), step, &self.target);
        edges.into_iter().map(|edge| edge as usize).collect()
    }

    /// Whether the tables prefer a fused kernel for this problem, and a template fits.
    pub fn prefers(&self, fused: &Problem, n_rows: usize, step: StepKind) -> bool {
        self.tables.lookup(&fused.query(), n_rows as u32, step, &self.target).is_some()
            && self.library.candidates(fused, &self.target).is_ok_and(|candidates| !candidates.is_empty())
    }

    /// Chooses, renders, compiles or finds, and loads a kernel for everything that is wanted; many at once, and one where several
    /// come to the same. A choice that cannot be rendered, compiled or loaded falls to the next one, with a warning.
    ///
    /// # Errors
    /// A problem that no choice serves, and why the first of them does not.
    pub fn load_all(&self, wanted: &[Wanted], progress: &dyn Progress) -> Result<Vec<Arc<LoadedKernel>>, Unserved> {
        let (mut wishes, wish_of) = self.wishes(wanted)?;
        while wishes.iter().any(|wish| wish.loaded.is_none()) {
            self.try_all(&mut wishes, progress)?;
        }
        Ok(wish_of.into_iter().map(|i| Arc::clone(wishes[i].loaded.as_ref().expect("just loaded"))).collect())
    }

    /// One wish for all that come to the same choices, and for everything wanted the index of its wish.
    fn wishes(&self, wanted: &[Wanted]) -> Result<(Vec<Wish>, Vec<usize>), Unserved> {
        let mut wishes: Vec<Wish> = Vec::new();
        let mut answered: Vec<(&Wanted, usize)> = Vec::new();
        let mut warned = BTreeSet::new();
        let mut wish_of = Vec::with_capacity(wanted.len());
        for one in wanted {
            let known = answered.iter().find(|(other, _)| *other == one).map(|(_, wish)| *wish);
            wish_of.push(match known {
                Some(wish) => wish,
                None => {
                    let wish = self.wish(one, &mut wishes, &mut warned)?;
                    answered.push((one, wish));
                    wish
                }
            });
        }
        Ok((wishes, wish_of))
    }

    /// The index of the wish that has the choices for this, which may be a new one.
    fn wish(&self, wanted: &Wanted, wishes: &mut Vec<Wish>, warned: &mut BTreeSet<String>) -> Result<usize, Unserved> {
        let Wanted { problem, n_rows, step } = wanted;
        let ranking = choose(&self.library, &self.tables, problem, *n_rows as u32, *step, &self.target);
        let ranking = ranking.map_err(|error| Unserved { problem: Box::new(problem.clone()), source: error.into() })?;
        for warning in ranking.warnings {
            if warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        let choices = ranking.choices;
        let same = |wish: &Wish| wish.problem == *problem && choice::are_same(&wish.choices, &choices);
        Ok(wishes.iter().position(same).unwrap_or_else(|| {
            wishes.push(Wish { problem: problem.clone(), choices, at: 0, loaded: None, first_error: None });
            wishes.len() - 1
        }))
    }

    /// One round: everything that is not loaded yet, by its current choice.
    fn try_all(&self, wishes: &mut [Wish], progress: &dyn Progress) -> Result<(), Unserved> {
        let mut open: Vec<(&mut Wish, Rendered)> = Vec::new();
        for wish in wishes.iter_mut().filter(|wish| wish.loaded.is_none()) {
            match self.render(&wish.choices[wish.at], &wish.problem) {
                Ok(rendered) => open.push((wish, rendered)),
                Err(error) => wish.fall_to_next(error.into())?,
            }
        }
        let requests: Vec<Request> = open.iter().map(|(_, rendered)| self.request(rendered)).collect();
        let objects = self.store.get_all(&requests, progress);
        for ((wish, rendered), object) in open.into_iter().zip(objects) {
            match object.map_err(PipelineError::from).and_then(|object| self.load_or_recompile(rendered, object)) {
                Ok(loaded) => wish.loaded = Some(Arc::new(loaded)),
                Err(error) => wish.fall_to_next(error)?,
            }
        }
        Ok(())
    }

    /// Puts an object on the device. One from the cache that the device says is not for it is thrown away and compiled
    /// once more: the key says what it should be for, so it is not what it should be.
    fn load_or_recompile(&self, rendered: Rendered, object: Loaded) -> Result<LoadedKernel, PipelineError> {
        match self.load(rendered.clone(), &object.object, object.origin) {
            Err(PipelineError::Load { label, source: source @ GpuError::NoBinary { .. } })
                if object.origin == Origin::Cache =>
            {
                tracing::warn!("`{label}` is compiled again: {source}");
                let again = self.store.compile_again(&self.request(&rendered), object)?;
                self.load(rendered, &again.object, again.origin)
            }
            result => result,
        }
    }

    fn render(&self, choice: &Choice, problem: &Problem) -> Result<Rendered, RenderError> {
        render(&self.library, &choice.template, problem, &choice.params, &self.target)
    }

    /// What the compiler is asked for a rendered kernel.
    pub fn request(&self, rendered: &Rendered) -> Request {
        rendered.request(&self.target)
    }

    /// Renders one template at given parameters.
    ///
    /// # Errors
    /// [`RenderError`].
    pub fn render_with(&self, label: &str, problem: &Problem, params: &Params) -> Result<Rendered, RenderError> {
        let template = self.library.template(label, self.target.backend)?;
        render(&self.library, template, problem, params, &self.target)
    }

    /// Puts an object on the device.
    ///
    /// # Errors
    /// [`PipelineError::Object`] (GPUs) or [`PipelineError::Load`].
    pub fn load(&self, rendered: Rendered, object: &[u8], origin: Origin) -> Result<LoadedKernel, PipelineError> {
        let spec = rendered.spec();
        let label = rendered.label.clone();
        let is_of_gpu = matches!(self.target.backend, Backend::Hiprtc | Backend::Nvrtc);
        let examined = is_of_gpu.then(|| examine(object, &spec, &rendered.resources, &self.target));
        let uses = examined.transpose().map_err(|source| PipelineError::Object { label: label.clone(), source })?;
        let kernel = self.driver.load(object, spec).map_err(|source| PipelineError::Load { label, source })?;
        Ok(LoadedKernel { kernel, rendered, origin, uses })
    }
}

impl Wish {
    /// The next choice, with a warning that says why; or the error of the first, when there is none left.
    fn fall_to_next(&mut self, error: PipelineError) -> Result<(), Unserved> {
        let failed = self.choices[self.at].template.label();
        self.at += 1;
        if let Some(next) = self.choices.get(self.at) {
            tracing::warn!("`{failed}` is passed over for `{}`: {}", next.template.label(), with_causes(&error));
            self.first_error.get_or_insert(error);
            return Ok(());
        }
        Err(Unserved { problem: Box::new(self.problem.clone()), source: self.first_error.take().unwrap_or(error) })
    }
}

/// An error and what caused it, in a line.
pub fn with_causes(error: &PipelineError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
