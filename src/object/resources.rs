//! What a compiled GPU kernel uses, against its contract and its template's `[resources]`.

use std::fmt;

use gpu::code_object::{CodeObject, CodeObjectError, DeviceLimits, KernelFacts};
use gpu::{GpuError, KernelSpec};

use crate::error::Hint;
use crate::target::Target;
use crate::template::Resources;

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
        /// What was asked for.
        expected: String,
        /// What the object states.
        found: String,
    },
    /// It uses more than is allowed.
    #[error("expected at most {limit} {what}, found {found}")]
    TooMuch {
        /// Of what.
        what: Resource,
        /// What the template allows, or its check.
        limit: u32,
        /// What the object uses.
        found: u32,
    },
}

/// Something of which a kernel may use too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Vector registers of a lane.
    Vgprs,
    /// Registers kept in memory.
    Spills,
    /// LDS of a block.
    Lds,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vgprs => "VGPRs",
            Self::Spills => "spilled registers",
            Self::Lds => "bytes of LDS",
        })
    }
}

impl Hint for ObjectError {
    fn hint(&self) -> Option<String> {
        let Self::TooMuch { .. } = self else { return None };
        Some(
            "`[resources]` in the template's front matter sets limits; smaller tiles need fewer registers and less LDS"
                .into(),
        )
    }
}

impl Resources {
    /// Whether a kernel stays within them.
    ///
    /// # Errors
    /// [`ObjectError::TooMuch`], for the first that it does not.
    pub fn check(&self, kernel: &KernelFacts) -> Result<(), ObjectError> {
        let uses = [
            (Resource::Vgprs, self.max_vgprs, kernel.vgprs),
            (Resource::Spills, self.max_spills, kernel.spills()),
            (Resource::Lds, self.max_lds_bytes, kernel.lds_bytes),
        ];
        for (what, limit, found) in uses {
            if let Some(limit) = limit.filter(|limit| found > *limit) {
                return Err(ObjectError::TooMuch { what, limit, found });
            }
        }
        Ok(())
    }
}

/// What an object says of the kernel that `spec` names, if it is for this GPU, agrees with the contract and stays within
/// the template's limits.
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

    const TILE: &[u8] = include_bytes!("../../tests/fixtures/objects/linear_tile.gfx90a.co");

    fn spec() -> KernelSpec {
        let kinds = [ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32];
        let args = kinds.map(|kind| ArgumentSpec { name: "a".into(), kind }).to_vec();
        KernelSpec { entry: "linear_tile".into(), abi: String::new(), args, block_size: 256, lds_bytes: 0 }
    }

    fn refusal(resources: Resources, arch: &str) -> String {
        let target = Target::gpu(arch).expect("known");
        examine(TILE, &spec(), &resources, &target).expect_err("refused").to_string()
    }

    #[test]
    fn limits_hold_up_to_their_value() {
        // It uses 54 VGPRs and 8320 bytes of LDS, and spills nothing.
        let exact = Resources { max_vgprs: Some(54), max_spills: Some(0), max_lds_bytes: Some(8320) };
        let facts = examine(TILE, &spec(), &exact, &Target::gpu("gfx90a:xnack-").expect("known")).expect("within");
        assert_eq!((facts.vgprs, facts.lds_bytes), (54, 8320));
        let error = refusal(Resources { max_vgprs: Some(53), ..exact }, "gfx90a");
        assert_eq!(error, "expected at most 53 VGPRs, found 54");
        let error = refusal(Resources { max_lds_bytes: Some(8319), ..exact }, "gfx90a");
        assert_eq!(error, "expected at most 8319 bytes of LDS, found 8320");
        let mut spilling = facts;
        (spilling.vgpr_spills, spilling.sgpr_spills) = (2, 1);
        let error = exact.check(&spilling).expect_err("it spills").to_string();
        assert_eq!(error, "expected at most 0 spilled registers, found 3");
    }

    #[test]
    fn an_object_for_another_chip_is_refused() {
        let error = refusal(Resources::default(), "gfx942");
        assert_eq!(error, "expected an object for gfx942, found one for gfx90a");
        let mut broken = TILE.to_vec();
        broken.truncate(1000);
        let target = Target::gpu("gfx90a").expect("known");
        let error = examine(&broken, &spec(), &Resources::default(), &target).expect_err("cut short");
        assert!(matches!(error, ObjectError::Metadata(_)), "{error}");
    }
}
