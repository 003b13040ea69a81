//! Objects are code: nothing is loaded that another user could have written.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Why a file or folder is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// Something else than a folder: a file, a symbolic link.
    #[error("it is not a folder")]
    NotAFolder,
    /// Something else than a regular file: a symbolic link, a pipe, a folder.
    #[error("it is not a regular file")]
    NotAFile,
    /// Another user's.
    #[error("it belongs to user {found}, not to user {expected}")]
    Owner {
        /// The user id of this process.
        expected: u32,
        /// The user id of the owner.
        found: u32,
    },
    /// Others may write to it.
    #[error("its mode {mode:04o} lets other users write to it")]
    Writable {
        /// The permission bits.
        mode: u32,
    },
}

/// Checks what [`std::fs::symlink_metadata`] or an opened file says about a folder.
pub(super) fn trust_folder(metadata: &Metadata) -> Result<(), Distrust> {
    if metadata.is_dir() { trust_owner(metadata) } else { Err(Distrust::NotAFolder) }
}

/// Checks what an opened file says about itself.
pub(super) fn trust_file(metadata: &Metadata) -> Result<(), Distrust> {
    if metadata.is_file() { trust_owner(metadata) } else { Err(Distrust::NotAFile) }
}

fn trust_owner(metadata: &Metadata) -> Result<(), Distrust> {
    let (expected, found) = (rustix::process::geteuid().as_raw(), metadata.uid());
    let mode = metadata.mode() & 0o7777;
    if found != expected {
        Err(Distrust::Owner { expected, found })
    } else if mode & 0o022 != 0 {
        Err(Distrust::Writable { mode })
    } else {
        Ok(())
    }
}
