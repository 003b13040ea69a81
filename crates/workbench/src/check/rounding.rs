//! The allowed error of bf16 precision: an output's error norm, relative to the error of rounding only the
//! activations.

use super::Wrong;
use format::Dtype;
use reference::{Output, Outputs, Tensor, Tensors};

/// Largest error of an output in bf16 precision, relative to its norm: half a unit in the last of bf16's 8 bits,
/// doubled.
const MOST: f64 = 1.0 / 128.0;

/// How much worse than rounding the activations to bf16 a kernel may be: it rounds them where they are not bf16 as they
/// come, and what it computes on the way.
const MOST_TIMES: f64 = 3.0;

/// Outputs of fewer elements have no norm to speak of: one rounding decides it.
const FEWEST_ELEMENTS: usize = 64;

/// Errors below this are those of f32 sums, whatever the activations are.
const F32_SUMS: f64 = 1e-6;

/// An output's error in bf16 precision, and the error that it is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounding {
    /// |got - want| / |want|, in the Euclidean norm.
    pub(crate) relative: f64,
    /// The same for what the op gives, exactly, when its first f32 tensor is rounded to bf16; of activations that are
    /// bf16 as they come, when they are not rounded.
    pub(crate) of_activations: f64,
}

impl Rounding {
    /// How many times the error of rounding the activations it is.
    pub fn times(&self) -> f64 {
        if self.relative <= F32_SUMS { 0.0 } else { self.relative / self.of_activations.max(F32_SUMS) }
    }
}

/// Of two the worse one, where they are.
pub(crate) fn worse(one: Option<Rounding>, other: Option<Rounding>) -> Option<Rounding> {
    let both = one.into_iter().chain(other);
    both.reduce(|one, other| if other.times() > one.times() { other } else { one })
}

/// The inputs with the activations, the first tensor of f32 among `names`, rounded to bf16; `None` if there is none.
pub(crate) fn rounded<'a>(inputs: &Tensors, mut names: impl Iterator<Item = &'a str>) -> Option<Tensors> {
    let name = names.find(|name| inputs.get(*name).is_some_and(|tensor| tensor.dtype() == Dtype::F32))?;
    let values = Tensor::rounded(Dtype::Bf16, inputs[name].values().to_vec()).values().to_vec();
    let mut inputs = inputs.clone();
    inputs.insert(name.to_owned(), Tensor::rounded(Dtype::F32, values));
    Some(inputs)
}

/// Compares a kernel's outputs with the expected ones, and with those for rounded activations. Outputs that are stored
/// in a type narrower than f32 are judged by the tolerance alone and not reported here.
pub(crate) fn examine(got: &Tensors, want: &Outputs, of_rounded: &Outputs) -> Result<Option<Rounding>, Wrong> {
    let mut all = None;
    for (name, got) in got.iter().filter(|(_, got)| got.dtype() == Dtype::F32) {
        let (Some(want), Some(of_rounded)) = (want.get(name), of_rounded.get(name)) else { continue };
        let rounding =
            Rounding { relative: distance(got.values(), want), of_activations: distance(&of_rounded.values, want) };
        let is_telling = got.values().len() >= FEWEST_ELEMENTS;
        if is_telling && (rounding.relative > MOST || rounding.times() > MOST_TIMES) {
            return Err(Wrong::Rounding { argument: name.clone(), rounding });
        }
        if is_telling {
            all = worse(all, Some(rounding));
        }
    }
    Ok(all)
}

/// |a - want| / |want| over the elements that the contract does not leave open.
fn distance(a: &[f64], want: &Output) -> f64 {
    let elements = a.iter().zip(&want.values).zip(&want.scale).filter(|(_, scale)| scale.is_finite());
    let (difference, norm) = elements
        .fold((0.0, 0.0), |(difference, norm), ((a, want), _)| (difference + (a - want).powi(2), norm + want.powi(2)));
    if norm == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These elements over and over.
    fn outputs(values: &[f64]) -> Outputs {
        let values = values.repeat(FEWEST_ELEMENTS);
        Outputs::from([("y".to_owned(), Output { scale: vec![1.0; values.len()], values })])
    }

    fn got(values: &[f64]) -> Tensors {
        Tensors::from([("y".to_owned(), Tensor::rounded(Dtype::F32, values.repeat(FEWEST_ELEMENTS)))])
    }

    #[test]
    fn an_error_is_held_against_that_of_the_activations() {
        let (want, of_rounded) = (outputs(&[3.0, 4.0]), outputs(&[3.0, 4.005]));
        let rounding = examine(&got(&[3.01, 4.0]), &want, &of_rounded).expect("twice is allowed").expect("compared");
        assert!((rounding.times() - 2.0).abs() < 1e-3, "{rounding:?}");
        assert!(matches!(examine(&got(&[3.02, 4.0]), &want, &of_rounded), Err(Wrong::Rounding { .. })));
        assert!(matches!(examine(&got(&[3.1, 4.0]), &want, &outputs(&[3.0, 4.1])), Err(Wrong::Rounding { .. })));
        let exact = examine(&got(&[3.000_001, 4.0]), &want, &want).expect("an f32's error").expect("compared");
        assert_eq!(exact.times(), 0.0);
        let stored = Tensors::from([("y".to_owned(), Tensor::rounded(Dtype::Bf16, vec![3.0; 2 * FEWEST_ELEMENTS]))]);
        assert_eq!(examine(&stored, &want, &of_rounded).expect("not looked at"), None);
    }

    #[test]
    fn only_the_activations_are_rounded() {
        let f32s = |value: f64| Tensor::rounded(Dtype::F32, vec![value]);
        let inputs = Tensors::from([("x".to_owned(), f32s(1.001)), ("residual".to_owned(), f32s(1.001))]);
        let rounded = rounded(&inputs, ["slot", "x", "residual"].into_iter()).expect("x is f32");
        assert_eq!(rounded["x"].values(), [1.0]);
        assert_eq!(rounded["residual"].values(), inputs["residual"].values());
    }
}
