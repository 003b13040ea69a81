//! A device's part of a tensor: some rows or columns of its matrices, with zeros after them. It is made at use;
//! [`Slice`] itself is the whole tensor's description and a few numbers.

use std::ops::Range;

use rayon::prelude::*;

use super::{CheckpointError, Elements, Tensor};

/// What is taken of a tensor.
#[derive(Clone, Debug)]
pub struct Slice {
    whole: Box<Tensor>,
    cut: Cut,
}

/// The rows and columns of a part of a tensor, seen as a sequence of matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Rows of one matrix, and elements of a row; in MXFP4 whole blocks.
    pub(crate) matrix: [usize; 2],
    /// The rows that are taken of each matrix, one range after the other.
    pub(crate) rows: Vec<Range<usize>>,
    /// The elements that are taken of each row; in MXFP4 whole blocks.
    pub(crate) columns: Range<usize>,
    /// Rows and columns of each matrix that is made: as many as are taken, or more, which are zero.
    pub(crate) made: [usize; 2],
}

impl Cut {
    /// The rows that are taken of one matrix.
    fn n_taken(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// The row of a matrix that row `i` of the made one is, if it is none of zeros.
    fn source(&self, mut i: usize) -> Option<usize> {
        for rows in &self.rows {
            if i < rows.len() {
                return Some(rows.start + i);
            }
            i -= rows.len();
        }
        None
    }
}

impl Slice {
    /// A part of a tensor.
    ///
    /// # Panics
    /// If the tensor does not consist of such matrices, or they have no such rows and columns.
    pub(crate) fn new(whole: Tensor, cut: Cut) -> Self {
        let [n_rows, row_len] = cut.matrix;
        assert!(n_rows * row_len > 0 && whole.len().is_multiple_of(n_rows * row_len), "whole matrices");
        assert!(cut.columns.end <= row_len && cut.rows.iter().all(|rows| rows.end <= n_rows), "of the tensor");
        assert!(cut.n_taken() <= cut.made[0] && cut.columns.len() <= cut.made[1], "what is taken has room");
        Self { whole: Box::new(whole), cut }
    }

    /// The tensor that it is a part of.
    pub(crate) fn whole(&self) -> &Tensor {
        &self.whole
    }

    /// The same part of the same tensor in another type.
    pub(crate) fn with_whole(&self, whole: Tensor) -> Self {
        Self { whole: Box::new(whole), cut: self.cut.clone() }
    }

    fn n_matrices(&self) -> usize {
        self.whole.len() / (self.cut.matrix[0] * self.cut.matrix[1])
    }

    /// Bytes of what is made.
    pub(crate) fn len_bytes(&self) -> usize {
        let [n_rows, row_len] = self.cut.made;
        self.n_matrices() * n_rows * self.whole.dtype.len_bytes(row_len)
    }

    /// Makes it.
    ///
    /// # Errors
    /// There is no memory for the whole of a tensor that has to be made before it is cut.
    ///
    /// # Panics
    /// If `to` does not have [`Self::len_bytes`].
    pub(crate) fn write_to(&self, to: &mut [u8]) -> Result<(), CheckpointError> {
        assert_eq!(to.len(), self.len_bytes(), "the slice fills its place");
        let Cut { matrix: [n_rows, row_len], columns, made: [n_made, made_len], .. } = &self.cut;
        let bytes_of = |n_elements| self.whole.dtype.len_bytes(n_elements);
        let whole = self.whole.read()?;
        let (taken, made_bytes) = (bytes_of(columns.end) - bytes_of(columns.start), bytes_of(*made_len));
        to.par_chunks_mut(made_bytes).enumerate().for_each(|(i, to)| {
            let (matrix, row) = (i / n_made, i % n_made);
            let source = self.cut.source(row).filter(|_| taken > 0);
            let (to, zeros) = to.split_at_mut(if source.is_some() { taken } else { 0 });
            zeros.fill(0);
            let Some(row) = source else { return };
            let row = matrix * n_rows + row;
            match (&whole, &self.whole.elements) {
                (Some(whole), _) => {
                    to.copy_from_slice(&whole[row * bytes_of(*row_len) + bytes_of(columns.start)..][..taken]);
                }
                (None, Elements::Random(numbers)) => {
                    numbers.write(self.whole.dtype, row * row_len + columns.start, to);
                }
                (None, _) => unreachable!("only random weights have no bytes"),
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::RandomNumbers;
    use super::*;
    use format::Dtype;

    fn tensor(dtype: Dtype, shape: &[usize], elements: Elements) -> Tensor {
        Tensor { name: "t".into(), dtype, shape: shape.to_vec(), elements, file_offset: None }
    }

    fn made(slice: &Slice) -> Vec<u8> {
        let mut bytes = vec![0xff; slice.len_bytes()];
        slice.write_to(&mut bytes).expect("made");
        bytes
    }

    #[test]
    fn rows_and_columns_are_taken_and_the_rest_is_zero() {
        // Two matrices of 3 x 4.
        let bytes: Vec<u8> = (1..=24).collect();
        let whole = tensor(Dtype::U8, &[2, 3, 4], Elements::Bytes(bytes.into()));
        let cut = Cut { matrix: [3, 4], rows: vec![2..3, 0..1], columns: 1..3, made: [3, 3] };
        #[rustfmt::skip]
        let expected = [
            10, 11, 0,  2, 3, 0,  0, 0, 0,
            22, 23, 0,  14, 15, 0,  0, 0, 0,
        ];
        assert_eq!(made(&Slice::new(whole.clone(), cut)), expected);
        let nothing = Cut { matrix: [3, 4], rows: vec![], columns: 0..4, made: [1, 4] };
        assert_eq!(made(&Slice::new(whole, nothing)), [0; 8]);
    }

    #[test]
    fn random_numbers_are_those_of_the_whole() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::U8, Dtype::Mxfp4] {
            let numbers = RandomNumbers { stream: 5, centre: 100.0, step: 1e-3 };
            let mut all = vec![0; dtype.len_bytes(3 * 128)];
            numbers.write(dtype, 0, &mut all);
            let whole = tensor(dtype, &[3, 128], Elements::Random(numbers));
            let last_two = 1..3;
            let cut = Cut { matrix: [3, 128], rows: vec![last_two], columns: 32..96, made: [2, 64] };
            let row = |i: usize| &all[dtype.len_bytes(i * 128 + 32)..dtype.len_bytes(i * 128 + 96)];
            assert_eq!(made(&Slice::new(whole, cut)), [row(1), row(2)].concat(), "{dtype}");
        }
    }

    #[test]
    #[should_panic(expected = "what is taken has room")]
    fn more_rows_than_are_made_are_a_mistake() {
        let whole = tensor(Dtype::U8, &[3, 4], Elements::Bytes(vec![0; 12].into()));
        drop(Slice::new(whole, Cut { matrix: [3, 4], rows: vec![0..2, 2..3], columns: 0..4, made: [2, 4] }));
    }
}
