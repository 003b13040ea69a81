//! Compares outputs with the reference.

use std::collections::BTreeMap;
use std::fmt;

use super::Wrong;
use format::Dtype;
use kernel::template::contract::{Access, Tolerance};
use kernel::template::launch::ArgSpec;
use kernel::template::render::Rendered;
use reference::{Output, Outputs, Tensor, Tensors};

/// The element of an output that is furthest from the reference, measured by its tolerance.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Difference {
    pub(crate) argument: String,
    /// Where in it, outermost axis first.
    pub(crate) index: Vec<u64>,
    /// What the kernel gives.
    pub(crate) got: f64,
    /// What the reference gives.
    pub(crate) want: f64,
    /// How far apart they may be; 0 for whole numbers.
    pub(crate) tolerance: f64,
    /// How far apart they are, as a fraction of that; infinite where nothing is allowed, or one is no number.
    pub(crate) fraction: f64,
    pub(crate) clue: Clue,
    /// Elements that are too far from the reference.
    pub(crate) n_wrong: usize,
    pub(crate) n_elements: usize,
}

/// What an element tells of how it came to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clue {
    Number,
    /// A NaN of arithmetic.
    Computed,
    /// All bits are set, as in unwritten memory.
    Poison,
    /// What was there before the launch.
    AsBefore,
    /// Of a local variable that nothing was written to.
    Local,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.index.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let Self { argument, got, want, tolerance, clue, n_wrong, n_elements, .. } = self;
        write!(f, "`{argument}`[{index}]: got {got}, want {want}, tolerance {tolerance:.3e}")?;
        f.write_str(match clue {
            Clue::Number => "",
            Clue::Computed => " (computed, as from 0 / 0, infinities, or the root of a negative number)",
            Clue::Poison => {
                " (never written, or computed from memory that was never written or is outside of an argument)"
            }
            Clue::AsBefore => " (never written: the value from before the launch)",
            Clue::Local => {
                " (computed from a local variable that nothing was written to: with 0 there, the result is another one)"
            }
        })?;
        write!(f, "; {n_wrong} of {n_elements} elements are wrong")
    }
}

impl Clue {
    fn of(got: f64, dtype: Dtype) -> Self {
        let unwritten = match dtype {
            Dtype::U32 => Some(u32::MAX.into()),
            Dtype::I32 => Some(-1.0),
            _ => None,
        };
        match got.is_nan() {
            true if is_poison(got) => Self::Poison,
            true => Self::Computed,
            false if unwritten == Some(got) => Self::Poison,
            false => Self::Number,
        }
    }
}

impl Difference {
    /// Whether it is what a local variable gives that nothing was written to: no number, or one far from all others.
    pub(crate) fn is_far(&self) -> bool {
        const FAR: f64 = 1e30;
        self.clue != Clue::AsBefore && (self.got.is_nan() || self.got.abs() > FAR)
    }

    /// The same of an argument that held this before the launch.
    pub(crate) fn beside(mut self, before: &Tensor, shape: &[u64]) -> Self {
        let at = self.index.iter().zip(shape).fold(0, |at, (i, axis)| at * axis + i);
        let before = before.values().get(at as usize);
        if before.is_some_and(|before| *before == self.got || before.is_nan() && self.got.is_nan()) {
            self.clue = Clue::AsBefore;
        }
        self
    }
}

/// Whether all bits of a NaN are set, as of those that memory holds before anything is written there; what is computed
/// from one stays so.
fn is_poison(nan: f64) -> bool {
    // Of bf16 and f16 the last bits of a mantissa are not there.
    const FEWEST_BITS: u32 = 7;
    let mantissa = nan.to_bits() << 12;
    mantissa.leading_ones() >= FEWEST_BITS
}

/// Compares all that a kernel writes; gives the largest error as a fraction of the tolerance.
pub(super) fn outputs(
    kernel: &Rendered,
    scalars: &BTreeMap<String, u64>,
    got: &Tensors,
    (inputs, want): (&Tensors, &Outputs),
) -> Result<f64, Wrong> {
    let mut worst: f64 = 0.0;
    for arg in kernel.args.iter().filter(|arg| arg.access != Access::Read) {
        let got = got.get(&arg.name).map_or(&[][..], Tensor::values);
        let want = want.get(&arg.name);
        let reference = want.map_or(0, |want| want.values.len());
        let Some(want) = want.filter(|_| reference == got.len()) else {
            return Err(Wrong::Length { argument: arg.name.clone(), contract: got.len(), reference });
        };
        let shape = arg.shape(scalars)?;
        let before = inputs.get(&arg.name).filter(|_| arg.access == Access::ReadWrite);
        let compared = output(arg, &shape, got, want, kernel.tolerance);
        worst = worst.max(compared.map_err(|found| match before {
            Some(before) => found.beside(before, &shape),
            None => found,
        })?);
    }
    Ok(worst)
}

/// Compares one tensor of this shape.
pub(crate) fn output(
    arg: &ArgSpec,
    shape: &[u64],
    got: &[f64],
    want: &Output,
    tolerance: Tolerance,
) -> Result<f64, Difference> {
    let (mut worst, mut at, mut n_wrong) = (0.0, 0, 0);
    for (i, got) in got.iter().enumerate() {
        let fraction = fraction(*got, want.values[i], allowed(arg.dtype, want, i, tolerance));
        n_wrong += usize::from(fraction > 1.0);
        if fraction > worst {
            (worst, at) = (fraction, i);
        }
    }
    if n_wrong == 0 {
        return Ok(worst);
    }
    Err(Difference {
        argument: arg.name.clone(),
        index: index(at as u64, shape),
        got: got[at],
        want: want.values[at],
        tolerance: allowed(arg.dtype, want, at, tolerance),
        clue: Clue::of(got[at], arg.dtype),
        fraction: worst,
        n_wrong,
        n_elements: got.len(),
    })
}

/// How far an element may be from the reference: anywhere where its scale is infinite; nowhere for whole numbers; what
/// a kernel stores narrower than f32 may be rounded on top of the contract's tolerance.
fn allowed(dtype: Dtype, want: &Output, i: usize, tolerance: Tolerance) -> f64 {
    match dtype {
        _ if want.scale[i] == f64::INFINITY => f64::INFINITY,
        _ if dtype.is_whole() => 0.0,
        _ => tolerance.atol + tolerance.rtol * want.scale[i] + Tensor::rounding(dtype, want.values[i]),
    }
}

/// The error as a fraction of what is allowed; infinite for a NaN that nothing allows, and where one is infinite alone.
fn fraction(got: f64, want: f64, allowed: f64) -> f64 {
    let error = (got - want).abs();
    if allowed == f64::INFINITY || got == want {
        0.0
    } else if !error.is_finite() || allowed == 0.0 {
        f64::INFINITY
    } else {
        error / allowed
    }
}

/// The place of an element along each axis.
fn index(mut at: u64, shape: &[u64]) -> Vec<u64> {
    let mut index: Vec<u64> = Vec::new();
    for axis in shape.iter().rev() {
        index.push(at % axis);
        at /= axis;
    }
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_told_by_axis() {
        assert_eq!(index(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(index(0, &[1]), [0]);
    }

    #[test]
    fn a_nan_is_wrong_and_an_open_element_is_not() {
        assert_eq!(fraction(f64::NAN, 1.0, 0.5), f64::INFINITY);
        assert_eq!(fraction(1.0, f64::NAN, 0.5), f64::INFINITY);
        assert_eq!(fraction(f64::NAN, 1.0, f64::INFINITY), 0.0);
        assert_eq!(fraction(1.25, 1.0, 0.5), 0.5);
        assert_eq!(fraction(2.0, 1.0, 0.0), f64::INFINITY);
        assert_eq!(fraction(1.0, 1.0, 0.0), 0.0);
    }

    #[test]
    fn nan_of_arithmetic_is_told_from_what_nobody_wrote() {
        for bits in [0xffff_ffffu32, 0xffff_0000] {
            assert!(is_poison(f64::from(f32::from_bits(bits))), "{bits:x}");
        }
        let zero = std::hint::black_box(0.0f32);
        assert!(!is_poison(f64::from(zero / zero)) && !is_poison(f64::from((-1.0f32 - zero).sqrt())));
    }

    #[test]
    fn what_a_kernel_never_wrote_is_told_as_that() {
        assert_eq!(Clue::of(f64::from(u32::MAX), Dtype::U32), Clue::Poison);
        assert_eq!([Clue::of(-1.0, Dtype::I32), Clue::of(-1.0, Dtype::F32)], [Clue::Poison, Clue::Number]);
        // A cache: one place keeps the NaN of before, another a number, and the third one was computed.
        let before = Tensor::rounded(Dtype::F32, vec![1.0, f64::NAN, 2.0, 3.0, 4.0, 5.0]);
        let told = |index: [u64; 2], got: f64| {
            let difference = Difference {
                argument: "k".into(),
                index: index.into(),
                got,
                want: 9.0,
                tolerance: 1e-3,
                fraction: f64::INFINITY,
                clue: Clue::of(got, Dtype::F32),
                n_wrong: 1,
                n_elements: 6,
            };
            difference.beside(&before, &[2, 3]).to_string()
        };
        for (index, got) in [([0, 1], f64::NAN), ([1, 2], 5.0)] {
            let said = told(index, got);
            assert!(said.contains("(never written: the value from before the launch)"), "{said}");
        }
        assert!(told([1, 1], f64::NAN).contains("(computed, as from"));
        assert!(!told([1, 1], 5.0).contains('('));
    }

    #[test]
    fn bf16_outputs_may_be_rounded_and_whole_numbers_may_not() {
        let want = Output { values: vec![256.0], scale: vec![256.0] };
        let tolerance = Tolerance { rtol: 0.0, atol: 0.5 };
        assert_eq!(allowed(Dtype::Bf16, &want, 0, tolerance), 1.5);
        assert_eq!(allowed(Dtype::F32, &want, 0, tolerance), 0.5);
        assert_eq!(allowed(Dtype::U32, &want, 0, tolerance), 0.0);
    }
}
