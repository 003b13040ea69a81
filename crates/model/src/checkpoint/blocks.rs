//! Blocks of numbers in GGUF files (ggml's `block_q4_0`, …): where a block has its codes and parameters, how they are
//! separated into arrays, and which numbers they mean.

use half::f16;
use rayon::prelude::*;

use format::{BlockFormat, Dtype};

/// Most numbers of a block.
const MAX_LEN: usize = 256;

/// A block of a file. Offsets count its bytes.
struct Layout {
    dtype: Dtype,
    len_bytes: usize,
    codes: Fields,
    /// Of the parameters of the format, in their order.
    parameters: &'static [Source],
}

/// Codes of a few bits, or further bits of codes: the lowest bits of `run` bytes are those of as many codes, the bits
/// above these those of the codes after, and so on; then the next `run` bytes.
#[derive(Clone, Copy)]
struct Fields {
    at: usize,
    bits: usize,
    run: usize,
}

/// Where a parameter is.
enum Source {
    /// Its values, as they are wanted.
    At(usize),
    /// The upper bits of codes whose lower bits are [`Layout::codes`].
    High(Fields),
    /// Factors, packed, which the function writes a byte each.
    Factors(fn(&[u8], &mut [u8])),
}

use Source::{At, Factors, High};

const fn fields(at: usize, bits: usize, run: usize) -> Fields {
    Fields { at, bits, run }
}

const fn layout(dtype: Dtype, len_bytes: usize, codes: Fields, parameters: &'static [Source]) -> Layout {
    Layout { dtype, len_bytes, codes, parameters }
}

/// Of every format but that of bytes whose scales lie elsewhere, in files as in memory.
static LAYOUTS: [Layout; 13] = [
    layout(Dtype::Mxfp4, 17, fields(1, 4, 16), &[At(0)]),
    layout(Dtype::Q8_0, 34, fields(2, 8, 32), &[At(0)]),
    layout(Dtype::Q4_1, 20, fields(4, 4, 16), &[At(0), At(2)]),
    layout(Dtype::Q4_0, 18, fields(2, 4, 16), &[At(0)]),
    layout(Dtype::Q5_0, 22, fields(6, 4, 16), &[At(0), At(2)]),
    layout(Dtype::Q5_1, 24, fields(8, 4, 16), &[At(0), At(2), At(4)]),
    layout(Dtype::Iq4Nl, 18, fields(2, 4, 16), &[At(0)]),
    layout(Dtype::Q4K, 144, fields(16, 4, 32), &[At(0), At(2), Factors(scales_of_32), Factors(offsets_of_32)]),
    layout(
        Dtype::Q5K,
        176,
        fields(48, 4, 32),
        &[At(0), At(2), High(fields(16, 1, 32)), Factors(scales_of_32), Factors(offsets_of_32)],
    ),
    layout(Dtype::Q6K, 210, fields(0, 4, 64), &[At(208), High(fields(128, 2, 32)), At(192)]),
    layout(Dtype::Q2K, 84, fields(16, 2, 32), &[At(80), At(82), At(0)]),
    layout(Dtype::Q3K, 110, fields(32, 2, 32), &[At(108), High(fields(0, 1, 32)), Factors(q3_k_scales)]),
    layout(Dtype::Iq4Xs, 136, fields(8, 4, 16), &[At(0), Factors(iq4_xs_scales)]),
];

/// The factors of the scale of Q4_K and Q5_K: 6 bits each, of the last four the upper two bits apart.
fn scales_of_32(block: &[u8], to: &mut [u8]) {
    let packed = &block[4..16];
    for i in 0..4 {
        to[i] = packed[i] & 63;
        to[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
    }
}

/// Those of the offset.
fn offsets_of_32(block: &[u8], to: &mut [u8]) {
    let packed = &block[4..16];
    for i in 0..4 {
        to[i] = packed[i + 4] & 63;
        to[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
}

/// 16 factors of 6 bits: the lower four bits of all, then the upper two.
fn q3_k_scales(block: &[u8], to: &mut [u8]) {
    let packed = &block[96..108];
    for (i, to) in to.iter_mut().enumerate() {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        *to = low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
    }
}

/// 8 factors of 6 bits: the upper two bits of all, then the lower four.
fn iq4_xs_scales(block: &[u8], to: &mut [u8]) {
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (i, to) in to.iter_mut().enumerate() {
        *to = block[4 + i / 2] >> (4 * (i % 2)) & 15 | ((high >> (2 * i) & 3) as u8) << 4;
    }
}

/// What the codes of IQ4_NL and IQ4_XS stand for (ggml's `kvalues_iq4nl`).
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Layout {
    fn of(dtype: Dtype) -> &'static Self {
        LAYOUTS.iter().find(|layout| layout.dtype == dtype).expect("a format of GGUF's")
    }
}

impl Fields {
    /// Each of them, in the order of the numbers.
    fn unpack(self, block: &[u8], to: &mut [u8]) {
        let Self { at, bits, run } = self;
        let mask = 0xff_u8 >> (8 - bits);
        let runs = block[at..].chunks_exact(run);
        for (bytes, to) in runs.zip(to.chunks_exact_mut(run * (8 / bits))) {
            for (i, to) in to.chunks_exact_mut(run).enumerate() {
                bytes.iter().zip(to).for_each(|(byte, to)| *to = byte >> (bits * i) & mask);
            }
        }
    }

    /// Each of them, in the order of the numbers: neighbours share a byte, the first in its lowest bits.
    fn repack(self, block: &[u8], to: &mut [u8]) {
        let n = 8 / self.bits;
        if n == 1 {
            return to.copy_from_slice(&block[self.at..][..to.len()]);
        }
        let mut each = [0; MAX_LEN];
        let each = &mut each[..n * to.len()];
        self.unpack(block, each);
        for (to, each) in to.iter_mut().zip(each.chunks_exact(n)) {
            *to = each.iter().rev().fold(0, |byte, one| byte << self.bits | one);
        }
    }
}

/// Bytes of a block in a file.
pub(super) fn stored_bytes(dtype: Dtype) -> usize {
    Layout::of(dtype).len_bytes
}

/// Whether scales and offsets of all of a file's blocks are numbers.
pub(super) fn are_finite(format: &BlockFormat, blocks: &[u8]) -> bool {
    let layout = Layout::of(format.dtype);
    let halves = format.parameters.iter().zip(layout.parameters).filter_map(|(parameter, source)| match source {
        At(at) if parameter.dtype == Dtype::F16 => Some(*at),
        _ => None,
    });
    let halves: Vec<usize> = halves.collect();
    // All bits of the exponent are set: the upper five after the sign.
    let has_numbers = |block: &[u8]| halves.iter().all(|at| block[at + 1] & 0x7c != 0x7c);
    let is_finite = |block: &[u8]| has_numbers(block) && (format.dtype != Dtype::Mxfp4 || block[0] != 255);
    blocks.par_chunks(layout.len_bytes * 4096).all(|blocks| blocks.chunks_exact(layout.len_bytes).all(is_finite))
}

/// The codes of a file's blocks as they are in memory.
pub(super) fn codes_of(format: &BlockFormat, blocks: &[u8], to: &mut [u8]) {
    let layout = Layout::of(format.dtype);
    let blocks = blocks.chunks_exact(layout.len_bytes);
    for (block, to) in blocks.zip(to.chunks_exact_mut(format.dtype.len_bytes(format.block_len()))) {
        layout.codes.repack(block, to);
    }
}

/// A parameter of a file's blocks, by its number.
pub(super) fn parameters_of(format: &BlockFormat, parameter: usize, blocks: &[u8], to: &mut [u8]) {
    let (layout, wanted) = (Layout::of(format.dtype), &format.parameters[parameter]);
    let of_block = wanted.dtype.len_bytes(format.block_len() / wanted.every);
    for (block, to) in blocks.chunks_exact(layout.len_bytes).zip(to.chunks_exact_mut(of_block)) {
        layout.parameters[parameter].write(block, to);
    }
}

impl Source {
    fn write(&self, block: &[u8], to: &mut [u8]) {
        match self {
            Self::At(at) => to.copy_from_slice(&block[*at..][..to.len()]),
            Self::High(fields) => fields.repack(block, to),
            Self::Factors(write) => write(block, to),
        }
    }
}

/// Gives every number of a file's blocks in order. Products are exact in f32; sums with an offset are rounded.
pub(super) fn each(dtype: Dtype, blocks: &[u8], mut give: impl FnMut(f32)) {
    let format = dtype.format().expect("in blocks");
    let layout = Layout::of(dtype);
    let len = format.block_len();
    let mut codes = [0_u8; MAX_LEN];
    let codes = &mut codes[..len];
    for block in blocks.chunks_exact(layout.len_bytes) {
        layout.codes.unpack(block, codes);
        let mut taken = Taken { block, format, layout };
        taken.add_high(codes);
        let (scale, offset) = (taken.half("scale"), taken.half("offset"));
        match dtype {
            Dtype::Q8_0 => codes.iter().for_each(|&code| give(scale * f32::from(code as i8))),
            Dtype::Q4_0 => codes.iter().for_each(|&code| give(scale * (f32::from(code) - 8.0))),
            Dtype::Q5_0 => codes.iter().for_each(|&code| give(scale * (f32::from(code) - 16.0))),
            Dtype::Q4_1 | Dtype::Q5_1 => codes.iter().for_each(|&code| give(scale * f32::from(code) + offset)),
            Dtype::Iq4Nl => codes.iter().for_each(|&code| give(scale * level(code))),
            _ => {
                let (mut by, mut times) = ([0; MAX_LEN / 16], [0; MAX_LEN / 16]);
                let every = taken.factors("group_scale", &mut by).expect("blocks of 256 have them");
                taken.factors("group_offset", &mut times);
                for (g, codes) in codes.chunks_exact(every).enumerate() {
                    let (by, times) = (by[g], times[g]);
                    match dtype {
                        Dtype::Q2K => {
                            let (scale, offset) = (scale * f32::from(by & 15), offset * f32::from(by >> 4));
                            codes.iter().for_each(|&code| give(scale * f32::from(code) - offset));
                        }
                        Dtype::Q4K | Dtype::Q5K => {
                            let (scale, offset) = (scale * f32::from(by), offset * f32::from(times));
                            codes.iter().for_each(|&code| give(scale * f32::from(code) - offset));
                        }
                        Dtype::Q3K => {
                            let scale = scale * (f32::from(by) - 32.0);
                            codes.iter().for_each(|&code| give(scale * (f32::from(code) - 4.0)));
                        }
                        Dtype::Q6K => {
                            let scale = scale * f32::from(by as i8);
                            codes.iter().for_each(|&code| give(scale * (f32::from(code) - 32.0)));
                        }
                        Dtype::Iq4Xs => {
                            let scale = scale * (f32::from(by) - 32.0);
                            codes.iter().for_each(|&code| give(scale * level(code)));
                        }
                        _ => panic!("{dtype} stays in its blocks"),
                    }
                }
            }
        }
    }
}

fn level(code: u8) -> f32 {
    f32::from(LEVELS[usize::from(code)])
}

/// A block whose parameters are taken by their names.
struct Taken<'a> {
    block: &'a [u8],
    format: &'static BlockFormat,
    layout: &'static Layout,
}

impl Taken<'_> {
    fn source(&self, name: &str) -> Option<(&'static Source, usize)> {
        let i = self.format.parameters.iter().position(|parameter| parameter.name == name)?;
        Some((&self.layout.parameters[i], self.format.parameters[i].every))
    }

    /// A number in f16 that the whole block has; 0 where it has none.
    fn half(&self, name: &str) -> f32 {
        let mut half = [0; 2];
        if let Some((source, _)) = self.source(name) {
            source.write(self.block, &mut half);
        }
        f16::from_le_bytes(half).to_f32()
    }

    /// Factors of parts of the block, and how long such a part is.
    fn factors(&self, name: &str, to: &mut [u8]) -> Option<usize> {
        let (source, every) = self.source(name)?;
        source.write(self.block, &mut to[..self.format.block_len() / every]);
        Some(every)
    }

    /// Puts their further bits above codes.
    fn add_high(&mut self, codes: &mut [u8]) {
        let Some((source, _)) = self.source("high") else { return };
        let fields = match *source {
            Source::High(fields) => fields,
            Source::At(at) => fields(at, 1, 1), // in the order of the numbers
            Source::Factors(_) => unreachable!("bits are no factors"),
        };
        let mut high = [0; MAX_LEN];
        let high = &mut high[..codes.len()];
        fields.unpack(self.block, high);
        codes.iter_mut().zip(high).for_each(|(code, high)| *code |= *high << self.layout.codes.bits);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::gguf::Gguf;
    use super::super::stored::Number;
    use super::*;

    /// Random bytes as blocks of every type, and the numbers that another implementation makes of them.
    const BLOCKS: &[u8] = include_bytes!("../../../../tests/fixtures/quantised/blocks.gguf");

    #[test]
    fn random_blocks_are_the_numbers_that_another_implementation_makes_of_them() {
        let file = Gguf::read(&Bytes::from_static(BLOCKS)).expect("a file");
        let mut n_numbers = 0;
        let alone = [(Number::F16, "f16"), (Number::Bf16, "bf16")];
        let others = [Dtype::Mxfp4, Dtype::F8E4M3];
        let in_blocks = BlockFormat::all().iter().filter(|format| !others.contains(&format.dtype));
        let in_blocks = in_blocks.map(|format| (Number::Blocks(format.dtype), format.dtype.name()));
        for (number, name) in alone.into_iter().chain(in_blocks) {
            let stored = file.tensors.get(name).expect(name);
            let want = &file.tensors.get(&format!("{name}.numbers")).expect(name).bytes;
            assert_eq!(stored.number(), Some(number), "{name}");
            let mut got = vec![0; want.len()];
            number.convert(&stored.bytes, Dtype::F32, &mut got);
            let numbers = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
            };
            assert_eq!(numbers(&got), numbers(want), "{name}");
            n_numbers += want.len() / 4;
        }
        assert_eq!(n_numbers, 2 * 128 + 6 * 4 * 32 + 6 * 4 * 256);
    }

    #[test]
    fn a_scale_or_an_offset_that_is_no_number_is_seen_in_every_type() {
        let mxfp4 = Dtype::Mxfp4.format().expect("in blocks");
        assert!(are_finite(mxfp4, &[254; 2 * 17]) && !are_finite(mxfp4, &[[254; 17], [255; 17]].concat()));
        for format in BlockFormat::all().iter().filter(|format| ![Dtype::Mxfp4, Dtype::F8E4M3].contains(&format.dtype))
        {
            let layout = Layout::of(format.dtype);
            let mut blocks = vec![0xfb; 3 * layout.len_bytes]; // as a half -65376
            assert!(are_finite(format, &blocks), "{}", format.dtype);
            let n_halves = format.parameters.iter().filter(|one| one.dtype == Dtype::F16).count();
            for source in &layout.parameters[..n_halves] {
                let At(at) = source else { panic!("halves are stored as they are") };
                let at = 2 * layout.len_bytes + at + 1;
                for wrong in [0x7c, 0xfc, 0x7f] {
                    blocks[at] = wrong;
                    assert!(!are_finite(format, &blocks), "{}", format.dtype);
                }
                blocks[at] = 0x7b;
                assert!(are_finite(format, &blocks), "{}", format.dtype);
            }
        }
    }

    #[test]
    fn blocks_of_4_bits_are_taken_apart() {
        // Code i differs from its neighbours whichever way they are paired.
        let code = |i: usize| ((i * 7 + i / 16) % 16) as u8;
        let stored = (0..16).map(|i| code(i) | code(i + 16) << 4);
        let want: Vec<u8> = (0..64).step_by(2).map(|i| code(i % 32) | code(i % 32 + 1) << 4).collect();
        for (dtype, parameters) in [(Dtype::Mxfp4, &[131][..]), (Dtype::Q4_1, &[0x66, 0x2e, 0xae, 0xab])] {
            let format = dtype.format().expect("in blocks");
            let block: Vec<u8> = parameters.iter().copied().chain(stored.clone()).collect();
            let blocks = [&block[..], &block[..]].concat();
            let mut codes = [0; 32];
            codes_of(format, &blocks, &mut codes);
            assert_eq!(codes[..], want, "{dtype}");
            let mut first = vec![0; parameters.len() / format.parameters.len() * 2];
            parameters_of(format, 0, &blocks, &mut first);
            assert_eq!(first, parameters[..first.len() / 2].repeat(2), "{dtype}");
        }
        let block: Vec<u8> = [0x66, 0x2e, 0xae, 0xab].into_iter().chain(stored).collect();
        let mut offset = [0; 2];
        parameters_of(Dtype::Q4_1.format().expect("in blocks"), 1, &block, &mut offset);
        assert_eq!(offset, [0xae, 0xab]);
    }

    #[test]
    fn blocks_of_bytes_are_taken_apart() {
        let format = Dtype::Q8_0.format().expect("in blocks");
        let blocks: Vec<u8> = (0..68).collect();
        let (mut codes, mut scales) = ([0; 64], [0; 4]);
        codes_of(format, &blocks, &mut codes);
        parameters_of(format, 0, &blocks, &mut scales);
        assert!(codes.iter().copied().eq((2..34).chain(36..68)));
        assert_eq!(scales, [0, 1, 34, 35]);
    }
}
