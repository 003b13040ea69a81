//! The prefix cache on disk, kept over restarts: a folder with a file for each block of the prefix cache, and for each
//! snapshot of the window layers.
//!
//! ```text
//! DIR/v1/<what model and kernels are, 32 digits>/<key of the prefix>.block
//!                                               /<key of the prefix>.windows
//! ```
//!
//! A file is found by the key of its prefix, which covers every token up to there. It is used only if it is whole, was
//! written by this user, and belongs to the same model. Files are read when the model is loaded, as far as there are
//! free blocks, and written when the engine is idle. Above a size limit the least recently used files are removed.

mod file;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use self::file::{Damage, Head, file_bytes, file_name};
use super::{Engine, EngineError};
use crate::graph::kv_cache::BLOCK_TOKENS;
use crate::scheduler::{PrefixBlock, PrefixKey, PrefixPart};
use hint::Hint;
use system::trust::{self, Distrust};

/// Prefixes that are kept over a restart.
pub struct PrefixStore {
    folder: PathBuf,
    identity: [u8; 32],
    most_bytes: u64,
    /// Files of all models, the one that was used longest ago first, and their bytes.
    files: BTreeMap<(SystemTime, PathBuf), u64>,
    total_bytes: u64,
    /// When a file of this model was used.
    used: HashMap<PathBuf, SystemTime>,
    /// The parts to write; none if something changed since the last look.
    to_save: Option<VecDeque<(PrefixBlock, PrefixPart)>>,
    /// Whether writing failed: it is not tried again.
    has_failed: bool,
}

/// What was brought back from the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroughtBack {
    /// Tokens in blocks that sequences find again.
    pub n_tokens: usize,
    pub n_bytes: u64,
}

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("could not keep prefixes in `{}`", path.display())]
pub struct PrefixStoreError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Hint for PrefixStoreError {
    fn hint(&self) -> Option<String> {
        let distrust = self.source.get_ref().and_then(|source| source.downcast_ref::<Distrust>());
        Some(match distrust {
            Some(Distrust::Writable { .. }) => {
                format!("`chmod go-w {}`, after making sure that its contents are yours", self.path.display())
            }
            _ => "`--prefix-cache-dir` takes a folder of yours; it is created if missing".into(),
        })
    }
}

/// No file is written for so long: one that is older and not whole was left by a process that was killed.
const NEW_IS_STALE: Duration = Duration::from_secs(3600);

impl PrefixStore {
    /// Opens a folder, which is made if it is not there.
    ///
    /// - `identity`: a digest of all that keys and values depend on
    /// - `most_bytes`: of all files in it, also of other models
    ///
    /// # Errors
    /// If it cannot be made or read, or another user could write to it.
    pub fn open(root: &Path, identity: [u8; 32], most_bytes: u64) -> Result<Self, PrefixStoreError> {
        let versioned = root.join("v1");
        let folder = versioned.join(file::hex(&identity[..16]));
        for path in [root, &versioned, &folder] {
            trust::own_folder(path).map_err(|source| PrefixStoreError { path: path.into(), source })?;
        }
        let failed = |source| PrefixStoreError { path: versioned.clone(), source };
        let (files, used) = (BTreeMap::new(), HashMap::new());
        let (total_bytes, to_save, has_failed) = (0, None, false);
        let mut store = Self { folder, identity, most_bytes, files, total_bytes, used, to_save, has_failed };
        for of_model in fs::read_dir(&versioned).map_err(failed)?.flatten() {
            for file in fs::read_dir(of_model.path()).into_iter().flatten().flatten() {
                let Ok(metadata) = file.metadata() else { continue }; // somebody else removes old ones
                let (path, when) = (file.path(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
                if file.file_name().as_encoded_bytes().starts_with(file::NEW.as_bytes()) {
                    if when.elapsed().is_ok_and(|age| age > NEW_IS_STALE) {
                        let _ = fs::remove_file(path);
                    }
                } else if metadata.is_file() {
                    store.add(path, when, metadata.len());
                }
            }
        }
        Ok(store)
    }

    /// Brings prefixes back from the disk, those that were used last first, as far as blocks are free.
    ///
    /// # Errors
    /// The device's. A file that is not right is no error: it is named in a warning, and left alone.
    pub fn load_into(&mut self, engine: &mut Engine) -> Result<BroughtBack, EngineError> {
        let mut blocks: HashMap<PrefixKey, PrefixBlock> = HashMap::new();
        let mut ends = Vec::new();
        let end_part = if engine.needs_windows() { PrefixPart::Windows } else { PrefixPart::Block };
        let mut own: Vec<(SystemTime, PathBuf)> = self.used.iter().map(|(path, when)| (*when, path.clone())).collect();
        own.sort_unstable();
        for (_, path) in own.into_iter().rev() {
            match file::read_head(&path, &self.identity) {
                Ok(Head { name, part, .. }) => {
                    if part == PrefixPart::Block {
                        blocks.insert(name.key, name);
                    }
                    if part == end_part {
                        ends.push(name);
                    }
                }
                Err(damage) => self.distrust(&path, &damage),
            }
        }
        let (mut brought, mut chains) = (BroughtBack::default(), Vec::new());
        for end in ends {
            if let Some(chain) = self.bring(&end, &mut blocks, engine, &mut brought)? {
                chains.push(chain);
            }
        }
        // The ends of those that were used longest ago are the first to go.
        for name in chains.iter().rev().flat_map(|chain| chain.iter().rev()) {
            engine.prefix_used(name);
        }
        self.to_save = None;
        Ok(brought)
    }

    /// Brings a prefix back, if all of it is there and has room: its blocks, the first one first, but for those that
    /// others begin with and that are there already. Gives those that were not.
    fn bring(
        &mut self,
        end: &PrefixBlock,
        blocks: &mut HashMap<PrefixKey, PrefixBlock>,
        engine: &mut Engine,
        brought: &mut BroughtBack,
    ) -> Result<Option<Vec<PrefixBlock>>, EngineError> {
        let mut chain = Vec::new();
        let mut key = end.key;
        for index in (0..=end.index).rev() {
            let Some(name) = blocks.get(&key).filter(|name| name.index == index) else { return Ok(None) };
            if engine.has_part(name, PrefixPart::Block) {
                break; // and with it all that is before it
            }
            chain.push(*name);
            key = name.before;
        }
        chain.reverse();
        let (n_free, has_snapshot) = engine.room_for_prefixes();
        let needs_windows = engine.needs_windows();
        if chain.len() > n_free || needs_windows && !has_snapshot {
            return Ok(None);
        }
        let parts: Vec<_> = chain.iter().map(|name| (*name, PrefixPart::Block)).collect();
        let mut is_whole = true;
        for (name, part) in parts.into_iter().chain(needs_windows.then_some((*end, PrefixPart::Windows))) {
            let path = self.path(&name, part);
            match file::read(&path, &self.identity, engine.part_bytes(&name, part) as u64) {
                Ok(bytes) if is_whole => {
                    if engine.bring_part(&name, part, &bytes)? {
                        brought.n_bytes += bytes.len() as u64;
                        brought.n_tokens += if part == PrefixPart::Block { BLOCK_TOKENS } else { 0 };
                    }
                }
                Ok(_) => {}
                Err(damage) => {
                    // What is after it is only looked at, so that all that is wrong is named and written again.
                    is_whole = false;
                    self.distrust(&path, &damage);
                    if part == PrefixPart::Block {
                        blocks.remove(&name.key);
                    }
                }
            }
        }
        Ok(is_whole.then_some(chain))
    }

    /// Something may be kept that is not on the disk.
    pub fn changed(&mut self) {
        self.to_save = None;
    }

    /// Whether nothing is left to write.
    pub fn is_saved(&self) -> bool {
        self.has_failed || self.to_save.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Writes one more part of a prefix. Called while no sequence runs.
    ///
    /// # Errors
    /// The device's. What cannot be written is a warning, and the last one.
    pub fn save_next(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        if self.has_failed {
            return Ok(());
        }
        if self.to_save.is_none() {
            let wanted = self.wanted(engine);
            self.used_now(&wanted);
            self.make_room(0);
            let is_new = |(name, part): &(PrefixBlock, PrefixPart)| !self.used.contains_key(&self.path(name, *part));
            self.to_save = Some(wanted.into_iter().filter(is_new).collect());
        }
        let next = self.to_save.as_mut().and_then(VecDeque::pop_front);
        let Some((name, part)) = next else { return Ok(()) };
        let Some(bytes) = engine.read_part(&name, part)? else { return Ok(()) };
        let head = Head { identity: self.identity, name, part, len_bytes: bytes.len() as u64 };
        self.make_room(head.file_bytes());
        match file::write(&self.folder, &head, &bytes) {
            Ok(path) => {
                self.forget(&path); // a damaged one was there
                self.add(path, SystemTime::now(), head.file_bytes());
            }
            Err(error) => {
                let folder = self.folder.display();
                tracing::warn!("prefixes are not kept over a restart: could not write to `{folder}`: {error}");
                self.has_failed = true;
            }
        }
        Ok(())
    }

    /// Writes all that is left, and notes in which order all of it was used.
    ///
    /// # Errors
    /// As [`Self::save_next`].
    pub fn finish(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        self.changed();
        while !self.is_saved() {
            self.save_next(engine)?;
        }
        self.used_now(&self.wanted(engine));
        for (path, when) in &self.used {
            let _ = File::open(path).and_then(|file| file.set_modified(*when)); // somebody else may have removed it
        }
        Ok(())
    }

    /// What is kept and has room on the disk, that which was used longest ago first.
    fn wanted(&self, engine: &Engine) -> VecDeque<(PrefixBlock, PrefixPart)> {
        let (mut wanted, mut room) = (VecDeque::new(), self.most_bytes);
        for name in engine.kept_prefixes().into_iter().rev() {
            for part in [PrefixPart::Block, PrefixPart::Windows] {
                if !engine.has_part(&name, part) {
                    continue;
                }
                let Some(left) = room.checked_sub(file_bytes(engine.part_bytes(&name, part) as u64)) else {
                    return wanted;
                };
                room = left;
                wanted.push_front((name, part));
            }
        }
        wanted
    }

    /// Notes that these were used after all others, in this order.
    fn used_now(&mut self, wanted: &VecDeque<(PrefixBlock, PrefixPart)>) {
        let now = SystemTime::now();
        for (i, (name, part)) in (0..).zip(wanted) {
            let path = self.path(name, *part);
            let Some(when) = self.used.get_mut(&path) else { continue };
            let before = std::mem::replace(when, now + Duration::from_micros(i));
            if let Some(len_bytes) = self.files.remove(&(before, path.clone())) {
                self.files.insert((self.used[&path], path), len_bytes);
            }
        }
    }

    /// Removes files until there is room for this many bytes.
    fn make_room(&mut self, len_bytes: u64) {
        while self.total_bytes.saturating_add(len_bytes) > self.most_bytes {
            let Some(((_, path), len_bytes)) = self.files.pop_first() else { return };
            self.total_bytes -= len_bytes;
            self.used.remove(&path);
            let _ = fs::remove_file(path); // somebody else may have
        }
    }

    fn add(&mut self, path: PathBuf, when: SystemTime, len_bytes: u64) {
        self.total_bytes += len_bytes;
        if path.parent() == Some(&self.folder) {
            self.used.insert(path.clone(), when);
        }
        self.files.insert((when, path), len_bytes);
    }

    /// Removes a file from the counts.
    fn forget(&mut self, path: &Path) {
        let known = self.files.keys().find(|(_, known)| known == path).cloned();
        if let Some(len_bytes) = known.and_then(|known| self.files.remove(&known)) {
            self.total_bytes -= len_bytes;
        }
    }

    fn path(&self, name: &PrefixBlock, part: PrefixPart) -> PathBuf {
        self.folder.join(file_name(&name.key, part))
    }

    /// A file that is not right is left alone until its place is needed.
    fn distrust(&mut self, path: &Path, damage: &Damage) {
        tracing::warn!("a kept prefix is not used: `{}`: {damage}", path.display());
        self.used.remove(path);
    }
}

#[cfg(test)]
mod tests;
