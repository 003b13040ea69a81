//! Bundles: kernels that were compiled elsewhere, for machines without a compiler and for first starts.
//!
//! A bundle is one file, a `tar.zst` that any `tar` unpacks. `archive` lays it out so that one kernel can be read
//! without the others, [`manifest`] describes its contents, `place` says where bundles are looked for and who may have
//! written them. Kernels are found by their key without the compiler's identity: source, options and target are the
//! same, whichever compiler made them. [`super::store`] asks bundles after the cache and before a compiler.

pub(crate) mod archive;
mod error;
mod file;
pub mod manifest;
mod place;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::compile::{Request, additions, has_c_compiler};
use super::key::{Digest, KernelKey};
use super::store;
use crate::target::{Platform, Target};
use hint::chain;

pub use error::BundleError;
pub use file::{Bundle, BundleFinding};
pub use place::VARIABLE;

/// The bundles of a machine, in the order in which they are searched.
#[derive(Debug, Default)]
pub struct Bundles {
    bundles: Vec<Bundle>,
    refused: Vec<(PathBuf, BundleError)>,
    /// Kernels of bundles that a device refused.
    forgotten: Mutex<Vec<Digest>>,
}

/// A kernel in a bundle.
#[derive(Debug)]
pub struct Bundled<'a> {
    /// The digest of the key without the compiler's identity.
    pub key: Digest,
    pub bundle: &'a Bundle,
    /// The object; none if it did not compile when the bundle was made.
    pub object: Option<Arc<[u8]>>,
}

impl Bundles {
    /// Those of this machine, looked for once in a process. One that is not to be used is a warning.
    pub fn here() -> &'static Arc<Self> {
        static HERE: OnceLock<Arc<Bundles>> = OnceLock::new();
        HERE.get_or_init(|| {
            let found = Self::open(&place::candidates());
            for (path, error) in &found.refused {
                tracing::warn!("not using the bundle `{}`: {}", path.display(), chain(error));
            }
            Arc::new(found)
        })
    }

    /// Opens these files, and those that are not there are among the refused.
    pub fn open(files: &[PathBuf]) -> Self {
        let mut bundles = Self::default();
        for path in files {
            match Bundle::open(path) {
                Ok(bundle) => bundles.bundles.push(bundle),
                Err(error) => bundles.refused.push((path.clone(), error)),
            }
        }
        bundles
    }

    /// The bundles that are used, in the order of the search.
    pub fn all(&self) -> &[Bundle] {
        &self.bundles
    }

    /// Those that are not used, and why.
    pub fn refused(&self) -> &[(PathBuf, BundleError)] {
        &self.refused
    }

    /// Whether one of them says that it has a kernel. Nothing is read for it.
    pub fn has(&self, request: &Request) -> bool {
        self.bundles.iter().any(|bundle| self.keys(request).any(|key| bundle.has(&key)))
    }

    /// A kernel, checked. A bundle with wrong bytes gives a warning, and the next one is tried.
    pub fn get(&self, request: &Request) -> Option<Bundled<'_>> {
        for key in self.keys(request) {
            for bundle in &self.bundles {
                match bundle.get(&key) {
                    Ok(None) => {}
                    Ok(Some(object)) => return Some(Bundled { key, bundle, object }),
                    Err(error) => {
                        let path = bundle.path().display();
                        tracing::warn!("not using `{}` of the bundle `{path}`: {}", request.label, chain(&error));
                    }
                }
            }
        }
        None
    }

    /// Does without a kernel from now on.
    pub(super) fn forget(&self, request: &Request) {
        let keys: Vec<Digest> = self.keys(request).collect();
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
    }

    fn keys(&self, request: &Request) -> impl Iterator<Item = Digest> + use<> {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let keys = if self.bundles.is_empty() { [None, None] } else { [Some(key(request)), plain_key(request)] };
        keys.into_iter().flatten().filter(move |key| !forgotten.contains(key))
    }

    /// Whether some of them have kernels that run on this machine's cores.
    pub fn serve_host(&self) -> bool {
        self.largest_host().is_some()
    }

    /// The largest of the processors that kernels are for here, of those that run on this machine.
    fn largest_host(&self) -> Option<Target> {
        largest(self.bundles.iter().flat_map(Bundle::targets))
    }
}

/// Of names of targets, the processor that has most of what this machine has, and nothing else.
fn largest<'a>(targets: impl Iterator<Item = &'a str>) -> Option<Target> {
    let of_host = targets.filter_map(Target::named_level);
    of_host.filter(Target::runs_on_host).max_by_key(|target| target.features.len())
}

/// The digest of the key of a request, without the compiler's identity but for what this program has it read besides.
pub fn key(request: &Request) -> Digest {
    KernelKey::new(request, &additions(request.compiler)).digest()
}

/// The same for the chip without its modes: an object for `gfx942` runs on `gfx942:sramecc+:xnack-`.
fn plain_key(request: &Request) -> Option<Digest> {
    let (chip, _) = request.target.split_once(':')?;
    let plain = |option: &String| option.replace(&request.target, chip);
    Some(key(&Request { target: chip.into(), options: request.options.iter().map(plain).collect(), ..request.clone() }))
}

/// The target for this machine's cores: the one in the bundles that are here, if templates need no further feature or
/// there is no compiler; else the machine itself.
pub fn host_target() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    let choose = || {
        let host = Target::host();
        let bundled = Bundles::here().largest_host().filter(|_| host.platform == Platform::Host);
        let is_enough = |target: &Target| target.has_what_templates_ask_of(&host);
        bundled.filter(|target| is_enough(target) || store::never_compiles() || !has_c_compiler()).unwrap_or(host)
    };
    CHOSEN.get_or_init(choose).clone()
}

/// The files that are bundles in a folder or at a path, as `$GPTOSS_JIT_BUNDLES` names them.
pub fn files_at(path: &Path) -> Vec<PathBuf> {
    place::files_at(path)
}
