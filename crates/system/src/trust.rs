//! Files that only this user can have written: objects are code, and cached keys and values decide what a model says.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, symlink_metadata};
use std::io::{self, Read};
use std::path::Path;

use crate::os::{DirBuilderExt, MetadataExt, NO_FOLLOW, OpenOptionsExt, user};

/// Why a file or folder is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// Something else than a folder: a file, a symbolic link.
    #[error("it is not a folder")]
    NotAFolder,
    /// Something else than a regular file: a symbolic link, a pipe, a folder.
    #[error("it is not a regular file")]
    NotAFile,
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

/// The bytes of a file that only this user can have written, in a folder of which the same holds. Nothing is waited
/// for, as a pipe would have it, and no link is followed.
///
/// # Errors
/// The system's, a [`Distrust`], or that it is longer than `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    if metadata.len() > max_bytes {
        return Err(io::Error::other(format!("it has {} bytes; expected at most {max_bytes}", metadata.len())));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens such a file, as [`read`] does.
///
/// # Errors
/// The system's, or a [`Distrust`].
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    trust_folder(&symlink_metadata(folder)?).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(path)?;
    let metadata = file.metadata()?;
    trust_file(&metadata).map_err(io::Error::other)?;
    Ok((file, metadata))
}

/// Opens a file that only this user or the system's administrator can have written, in a folder of which the same
/// holds: what a package installed. Links lead to where they lead.
///
/// # Errors
/// The system's, or a [`Distrust`].
pub fn open_installed(path: &Path) -> io::Result<(File, Metadata)> {
    let path = path.canonicalize()?;
    let is_root = |metadata: &Metadata| metadata.uid() == 0;
    let trusted = |metadata: &Metadata| match trust_owner(metadata) {
        Err(Distrust::Owner { .. }) if is_root(metadata) => trust_mode(metadata),
        other => other,
    };
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let in_folder = |found: Distrust| io::Error::other(format!("of its folder `{}`: {found}", folder.display()));
    trusted(&symlink_metadata(folder)?).map_err(in_folder)?;
    let file = OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(&path)?;
    let metadata = file.metadata()?;
    let is_file = if metadata.is_file() { Ok(()) } else { Err(Distrust::NotAFile) };
    is_file.and_then(|()| trusted(&metadata)).map_err(io::Error::other)?;
    Ok((file, metadata))
}

/// Makes a folder that only this user may look into, and those above it; one that is there must be one to trust, and
/// no link to one.
///
/// # Errors
/// The system's, or a [`Distrust`].
pub fn own_folder(path: &Path) -> io::Result<()> {
    create_private(path)?;
    trust_folder(&symlink_metadata(path)?).map_err(io::Error::other)
}

/// Makes a folder, and those above it, that only this user may look into. What is there is left as it is, and not
/// looked at: [`own_folder`] does that.
///
/// # Errors
/// The system's.
pub fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Checks what [`std::fs::symlink_metadata`] or an opened file says about a folder.
///
/// # Errors
/// Why it is not to be trusted.
pub fn trust_folder(metadata: &Metadata) -> Result<(), Distrust> {
    if metadata.is_dir() { trust_owner(metadata) } else { Err(Distrust::NotAFolder) }
}

/// Checks what an opened file says about itself.
///
/// # Errors
/// Why it is not to be trusted.
pub fn trust_file(metadata: &Metadata) -> Result<(), Distrust> {
    if metadata.is_file() { trust_owner(metadata) } else { Err(Distrust::NotAFile) }
}

fn trust_owner(metadata: &Metadata) -> Result<(), Distrust> {
    let (expected, found) = (user(), metadata.uid());
    if found == expected { trust_mode(metadata) } else { Err(Distrust::Owner { expected, found }) }
}

fn trust_mode(metadata: &Metadata) -> Result<(), Distrust> {
    let mode = metadata.mode() & 0o7777;
    if mode & 0o022 != 0 { Err(Distrust::Writable { mode }) } else { Ok(()) }
}
