//! An open bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::archive::{self, FOOTER_BYTES, Footer, Index, MAGIC, MAX_FRAME_BYTES, Record};
use super::error::BundleError;
use super::manifest::{BundledKernel, FORMAT, Manifest};
use crate::object::compile::additions;
use crate::object::key::{Digest, KernelKey};
use hint::chain;
use system::os::FileExt;
use system::trust;

/// Unpacked frames that are kept: what is asked for next is mostly in the same one.
const N_KEPT: usize = 4;

/// A bundle, held open: what is read is of the file that was checked.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    index: Index,
    /// By where they begin in the file; the one used last at the end.
    unpacked: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
}

/// Something that is wrong with a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFinding {
    /// The file in it, or the part.
    pub place: String,
    pub problem: String,
}

impl Bundle {
    /// Opens a bundle that only this user or root can have written, and reads its index.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        let (file, metadata) = trust::open_installed(path).map_err(BundleError::Open)?;
        let len_bytes = metadata.len();
        let not_one = BundleError::NotABundle { expected: MAGIC };
        let footer_at = len_bytes.checked_sub(FOOTER_BYTES as u64).ok_or(not_one)?;
        let mut footer_bytes = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer_bytes, footer_at).map_err(BundleError::Open)?;
        let footer = Footer::read(&footer_bytes)?;
        let damaged = || BundleError::Damaged { what: "its index" };
        let before = u64::from(footer.records_len) + u64::from(footer.targets_len);
        let index_at = footer_at.checked_sub(before).ok_or_else(damaged)?;
        // The digest is of what is before it: the footer's first four numbers too.
        let hashed_len = usize::try_from(before).map_err(|_| damaged())? + 20;
        let mut bytes = vec![0; hashed_len];
        file.read_exact_at(&mut bytes, index_at).map_err(BundleError::Open)?;
        let index = Index::read(&footer, &bytes)?;
        Ok(Self { path: path.to_owned(), file, len_bytes, index, unpacked: Mutex::default() })
    }

    /// Its path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the file.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// How many kernels it has, those included that did not compile.
    pub fn n_kernels(&self) -> usize {
        self.index.len()
    }

    /// What its kernels are for, as their keys have it.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.index.targets.iter().map(String::as_str)
    }

    pub(super) fn has(&self, key: &Digest) -> bool {
        self.index.find(key).is_some()
    }

    /// The object of a key, checked; inside, none if it did not compile.
    pub(super) fn get(&self, key: &Digest) -> Result<Option<Option<Arc<[u8]>>>, BundleError> {
        let Some(record) = self.index.find(key) else { return Ok(None) };
        if record.len == 0 {
            return Ok(Some(None));
        }
        let frame = self.frame(&record)?;
        let object = frame.get(record.at as usize..).and_then(|rest| rest.get(..record.len as usize));
        let object = object.ok_or(BundleError::Damaged { what: "an object" })?;
        if Digest::of(object) != record.sha256 {
            return Err(BundleError::Checksum { what: "an object" });
        }
        Ok(Some(Some(object.into())))
    }

    /// What the frame of a record holds.
    fn frame(&self, record: &Record) -> Result<Arc<Vec<u8>>, BundleError> {
        let mut unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = unpacked.iter().position(|(at, _)| *at == record.frame_at) {
            unpacked[i..].rotate_left(1);
            return Ok(Arc::clone(&unpacked[unpacked.len() - 1].1));
        }
        let frame = Arc::new(self.read_frame(record.frame_at, record.frame_len)?);
        if unpacked.len() == N_KEPT {
            unpacked.remove(0);
        }
        unpacked.push((record.frame_at, Arc::clone(&frame)));
        Ok(frame)
    }

    fn read_frame(&self, at: u64, len: u32) -> Result<Vec<u8>, BundleError> {
        if at.checked_add(len.into()).is_none_or(|end| end > self.len_bytes) || len as usize > MAX_FRAME_BYTES {
            return Err(BundleError::Damaged { what: "its index" });
        }
        let mut packed = vec![0; len as usize];
        self.file.read_exact_at(&mut packed, at).map_err(BundleError::Open)?;
        archive::unpacked(&packed).map_err(BundleError::Unpack)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn manifest(&self) -> Result<Manifest, BundleError> {
        let frame = self.read_frame(self.index.manifest_at, self.index.manifest_len)?;
        let files = archive::files(&frame)?;
        let text = files.iter().find(|(name, _)| *name == archive::MANIFEST);
        let (_, text) = text.ok_or(BundleError::Damaged { what: "`manifest.json`" })?;
        let manifest: Manifest = serde_json::from_slice(text).map_err(BundleError::Manifest)?;
        if manifest.schema != FORMAT {
            return Err(BundleError::Format { expected: FORMAT, found: manifest.schema });
        }
        Ok(manifest)
    }

    /// Unpacks everything, a part at a time, and checks every object, source and key against the manifest, and the
    /// index against both. Returns all problems.
    pub fn verify(&self) -> Vec<BundleFinding> {
        let mut findings = Vec::new();
        let mut find = |place: String, problem: String| findings.push(BundleFinding { place, problem });
        let manifest = self.manifest().map_err(|error| find(archive::MANIFEST.into(), chain(&error))).ok();
        let kernels = manifest.as_ref().map_or(&[][..], |manifest| &manifest.kernels);
        let mut keys = manifest.as_ref().map(Keys::new).unwrap_or_default();
        if let Err(error) = self.each_source(&mut keys, &mut find) {
            find("sources".into(), chain(&error));
        }
        for (kernel, found) in kernels.iter().zip(&keys.found) {
            let place = format!("{} {}", kernel.label, kernel.key);
            match found {
                None => find(place.clone(), "its source is not there".into()),
                Some(found) if *found != Some(kernel.key) => {
                    find(place.clone(), "its key is not that of its source".into())
                }
                Some(_) => {}
            }
            match self.get(&kernel.key) {
                Err(error) => find(place, chain(&error)),
                Ok(None) => find(place, "it is not in the index".into()),
                Ok(Some(found)) => {
                    let stated = kernel.object.map(|object| (object.len_bytes, object.sha256));
                    let found = found.map(|object| (object.len() as u64, Digest::of(&object)));
                    if stated != found {
                        find(place, "its object is not the manifest's".into());
                    }
                }
            }
        }
        let known: BTreeSet<Digest> = kernels.iter().map(|kernel| kernel.key).collect();
        for record in (0..self.index.len()).map(|i| self.index.record(i)).filter(|one| !known.contains(&one.key)) {
            match self.get(&record.key) {
                Err(error) => find(record.key.to_string(), chain(&error)),
                Ok(_) if manifest.is_none() => {} // said above
                Ok(_) => find(record.key.to_string(), "it is in the index and not in the manifest".into()),
            }
        }
        let of_manifest = manifest.iter().flat_map(|manifest| &manifest.targets).map(|target| &target.target);
        if manifest.is_some() && !self.index.targets.iter().eq(of_manifest) {
            find("index".into(), "its targets are not the manifest's".into());
        }
        findings
    }

    /// Looks at the sources, one after the other: the frames between those of objects and that of the manifest.
    fn each_source(&self, keys: &mut Keys<'_>, find: &mut dyn FnMut(String, String)) -> Result<(), BundleError> {
        let of_objects = (0..self.index.len()).map(|i| self.index.record(i)).filter(|record| record.len > 0);
        let at = of_objects.map(|record| record.frame_at.saturating_add(record.frame_len.into())).max().unwrap_or(0);
        let end = self.index.manifest_at;
        if at > end || end > self.len_bytes {
            return Err(BundleError::Damaged { what: "its index" });
        }
        archive::each_file(Section { file: &self.file, at, end }, &mut |name, text| {
            let sha256 = Digest::of(text);
            match (name.strip_prefix("sources/"), str::from_utf8(text)) {
                (Some(stated), Ok(text)) if stated.parse() == Ok(sha256) => keys.found(&sha256, text),
                _ => find(name.to_owned(), "it is not what its name says".into()),
            }
        })
    }
}

/// The keys of kernels as their sources make them.
#[derive(Default)]
struct Keys<'a> {
    manifest: Option<&'a Manifest>,
    /// Kernels by their sources' digests: several may have one source.
    of_source: BTreeMap<Digest, Vec<usize>>,
    /// Of each kernel whose source was there; inside, none if the manifest has no such target.
    found: Vec<Option<Option<Digest>>>,
}

impl<'a> Keys<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        let mut of_source: BTreeMap<Digest, Vec<usize>> = BTreeMap::new();
        for (i, kernel) in manifest.kernels.iter().enumerate() {
            of_source.entry(kernel.source_sha256).or_default().push(i);
        }
        Self { manifest: Some(manifest), of_source, found: vec![None; manifest.kernels.len()] }
    }

    fn found(&mut self, source_sha256: &Digest, source: &str) {
        let Some(manifest) = self.manifest else { return };
        for &i in self.of_source.get(source_sha256).into_iter().flatten() {
            self.found[i] = Some(key_of(manifest, &manifest.kernels[i], source));
        }
    }
}

/// The bytes `at..end` of a file; reading moves `at`.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.file.read_at(&mut buffer[..left], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// The key of a kernel as the manifest has it; none if it names no target.
fn key_of(manifest: &Manifest, kernel: &BundledKernel, source: &str) -> Option<Digest> {
    let target = manifest.targets.get(kernel.target)?;
    let key = KernelKey {
        source: source.to_owned(),
        options: kernel.options.clone(),
        target: target.target.clone(),
        entry: kernel.entry.clone(),
        compiler_name: target.backend.clone(),
        compiler: additions(&target.backend),
    };
    Some(key.digest())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::bundle::tests::{bytes, opened, request};

    #[test]
    fn a_frame_that_is_too_large_or_goes_past_the_end_is_not_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        drop(opened(folder.path(), &bytes(&[(request("gfx942", "s"), None)])));
        let mut bundle = Bundle::open(&folder.path().join("b.tar.zst")).expect("a bundle");
        let is_refused = |error: BundleError| matches!(error, BundleError::Damaged { what: "its index" });
        assert!(is_refused(bundle.read_frame(bundle.len_bytes - 1, 2).expect_err("behind the end")));
        bundle.len_bytes = u64::MAX;
        assert!(is_refused(bundle.read_frame(0, MAX_FRAME_BYTES as u32 + 1).expect_err("too large")));
    }
}
