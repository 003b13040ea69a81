//! Writes any checkpoint as the bytes of a `.bin` file: the header, then all tensors in the order of [`groups`], made
//! a few rows at a time.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use rayon::prelude::*;

use super::bin::{HEADER, HEADER_BYTES};
use super::conversion::{EncodedRow, convert};
use super::layout::FORK_SEQ_LEN;
use super::random::RandomNumbers;
use super::tensors::{groups, parameters};
use super::{Checkpoint, CheckpointError, Elements, Tensor};
use crate::config::ModelConfig;
use crate::family::known::gpt_oss;
use format::Dtype;

/// Numbers that are made at a time, about: some MB, enough for all cores.
const CHUNK: usize = 1 << 21;

/// A `.bin` file that is still to be written.
pub struct BinFile<'a> {
    checkpoint: &'a Checkpoint,
    dtype: Dtype,
    config: ModelConfig,
    parameters: u64,
}

impl<'a> BinFile<'a> {
    /// A file whose numbers are all of `dtype`, which is f32 or bf16.
    ///
    /// The header's `max_seq_len` is the checkpoint's, or as asked for. No file gets the value that marks those of the
    /// gfx11 fork, whose router and `mlp2` readers transpose: it becomes one less.
    ///
    /// # Errors
    /// [`CheckpointError::TooLarge`], [`CheckpointError::NoBin`], or a dimension that a header cannot hold.
    pub fn new(checkpoint: &'a Checkpoint, dtype: Dtype, max_seq_len: Option<usize>) -> Result<Self, CheckpointError> {
        assert!(matches!(dtype, Dtype::F32 | Dtype::Bf16), "a `.bin` file is f32 or bf16");
        let mut config = checkpoint.config.clone();
        config.max_seq_len = match max_seq_len.unwrap_or(config.max_seq_len) {
            FORK_SEQ_LEN => FORK_SEQ_LEN - 1,
            other => other,
        };
        config.check()?;
        let has = |name| config.get(name).is_some() || config.family.numbers.iter().any(|number| number.name == name);
        if !std::ptr::eq(config.family, gpt_oss()) || !HEADER.iter().all(|(name, _)| has(name)) {
            return Err(CheckpointError::NoBin { family: config.family.name.clone() });
        }
        let parameters = parameters(&config).ok_or(CheckpointError::TooLarge)?;
        let bytes = parameters.checked_mul(dtype.len_bytes(1) as u64);
        bytes.and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64)).ok_or(CheckpointError::TooLarge)?;
        Ok(Self { checkpoint, dtype, config, parameters })
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Size of the file to be written, in bytes.
    pub fn len_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.parameters * self.dtype.len_bytes(1) as u64
    }

    /// What the header says `max_seq_len` is.
    pub fn max_seq_len(&self) -> usize {
        self.config.max_seq_len
    }

    /// Gives the file's bytes to `sink`, in order, and then how many numbers had to be rounded.
    ///
    /// # Errors
    /// What `sink` gives, or a tensor that does not fit into memory.
    pub fn write<E: From<CheckpointError>>(&self, sink: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<u64, E> {
        sink(&self.header())?;
        let mut rounded = 0;
        for group in groups(&self.config) {
            for &l in &group.layers {
                let row_len = *group.shape.last().expect("every tensor has a dimension");
                let source = Source::of_tensor(self.checkpoint, &group.name_in(l))?;
                let n_rows = group.shape.iter().product::<usize>() / row_len;
                let rows_at_once = (CHUNK / row_len).max(1);
                for first in (0..n_rows).step_by(rows_at_once) {
                    let rows = first..n_rows.min(first + rows_at_once);
                    rounded += source.write_rows(rows, row_len, self.dtype, sink)?;
                }
            }
        }
        Ok(rounded)
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let words = HEADER.map(|(name, _)| match self.config.get(name) {
            Some(value) => (value as i32).to_le_bytes(), // in range: the dimensions were checked
            None => self.config.number(name).to_le_bytes(),
        });
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(words.as_flattened());
        header
    }
}

/// Where a tensor's rows come from.
struct Source {
    numbers: Stored,
    /// Of a type whose numbers share them.
    scales: Option<Stored>,
}

/// One stored tensor: its type, what a row of it takes, and its elements.
struct Stored {
    dtype: Dtype,
    row_len: usize,
    elements: StoredElements,
}

enum StoredElements {
    Bytes(Bytes),
    Random(RandomNumbers),
}

impl Source {
    fn of_tensor(checkpoint: &Checkpoint, name: &str) -> Result<Self, CheckpointError> {
        let numbers = Stored::from_tensor(checkpoint.tensor(name))?;
        let scales = numbers.dtype.format().map(|format| format.parameters[0].name_beside(name));
        let scales = scales.map(|name| Stored::from_tensor(checkpoint.tensor(&name))).transpose()?;
        Ok(Self { numbers, scales })
    }

    /// Gives these rows to `sink`, `row_len` numbers of type `to` in each. Gives how many were rounded.
    fn write_rows<E>(
        &self,
        rows: Range<usize>,
        row_len: usize,
        to: Dtype,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let stored = self.numbers.rows(rows.clone());
        if self.numbers.dtype == to {
            return sink(&stored).map(|()| 0);
        }
        let mut out = vec![0; rows.len() * to.len_bytes(row_len)];
        let from = stored.par_chunks_exact(self.numbers.row_bytes());
        let out_rows = out.par_chunks_exact_mut(to.len_bytes(row_len));
        let row = |numbers, scales| EncodedRow { dtype: self.numbers.dtype, numbers, scales };
        let rounded = match &self.scales {
            None => from.zip(out_rows).map(|(from, out)| convert(row(from, &[]), to, out)).sum(),
            Some(scales) => {
                let all = scales.rows(rows);
                let of_rows = all.par_chunks_exact(scales.row_bytes());
                let rows = from.zip(of_rows).zip(out_rows);
                rows.map(|((codes, scales), out)| convert(row(codes, scales), to, out)).sum()
            }
        };
        sink(&out).map(|()| rounded)
    }
}

impl Stored {
    fn from_tensor(tensor: &Tensor) -> Result<Self, CheckpointError> {
        let elements = match (&tensor.elements, tensor.read()?) {
            (Elements::Random(numbers), _) => StoredElements::Random(*numbers),
            (_, bytes) => StoredElements::Bytes(bytes.expect("random elements alone are not read")),
        };
        let row_len = *tensor.shape.last().expect("every tensor has a dimension");
        Ok(Self { dtype: tensor.dtype, row_len, elements })
    }

    fn row_bytes(&self) -> usize {
        self.dtype.len_bytes(self.row_len)
    }

    fn rows(&self, rows: Range<usize>) -> Cow<'_, [u8]> {
        let size = self.row_bytes();
        match &self.elements {
            StoredElements::Bytes(bytes) => Cow::Borrowed(&bytes[rows.start * size..rows.end * size]),
            StoredElements::Random(numbers) => {
                let mut out = vec![0; rows.len() * size];
                numbers.write(self.dtype, rows.start * self.row_len, &mut out);
                Cow::Owned(out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::Encoding;
    use super::super::layout::Layout;
    use super::super::tensors::tests::small;
    use super::*;

    fn written(checkpoint: &Checkpoint, dtype: Dtype) -> (Vec<u8>, u64) {
        let file = BinFile::new(checkpoint, dtype, None).unwrap();
        let mut bytes = Vec::new();
        let mut sink = |chunk: &[u8]| {
            bytes.extend_from_slice(chunk);
            Ok::<_, CheckpointError>(())
        };
        let rounded = file.write(&mut sink).unwrap();
        assert_eq!(bytes.len() as u64, file.len_bytes());
        (bytes, rounded)
    }

    #[test]
    fn what_was_written_is_read_back_and_written_the_same() {
        for (encoding, dtype) in
            [(Encoding::F32, Dtype::F32), (Encoding::Bf16, Dtype::Bf16), (Encoding::Mxfp4, Dtype::Bf16)]
        {
            let checkpoint = Checkpoint::random(small(), encoding, 5).unwrap();
            let (bytes, rounded) = written(&checkpoint, dtype);
            assert_eq!(rounded, 0, "{encoding:?} fits {dtype}");
            let read = Checkpoint::from_bytes(bytes.clone().into(), Layout::Auto).unwrap();
            assert_eq!(read.config, checkpoint.config);
            assert_eq!(written(&read, dtype).0, bytes);
            let (as_f32, _) = written(&read, Dtype::F32);
            let back = Checkpoint::from_bytes(as_f32.into(), Layout::Auto).unwrap();
            assert_eq!(written(&back, dtype), (bytes, 0));
        }
    }

    #[test]
    fn what_bf16_does_not_hold_is_counted() {
        let checkpoint = Checkpoint::random(small(), Encoding::F32, 5).unwrap();
        let (_, rounded) = written(&checkpoint, Dtype::Bf16);
        assert!(rounded > BinFile::new(&checkpoint, Dtype::Bf16, None).unwrap().parameters() / 2);
    }

    #[test]
    fn no_file_is_taken_for_one_of_the_fork() {
        let config = small().with("max_seq_len", FORK_SEQ_LEN);
        let checkpoint = Checkpoint::random(config, Encoding::Bf16, 5).unwrap();
        let read = Checkpoint::from_bytes(written(&checkpoint, Dtype::Bf16).0.into(), Layout::Auto).unwrap();
        assert_eq!(read.config.max_seq_len, FORK_SEQ_LEN - 1);
        assert_eq!(read.findings, []);
        assert_eq!(BinFile::new(&checkpoint, Dtype::Bf16, Some(2048)).unwrap().max_seq_len(), 2048);
        assert!(BinFile::new(&checkpoint, Dtype::Bf16, Some(0)).is_err());
    }
}
