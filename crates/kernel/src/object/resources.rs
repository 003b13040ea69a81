//! What a compiled GPU kernel uses, against its contract and its template's `[resources]`.

use gpu::code_object::{CodeObject, CodeObjectError, DeviceLimits, KernelFacts};
use gpu::{GpuError, KernelSpec};

use crate::target::Target;
use crate::template::Resources;
use hint::Hint;

/// Why an object is not to be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Its metadata cannot be read.
    #[error(transparent)]
    Metadata(#[from] CodeObjectError),
    /// It is not what its contract says.
    #[error(transparent)]
    Contract(#[from] GpuError),
    /// It was compiled for another chip.
    #[error("expected an object for {expected}, found one for {found}")]
    Target {
        expected: String,
        /// What the object states.
        found: String,
    },
    /// More of its registers are kept in memory than is allowed.
    #[error("expected at most {limit} spilled registers, found {found}")]
    Spills {
        /// What the template allows, or its check.
        limit: u32,
        /// What the object spills.
        found: u32,
    },
}

impl Hint for ObjectError {
    fn hint(&self) -> Option<String> {
        let Self::Spills { .. } = self else { return None };
        Some("smaller tiles need fewer registers".into())
    }
}

impl ObjectError {
    /// Whether its arguments are not the contract's.
    pub fn is_of_arguments(&self) -> bool {
        matches!(self, Self::Contract(GpuError::Abi { expected, .. }) if expected.contains("argument") || expected.starts_with('`'))
    }
}

impl Resources {
    /// Whether a kernel stays within them.
    ///
    /// # Errors
    /// [`ObjectError::Spills`].
    pub(crate) fn check(&self, kernel: &KernelFacts) -> Result<(), ObjectError> {
        match self.max_spills.filter(|limit| kernel.spills() > *limit) {
            Some(limit) => Err(ObjectError::Spills { limit, found: kernel.spills() }),
            None => Ok(()),
        }
    }
}

/// What an object says of the kernel that `spec` names, if it is for this GPU, agrees with the contract and stays
/// within the template's limits.
///
/// # Errors
/// [`ObjectError`].
pub fn examine(
    object: &[u8],
    spec: &KernelSpec,
    resources: &Resources,
    target: &Target,
) -> Result<KernelFacts, ObjectError> {
    let object = CodeObject::parse(object)?;
    if arch(&object.target) != arch(&target.arch) {
        return Err(ObjectError::Target { expected: target.arch.clone(), found: object.target });
    }
    let limits = DeviceLimits { wave_size: target.wave_size, lds_bytes: target.lds_bytes };
    let mut kernel = object.agrees(spec, limits)?.clone();
    kernel.lds_bytes += spec.lds_bytes; // an object knows what its kernel declares, not what its launches ask for
    resources.check(&kernel)?;
    Ok(kernel)
}

/// `gfx90a` of `gfx90a:sramecc+:xnack-`: an object that leaves a feature open runs with it and without.
fn arch(target: &str) -> &str {
    target.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu::{ArgumentKind, ArgumentSpec};

    const TILE: &[u8] = include_bytes!("../../../../tests/fixtures/objects/linear_tile.gfx90a.co");

    fn spec() -> KernelSpec {
        let kinds = [ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32];
        let args = kinds.map(|kind| ArgumentSpec::new("a", kind)).to_vec();
        KernelSpec { entry: "linear_tile".into(), args, block_size: 256, ..KernelSpec::default() }
    }

    #[test]
    fn spills_hold_up_to_their_limit() {
        let none = Resources { max_spills: Some(0) };
        let facts = examine(TILE, &spec(), &none, &Target::gpu("gfx90a:xnack-").expect("known")).expect("within");
        assert_eq!((facts.vgprs, facts.lds_bytes, facts.spills()), (54, 8320, 0));
        let mut spilling = facts;
        (spilling.vgpr_spills, spilling.sgpr_spills) = (2, 1);
        let error = none.check(&spilling).expect_err("it spills").to_string();
        assert_eq!(error, "expected at most 0 spilled registers, found 3");
        assert!(Resources { max_spills: Some(3) }.check(&spilling).is_ok());
    }

    #[test]
    fn an_object_for_another_chip_is_refused() {
        let other = Target::gpu("gfx942").expect("known");
        let error = examine(TILE, &spec(), &Resources::default(), &other).expect_err("refused").to_string();
        assert_eq!(error, "expected an object for gfx942, found one for gfx90a");
        let mut broken = TILE.to_vec();
        broken.truncate(1000);
        let target = Target::gpu("gfx90a").expect("known");
        let error = examine(&broken, &spec(), &Resources::default(), &target).expect_err("cut short");
        assert!(matches!(error, ObjectError::Metadata(_)), "{error}");
    }

    #[test]
    fn a_contract_is_broken_by_arguments_or_by_something_else() {
        let is_of_arguments = |expected: &str| {
            let (entry, found) = ("k".to_owned(), "3".to_owned());
            ObjectError::Contract(GpuError::Abi { entry, expected: expected.into(), found }).is_of_arguments()
        };
        let expected = ["4 arguments", "`x` at byte 8", "blocks of 256 threads"];
        assert_eq!(expected.map(is_of_arguments), [true, true, false]);
    }
}
