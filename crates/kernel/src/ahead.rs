//! Kernels compiled ahead for other machines: chosen as loading a model chooses them, and written into a bundle.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use crate::choice::{Chooser, NoKernel, Rankings};
use crate::object::bundle::manifest::{BundleTarget, BundledKernel, BundledObject, FORMAT, Manifest, digest_of_files};
use crate::object::bundle::{self, archive};
use crate::object::compile::{CompileError, Request, compiler_for};
use crate::object::key::Digest;
use crate::object::resources::examine;
use crate::object::store::{Loaded, Progress, Store, StoreError};
use crate::pipeline::{PipelineError, served};
use crate::template::render::Rendered;

/// Kernels of a target.
#[derive(Debug)]
pub struct TargetKernels {
    target: BundleTarget,
    kernels: Vec<AheadKernel>,
    known: BTreeSet<Digest>,
}

/// A kernel that some choice comes to.
#[derive(Debug)]
struct AheadKernel {
    key: Digest,
    request: Request,
    /// None if it does not compile.
    object: Option<Arc<[u8]>>,
}

impl TargetKernels {
    /// None yet, of the chooser's target.
    ///
    /// # Errors
    /// If there is no compiler for it.
    pub fn new(chooser: &Chooser, store: &Store) -> Result<Self, CompileError> {
        let (backend, target) = (compiler_for(chooser.target()).name(), chooser.target().id());
        let identity = store.compiler().identity(backend, &target)?;
        let (compiler, compiler_description) = (identity.id.clone(), identity.description());
        let target = BundleTarget { target, backend: backend.into(), compiler, compiler_description };
        Ok(Self { target, kernels: Vec::new(), known: BTreeSet::new() })
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// The id of the target that the kernels are for.
    pub fn target(&self) -> &str {
        &self.target.target
    }

    /// How many did not compile, and bytes of those that did.
    pub fn figures(&self) -> (usize, u64) {
        let objects = || self.kernels.iter().filter_map(|kernel| kernel.object.as_ref());
        (self.len() - objects().count(), objects().map(|object| object.len() as u64).sum())
    }

    /// Adds what loading would take for these rankings, and all that it would try before.
    ///
    /// # Errors
    /// A problem that no choice serves, and why the first of them does not.
    pub fn add(
        &mut self,
        chooser: &Chooser,
        store: &Store,
        rankings: &Rankings,
        progress: &dyn Progress,
    ) -> Result<(), NoKernel<PipelineError>> {
        let is_of_gpu = chooser.target().is_real_gpu();
        let load = |rendered: Rendered, object: Loaded| {
            let examined = || examine(&object.object, &rendered.spec(), &rendered.resources, chooser.target());
            let failed = |source| PipelineError::Object { label: rendered.label.clone(), source };
            if is_of_gpu { examined().map(drop).map_err(failed) } else { Ok(()) }
        };
        let attempts = served(chooser, store, rankings, progress, &load)?.attempts;
        let choices = attempts.iter().flat_map(|attempt| (0..=attempt.at).map(move |at| (attempt, at)));
        // A choice that cannot be rendered asks for nothing.
        let requests = choices.filter_map(|(attempt, at)| attempt.rendered(at, chooser).ok());
        let requests: Vec<Request> = requests.map(|rendered| Request::new(&rendered, chooser.target())).collect();
        for (request, result) in requests.iter().zip(store.get_all(&requests, &())) {
            let object = match result {
                Ok(loaded) => Some(loaded.object),
                Err(StoreError::FailedBefore { .. }) => None,
                Err(StoreError::Compile(error)) if error.is_deterministic() => None,
                Err(error) => return Err(NoKernel { problem: attempts[0].problem(), source: error.into() }),
            };
            let key = bundle::key(request);
            if self.known.insert(key) {
                self.kernels.push(AheadKernel { key, request: request.clone(), object });
            }
        }
        Ok(())
    }
}

/// What a bundle is for, to be said in it.
#[derive(Clone, Debug)]
pub struct Purpose {
    pub models: Vec<String>,
    pub precisions: Vec<String>,
    /// The program's version.
    pub version: String,
    /// Of all tuning tables.
    pub tuning_sha256: Digest,
}

/// The bytes of a bundle of these kernels.
///
/// # Errors
/// If it is too large for its format.
pub fn bundle_of(all: &[TargetKernels], chooser: &Chooser, purpose: Purpose) -> io::Result<Vec<u8>> {
    let (mut kernels, mut objects, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    let mut known = BTreeSet::new();
    for (target, of_target) in all.iter().enumerate() {
        for AheadKernel { key, request, object } in &of_target.kernels {
            let source_sha256 = Digest::of(request.source.as_bytes());
            if known.insert(source_sha256) {
                sources.push((source_sha256, request.source.as_str()));
            }
            let stated =
                |object: &Arc<[u8]>| BundledObject { len_bytes: object.len() as u64, sha256: Digest::of(object) };
            kernels.push(BundledKernel {
                key: *key,
                label: request.label.clone(),
                params: request.params.clone(),
                target,
                entry: request.entry.clone(),
                options: request.options.clone(),
                source_sha256,
                object: object.as_ref().map(stated),
            });
            objects.push(object.as_deref().unwrap_or_default());
        }
    }
    let templates = chooser.library().texts().map(|file| (file.name.as_str(), &*file.text));
    let manifest = Manifest {
        schema: FORMAT,
        version: purpose.version,
        models: purpose.models,
        precisions: purpose.precisions,
        templates_sha256: digest_of_files(templates),
        tuning_sha256: purpose.tuning_sha256,
        targets: all.iter().map(|kernels| kernels.target.clone()).collect(),
        kernels,
    };
    archive::bytes(&manifest, |i| objects[i], &sources)
}
