//! Tensors that a file stores in another form: their sources, and how to make them. They are made at use, one at a
//! time; [`Rearranged`] itself is a few slices of mapped files.

use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};
use rayon::prelude::*;

use super::blocks::{self, codes_of, parameters_of};
use super::f8::{self, F8Scales};
use super::kept::StoredWeights;
use super::stored::{self, Number};
use crate::family::PairedRows;
use format::{BlockFormat, Dtype};

/// How a tensor is made of pieces of files.
#[derive(Clone, Debug)]
pub struct Rearranged {
    pieces: Arc<[Piece]>,
    order: ElementOrder,
    /// Elements of a row of the result.
    row_len: usize,
    len_bytes: usize,
}

/// A slice of a mapped file, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Rows, one after the other.
    pub(crate) bytes: Bytes,
    /// What is done with them; all pieces of a tensor become the same type.
    pub step: ElementConversion,
    /// Where its rows are in another order.
    pub(crate) pairs: Option<PairedRows>,
    /// The number that is added to its elements.
    pub(crate) offset: Option<f32>,
    /// What numbers of 8 bits are multiplied by; none else.
    pub(crate) scales: Option<F8Scales>,
}

/// Where the rows of the pieces go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    /// One piece after the other.
    Concatenated,
    /// Row 0 of each of the first pieces, then row 1 of each of them, …; then the same of the next ones. The pieces are
    /// equally long.
    Interleaved {
        /// How many pieces take turns.
        at_once: usize,
    },
    /// One piece, a run of matrices of (row_len, n_rows), becomes (n_rows, row_len) each.
    Transposed {
        /// Rows of one of the results.
        n_rows: usize,
    },
}

/// What is done with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementConversion {
    /// Numbers become f32 or bf16, or stay what they are.
    Convert { from: Number, to: Dtype },
    /// The codes of GGUF's blocks become ours: consecutive elements of few bits share a byte, the first in its lowest.
    Codes(&'static BlockFormat),
    /// The same of blocks that have them so after their only scale, a byte.
    CodesAsTheyAre(&'static BlockFormat),
    /// A parameter of GGUF's blocks, by its number.
    Parameter(&'static BlockFormat, usize),
    /// Bytes of numbers of 8 bits, of which a row has so many; what fills its last block is zero.
    F8Codes { row_len: usize },
    /// Their scales, one for every block.
    F8Scales { row_len: usize },
}

impl ElementConversion {
    /// Bytes of this many elements as they are stored.
    fn stored_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::Convert { from, .. } => from.len_bytes(n_elements),
            Self::Codes(format) | Self::CodesAsTheyAre(format) => {
                n_elements / format.block_len() * blocks::stored_bytes(format.dtype)
            }
            Self::Parameter(format, i) => {
                n_elements * format.parameters[i].every / format.block_len() * blocks::stored_bytes(format.dtype)
            }
            Self::F8Codes { row_len } | Self::F8Scales { row_len } => row_len, // the elements are a row's
        }
    }

    /// Bytes of this many elements as they are wanted.
    fn made_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::Convert { to, .. } => to.len_bytes(n_elements),
            Self::Codes(format) | Self::CodesAsTheyAre(format) => format.dtype.len_bytes(n_elements),
            Self::Parameter(format, i) => format.parameters[i].dtype.len_bytes(n_elements),
            Self::F8Codes { .. } => n_elements,
            Self::F8Scales { .. } => Dtype::F32.len_bytes(n_elements),
        }
    }

    /// What needs to know nothing but the elements.
    fn run(self, from: &[u8], to: &mut [u8]) {
        match self {
            Self::Convert { from: number, to: dtype } => number.convert(from, dtype, to),
            Self::Codes(format) => codes_of(format, from, to),
            Self::CodesAsTheyAre(format) => {
                let n = format.dtype.len_bytes(format.block_len());
                from.chunks_exact(1 + n)
                    .zip(to.chunks_exact_mut(n))
                    .for_each(|(from, to)| to.copy_from_slice(&from[1..]));
            }
            Self::Parameter(format, i) => parameters_of(format, i, from, to),
            Self::F8Codes { .. } | Self::F8Scales { .. } => unreachable!("made row by row"),
        }
    }
}

impl Piece {
    /// How many rows it holds.
    fn rows(&self, row_len: usize) -> usize {
        let row_bytes = self.step.stored_bytes(row_len);
        assert!(row_bytes > 0 && self.bytes.len().is_multiple_of(row_bytes), "rows are whole");
        self.bytes.len() / row_bytes
    }

    /// Makes rows of stored ones, the first of which is `first`.
    fn run(&self, first: usize, from: &[u8], to: &mut [u8]) {
        if let (ElementConversion::Convert { from: number, to: wanted }, Some(offset)) = (self.step, self.offset) {
            return stored::write(wanted, to, |give| number.each(from, |value| give(value + offset)));
        }
        let Some(scales) = &self.scales else { return self.step.run(from, to) };
        let n_rows = from.len() / scales.row_len();
        let rows = from.chunks_exact(scales.row_len()).zip(to.chunks_exact_mut(to.len() / n_rows.max(1)));
        for (row, (from, to)) in (first..).zip(rows) {
            match self.step {
                ElementConversion::F8Codes { row_len } => {
                    let (own, rest) = to.split_at_mut(row_len);
                    own.copy_from_slice(from);
                    rest.fill(0);
                }
                ElementConversion::F8Scales { .. } => scales.write_row(row, to),
                ElementConversion::Convert { to: wanted, .. } => {
                    stored::write(wanted, to, |give| scales.each(row, from, give));
                }
                _ => unreachable!("bytes are no blocks"),
            }
        }
    }

    /// The stored row that becomes row `r`.
    fn stored_row(&self, r: usize) -> usize {
        self.pairs.map_or(r, |pairs| pairs.stored(r))
    }
}

/// Bytes that one task makes at least: less would not be worth its beginning.
const TASK_BYTES: usize = 1 << 16;

/// A matrix is turned in tiles of so many of its own rows and columns, which are columns and rows of the stored one: a
/// tile fits in the first cache on both sides, and what is read of a stored row fills whole cache lines, few of them
/// for each page that is touched.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 32;

impl Rearranged {
    /// A tensor of rows of `row_len` elements, of which the pieces hold whole ones.
    ///
    /// # Panics
    /// If the pieces are not whole rows, or not as [`ElementOrder`] wants them: readers check shapes before.
    pub(crate) fn new(pieces: Vec<Piece>, order: ElementOrder, row_len: usize) -> Self {
        let rows: Vec<usize> = pieces.iter().map(|piece| piece.rows(row_len)).collect();
        let n_rows: usize = rows.iter().sum();
        let row_bytes = pieces[0].step.made_bytes(row_len);
        assert!(pieces.iter().all(|piece| piece.step.made_bytes(row_len) == row_bytes), "one type is made");
        let in_order = pieces.iter().all(|piece| piece.pairs.is_none());
        assert!(
            in_order || order == ElementOrder::Concatenated,
            "pairs of rows are undone where rows follow each other"
        );
        match order {
            ElementOrder::Concatenated => {}
            ElementOrder::Interleaved { at_once } => assert!(
                rows.len().is_multiple_of(at_once) && rows.windows(2).all(|pair| pair[0] == pair[1]),
                "the pieces are equally long"
            ),
            ElementOrder::Transposed { n_rows: rows } => assert!(pieces.len() == 1 && n_rows.is_multiple_of(rows)),
        }
        Self { pieces: pieces.into(), order, row_len, len_bytes: n_rows * row_bytes }
    }

    /// Bytes of the tensor that is made.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether something is added to what the file has, so that its type need not hold it.
    pub(crate) fn is_sum(&self) -> bool {
        self.pieces.iter().any(|piece| piece.offset.is_some())
    }

    /// The types of its numbers in the file; none if it is not made of numbers.
    pub(crate) fn stored(&self) -> impl Iterator<Item = Number> {
        self.pieces.iter().filter_map(|piece| match piece.step {
            ElementConversion::Convert { from, .. } => Some(from),
            _ => None,
        })
    }

    /// The same tensor with its numbers made another type.
    pub(crate) fn with_dtype(&self, to: Dtype) -> Self {
        let pieces = self.pieces.iter().map(|piece| match piece.step {
            ElementConversion::Convert { from, .. } => {
                Piece { step: ElementConversion::Convert { from, to }, ..piece.clone() }
            }
            _ => piece.clone(),
        });
        Self::new(pieces.collect(), self.order, self.row_len)
    }

    /// The type that its numbers keep, where they are all alike. `None` where they keep none, or its rows are not those
    /// of the file.
    pub(crate) fn stored_dtype(&self, kept: StoredWeights) -> Option<Dtype> {
        if self.is_sum() {
            return None;
        }
        let mut stored = self.stored();
        let first = stored.next().filter(|_| !matches!(self.order, ElementOrder::Transposed { .. }))?;
        let dtype = kept.of(first)?;
        stored.all(|number| number == first).then_some(dtype)
    }

    /// Its pieces in runs that keep one type each, with their numbers of rows. None if its rows are not those of the
    /// file, one piece after the other.
    pub(crate) fn runs(&self, kept: StoredWeights) -> Vec<(usize, Self)> {
        if self.order != ElementOrder::Concatenated || self.is_sum() {
            return vec![];
        }
        let type_of = |piece: &Piece| match piece.step {
            ElementConversion::Convert { from, .. } => kept.of(from),
            _ => None,
        };
        let runs = self.pieces.chunk_by(|a, b| type_of(a) == type_of(b));
        let run = |pieces: &[Piece]| {
            let n_rows = pieces.iter().map(|piece| piece.rows(self.row_len)).sum();
            (n_rows, Self::new(pieces.to_vec(), self.order, self.row_len))
        };
        runs.map(run).collect()
    }

    /// Of numbers that are all stored in a format with blocks, its codes, then every parameter.
    ///
    /// # Panics
    /// If they are not.
    pub(crate) fn in_blocks(&self, format: &'static BlockFormat) -> Vec<Self> {
        let of = |step: ElementConversion, row_len: usize| {
            let pieces = self.pieces.iter().map(|piece| Piece { step, ..piece.clone() });
            Self::new(pieces.collect(), self.order, row_len)
        };
        assert!(self.stored().all(|number| number.format() == Some(format)), "all are stored in it");
        if format.dtype == Dtype::F8E4M3 {
            let (row_len, len) = (self.row_len, f8::padded(self.row_len));
            let scales = of(ElementConversion::F8Scales { row_len }, len / format.block_len());
            return vec![of(ElementConversion::F8Codes { row_len }, len), scales];
        }
        let codes = of(ElementConversion::Codes(format), self.row_len);
        let parameters = format.parameters.iter().enumerate();
        let parameters =
            parameters.map(|(i, one)| of(ElementConversion::Parameter(format, i), self.row_len / one.every));
        [codes].into_iter().chain(parameters).collect()
    }

    /// The bytes of the file, where the tensor is one piece of it as it is.
    pub(crate) fn as_is(&self) -> Option<&Bytes> {
        match (&*self.pieces, self.order) {
            (
                [
                    Piece {
                        bytes,
                        step: ElementConversion::Convert { from, to },
                        pairs: None,
                        offset: None,
                        scales: None,
                    },
                ],
                ElementOrder::Concatenated,
            ) if from.dtype() == Some(*to) => Some(bytes),
            _ => None,
        }
    }

    /// The slices that it is made of.
    pub(crate) fn sources(&self) -> Vec<&Bytes> {
        self.pieces.iter().map(|piece| &piece.bytes).collect()
    }

    /// Whether scales and offsets of all blocks that it is made of are numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let is_finite = |piece: &Piece| match piece.step {
            ElementConversion::Convert { from: Number::F8E4M3, .. } | ElementConversion::F8Scales { .. } => {
                f8::are_numbers(&piece.bytes) && piece.scales.as_ref().is_none_or(F8Scales::are_finite)
            }
            ElementConversion::Convert { from, .. } => {
                from.format().is_none_or(|format| blocks::are_finite(format, &piece.bytes))
            }
            ElementConversion::Parameter(format, 0) => blocks::are_finite(format, &piece.bytes),
            _ => true, // looked at for the first parameter
        };
        self.pieces.iter().all(is_finite)
    }

    /// Makes the tensor.
    ///
    /// # Panics
    /// If `to` does not have [`Self::len_bytes`].
    pub(crate) fn write_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len_bytes, "the tensor fills its place");
        match self.order {
            ElementOrder::Concatenated => self.concatenate(to),
            ElementOrder::Interleaved { at_once } => self.interleave(to, at_once),
            ElementOrder::Transposed { n_rows } => self.transpose(to, n_rows),
        }
    }

    /// Makes one of its rows.
    ///
    /// # Panics
    /// If its matrices are turned, or `to` has not the length of a row.
    pub(crate) fn write_row(&self, row: usize, to: &mut [u8]) {
        let (piece, row) = match self.order {
            ElementOrder::Concatenated => {
                let (mut row, mut pieces) = (row, self.pieces.iter());
                loop {
                    let piece = pieces.next().expect("the row is one of the tensor's");
                    let n_rows = piece.rows(self.row_len);
                    if row < n_rows {
                        break (piece, piece.stored_row(row));
                    }
                    row -= n_rows;
                }
            }
            ElementOrder::Interleaved { at_once } => self.in_turn(row, at_once),
            ElementOrder::Transposed { .. } => panic!("a row is a column of what is stored"),
        };
        let stored = piece.step.stored_bytes(self.row_len);
        piece.run(row, &piece.bytes[row * stored..][..stored], to);
    }

    /// Whether rows are made of rows, of this many elements.
    pub(crate) fn has_rows_of(&self, row_len: usize) -> bool {
        self.row_len == row_len && !matches!(self.order, ElementOrder::Transposed { .. })
    }

    fn row_bytes(&self) -> usize {
        self.pieces[0].step.made_bytes(self.row_len)
    }

    fn concatenate(&self, mut to: &mut [u8]) {
        let rows = TASK_BYTES.div_ceil(self.row_bytes());
        for piece in self.pieces.iter() {
            let (own, rest) = to.split_at_mut(piece.rows(self.row_len) * self.row_bytes());
            if piece.pairs.is_some() {
                let stored = piece.step.stored_bytes(self.row_len);
                own.par_chunks_mut(self.row_bytes()).enumerate().for_each(|(r, to)| {
                    let row = piece.stored_row(r);
                    piece.run(row, &piece.bytes[row * stored..][..stored], to);
                });
                to = rest;
                continue;
            }
            let from = piece.bytes.par_chunks(rows * piece.step.stored_bytes(self.row_len));
            let tasks = own.par_chunks_mut(rows * self.row_bytes()).zip(from).enumerate();
            tasks.for_each(|(task, (to, from))| piece.run(task * rows, from, to));
            to = rest;
        }
    }

    /// Whose row becomes row `row`, and which, where `at_once` pieces take turns.
    fn in_turn(&self, row: usize, at_once: usize) -> (&Piece, usize) {
        let of_turn = at_once * self.pieces[0].rows(self.row_len);
        let (turn, row) = (row / of_turn, row % of_turn);
        (&self.pieces[turn * at_once + row % at_once], row / at_once)
    }

    fn interleave(&self, to: &mut [u8], at_once: usize) {
        let rows = TASK_BYTES.div_ceil(self.row_bytes());
        to.par_chunks_mut(rows * self.row_bytes()).enumerate().for_each(|(task, to)| {
            for (i, to) in to.chunks_mut(self.row_bytes()).enumerate() {
                let (piece, row) = self.in_turn(task * rows + i, at_once);
                let stored = piece.step.stored_bytes(self.row_len);
                piece.run(row, &piece.bytes[row * stored..][..stored], to);
            }
        });
    }

    fn transpose(&self, to: &mut [u8], n_rows: usize) {
        let Piece { bytes: stored, step: ElementConversion::Convert { from, to: wanted }, .. } = &self.pieces[0] else {
            panic!("only numbers are transposed")
        };
        let turn = Turn { n_rows, row_len: self.row_len };
        match (from, wanted) {
            (Number::Bf16, Dtype::Bf16) => turn.run(stored, to, |element: [u8; 2]| element),
            (Number::F32, Dtype::F32) => turn.run(stored, to, |element: [u8; 4]| element),
            (Number::F16, Dtype::Bf16) => {
                turn.run(stored, to, |half| bf16::from_f32(f16::from_le_bytes(half).to_f32()).to_le_bytes());
            }
            (Number::F16, Dtype::F32) => turn.run(stored, to, |half| f16::from_le_bytes(half).to_f32().to_le_bytes()),
            (Number::F32, Dtype::Bf16) => {
                turn.run(stored, to, |single| bf16::from_f32(f32::from_le_bytes(single)).to_le_bytes());
            }
            (Number::Bf16, Dtype::F32) => {
                turn.run(stored, to, |brief: [u8; 2]| bf16::from_le_bytes(brief).to_f32().to_le_bytes());
            }
            (number, dtype) => panic!("no matrix of {number:?} is turned into {dtype}"),
        }
    }
}

/// A run of (row_len, n_rows) matrices that becomes a run of (n_rows, row_len) ones.
#[derive(Clone, Copy)]
struct Turn {
    n_rows: usize,
    row_len: usize,
}

impl Turn {
    fn run<const FROM: usize, const TO: usize>(
        self,
        stored: &[u8],
        to: &mut [u8],
        convert: impl Fn([u8; FROM]) -> [u8; TO] + Sync,
    ) {
        let (stored, to) = (stored.as_chunks::<FROM>().0, to.as_chunks_mut::<TO>().0);
        let matrix = self.n_rows * self.row_len;
        to.par_chunks_mut(matrix).zip(stored.par_chunks(matrix)).for_each(|(to, from)| {
            to.par_chunks_mut(TILE_ROWS * self.row_len).enumerate().for_each(|(band, to)| {
                self.band(to, from, band * TILE_ROWS, &convert);
            });
        });
    }

    /// Fills the rows from `first_row` on, as many as `to` holds, reading the stored matrix tile by tile.
    fn band<const FROM: usize, const TO: usize>(
        self,
        to: &mut [[u8; TO]],
        from: &[[u8; FROM]],
        first_row: usize,
        convert: impl Fn([u8; FROM]) -> [u8; TO],
    ) {
        for first_column in (0..self.row_len).step_by(TILE_COLUMNS) {
            let tile_columns = first_column..self.row_len.min(first_column + TILE_COLUMNS);
            for (r, row) in to.chunks_mut(self.row_len).enumerate() {
                for c in tile_columns.clone() {
                    row[c] = convert(from[c * self.n_rows + first_row + r]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
