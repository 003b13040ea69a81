//! Matrices that are quantised at use, row by row, so that neither a file nor memory holds them twice.

use std::fmt;

use half::{bf16, f16};
use rayon::prelude::*;

use super::f8;
use super::{Checkpoint, CheckpointError, Elements, Tensor};
use format::Dtype;
use system::units::human_bytes;

/// What matrices can be quantised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// Signed bytes and a scale in f16 for every 32, bit for bit as llama.cpp's reference quantiser makes them
    /// (`quantize_row_q8_0_ref`): `d = max |x| / 127`, bytes are `x * (1 / d)` rounded to the nearest, halves away from
    /// zero, with d in f32, and what is stored of d is rounded to f16.
    Q8_0,
    /// Bytes of e4m3 and a scale in f32 for each row, `max |x| / 448`: the byte nearest to `x / scale`, of two the even
    /// one.
    F8E4M3,
}

impl Quantization {
    /// The type of the codes.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::Q8_0 => Dtype::Q8_0,
            Self::F8E4M3 => Dtype::F8E4M3,
        }
    }
}

/// What quantising a model's matrices saves: bytes before and after. As text: a clause for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gain {
    /// Of all tensors, in bytes.
    pub tensor_bytes: [u64; 2],
    /// Of those that a step for one token reads, in bytes.
    pub bytes_per_token: [u64; 2],
    #[serde(skip)]
    to: Quantization,
}

impl Gain {
    /// How many times as many tokens a second there are at most, where the memory is the limit.
    pub fn times(&self) -> f64 {
        self.bytes_per_token[0] as f64 / self.bytes_per_token[1] as f64
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([weights_before, weights], [before, after]) =
            (self.tensor_bytes.map(human_bytes), self.bytes_per_token.map(human_bytes));
        write!(
            f,
            "`--quantize {}` makes weights {weights} in place of {weights_before}, and one token reads {after} in place of \
             {before}: at most {:.2} times as fast",
            self.to.dtype(),
            self.times()
        )
    }
}

impl Checkpoint {
    /// What quantising would save; none if a token would read no fewer bytes.
    pub fn gain(&self) -> Option<Gain> {
        let to = Quantization::Q8_0;
        let quantized = self.quantized(to);
        let gain = Gain {
            tensor_bytes: [self.tensor_bytes(), quantized.tensor_bytes()],
            bytes_per_token: [self.bytes_per_token(), quantized.bytes_per_token()],
            to,
        };
        (gain.bytes_per_token[1] < gain.bytes_per_token[0]).then_some(gain)
    }
}

/// The codes or the scales of a matrix.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The matrix: f32 or bf16.
    whole: Box<Tensor>,
    to: Quantization,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Codes,
    Scales,
}

const BLOCK: usize = 32;
/// Codes of Q8_0 go to 127, scales to the largest f16.
const LARGEST: f32 = 127.0 * 65504.0;

impl Tensor {
    /// Its codes and their scales; itself if it is no matrix of f32 or bf16 whose rows are at hand.
    pub(super) fn quantized(&self, to: Quantization) -> Vec<Self> {
        let row_len = self.shape.last().copied().unwrap_or(0);
        let whole = match &self.elements {
            // As the file has it: an f16 is not rounded to bf16 before.
            Elements::Rearranged(rearranged) if rearranged.has_rows_of(row_len) => self.with_dtype(Dtype::F32),
            Elements::Bytes(_) | Elements::Random(_) => self.clone(),
            Elements::Rearranged(_) | Elements::Slice(_) | Elements::Quantized(_) => return vec![self.clone()],
        };
        if self.shape.len() != 2 || !matches!(self.dtype, Dtype::F32 | Dtype::Bf16) {
            return vec![self.clone()];
        }
        let parts = to.dtype().parts(&self.name, &self.shape).into_iter().zip([Part::Codes, Part::Scales]);
        let tensor = |(made, part): (format::TensorPart, Part)| Self {
            name: made.name,
            dtype: made.dtype,
            shape: made.shape,
            elements: Elements::Quantized(Quantized { whole: Box::new(whole.clone()), to, part }),
            file_offset: self.file_offset,
        };
        parts.map(tensor).collect()
    }
}

impl Quantized {
    /// The tensor whose codes or scales it has.
    pub(crate) fn whole(&self) -> &Tensor {
        &self.whole
    }

    fn row_len(&self) -> usize {
        *self.whole.shape.last().expect("a matrix")
    }

    fn row_bytes(&self) -> usize {
        let format = self.to.dtype().format().expect("in blocks");
        let blocks = self.row_len().div_ceil(format.block_len());
        match self.part {
            Part::Codes => format.dtype.len_bytes(blocks * format.block_len()),
            Part::Scales => format.parameters[0].dtype.len_bytes(blocks),
        }
    }

    /// Bytes of what is made.
    pub(crate) fn len_bytes(&self) -> usize {
        self.whole.shape[0] * self.row_bytes()
    }

    /// Makes it. What fills the last block of a row is zero.
    ///
    /// # Errors
    /// [`CheckpointError::NotQuantized`].
    ///
    /// # Panics
    /// If `to` does not have [`Self::len_bytes`].
    pub(crate) fn write_to(&self, to: &mut [u8]) -> Result<(), CheckpointError> {
        assert_eq!(to.len(), self.len_bytes(), "it fills its place");
        let row_len = self.row_len();
        let begin = || (vec![0u8; self.whole.dtype.len_bytes(row_len)], vec![0f32; row_len.next_multiple_of(BLOCK)]);
        to.par_chunks_mut(self.row_bytes()).enumerate().try_for_each_init(begin, |(bytes, values), (row, to)| {
            self.read_row(row, bytes, values);
            let largest = if self.to == Quantization::Q8_0 { LARGEST } else { f32::MAX };
            if !values.iter().all(|value| value.abs() <= largest) {
                let (name, to) = (self.whole.name.clone(), self.to.dtype());
                return Err(CheckpointError::NotQuantized { name, row, to });
            }
            let blocks = values.as_chunks::<BLOCK>().0.iter();
            match (self.to, self.part) {
                (Quantization::Q8_0, Part::Codes) => {
                    for (block, to) in blocks.zip(to.as_chunks_mut::<BLOCK>().0) {
                        *to = codes(block);
                    }
                }
                (Quantization::Q8_0, Part::Scales) => {
                    for (block, to) in blocks.zip(to.as_chunks_mut::<2>().0) {
                        *to = f16::from_f32(scale(block)).to_le_bytes();
                    }
                }
                (Quantization::F8E4M3, Part::Codes) => {
                    let scale = row_scale(values);
                    let code = |value: &f32| if scale == 0.0 { 0 } else { f8::code(value / scale) };
                    to.fill(0);
                    to.iter_mut().zip(&values[..row_len]).for_each(|(to, value)| *to = code(value));
                }
                (Quantization::F8E4M3, Part::Scales) => {
                    let scale = row_scale(values).to_le_bytes();
                    to.as_chunks_mut::<4>().0.iter_mut().for_each(|to| *to = scale);
                }
            }
            Ok(())
        })
    }

    /// A row of the matrix as numbers.
    fn read_row(&self, row: usize, bytes: &mut [u8], values: &mut [f32]) {
        let row_bytes = bytes.len();
        match &self.whole.elements {
            Elements::Bytes(whole) => bytes.copy_from_slice(&whole[row * row_bytes..][..row_bytes]),
            Elements::Rearranged(rearranged) => rearranged.write_row(row, bytes),
            Elements::Random(numbers) => numbers.write(self.whole.dtype, row * self.row_len(), bytes),
            Elements::Slice(_) | Elements::Quantized(_) => unreachable!("no such matrix is quantised"),
        }
        match self.whole.dtype {
            Dtype::F32 => {
                let numbers = bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number));
                values.iter_mut().zip(numbers).for_each(|(value, number)| *value = number);
            }
            _ => {
                let numbers = bytes.as_chunks().0.iter().map(|&number| bf16::from_le_bytes(number).to_f32());
                values.iter_mut().zip(numbers).for_each(|(value, number)| *value = number);
            }
        }
    }
}

/// What the codes of a block are multiplied with, before it is rounded to f16.
fn scale(block: &[f32; BLOCK]) -> f32 {
    block.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 127.0
}

/// What the bytes of a row are multiplied with.
fn row_scale(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |largest, value| largest.max(value.abs())) / f8::LARGEST
}

fn codes(block: &[f32; BLOCK]) -> [u8; BLOCK] {
    let scale = scale(block);
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    block.map(|value| (value * inverse).round() as i8 as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn matrix(shape: [usize; 2], values: &[f32]) -> Tensor {
        Tensor {
            name: "a.weight".into(),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            elements: Elements::Bytes(Bytes::from_iter(values.iter().flat_map(|value| value.to_le_bytes()))),
            file_offset: None,
        }
    }

    fn made(tensor: &Tensor) -> Bytes {
        tensor.read().expect("memory").expect("bytes")
    }

    #[test]
    fn codes_are_rounded_away_from_zero_and_scales_to_f16() {
        let mut values = [0f32; 40];
        // The scale is 1: halves go away from zero. The next block's is 1 / 127, which is no f16.
        values[..6].copy_from_slice(&[127.0, 0.5, -0.5, 2.5, -126.5, 1.49]);
        (values[32], values[33]) = (-1.0, 0.25);
        let parts = matrix([1, 40], &values).quantized(Quantization::Q8_0);
        let names: Vec<(&str, Dtype, &[usize])> =
            parts.iter().map(|part| (part.name.as_str(), part.dtype, &part.shape[..])).collect();
        assert_eq!(names, [("a.weight", Dtype::Q8_0, &[1, 64][..]), ("a.scale", Dtype::F16, &[1, 2][..])]);
        let codes: Vec<i8> = made(&parts[0]).iter().map(|&code| code as i8).collect();
        assert_eq!(codes[..8], [127, 1, -1, 3, -127, 1, 0, 0]);
        assert_eq!(codes[32..36], [-127, 32, 0, 0]);
        assert!(codes[40..].iter().all(|&code| code == 0), "what fills the last block");
        // 1 and 1 / 127 = 2^-7 * 1.00787…: 2^-7 (1 + 8 / 1024) as f16.
        assert_eq!(made(&parts[1])[..], [0x00, 0x3c, 0x08, 0x20]);
    }

    #[test]
    fn bytes_of_e4m3_are_nearest_to_what_a_rows_largest_makes_448() {
        let mut values = [0f32; 2 * 130];
        // The first row's scale is 2. 17 is between 16 and 18, 19 between 18 and 20: of codes the even one.
        values[..8].copy_from_slice(&[896.0, 34.0, 38.0, -2.0, 2.0 / 512.0, 1.0 / 512.0, 3.0 / 512.0, -700.0]);
        values[129] = 4.0;
        values[130] = -0.1;
        let parts = matrix([2, 130], &values).quantized(Quantization::F8E4M3);
        let names: Vec<(&str, Dtype, &[usize])> =
            parts.iter().map(|part| (part.name.as_str(), part.dtype, &part.shape[..])).collect();
        assert_eq!(names, [("a.weight", Dtype::F8E4M3, &[2, 256][..]), ("a.scale", Dtype::F32, &[2, 2][..])]);
        let codes = made(&parts[0]);
        assert_eq!(codes[..8], [0x7e, 0x58, 0x5a, 0xb8, 0x01, 0x00, 0x02, 0xfb]);
        assert_eq!((codes[129], codes[256]), (0x40, 0xfe));
        assert!(codes[130..256].iter().chain(&codes[257..]).all(|&code| code == 0), "what fills the last block");
        let scales: Vec<f32> = made(&parts[1]).as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!(scales, [2.0, 2.0, 0.1 / 448.0, 0.1 / 448.0]);
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_no_number_is_told() {
        let parts = matrix([1, 32], &[0.0; 32]).quantized(Quantization::Q8_0);
        assert!(parts.iter().all(|part| made(part).iter().all(|&byte| byte == 0)));
        let mut values = [1f32; 64];
        values[45] = f32::NAN;
        let parts = matrix([2, 32], &values).quantized(Quantization::Q8_0);
        let error = parts[0].read().expect_err("a NaN").to_string();
        assert_eq!(error, "could not quantise `a.weight`: row 1 has a number that q8_0 cannot hold");
    }

    #[test]
    fn vectors_and_whole_numbers_are_left_alone() {
        let vector = Tensor { shape: vec![64], ..matrix([1, 64], &[1.0; 64]) };
        assert_eq!(vector.quantized(Quantization::Q8_0)[0].shape, [64]);
        let codes = Tensor { dtype: Dtype::U8, ..matrix([2, 32], &[1.0; 64]) };
        assert_eq!(codes.quantized(Quantization::Q8_0).len(), 1);
    }

    #[test]
    fn the_gain_is_what_the_matrices_of_attention_and_the_vocabulary_lose() {
        let config = crate::config::NamedShape::gpt_oss_20b().config(None);
        let checkpoint = |to| Checkpoint::random(config.clone(), to, 1).expect("a model");
        let model = checkpoint(crate::checkpoint::encoding::Encoding::Mxfp4);
        let gain = model.gain().expect("bf16 is larger");
        // 17/32 of the bytes of 2,880 x 201,088 twice, and of 24 layers' 2,880 x (5,120 + 4,096); a token reads one of
        // the two.
        let saved = |elements: f64| 2.0 * elements * 15.0 / 32.0;
        let (vocabulary, attention) = (2880.0 * 201_088.0, 24.0 * 2880.0 * 9216.0);
        let close = |bytes: [u64; 2], expected: f64| ((bytes[0] - bytes[1]) as f64 / expected - 1.0).abs() < 1e-3;
        assert!(close(gain.tensor_bytes, saved(2.0 * vocabulary + attention)), "{gain:?}");
        assert!(close(gain.bytes_per_token, saved(vocabulary + attention)), "{gain:?}");
        assert!(gain.to_string().contains("--quantize q8_0"), "{gain}");
        assert!(model.quantized(Quantization::Q8_0).gain().is_none());
    }

    #[test]
    fn half_the_bytes_are_twice_as_fast_at_most() {
        let gain = Gain { tensor_bytes: [900, 800], bytes_per_token: [300, 120], to: Quantization::Q8_0 };
        assert_eq!(gain.times(), 2.5);
        assert!(gain.to_string().ends_with("at most 2.50 times as fast"), "{gain}");
    }
}
