//! The cache's folder tree: opening it, the paths in it, and moving bad entries aside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::entry::Damage;
use crate::object::key::{Digest, SCHEMA};
use hint::Hint;
use system::os::{MetadataExt, with_mode};
use system::trust::{Distrust, create_private, own_folder, trust_folder};

/// What tells backup programs to skip the folder, see <https://bford.info/cachedir/>.
const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This folder holds compiled kernels of gptoss-jit. It can be deleted at any time.\n";
/// No publication or removal takes this long: a staging folder that is older was left by a killed process.
const STAGING_IS_STALE: Duration = Duration::from_secs(3600);
const ASIDE_MAX_COUNT: usize = 64;
const ASIDE_MAX_BYTES: u64 = 64 << 20;

/// Why the cache on the disk cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("could not find this user's cache folder")]
    NoHome,
    /// A folder of the cache could not be made or read.
    #[error("could not open the cache folder `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A folder of the cache is not safe to use.
    #[error("could not trust the cache folder `{}`", path.display())]
    Distrusted {
        path: PathBuf,
        #[source]
        source: Distrust,
    },
    /// Something in the cache could not be read.
    #[error("could not read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Something could not be written.
    #[error("could not write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// An entry that was asked for is damaged.
    #[error("could not use the cache entry `{}`", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: Damage,
    },
    /// No entry begins with these digits.
    #[error("could not find a cache entry whose digest begins with `{prefix}`")]
    NoSuchEntry { prefix: String },
    /// Several entries begin with these digits.
    #[error("could not tell which cache entry `{prefix}` means: {}", matches.join(", "))]
    Ambiguous { prefix: String, matches: Vec<String> },
    /// Checking the cache brought something to light.
    #[error("found {count} {} in the cache", if *count == 1 { "problem" } else { "problems" })]
    Findings { count: usize },
    /// Text that should be a size.
    #[error("could not read `{text}` as a size; expected a whole number and a unit, such as `500MB` or `2GiB`")]
    Size { text: String },
    /// `$GPTOSS_JIT_CACHE_SIZE` is not a size.
    #[error(
        "could not use `GPTOSS_JIT_CACHE_SIZE={text}`: expected a whole number and a unit, such as `500MB` or `2GiB`"
    )]
    SizeVariable { text: String },
}

impl Hint for CacheError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoHome => Some("set `GPTOSS_JIT_CACHE` to a folder".into()),
            Self::Open { .. } => Some("set `GPTOSS_JIT_CACHE` to a folder that you can write to".into()),
            Self::Distrusted { path, source: Distrust::Writable { .. } } => {
                Some(format!("`chmod go-w {}`, after making sure that its contents are yours", path.display()))
            }
            Self::Distrusted { .. } => Some("set `GPTOSS_JIT_CACHE` to a folder that belongs to you".into()),
            Self::Damaged { .. } | Self::Findings { .. } => {
                Some("`gptoss-jit cache verify --repair` moves damaged entries aside".into())
            }
            Self::NoSuchEntry { .. } | Self::Ambiguous { .. } => Some("`gptoss-jit cache ls` lists the entries".into()),
            Self::SizeVariable { .. } => Some("leave it unset to let the cache grow to 2 GiB".into()),
            Self::Read { .. } | Self::Write { .. } | Self::Size { .. } => None,
        }
    }
}

/// The cache's tree on the disk, known to be ours.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    versioned: PathBuf,
}

impl Folder {
    /// Opens the tree below `root`, making what is missing with mode 0700, and sweeps what killed processes left.
    /// A symbolic link at `root` itself is followed, none below it.
    ///
    /// # Errors
    /// [`CacheError::Open`] where a folder cannot be made or read, [`CacheError::Distrusted`] where another user
    /// owns one or may write to it.
    pub fn open(root: &Path) -> Result<Self, CacheError> {
        let versioned = root.join(format!("v{SCHEMA}"));
        let open = |path: &Path, source| CacheError::Open { path: path.into(), source };
        create_private(root).map_err(|source| open(root, source))?;
        trust(root, &fs::metadata(root).map_err(|source| open(root, source))?)?;
        // A link is looked at as a link: mkdir does not follow one, and it is no folder.
        create_private(&versioned).map_err(|source| open(&versioned, source))?;
        trust(&versioned, &fs::symlink_metadata(&versioned).map_err(|source| open(&versioned, source))?)?;
        let folder = Self { root: root.into(), versioned };
        folder.write_tag();
        folder.sweep_staging();
        Ok(folder)
    }

    /// The folder that was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the entries of this schema are.
    pub(super) fn versioned(&self) -> &Path {
        &self.versioned
    }

    /// The folder of the 1 in 256 entries whose digests begin alike.
    pub(super) fn shard(&self, digest: &Digest) -> PathBuf {
        self.versioned.join(&digest.to_string()[..2])
    }

    /// The path of an entry, whether or not it exists.
    pub fn entry_path(&self, digest: &Digest) -> PathBuf {
        self.shard(digest).join(digest.to_string())
    }

    pub(super) fn lock_folder(&self) -> PathBuf {
        self.versioned.join("lock")
    }

    /// Where compilers' identities are remembered, by [`crate::object::compile`].
    pub fn identities_folder(&self) -> PathBuf {
        self.versioned.join("compilers")
    }

    pub(super) fn aside_folder(&self) -> PathBuf {
        self.versioned.join("aside")
    }

    pub(super) fn prune_stamp(&self) -> PathBuf {
        self.versioned.join("pruned")
    }

    /// A fresh private folder on the same file system, removed with what is in it on drop.
    pub(super) fn staging(&self) -> io::Result<tempfile::TempDir> {
        private_tempdir("staging-", &self.versioned)
    }

    /// Removes a path of the tree by one rename, then deletes it at leisure.
    pub(super) fn discard(&self, path: &Path) -> io::Result<()> {
        let staging = self.staging()?;
        fs::rename(path, staging.path().join("gone"))
        // What cannot be deleted now is swept as stale later.
    }

    /// Moves something that is not to be trusted out of the way, with the reason beside it.
    ///
    /// # Errors
    /// [`CacheError::Write`] when it cannot be moved; it then stays where it is, and is still not trusted.
    pub(super) fn set_aside(&self, path: &Path, why: &str) -> Result<PathBuf, CacheError> {
        let name = path.file_name().unwrap_or_default();
        let moved = || -> io::Result<PathBuf> {
            let aside = self.aside_folder();
            if own_folder(&aside).is_err() {
                self.discard(&aside)?; // a link, or nobody's
                own_folder(&aside)?;
            }
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let home = private_tempdir(&format!("{seconds}-"), &aside)?;
            fs::rename(path, home.path().join(name))?;
            // The reason is for people; a full disk must not keep the entry in place.
            let _ = fs::write(home.path().join("why"), format!("{}\n{why}\n", path.display()));
            Ok(home.keep().join(name))
        };
        let moved = moved().map_err(|source| CacheError::Write { path: path.into(), source })?;
        self.trim_aside();
        Ok(moved)
    }

    /// Keeps the newest of what was set aside, up to a count and a size.
    fn trim_aside(&self) {
        let mut homes: Vec<PathBuf> = children(&self.aside_folder()).unwrap_or_default();
        homes.sort_by_key(|home| std::cmp::Reverse(modified(home))); // newest first
        let mut bytes = 0;
        for (i, home) in homes.iter().enumerate() {
            bytes += disk_bytes(home);
            if i >= ASIDE_MAX_COUNT || (i > 0 && bytes > ASIDE_MAX_BYTES) {
                remove(home);
            }
        }
    }

    /// Removes staging folders that no living process can still be filling.
    pub(super) fn sweep_staging(&self) {
        for path in children(&self.versioned).unwrap_or_default() {
            let is_staging = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"staging-"));
            if is_staging && modified(&path).elapsed().is_ok_and(|age| age > STAGING_IS_STALE) {
                remove(&path);
            }
        }
    }

    fn write_tag(&self) {
        let path = self.root.join("CACHEDIR.TAG");
        if !path.exists()
            && let Err(error) = fs::write(&path, CACHEDIR_TAG)
        {
            tracing::debug!("could not write `{}`: {error}", path.display());
        }
    }
}

fn trust(path: &Path, metadata: &fs::Metadata) -> Result<(), CacheError> {
    trust_folder(metadata).map_err(|source| CacheError::Distrusted { path: path.into(), source })
}

fn private_tempdir(prefix: &str, parent: &Path) -> io::Result<tempfile::TempDir> {
    with_mode(tempfile::Builder::new().prefix(prefix), 0o700).tempdir_in(parent)
}

/// What is in a folder, sorted; nothing if there is no folder. A link to a folder is none: what it leads to is not
/// ours to list, let alone to delete.
pub(super) fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if fs::symlink_metadata(folder).is_ok_and(|metadata| !metadata.is_dir()) {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = listing.map(|child| Ok(child?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// When a path was last written to; the beginning of time where that cannot be known.
pub(super) fn modified(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(UNIX_EPOCH)
}

/// What a tree takes on the disk, in bytes. Links are not followed.
pub(super) fn disk_bytes(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if metadata.is_dir() {
        return children(path).unwrap_or_default().iter().map(|child| disk_bytes(child)).sum();
    }
    metadata.len().max(metadata.blocks() * 512) // some file systems keep small files without a block
}

/// Deletes a file or a tree. What cannot be deleted is met again at the next sweep.
pub(super) fn remove(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()), // another process swept it
        _ => Err(error),
    }) {
        tracing::debug!("could not delete `{}`: {error}", path.display());
    }
}
