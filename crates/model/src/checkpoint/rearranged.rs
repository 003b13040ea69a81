//! Tensors that a file does not have as they are wanted: what they are made of, and how. They are made where they are
//! used, one at a time; [`Rearranged`] itself is a few slices of mapped files.

use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};
use rayon::prelude::*;

use super::blocks::{self, codes_of, parameters_of};
use super::stored::Number;
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
    /// Rows of a head, where the stored ones of a head are in pairs: row `2 i + s` becomes row `s * rows / 2 + i`.
    pub(crate) pairs: Option<usize>,
}

/// Where the rows of the pieces go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    /// One piece after the other.
    Concatenated,
    /// Row 0 of every piece, then row 1 of every piece, …; the pieces are equally long.
    Interleaved,
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
    /// The same of blocks that have them so behind their only scale, a byte.
    CodesAsTheyAre(&'static BlockFormat),
    /// A parameter of GGUF's blocks, by its number.
    Parameter(&'static BlockFormat, usize),
}

impl ElementConversion {
    /// Bytes of so many elements as they are stored.
    fn stored_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::Convert { from, .. } => from.len_bytes(n_elements),
            Self::Codes(format) | Self::CodesAsTheyAre(format) => {
                n_elements / format.block_len() * blocks::stored_bytes(format.dtype)
            }
            Self::Parameter(format, i) => {
                n_elements * format.parameters[i].every / format.block_len() * blocks::stored_bytes(format.dtype)
            }
        }
    }

    /// Bytes of so many elements as they are wanted.
    fn made_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::Convert { to, .. } => to.len_bytes(n_elements),
            Self::Codes(format) | Self::CodesAsTheyAre(format) => format.dtype.len_bytes(n_elements),
            Self::Parameter(format, i) => format.parameters[i].dtype.len_bytes(n_elements),
        }
    }

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

    /// The stored row that becomes row `r`.
    fn stored_row(&self, r: usize) -> usize {
        let Some(rows) = self.pairs else { return r };
        let (head, row) = (r / rows, r % rows);
        head * rows + row % (rows / 2) * 2 + row / (rows / 2)
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
            ElementOrder::Interleaved => {
                assert!(rows.windows(2).all(|pair| pair[0] == pair[1]), "the pieces are equally long")
            }
            ElementOrder::Transposed { n_rows: rows } => assert!(pieces.len() == 1 && n_rows.is_multiple_of(rows)),
        }
        Self { pieces: pieces.into(), order, row_len, len_bytes: n_rows * row_bytes }
    }

    /// Bytes of the tensor that is made.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
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

    /// The type that holds what the file has of it, and no more: that of its numbers, where they are all alike. `None`
    /// where the program has none such, or its rows are not those of the file.
    pub(crate) fn stored_dtype(&self) -> Option<Dtype> {
        let mut stored = self.stored();
        let first = stored.next().filter(|_| !matches!(self.order, ElementOrder::Transposed { .. }))?;
        let dtype = first.dtype().or_else(|| first.format().map(|format| format.dtype))?;
        stored.all(|number| number == first).then_some(dtype)
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
                [Piece { bytes, step: ElementConversion::Convert { from, to }, pairs: None }],
                ElementOrder::Concatenated,
            ) if from.dtype() == Some(*to) => Some(bytes),
            _ => None,
        }
    }

    /// Whether scales and offsets of all blocks that it is made of are numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let is_finite = |piece: &Piece| match piece.step {
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
            ElementOrder::Interleaved => self.interleave(to),
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
            ElementOrder::Interleaved => (&self.pieces[row % self.pieces.len()], row / self.pieces.len()),
            ElementOrder::Transposed { .. } => panic!("a row is a column of what is stored"),
        };
        let stored = piece.step.stored_bytes(self.row_len);
        piece.step.run(&piece.bytes[row * stored..][..stored], to);
    }

    /// Whether rows are made of rows, of so many elements.
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
                    piece.step.run(&piece.bytes[piece.stored_row(r) * stored..][..stored], to);
                });
                to = rest;
                continue;
            }
            let from = piece.bytes.par_chunks(rows * piece.step.stored_bytes(self.row_len));
            own.par_chunks_mut(rows * self.row_bytes()).zip(from).for_each(|(to, from)| piece.step.run(from, to));
            to = rest;
        }
    }

    fn interleave(&self, to: &mut [u8]) {
        let (n, rows) = (self.pieces.len(), TASK_BYTES.div_ceil(self.row_bytes()));
        to.par_chunks_mut(rows * n * self.row_bytes()).enumerate().for_each(|(task, to)| {
            for (i, to) in to.chunks_mut(self.row_bytes()).enumerate() {
                let (piece, row) = (&self.pieces[i % n], task * rows + i / n);
                let stored = piece.step.stored_bytes(self.row_len);
                piece.step.run(&piece.bytes[row * stored..][..stored], to);
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
mod tests {
    use super::*;

    fn made(tensor: &Rearranged) -> Vec<u8> {
        let mut to = vec![0xee; tensor.len_bytes()];
        tensor.write_to(&mut to);
        to
    }

    fn f32s(values: impl Iterator<Item = usize>) -> Bytes {
        Bytes::from_iter(values.flat_map(|value| (value as f32).to_le_bytes()))
    }

    const KEEP: ElementConversion = ElementConversion::Convert { from: Number::F32, to: Dtype::F32 };

    fn piece(bytes: Bytes) -> Piece {
        Piece { bytes, step: KEEP, pairs: None }
    }

    #[test]
    fn every_element_finds_its_place_in_shapes_around_the_tile() {
        for (experts, rows, columns) in [(1, 1, 1), (3, 5, 7), (2, 128, 33), (1, 130, 31), (2, 64, 96)] {
            let value = |e: usize, r: usize, c: usize| ((e * rows + r) * columns + c) as f32;
            let mut stored = vec![0u8]; // one byte in front: the source need not be aligned
            for e in 0..experts {
                for c in 0..columns {
                    for r in 0..rows {
                        stored.extend(value(e, r, c).to_le_bytes());
                    }
                }
            }
            let stored = Bytes::from(stored).slice(1..);
            let order = ElementOrder::Transposed { n_rows: rows };
            let turned = Rearranged::new(vec![piece(stored)], order, columns);
            let n = experts * rows * columns;
            assert_eq!(made(&turned), f32s(0..n), "({experts}, {rows}, {columns})");
            let rounded: Vec<u8> = (0..n).flat_map(|i| bf16::from_f32(i as f32).to_le_bytes()).collect();
            assert_eq!(made(&turned.with_dtype(Dtype::Bf16)), rounded, "({experts}, {rows}, {columns})");
        }
    }

    #[test]
    fn rows_are_put_one_after_the_other_or_by_turns() {
        for (rows, row_len) in [(2, 3), (20_000, 1), (3, 20_000)] {
            let n = rows * row_len;
            let pieces = vec![piece(f32s(0..n)), piece(f32s(n..2 * n))];
            let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, row_len);
            assert_eq!(made(&joined), f32s(0..2 * n));
            let by_turns = (0..2 * rows).flat_map(|r| (0..row_len).map(move |c| (r % 2 * rows + r / 2) * row_len + c));
            assert_eq!(made(&Rearranged::new(pieces, ElementOrder::Interleaved, row_len)), f32s(by_turns));
        }
        let uneven = [0..6, 6..8, 8..10].map(|values| piece(f32s(values))).to_vec();
        let uneven = Rearranged::new(uneven, ElementOrder::Concatenated, 2);
        assert_eq!(made(&uneven), f32s(0..10));
    }

    #[test]
    fn rows_of_heads_in_pairs_are_put_in_halves() {
        // Two heads of six rows: pairs (0, 1), (2, 3), (4, 5) become 0, 2, 4 and 1, 3, 5. Another piece stays.
        let heads = Piece { pairs: Some(6), ..piece(f32s((0..12).flat_map(|row| [row, row]))) };
        let other = piece(f32s((20..22).flat_map(|row| [row, row])));
        let made_of = Rearranged::new(vec![heads, other], ElementOrder::Concatenated, 2);
        let rows = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 20, 21];
        assert_eq!(made(&made_of), f32s(rows.into_iter().flat_map(|row| [row, row])));
    }

    #[test]
    fn pieces_of_different_types_become_one() {
        let halves = Bytes::from_iter([1.0, 2.0].iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
        let half = Piece { step: ElementConversion::Convert { from: Number::F16, to: Dtype::F32 }, ..piece(halves) };
        let pieces = vec![piece(f32s(7..9)), half];
        let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, 1);
        assert_eq!(made(&joined), f32s([7, 8, 1, 2].into_iter()));
        assert_eq!(made(&Rearranged::new(pieces, ElementOrder::Interleaved, 1)), f32s([7, 1, 8, 2].into_iter()));
        assert_eq!(joined.stored().collect::<Vec<_>>(), [Number::F32, Number::F16]);
        let rounded: Vec<u8> = [7.0, 8.0, 1.0, 2.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(made(&joined.with_dtype(Dtype::Bf16)), rounded);
    }

    #[test]
    fn numbers_in_blocks_of_one_format_can_stay_so() {
        let block = |first: u8| Bytes::from_iter((0..34).map(|i| first + i));
        let step = ElementConversion::Convert { from: Number::Blocks(Dtype::Q8_0), to: Dtype::F32 };
        let pieces = vec![Piece { step, ..piece(block(1)) }, Piece { step, ..piece(block(101)) }];
        let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, 32);
        assert_eq!(joined.stored_dtype(), Some(Dtype::Q8_0));
        let [codes, scales] = joined.in_blocks(Dtype::Q8_0.format().expect("in blocks")).try_into().expect("two");
        assert!(made(&codes).into_iter().eq((3..35).chain(103..135)));
        assert_eq!(made(&scales), [1, 2, 101, 102]);

        let mixed = vec![pieces[0].clone(), piece(f32s(0..32))];
        assert_eq!(Rearranged::new(mixed, ElementOrder::Concatenated, 32).stored_dtype(), None);
        let turned = Rearranged::new(vec![piece(f32s(0..6))], ElementOrder::Transposed { n_rows: 2 }, 3);
        assert_eq!(turned.stored_dtype(), None);
        let widened = ElementConversion::Convert { from: Number::Bf16, to: Dtype::F32 };
        let widened = Rearranged::new(vec![Piece { step: widened, ..piece(block(1)) }], ElementOrder::Concatenated, 17);
        assert_eq!(widened.stored_dtype(), Some(Dtype::Bf16));
        assert_eq!(widened.with_dtype(Dtype::Bf16).as_is(), Some(&block(1)));
        assert_eq!((widened.as_is(), joined.as_is()), (None, None));
    }

    #[test]
    fn blocks_of_mxfp4_become_codes_and_scales_row_by_row() {
        let block = |scale: u8| [vec![scale], vec![scale | scale << 4; 16]].concat();
        let row = |scales: [u8; 2]| Bytes::from(scales.map(block).concat());
        let pieces = |step| vec![Piece { step, ..piece(row([1, 2])) }, Piece { step, ..piece(row([3, 4])) }];
        let format = Dtype::Mxfp4.format().expect("in blocks");
        let scales = Rearranged::new(pieces(ElementConversion::Parameter(format, 0)), ElementOrder::Interleaved, 2);
        assert_eq!(made(&scales), [1, 2, 3, 4]);
        let codes = Rearranged::new(pieces(ElementConversion::Codes(format)), ElementOrder::Interleaved, 64);
        let want: Vec<u8> = [0x11, 0x22, 0x33, 0x44].iter().flat_map(|&pair| [pair; 16]).collect();
        assert_eq!(made(&codes), want);
    }
}
