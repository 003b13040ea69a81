//! The file of a part of a prefix: a head of 120 bytes, the bytes themselves, and a digest of both.
//!
//! ```text
//! 0    "GPTJPFX1"
//! 8    what all files of a model have in common, a digest
//! 40   the key of the prefix
//! 72   the key of what is before its last block
//! 104  blocks before that, 4 bytes
//! 108  1 for the block itself, 2 for its windows, 4 bytes
//! 112  bytes of keys and values, 8 bytes
//! ```
//!
//! Numbers are little-endian.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use sha2::{Digest, Sha256};

use crate::scheduler::{PrefixBlock, PrefixKey, PrefixPart};
use system::os::OpenOptionsExt;
use system::trust;

const MAGIC: [u8; 8] = *b"GPTJPFX1";

pub(super) const HEAD_BYTES: usize = 120;

const DIGEST_BYTES: usize = 32;

/// What is before the name of a file that is not whole yet.
pub(super) const NEW: &str = ".new-";

/// A file's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(crate) identity: [u8; 32],
    pub(crate) name: PrefixBlock,
    pub(crate) part: PrefixPart,
    pub(crate) len_bytes: u64,
}

/// Reasons not to use a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("it could not be read: {0}")]
    Read(#[from] io::Error),
    #[error("it is not a prefix file")]
    Foreign,
    #[error("it is of another model, format or set of templates")]
    OtherModel,
    #[error("its name does not match the prefix in it")]
    Name,
    #[error("it has {found} bytes, expected {expected}")]
    Length { expected: u64, found: u64 },
    #[error("its digest does not match its bytes")]
    Digest,
}

/// The name of the file of a part.
pub(super) fn file_name(key: &PrefixKey, part: PrefixPart) -> String {
    let ending = match part {
        PrefixPart::Block => "block",
        PrefixPart::Windows => "windows",
    };
    format!("{}.{ending}", hex(&key.0))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Head {
    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        file_bytes(self.len_bytes)
    }

    fn bytes(&self) -> Vec<u8> {
        let PrefixBlock { key, before, index } = self.name;
        let part: u32 = match self.part {
            PrefixPart::Block => 1,
            PrefixPart::Windows => 2,
        };
        let index = u32::try_from(index).unwrap_or(u32::MAX); // a context has fewer
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend(MAGIC);
        [self.identity, key.0, before.0].iter().for_each(|digest| bytes.extend(digest));
        bytes.extend(index.to_le_bytes());
        bytes.extend(part.to_le_bytes());
        bytes.extend(self.len_bytes.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, Damage> {
        let at = |from: usize| <[u8; 32]>::try_from(&bytes[from..from + 32]).expect("32 bytes");
        let word = |from: usize| u32::from_le_bytes(bytes[from..from + 4].try_into().expect("4 bytes"));
        let part = match word(108) {
            _ if bytes[..8] != MAGIC => return Err(Damage::Foreign),
            1 => PrefixPart::Block,
            2 => PrefixPart::Windows,
            _ => return Err(Damage::Foreign),
        };
        let len_bytes = u64::from_le_bytes(bytes[112..].try_into().expect("8 bytes"));
        let name = PrefixBlock { key: PrefixKey(at(40)), before: PrefixKey(at(72)), index: word(104) as usize };
        Ok(Self { identity: at(8), name, part, len_bytes })
    }

    /// Whether it is what is looked for under this name.
    fn check(&self, path: &Path, identity: &[u8; 32], found: u64) -> Result<(), Damage> {
        let name = path.file_name().and_then(|name| name.to_str());
        match self {
            head if head.identity != *identity => Err(Damage::OtherModel),
            head if name != Some(&file_name(&head.name.key, head.part)) => Err(Damage::Name),
            head if head.file_bytes() != found => Err(Damage::Length { expected: head.file_bytes(), found }),
            _ => Ok(()),
        }
    }
}

/// Bytes of a file with this many of keys and values.
pub(super) fn file_bytes(len_bytes: u64) -> u64 {
    len_bytes.saturating_add((HEAD_BYTES + DIGEST_BYTES) as u64)
}

/// What a file says of itself; its bytes are not looked at.
pub(super) fn read_head(path: &Path, identity: &[u8; 32]) -> Result<Head, Damage> {
    let (mut file, metadata) = trust::open(path)?;
    head_of(&mut file, metadata.len(), path, identity)
}

fn head_of(file: &mut File, found: u64, path: &Path, identity: &[u8; 32]) -> Result<Head, Damage> {
    if found < HEAD_BYTES as u64 {
        return Err(Damage::Foreign);
    }
    let mut bytes = [0; HEAD_BYTES];
    file.read_exact(&mut bytes)?;
    let head = Head::parse(&bytes)?;
    head.check(path, identity, found)?;
    Ok(head)
}

/// The keys and values of a file, `len_bytes` of them, if all of it is as it was written.
pub(super) fn read(path: &Path, identity: &[u8; 32], len_bytes: u64) -> Result<Vec<u8>, Damage> {
    let (mut file, metadata) = trust::open(path)?;
    let head = head_of(&mut file, metadata.len(), path, identity)?;
    if head.len_bytes != len_bytes {
        return Err(Damage::Length { expected: file_bytes(len_bytes), found: metadata.len() });
    }
    let mut bytes = vec![0; usize::try_from(len_bytes).map_err(io::Error::other)?];
    let mut digest = [0; DIGEST_BYTES];
    file.read_exact(&mut bytes)?;
    file.read_exact(&mut digest)?;
    if digest_of(&head.bytes(), &bytes) != digest {
        return Err(Damage::Digest);
    }
    Ok(bytes)
}

/// Writes a file, which appears whole or not at all. Nothing waits for the disk: a file that a machine's end left torn
/// has not its digest.
pub(super) fn write(folder: &Path, head: &Head, bytes: &[u8]) -> io::Result<PathBuf> {
    let name = file_name(&head.name.key, head.part);
    let (new, path) = (folder.join(format!("{NEW}{}-{name}", process::id())), folder.join(&name));
    let written = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let head = head.bytes();
        file.write_all(&head)?;
        file.write_all(bytes)?;
        file.write_all(&digest_of(&head, bytes))?;
        fs::rename(&new, &path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(path)
}

fn digest_of(head: &[u8], bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    Sha256::new().chain_update(head).chain_update(bytes).finalize().into()
}
