//! 8-bit floats (e4m3) in safetensors: their scales are another tensor, one for a row, for a block of 128 by 128 or
//! for the whole matrix. In memory a scale belongs to 128 numbers of a row, so that all of these are one format.

use std::sync::Arc;

use rayon::prelude::*;

use super::inventory::{Inventory, StoredTensor};
use super::stored::{Codec, Number};
use format::Dtype;

/// Rows and columns of a block that has a scale of its own.
const BLOCK: usize = 128;

/// The largest finite e4m3 number.
pub(super) const LARGEST: f32 = 448.0;

/// What the numbers of a matrix are to be multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct F8Scales {
    values: Arc<[f32]>,
    /// Rows that share one.
    rows: usize,
    /// How many a row of the matrix has.
    per_row: usize,
    /// Numbers of a row of the matrix.
    row_len: usize,
}

impl F8Scales {
    /// Takes those of a matrix out of the files, under one of the names that they may have: `weight_scale` of
    /// `weight`, (rows), (rows, 1) or one alone; or `weight_scale_inv`, one for each block. What activations were
    /// quantised with goes, too: here they are not. `None` if there are none that fit, which the inventory notes.
    pub(super) fn take(inventory: &mut Inventory, name: &str, shape: &[usize]) -> Option<Self> {
        let (&row_len, outer) = shape.split_last()?;
        let n_rows = outer.iter().product::<usize>();
        if let Some(module) = name.strip_suffix(".weight") {
            inventory.leave_out(&format!("{module}.input_scale"));
        }
        let blocks = format!("{name}_scale_inv");
        let of_rows = format!("{name}_scale");
        if inventory.get(&blocks).is_some() {
            let stored = inventory.take_plain(blocks, &[n_rows.div_ceil(BLOCK), row_len.div_ceil(BLOCK)])?;
            return Some(Self { values: values(&stored), rows: BLOCK, per_row: row_len.div_ceil(BLOCK), row_len });
        }
        let found: Option<Vec<usize>> =
            inventory.get(&of_rows).map(|stored| stored.shape.iter().map(|&n| n as usize).collect());
        let (shape, rows) = match found.as_deref() {
            Some([] | [1]) if n_rows > 1 => (found.unwrap_or_default(), n_rows),
            Some(found) if found.len() == outer.len() => (outer.to_vec(), 1),
            _ => ([outer, &[1]].concat(), 1),
        };
        let stored = inventory.take_plain(of_rows, &shape)?;
        Some(Self { values: values(&stored), rows, per_row: 1, row_len })
    }

    /// Numbers of a row of the matrix.
    pub(super) fn row_len(&self) -> usize {
        self.row_len
    }

    /// Those of a row, for each 128 numbers.
    fn of_row(&self, row: usize) -> impl Iterator<Item = f32> {
        let of = &self.values[row / self.rows * self.per_row..][..self.per_row];
        (0..self.row_len.div_ceil(BLOCK)).map(move |i| of[i.min(self.per_row - 1)])
    }

    /// Whether all are numbers.
    pub(super) fn are_finite(&self) -> bool {
        self.values.iter().all(|scale| scale.is_finite())
    }

    /// Writes those of a row, for each 128 numbers, as f32.
    pub(super) fn write_row(&self, row: usize, to: &mut [u8]) {
        to.as_chunks_mut::<4>().0.iter_mut().zip(self.of_row(row)).for_each(|(to, scale)| *to = scale.to_le_bytes());
    }

    /// Gives the numbers of a row.
    pub(super) fn each(&self, row: usize, codes: &[u8], mut give: impl FnMut(f32)) {
        for (codes, scale) in codes.chunks(BLOCK).zip(self.of_row(row)) {
            codes.iter().for_each(|&code| give(scale * value(code)));
        }
    }
}

fn values(stored: &StoredTensor) -> Arc<[f32]> {
    let number = stored.number().expect("taken as numbers");
    let mut values = Vec::new();
    number.each(&stored.bytes, |value| values.push(value));
    values.into()
}

/// Whether all of these are numbers.
pub(super) fn are_numbers(codes: &[u8]) -> bool {
    codes.par_chunks(1 << 20).all(|codes| codes.iter().all(|code| code & 0x7f != 0x7f))
}

/// Whether a tensor consists of them.
pub(super) fn is_f8(stored: &StoredTensor) -> bool {
    stored.stored.codec == Some(Codec::Number(Number::F8E4M3))
}

/// What a byte stands for, without its scale: a sign, 4 bits of an exponent with a bias of 7, 3 of a fraction.
pub(super) fn value(code: u8) -> f32 {
    let (exponent, fraction) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, _) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The byte of the nearest number, of two equally near ones that whose last bit is 0; what is larger than all is the
/// largest.
pub(super) fn code(value: f32) -> u8 {
    let (sign, size) = (u8::from(value.is_sign_negative()) << 7, value.abs());
    let code = if size < 1.0 / 64.0 {
        (size * 512.0).round_ties_even() as u32
    } else {
        let bits = size.min(LARGEST).to_bits();
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | code.min(0x7e) as u8
}

/// Numbers of a row in memory, where rows are whole blocks.
pub(super) fn padded(row_len: usize) -> usize {
    row_len.next_multiple_of(Dtype::F8E4M3.format().map_or(BLOCK, |format| format.block_len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_rows_and_columns_has_a_scale() {
        let scales = F8Scales { values: (1..=6_u8).map(f32::from).collect(), rows: BLOCK, per_row: 2, row_len: 130 };
        let of = |row: usize| scales.of_row(row).collect::<Vec<f32>>();
        assert_eq!([of(0), of(127), of(128), of(300)], [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        let whole = F8Scales { values: [7.0, 8.0].into(), rows: 1, per_row: 1, row_len: 300 };
        assert_eq!(whole.of_row(1).collect::<Vec<_>>(), [8.0; 3], "one for all of a row");
        let mut numbers = Vec::new();
        scales.each(129, &[0x38; 130], |number| numbers.push(number));
        assert_eq!((numbers[0], numbers[127], numbers[128], numbers.len()), (3.0, 3.0, 4.0, 130));
    }

    /// From the definition: every number that a byte stands for, and for any other the nearest of them.
    #[test]
    fn bytes_are_those_of_the_nearest_numbers() {
        let number = |code: u8| -> f64 {
            let (exponent, fraction) = (i32::from(code >> 3), f64::from(code & 7) / 8.0);
            if exponent == 0 { fraction * 2f64.powi(-6) } else { (1.0 + fraction) * 2f64.powi(exponent - 7) }
        };
        for code in 0..0x7f_u8 {
            assert_eq!((f64::from(value(code)), f64::from(value(code | 0x80))), (number(code), -number(code)));
            assert_eq!((super::code(value(code)), super::code(-value(code))), (code, code | 0x80));
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan() && !are_numbers(&[0, 0xff]) && are_numbers(&[0x7e, 0xfe]));
        for i in 0..200_000_u32 {
            let size = f32::from_bits(0x3a00_0000 + i * 997); // from 2^-11 on
            if size > 460.0 {
                break;
            }
            let distance = |code: &u8| ((number(*code) - f64::from(size)).abs(), code % 2);
            let nearest = (0..0x7f_u8).min_by(|a, b| distance(a).partial_cmp(&distance(b)).expect("numbers"));
            assert_eq!(Some(code(size)), nearest, "{size}");
        }
        assert_eq!([500.0, f32::INFINITY, 0.0, -0.0, 1e-9].map(code), [0x7e, 0x7e, 0, 0x80, 0]);
    }

    #[test]
    fn one_scale_alone_is_that_of_every_row() {
        use super::super::stored::StoredType;

        let take = |shape: Vec<u64>, scales: &[f32]| {
            let stored = StoredType::plain("F32", 4, Some(Codec::Number(Number::F32)));
            let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            let mut inventory = Inventory::default();
            inventory.add("a.weight_scale".into(), StoredTensor { stored, shape, bytes, file_offset: 0 }).expect("new");
            let scales = F8Scales::take(&mut inventory, "a.weight", &[4, 130]);
            inventory.finish().ok().and(scales)
        };
        for shape in [vec![], vec![1]] {
            let scales = take(shape, &[2.5]).expect("it fits");
            assert_eq!([0, 3].map(|row| scales.of_row(row).collect::<Vec<_>>()), [[2.5; 2]; 2]);
            assert!(scales.are_finite());
        }
        let of_rows = take(vec![4], &[1.0, 2.0, f32::INFINITY, 4.0]).expect("it fits");
        assert_eq!((of_rows.of_row(3).collect::<Vec<_>>(), of_rows.are_finite()), (vec![4.0; 2], false));
        assert!(take(vec![3], &[1.0; 3]).is_none());
    }
}
