//! A captured launch as a file: a line that says what it is, the length of a JSON header, the header, and the tensors'
//! bytes, each at a multiple of 64.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use engine::plan::capture::{CapturedArg, CapturedLaunch};
use format::Dtype;
use kernel::step::StepKind;
use kernel::template::{Params, Precision, Problem};

const MAGIC: &[u8] = b"gptoss-jit launch 1\n";

/// Of the bytes of a tensor, from the file's beginning.
const ALIGNMENT: usize = 64;

/// Names and shapes of one launch take some kilobytes.
const MAX_HEADER_BYTES: usize = 16 << 20;

/// A file that is no captured launch, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum LaunchFileError {
    #[error("it is no captured launch: expected `gptoss-jit launch 1` in its first line")]
    Other,
    #[error("it ends after {found} bytes, expected at least {expected}")]
    Short { expected: usize, found: usize },
    #[error("its header has {found} bytes, expected at most {MAX_HEADER_BYTES}")]
    LongHeader { found: u64 },
    #[error("could not read its header")]
    Header(#[from] serde_json::Error),
    #[error("its header has `{name}` twice")]
    Twice { name: String },
    #[error("`{name}` begins at byte {start} and ends at byte {end}, expected no end before its beginning")]
    Range { name: String, start: usize, end: usize },
}

impl hint::Hint for LaunchFileError {
    fn hint(&self) -> Option<String> {
        Some("`gptoss-jit run --capture-launch NODE FILE` writes one".into())
    }
}

/// What is before the tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    label: String,
    template: String,
    params: Params,
    ops: Vec<String>,
    dims: BTreeMap<String, u32>,
    constants: BTreeMap<String, f32>,
    flags: BTreeMap<String, bool>,
    dtypes: BTreeMap<String, Dtype>,
    precision: Precision,
    keeps: BTreeSet<String>,
    scalars: BTreeMap<String, u64>,
    step: StepKind,
    target: String,
    args: Vec<HeaderArg>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderArg {
    name: String,
    dtype: Dtype,
    before: Option<Range<usize>>,
    after: Option<Range<usize>>,
}

/// Writes a launch.
///
/// # Errors
/// What the system says.
pub fn write(launch: &CapturedLaunch, to: &mut impl Write) -> io::Result<()> {
    // Where the tensors lie depends on the header's length, and that on the numbers in it: they count from its end.
    let mut at = 0;
    let mut place = |bytes: &Option<Bytes>| {
        bytes.as_ref().map(|bytes| {
            let begin = usize::next_multiple_of(at, ALIGNMENT);
            at = begin + bytes.len();
            begin..at
        })
    };
    let args = launch.args.iter().map(|arg| {
        let (before, after) = (place(&arg.before), place(&arg.after));
        HeaderArg { name: arg.name.clone(), dtype: arg.dtype, before, after }
    });
    let Problem { ops, dims, constants, flags, dtypes, precision, keeps } = launch.problem.clone();
    let header = Header {
        label: launch.label.clone(),
        template: launch.template.clone(),
        params: launch.params.clone(),
        ops,
        dims,
        constants,
        flags,
        dtypes,
        precision,
        keeps,
        scalars: launch.scalars.clone(),
        step: launch.step,
        target: launch.target.clone(),
        args: args.collect(),
    };
    let text = serde_json::to_vec(&header)?;
    to.write_all(MAGIC)?;
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(&text)?;
    let end = MAGIC.len() + size_of::<u64>() + text.len();
    to.write_all(&vec![0; end.next_multiple_of(ALIGNMENT) - end])?;
    let mut at: usize = 0;
    for bytes in launch.args.iter().flat_map(|arg| [&arg.before, &arg.after]).flatten() {
        let begin = at.next_multiple_of(ALIGNMENT);
        to.write_all(&vec![0; begin - at])?;
        to.write_all(bytes)?;
        at = begin + bytes.len();
    }
    Ok(())
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// [`LaunchFileError`].
pub fn read(file: &Bytes) -> Result<CapturedLaunch, LaunchFileError> {
    let rest = file.strip_prefix(MAGIC).ok_or(LaunchFileError::Other)?;
    let short = |expected| LaunchFileError::Short { expected, found: file.len() };
    let begin = MAGIC.len() + size_of::<u64>();
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(|| short(begin))?;
    let found = u64::from_le_bytes(*length);
    let length = usize::try_from(found).ok().filter(|length| *length <= MAX_HEADER_BYTES);
    let length = length.ok_or(LaunchFileError::LongHeader { found })?;
    let text = rest.get(..length).ok_or_else(|| short(begin + length))?;
    let header: Header = serde_json::from_slice(text)?;
    let first = (begin + length).next_multiple_of(ALIGNMENT);
    let mut args: Vec<CapturedArg> = Vec::new();
    for HeaderArg { name, dtype, before, after } in header.args {
        if args.iter().any(|other| other.name == name) {
            return Err(LaunchFileError::Twice { name });
        }
        let bytes = |range: Option<Range<usize>>| {
            let Some(Range { start, end }) = range else { return Ok(None) };
            if end < start {
                return Err(LaunchFileError::Range { name: name.clone(), start, end });
            }
            let end = first.saturating_add(end);
            if end > file.len() {
                return Err(short(end));
            }
            Ok(Some(file.slice(first + start..end)))
        };
        let (before, after) = (bytes(before)?, bytes(after)?);
        args.push(CapturedArg { name, dtype, before, after });
    }
    let Header { ops, dims, constants, flags, dtypes, precision, keeps, .. } = header;
    let problem = Problem { ops, dims, constants, flags, dtypes, precision, keeps };
    let Header { label, template, params, scalars, step, target, .. } = header;
    Ok(CapturedLaunch { label, template, params, problem, scalars, step, target, args })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_read_as_it_was_written_and_a_part_of_it_is_an_error() {
        let mut problem = Problem::plain("linear", Precision::F32);
        problem.dims.insert("in_features".into(), 45);
        problem.constants.insert("eps".into(), 1e-5);
        problem.dtypes.insert("weight".into(), Dtype::Bf16);
        let arg = |name: &str, before: Option<&[u8]>, after: Option<&[u8]>| CapturedArg {
            name: name.into(),
            dtype: Dtype::F32,
            before: before.map(Bytes::copy_from_slice),
            after: after.map(Bytes::copy_from_slice),
        };
        let launch = CapturedLaunch {
            label: "block.0.attn.qkv".into(),
            template: "linear/dot".into(),
            params: [("tile_n".to_owned(), 4)].into(),
            problem,
            scalars: [("n_tokens".to_owned(), 3)].into(),
            step: StepKind::Mixed,
            target: "x86-64-v3".into(),
            args: vec![
                arg("x", Some(&[1, 2, 3, 4]), None),
                arg("y", None, Some(&[5; 70])),
                arg("kv", Some(&[6; 3]), Some(&[7; 3])),
            ],
        };
        let mut bytes = Vec::new();
        write(&launch, &mut bytes).expect("memory takes it");
        let again = read(&Bytes::from(bytes.clone())).expect("it is whole");
        assert_eq!((&again.label, &again.template, &again.params), (&launch.label, &launch.template, &launch.params));
        assert_eq!((&again.problem, &again.scalars, again.step), (&launch.problem, &launch.scalars, launch.step));
        for (read, written) in again.args.iter().zip(&launch.args) {
            assert_eq!((&read.name, read.dtype), (&written.name, written.dtype));
            assert_eq!(read.before.as_deref(), written.before.as_deref());
            assert_eq!(read.after.as_deref(), written.after.as_deref());
        }
        let error = |bytes: &[u8]| read(&Bytes::copy_from_slice(bytes)).expect_err("it is not whole");
        for len in 0..bytes.len() {
            let error = error(&bytes[..len]);
            assert!(matches!(error, LaunchFileError::Other | LaunchFileError::Short { .. }), "{len}: {error}");
        }
        assert!(matches!(error(b"gptoss-jit launch 2\n........"), LaunchFileError::Other));
        let mut long = bytes.clone();
        long[MAGIC.len()..][..8].fill(0xff);
        assert!(matches!(error(&long), LaunchFileError::LongHeader { .. }));
        // Words of the header in the place of others of the same length.
        let with = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|found| found == from.as_bytes()).expect(from);
            let mut changed = bytes.clone();
            changed[at..][..to.len()].copy_from_slice(to.as_bytes());
            error(&changed)
        };
        let twice = with("\"name\":\"x\"", "\"name\":\"y\"");
        assert!(matches!(&twice, LaunchFileError::Twice { name } if name == "y"), "{twice}");
        let backwards = with("\"start\":0,\"end\":4", "\"start\":9,\"end\":4");
        assert!(matches!(backwards, LaunchFileError::Range { start: 9, end: 4, .. }), "{backwards}");
        let mut garbled = bytes;
        garbled[MAGIC.len() + 8] = b'[';
        assert!(matches!(error(&garbled), LaunchFileError::Header(_)));
    }
}
