//! The layout of a bundle's file.
//!
//! ```text
//! frame, frame, …          a tar archive in zstd: objects/KEY …, sources/SHA256 …, manifest.json
//! a skippable frame        the index, which zstd passes over
//!   records                one for each kernel, by key: key, SHA-256, frame, place in the frame
//!   targets                lines of text
//!   footer                 how long these are, where the manifest's frame is, the SHA-256 of all before it, the format
//! ```
//!
//! A frame holds files up to [`FRAME_BYTES`], in the order in which loading a model asks for them: unpacking one frame
//! for a kernel also gives its neighbours. Opening a bundle parses nothing.

use std::io::{self, Read};

use super::error::BundleError;
use super::manifest::{FORMAT, Manifest};
use crate::object::key::Digest;

/// Bytes after which a frame ends.
const FRAME_BYTES: usize = 512 << 10;
/// No frame comes near this; a foreign one must not fill the memory.
pub(super) const MAX_FRAME_BYTES: usize = 256 << 20;
/// The compression level of zstd.
const LEVEL: i32 = 19;
/// What the tar archive is made of.
const BLOCK: usize = 512;
/// What a skippable frame begins with.
const SKIPPABLE: u32 = 0x184D_2A5E;
/// What a bundle ends with, before the format's number.
pub(super) const MAGIC: &str = "gptoss-jit bundle";
/// Lengths of records and targets, the manifest's frame (place and length), SHA-256, magic, format.
pub(super) const FOOTER_BYTES: usize = 4 + 4 + 8 + 4 + 32 + MAGIC.len() + 4;
pub(super) const RECORD_BYTES: usize = 32 + 32 + 8 + 4 + 4 + 4;
/// The file that says what all others are.
pub(super) const MANIFEST: &str = "manifest.json";

/// Where a kernel's object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Digest,
    pub(super) sha256: Digest,
    /// Where its frame begins in the file.
    pub(super) frame_at: u64,
    pub(super) frame_len: u32,
    /// Where it begins in the frame.
    pub(super) at: u32,
    /// 0 where it did not compile.
    pub(super) len: u32,
}

/// The end of a bundle.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) records: Vec<u8>,
    pub(super) targets: Vec<String>,
    pub(super) manifest_at: u64,
    pub(super) manifest_len: u32,
}

/// What the footer says of what is before it.
pub(super) struct Footer {
    pub(super) records_len: u32,
    pub(super) targets_len: u32,
    manifest_at: u64,
    manifest_len: u32,
    sha256: Digest,
}

/// A bundle's bytes: the objects of the manifest's kernels, in their order, and the sources.
///
/// - `object`: of a kernel by its number
/// - `sources`: by name
pub(crate) fn bytes<'a>(
    manifest: &Manifest,
    object: impl Fn(usize) -> &'a [u8],
    sources: &[(Digest, &str)],
) -> io::Result<Vec<u8>> {
    let mut writer = Writer::default();
    let mut records = Vec::new();
    for (i, kernel) in manifest.kernels.iter().enumerate() {
        let Some(stated) = &kernel.object else {
            let nowhere = Record { key: kernel.key, sha256: Digest([0; 32]), frame_at: 0, frame_len: 0, at: 0, len: 0 };
            records.push(nowhere);
            continue;
        };
        let object = object(i);
        let at = writer.file(&format!("objects/{}", kernel.key), object)?;
        let (at, len) = (small(at)?, small(object.len())?);
        // The frame's length is known when it is closed.
        records.push(Record {
            key: kernel.key,
            sha256: stated.sha256,
            frame_at: writer.begin(),
            frame_len: 0,
            at,
            len,
        });
        writer.close_if_full()?;
    }
    writer.close()?;
    for (sha256, text) in sources {
        writer.file(&format!("sources/{sha256}"), text.as_bytes())?;
        writer.close_if_full()?;
    }
    writer.close()?;
    let manifest_at = writer.begin();
    writer.file(MANIFEST, &serde_json::to_vec_pretty(manifest)?)?;
    writer.open.resize(writer.open.len() + 2 * BLOCK, 0); // how a tar archive ends
    writer.close()?;
    let frame_len = |at: u64| writer.frames.iter().find(|(begin, _)| *begin == at).map_or(0, |(_, len)| *len);
    for record in records.iter_mut().filter(|record| record.len > 0) {
        record.frame_len = frame_len(record.frame_at);
    }
    records.sort_by_key(|record| record.key);
    let targets: Vec<&str> = manifest.targets.iter().map(|target| target.target.as_str()).collect();
    let index = index(&records, &targets.join("\n"), manifest_at, frame_len(manifest_at))?;
    Ok([writer.done, index].concat())
}

fn small(n: usize) -> io::Result<u32> {
    u32::try_from(n).map_err(|_| io::Error::other(format!("{n} bytes are too many for a bundle")))
}

/// The skippable frame.
fn index(records: &[Record], targets: &str, manifest_at: u64, manifest_len: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(records.len() * RECORD_BYTES + targets.len() + FOOTER_BYTES);
    for record in records {
        bytes.extend(record.key.0);
        bytes.extend(record.sha256.0);
        bytes.extend(record.frame_at.to_le_bytes());
        [record.frame_len, record.at, record.len].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    }
    let records_len = small(bytes.len())?;
    bytes.extend(targets.as_bytes());
    let targets_len = small(targets.len())?;
    [records_len, targets_len].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes.extend(manifest_at.to_le_bytes());
    bytes.extend(manifest_len.to_le_bytes());
    bytes.extend(Digest::of(&bytes).0);
    bytes.extend(MAGIC.as_bytes());
    bytes.extend(FORMAT.to_le_bytes());
    let head = [SKIPPABLE.to_le_bytes(), small(bytes.len())?.to_le_bytes()].concat();
    Ok([head, bytes].concat())
}

impl Footer {
    /// Of the last [`FOOTER_BYTES`] of a file.
    pub(super) fn read(bytes: &[u8; FOOTER_BYTES]) -> Result<Self, BundleError> {
        let magic_at = FOOTER_BYTES - 4 - MAGIC.len();
        if bytes[magic_at..].strip_prefix(MAGIC.as_bytes()).is_none() {
            return Err(BundleError::NotABundle { expected: MAGIC });
        }
        let found = u32_at(bytes, FOOTER_BYTES - 4);
        if found != FORMAT {
            return Err(BundleError::Format { expected: FORMAT, found });
        }
        Ok(Self {
            records_len: u32_at(bytes, 0),
            targets_len: u32_at(bytes, 4),
            manifest_at: u64_at(bytes, 8),
            manifest_len: u32_at(bytes, 16),
            sha256: digest_at(bytes, 20),
        })
    }
}

impl Index {
    /// Of the bytes that the footer is about, its own first ones included.
    pub(super) fn read(footer: &Footer, bytes: &[u8]) -> Result<Self, BundleError> {
        if Digest::of(bytes) != footer.sha256 {
            return Err(BundleError::Checksum { what: "its index" });
        }
        let damaged = BundleError::Damaged { what: "its index" };
        let (records, rest) = bytes.split_at_checked(footer.records_len as usize).ok_or(damaged)?;
        let damaged = || BundleError::Damaged { what: "its index" };
        let targets = rest.get(..footer.targets_len as usize).ok_or_else(damaged)?;
        let targets = str::from_utf8(targets).map_err(|_| damaged())?;
        if !records.len().is_multiple_of(RECORD_BYTES) {
            return Err(damaged());
        }
        Ok(Self {
            records: records.to_vec(),
            targets: targets.lines().map(str::to_owned).collect(),
            manifest_at: footer.manifest_at,
            manifest_len: footer.manifest_len,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.records.len() / RECORD_BYTES
    }

    pub(super) fn record(&self, i: usize) -> Record {
        let bytes = &self.records[i * RECORD_BYTES..][..RECORD_BYTES];
        Record {
            key: digest_at(bytes, 0),
            sha256: digest_at(bytes, 32),
            frame_at: u64_at(bytes, 64),
            frame_len: u32_at(bytes, 72),
            at: u32_at(bytes, 76),
            len: u32_at(bytes, 80),
        }
    }

    pub(super) fn find(&self, key: &Digest) -> Option<Record> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let record = self.record(middle);
            match record.key.cmp(key) {
                std::cmp::Ordering::Equal => return Some(record),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn digest_at(bytes: &[u8], at: usize) -> Digest {
    Digest(bytes[at..at + 32].try_into().expect("32 bytes"))
}

/// A tar archive in frames.
#[derive(Default)]
struct Writer {
    done: Vec<u8>,
    /// The frames in it: where each begins, and its length.
    frames: Vec<(u64, u32)>,
    /// What the frame holds that is not closed.
    open: Vec<u8>,
}

impl Writer {
    /// Where the open frame will begin.
    fn begin(&self) -> u64 {
        self.done.len() as u64
    }

    /// Adds a file; where its bytes begin in the frame.
    fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<usize> {
        self.open.extend(header(name, bytes.len())?);
        let at = self.open.len();
        self.open.extend(bytes);
        self.open.resize(self.open.len().next_multiple_of(BLOCK), 0);
        Ok(at)
    }

    fn close_if_full(&mut self) -> io::Result<()> {
        if self.open.len() < FRAME_BYTES { Ok(()) } else { self.close() }
    }

    fn close(&mut self) -> io::Result<()> {
        if !self.open.is_empty() {
            let frame = frame(&std::mem::take(&mut self.open))?;
            self.frames.push((self.begin(), small(frame.len())?));
            self.done.extend(frame);
        }
        Ok(())
    }
}

/// A file's header in a tar archive (POSIX ustar): readable by all, without owner and time.
fn header(name: &str, len: usize) -> io::Result<[u8; BLOCK]> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    if name.len() > 100 {
        return Err(io::Error::other(format!("`{name}` is too long a name for a tar archive")));
    }
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{len:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// The files of a tar archive that [`header`] wrote: names and contents.
pub(super) fn files(archive: &[u8]) -> Result<Vec<(&str, &[u8])>, BundleError> {
    let mut files = Vec::new();
    let mut rest = archive;
    while let Some((header, behind)) = rest.split_at_checked(BLOCK).filter(|(header, _)| header[0] != 0) {
        let (name, len) = entry(header)?;
        files.push((name, behind.get(..len).ok_or(DAMAGED)?));
        rest = behind.get(len.next_multiple_of(BLOCK)..).ok_or(DAMAGED)?;
    }
    Ok(files)
}

const DAMAGED: BundleError = BundleError::Damaged { what: "its tar archive" };

/// The name and the length that a header states.
fn entry(header: &[u8]) -> Result<(&str, usize), BundleError> {
    let text = |bytes| str::from_utf8(bytes).map(|text| text.trim_end_matches('\0')).map_err(|_| DAMAGED);
    let len = usize::from_str_radix(text(&header[124..136])?, 8).map_err(|_| DAMAGED)?;
    Ok((text(&header[..100])?, len))
}

/// Unpacks frames, and gives each file of their tar archive to `take` before the next one is unpacked.
///
/// # Errors
/// [`BundleError`], after the files before that.
pub(super) fn each_file(packed: impl Read, take: &mut dyn FnMut(&str, &[u8])) -> Result<(), BundleError> {
    let mut archive = decoder(packed).map_err(BundleError::Unpack)?;
    let mut next = |len: usize, into: &mut Vec<u8>| {
        into.clear();
        archive.by_ref().take(len as u64).read_to_end(into).map_err(BundleError::Unpack)
    };
    let (mut header, mut file) = (Vec::new(), Vec::new());
    while next(BLOCK, &mut header)? == BLOCK && header[0] != 0 {
        let (name, len) = entry(&header)?;
        let padded = len.checked_next_multiple_of(BLOCK).filter(|padded| *padded <= MAX_FRAME_BYTES).ok_or(DAMAGED)?;
        if next(padded, &mut file)? != padded {
            return Err(DAMAGED);
        }
        take(name, &file[..len]);
    }
    let is_over = header.is_empty() || header.len() == BLOCK && header[0] == 0;
    is_over.then_some(()).ok_or(DAMAGED)
}

fn frame(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?; // tar's own bytes have no other
    compressor.compress(bytes)
}

pub(super) fn unpacked(frame: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    decoder(frame)?.take(MAX_FRAME_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn decoder<'a>(packed: impl Read + 'a) -> io::Result<impl Read + 'a> {
    zstd::stream::read::Decoder::new(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_100_bytes_in_a_header() {
        let name = "a".repeat(100);
        assert_eq!(entry(&header(&name, 7).expect("it fits")).expect("a header"), (&*name, 7));
        assert!(header(&"a".repeat(101), 7).is_err() && header(&"a".repeat(300), 7).is_err());
    }
}
