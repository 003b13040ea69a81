//! References that were computed before: templates, precisions and chips that one process checks on the same problem
//! share its inputs and expected outputs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::rounding;
use super::trial::{Scalars, Trial};
use kernel::template::Precision;
use kernel::template::render::Rendered;
use reference::{Outputs, ReferenceError, Tensor, Tensors};

/// What is kept at most, in elements of 8 bytes: 256 MiB. Beyond that everything is forgotten, and computed anew.
const MAX_ELEMENTS: usize = 32 << 20;

static PREPARED: Memo<(Tensors, Outputs)> = Memo::new();
static OF_ROUNDED: Memo<Option<Outputs>> = Memo::new();

/// Values by what they were computed from.
struct Memo<T> {
    slots: Mutex<Slots<T>>,
}

/// The first caller computes the value, and the others wait for it.
type Slot<T> = Arc<OnceLock<Result<Arc<T>, ReferenceError>>>;

struct Slots<T> {
    by_key: BTreeMap<String, Slot<T>>,
    n_elements: usize,
}

impl<T> Memo<T> {
    const fn new() -> Self {
        Self { slots: Mutex::new(Slots { by_key: BTreeMap::new(), n_elements: 0 }) }
    }

    fn get(
        &self,
        key: String,
        len_elements: fn(&T) -> usize,
        compute: impl FnOnce() -> Result<T, ReferenceError>,
    ) -> Result<Arc<T>, ReferenceError> {
        let lock = || self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = Arc::clone(lock().by_key.entry(key).or_default());
        let value = slot.get_or_init(|| {
            let value = compute().map(Arc::new);
            let mut slots = lock();
            slots.n_elements += value.as_ref().map_or(0, |value| len_elements(value));
            if slots.n_elements > MAX_ELEMENTS {
                *slots = Slots { by_key: BTreeMap::new(), n_elements: 0 };
            }
            value
        });
        value.clone()
    }
}

/// Inputs of a trial for these scalars, and what should come out of them.
pub(super) fn prepared(trial: &Trial, scalars: &Scalars) -> Result<Arc<(Tensors, Outputs)>, ReferenceError> {
    let len_elements = |prepared: &(Tensors, Outputs)| len_of_inputs(&prepared.0) + len_of_outputs(&prepared.1);
    PREPARED.get(trial.problem_key(scalars), len_elements, || trial.prepare(scalars))
}

/// In bf16 precision, what the op gives of these inputs when activations are rounded to bf16; of activations that are
/// bf16 as they come, what it gives of them as they were drawn.
pub(super) fn of_rounded(
    trial: &Trial,
    kernel: &Rendered,
    scalars: &Scalars,
    inputs: &Tensors,
) -> Result<Arc<Option<Outputs>>, ReferenceError> {
    if trial.problem.precision != Precision::Bf16 {
        return Ok(Arc::new(None));
    }
    let tensors = kernel.args.iter().filter(|arg| !arg.is_scalar());
    let names: Vec<&str> = tensors.map(|arg| arg.name.as_str()).collect(); // in order: the first of f32 is rounded
    let key = format!("{} {names:?}", trial.problem_key(scalars));
    let len_elements = |outputs: &Option<Outputs>| outputs.as_ref().map_or(0, len_of_outputs);
    OF_ROUNDED.get(key, len_elements, || {
        if let Some(unrounded) = trial.of_unrounded(scalars) {
            return unrounded.map(Some);
        }
        let inputs = rounding::rounded(inputs, names.iter().copied());
        inputs.map(|inputs| trial.reference(scalars, &inputs)).transpose()
    })
}

fn len_of_inputs(inputs: &Tensors) -> usize {
    inputs.values().map(|tensor: &Tensor| tensor.values().len()).sum()
}

fn len_of_outputs(outputs: &Outputs) -> usize {
    outputs.values().map(|output| output.values.len() + output.scale.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_value_is_computed_once_and_what_is_too_much_is_forgotten() {
        let (known, n_computed) = (Memo::<usize>::new(), Cell::new(0));
        let get = |key: &str, value: usize| {
            let compute = || {
                n_computed.set(n_computed.get() + 1);
                Ok(value)
            };
            *known.get(key.into(), |value| *value, compute).expect("computed")
        };
        assert_eq!((get("a", 1), get("b", 2), get("a", 3), n_computed.get()), (1, 2, 1, 2));
        assert_eq!((get("large", MAX_ELEMENTS), get("a", 3), n_computed.get()), (MAX_ELEMENTS, 3, 4));
    }
}
