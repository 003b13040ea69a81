//! Writing an entry: built aside, then renamed into place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::entry::{CacheEntry, Damage, Meta, Stored};
use super::folder::{CacheError, Folder};
use crate::object::key::KernelKey;
use hint::chain;
use system::lock_file::LockFile;
use system::os::{OpenOptionsExt, sync_folder};
use system::trust::{own_folder, trust_folder};

/// How often to try to take a name that is taken. One round puts away what is in the way; the others are for
/// neighbours that do the same at the same moment.
const ROUNDS: u32 = 5;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);

impl Folder {
    /// Stores an object, or the failure to make one. Gives the entry that now lies there: this one, or that of a
    /// process which was first; none for a failure. An object takes the place of a failure, never the reverse.
    pub(super) fn publish(
        &self,
        key: &KernelKey,
        meta: &Meta,
        log: &str,
        object: Option<&[u8]>,
    ) -> Result<Option<CacheEntry>, CacheError> {
        let digest = key.digest();
        let path = self.entry_path(&digest);
        let failed = |source| CacheError::Write { path: path.clone(), source };

        let staging = self.staging().map_err(failed)?;
        let used = LockFile::from(write_files(staging.path(), key, meta, log, object).map_err(failed)?);
        let in_use = used.try_lock_shared().is_ok().then(|| Arc::new(used)); // before anyone can see it
        self.make_shard(&self.shard(&digest))?;
        let mut round = 1;
        while let Err(error) = fs::rename(staging.path(), &path) {
            if !is_taken(&error) || round == ROUNDS {
                return Err(failed(error));
            }
            round += 1;
            match self.read(&digest) {
                Ok(Stored::Object(winner)) => return Ok(Some(winner)),
                Ok(Stored::Failed { .. }) if object.is_none() => return Ok(None),
                Ok(Stored::Failed { .. }) => self.discard(&path).map_err(failed)?,
                Ok(Stored::Absent) => thread::sleep(BETWEEN_ROUNDS),
                Err((_, damage)) if damage.is_passing() => return Err(failed(error)),
                Err((path, damage)) => self.put_away(&path, &damage)?,
            }
        }
        let _ = staging.keep(); // it has another name now
        sync_folder(&self.shard(&digest)).map_err(failed)?;
        let entry = |object| CacheEntry {
            dir: Some(path.clone()),
            used: in_use,
            ..CacheEntry::in_memory(digest, object, meta.clone())
        };
        Ok(object.map(entry))
    }

    /// Warns of something damaged and moves it aside.
    pub(super) fn put_away(&self, path: &Path, damage: &Damage) -> Result<(), CacheError> {
        let why = chain(damage);
        tracing::warn!("not using `{}` of the kernel cache: {why}", path.display());
        self.set_aside(path, &why).map(|_| ())
    }

    /// Makes the folder of the entries that begin alike; one that is not to be trusted makes way.
    fn make_shard(&self, shard: &Path) -> Result<(), CacheError> {
        let failed = |source| CacheError::Write { path: shard.into(), source };
        if let Ok(metadata) = fs::symlink_metadata(shard)
            && let Err(source) = trust_folder(&metadata)
        {
            self.put_away(shard, &Damage::Distrusted { file: "..", source })?;
        }
        own_folder(shard).map_err(failed)
    }
}

/// Fills a staging folder and syncs it. Gives the file whose lock says "in use".
fn write_files(staging: &Path, key: &KernelKey, meta: &Meta, log: &str, object: Option<&[u8]>) -> io::Result<File> {
    if let Some(object) = object {
        write_synced(staging.join("object"), object)?;
    }
    write_synced(staging.join("source"), key.source.as_bytes())?;
    write_synced(staging.join("log"), log.as_bytes())?;
    write_synced(staging.join("meta.toml"), meta.to_text().map_err(io::Error::other)?.as_bytes())?;
    let used = write_synced(staging.join("used"), b"")?;
    sync_folder(staging)?;
    Ok(used)
}

/// The mode is given, so that a lax umask does not make the cache distrust its own files.
fn write_synced(path: PathBuf, bytes: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Whether something is at the new name already: a folder with files in it, or no folder.
fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}
