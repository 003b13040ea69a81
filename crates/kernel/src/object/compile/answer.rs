//! How a worker's answer travels: a file in its private folder, so that nothing a compiler prints can be mistaken for
//! it. Magic, length of the JSON, JSON, length of the object, object, SHA-256 of all before it; lengths are u64,
//! little-endian.

use std::path::Path;
use std::{fs, io};

use super::job::Outcome;
use crate::object::key::Digest;

const MAGIC: &[u8; 8] = b"gjanswer";
const FILE: &str = "answer";
/// Above any object we know (code objects take kilobytes); a damaged or hostile length ends here.
pub(super) const MAX_LEN_BYTES: u64 = 256 << 20;

/// What the backend returned, as bytes.
pub(super) fn encode(outcome: &Outcome) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(outcome)?;
    let object = outcome.as_ref().map(|made| made.object.as_slice()).unwrap_or_default();
    let mut bytes = MAGIC.to_vec();
    for part in [json.as_slice(), object] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    let digest = Digest::of(&bytes);
    bytes.extend(digest.0);
    Ok(bytes)
}

/// The outcome again, or what is wrong with the bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<Outcome, String> {
    let found = bytes.len();
    let (body, digest) = bytes.split_last_chunk::<32>().ok_or_else(|| format!("it has {found} bytes only"))?;
    if Digest::of(body).0 != *digest {
        return Err(format!("its {found} bytes do not have the digest that they state"));
    }
    let rest = body.strip_prefix(MAGIC).ok_or("it does not start as an answer does")?;
    let (json, rest) = part(rest).ok_or("its first part is cut short")?;
    let (object, rest) = part(rest).ok_or("its object is cut short")?;
    if !rest.is_empty() {
        return Err(format!("{} bytes follow its object", rest.len()));
    }
    let mut outcome: Outcome = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if let Ok(made) = &mut outcome {
        made.object = object.to_vec();
    }
    Ok(outcome)
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

pub(super) fn write(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(folder.join(FILE), bytes)
}

/// The bytes that the worker left, if any.
pub(super) fn read(folder: &Path) -> io::Result<Option<Vec<u8>>> {
    let path = folder.join(FILE);
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        // Not read: it is damaged, and its length alone says so.
        Ok(metadata) if metadata.len() > MAX_LEN_BYTES => Ok(Some(Vec::new())),
        Ok(_) => fs::read(&path).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::compile::job::{CompileOutput, Failure, How};

    fn made() -> Outcome {
        Ok(CompileOutput {
            object: b"\x7fELF".to_vec(),
            log: "warning".into(),
            facts: vec!["v1".into()],
            files: vec!["/usr/bin/cc".into()],
        })
    }

    #[test]
    fn an_answer_reads_back() {
        let failed = Err(Failure { how: How::Rejected, log: "no".into() });
        for outcome in [made(), failed] {
            assert_eq!(decode(&encode(&outcome).unwrap()), Ok(outcome));
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_seen() {
        let bytes = encode(&made()).unwrap();
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        for i in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 1;
            assert!(decode(&damaged).is_err(), "byte {i}");
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_even_with_a_right_digest() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend(Digest::of(&bytes).0);
        assert_eq!(decode(&bytes), Err("its first part is cut short".into()));
    }
}
