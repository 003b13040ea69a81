//! Random elements generated on demand: weights as large as a real model's, of which the reference reads a few and a
//! device gets all bytes.

use std::sync::OnceLock;
use std::thread;

use rayon::prelude::*;

use super::random::{Random, word};
use super::tensor::Tensor;
use format::Dtype;

/// Random bits that choose a normal number among as many as they can tell apart.
const NORMAL_BITS: usize = 16;

/// Elements that one thread makes at a time; a multiple of those that a word gives.
const CHUNK: usize = 1 << 16;

/// Random elements of one type.
#[derive(Debug)]
pub(super) struct Drawn {
    dtype: Dtype,
    seed: u64,
    len: usize,
    /// What the bits of an element stand for, for each of their values.
    table: Vec<f64>,
    /// Whether those bits are the element, as it lies in memory.
    is_code: bool,
    values: OnceLock<Vec<f64>>,
}

impl Drawn {
    /// Numbers of a table of normal ones, of this deviation, rounded to the type.
    pub(crate) fn normals(dtype: Dtype, len: usize, scale: f64, random: &mut Random) -> Self {
        let table = (0..1 << NORMAL_BITS).map(|_| scale * random.normal()).collect();
        let table = Tensor::rounded(dtype, table).values().to_vec();
        Self { dtype, seed: random.bits(), len, table, is_code: false, values: OnceLock::new() }
    }

    /// All codes alike of a type of at most a byte.
    pub(crate) fn codes(dtype: Dtype, len: usize, random: &mut Random) -> Self {
        let of_code = |code: u8| Tensor::from_bytes(dtype, &[a_number(dtype, code)]).values()[0]; // the first of a byte
        let table = (0..1_u16 << dtype.size_bits()).map(|code| of_code(code as u8)).collect();
        Self { dtype, seed: random.bits(), len, table, is_code: true, values: OnceLock::new() }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn value(&self, i: usize) -> f64 {
        let bits = if self.is_code { self.dtype.size_bits() } else { NORMAL_BITS };
        let per_word = 64 / bits;
        self.table[(word(self.seed, i / per_word) >> (bits * (i % per_word))) as usize & ((1 << bits) - 1)]
    }

    /// All elements; made once, by threads of their own: one of a pool would do other work of the pool while it waits
    /// for its helpers, and that work may be to ask for these values.
    pub(crate) fn values(&self) -> &[f64] {
        self.values.get_or_init(|| {
            let mut values = vec![0.0; self.len];
            let share = self.len.div_ceil(rayon::current_num_threads()).max(CHUNK);
            let make = |(nth, part): (usize, &mut [f64])| {
                part.iter_mut().enumerate().for_each(|(i, value)| *value = self.value(nth * share + i));
            };
            thread::scope(|scope| {
                let mut parts = values.chunks_mut(share).enumerate();
                let own = parts.next();
                parts.for_each(|part| drop(scope.spawn(move || make(part))));
                own.map(make);
            });
            values
        })
    }

    /// All elements as they lie in memory.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.dtype.len_bytes(self.len)];
        if self.is_code {
            bytes.par_chunks_mut(8).enumerate().for_each(|(i, bytes)| {
                let codes = word(self.seed, i).to_le_bytes();
                bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte = a_number(self.dtype, code));
            });
            return bytes;
        }
        let size = self.dtype.len_bytes(1);
        let table = Tensor::rounded(self.dtype, self.table.clone()).to_bytes();
        bytes.par_chunks_mut(CHUNK * size).enumerate().for_each(|(chunk, bytes)| {
            for (i, elements) in bytes.chunks_mut(4 * size).enumerate() {
                let word = word(self.seed, chunk * CHUNK / 4 + i);
                for (j, element) in elements.chunks_exact_mut(size).enumerate() {
                    let at = usize::from((word >> (16 * j)) as u16);
                    element.copy_from_slice(&table[at * size..][..size]);
                }
            }
        });
        bytes
    }
}

/// The code, or the largest number's where it stands for none.
pub(super) fn a_number(dtype: Dtype, code: u8) -> u8 {
    if dtype == Dtype::F8E4M3 && code & 0x7f == 0x7f { code - 1 } else { code }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn bytes_values_and_single_elements_are_the_same() {
        let mut random = Random::new(7);
        let len = CHUNK + 21;
        for drawn in [
            Drawn::normals(Dtype::Bf16, len, 0.5, &mut random),
            Drawn::normals(Dtype::F32, len, 2.0, &mut random),
            Drawn::codes(Dtype::Mxfp4, len + 11, &mut random),
            Drawn::codes(Dtype::U8, len, &mut random),
            Drawn::codes(Dtype::F8E4M3, len, &mut random),
        ] {
            let read = Tensor::from_bytes(drawn.dtype(), &drawn.to_bytes());
            assert_eq!(read.values(), drawn.values());
            assert_eq!(drawn.value(CHUNK + 7), drawn.values()[CHUNK + 7]);
            let n_same = drawn.values().windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!(n_same < len / 8, "neighbours are drawn apart");
        }
    }

    #[test]
    fn all_threads_of_a_pool_may_ask_for_the_values_at_once() {
        // One that waits for its helpers does other work of the pool meanwhile, and must not meet its own lock there.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("a pool");
        let drawn = Drawn::normals(Dtype::Bf16, 1 << 20, 0.5, &mut Random::new(9));
        let n_right = AtomicUsize::new(0);
        pool.in_place_scope(|scope| {
            for _ in 0..200 {
                scope.spawn(|_| {
                    let is_right = drawn.values()[7] == drawn.value(7);
                    n_right.fetch_add(usize::from(is_right), Ordering::Relaxed);
                });
                thread::sleep(Duration::from_micros(200));
            }
        });
        assert_eq!(n_right.into_inner(), 200);
    }

    #[test]
    fn drawn_normals_have_their_deviation() {
        let drawn = Drawn::normals(Dtype::F32, 1 << 20, 3.0, &mut Random::new(1));
        let square = drawn.values().iter().map(|value| value * value).sum::<f64>() / drawn.len() as f64;
        assert!((square.sqrt() - 3.0).abs() < 0.05, "{square}");
    }
}
