//! Versions of AMD's code objects, and which one a kernel is compiled into.
//!
//! Compilers make the newest version that they know, which older runtimes refuse: LLVM 21 makes v6, and
//! `hipModuleLoadData` of HIP 5.7 answers `hipErrorSharedObjectInitFailed`. So every kernel states its version
//! (`-mcode-object-version`).
//!
//! v6 is v5 with a number for generic targets (LLVM, pull request 76954); nothing else needs it. So all runtimes that
//! know v5 get v5, the newest too, and one object works for all of them.

/// The first release of HIP that is given v5. ROCr's loader knows v5 from 5.2 on (`amd_hsa_code.cpp`), but LLVM made v4
/// without being asked until 2024.
const FIRST_WITH_V5: (u32, u32) = (5, 7);

/// The first release of HIP that takes v6 ("COV6 requires ROCm 6.3+": LLVM, pull request 133849).
const FIRST_WITH_V6: (u32, u32) = (6, 3);

/// The version for an arch, loaded by a HIP runtime of this release (major, minor). Where none is known, because
/// kernels are compiled on another machine than they will run on, it is what all runtimes since ROCm 5.7 take.
pub fn version(arch: &str, release: Option<(u32, u32)>) -> u32 {
    match release {
        _ if is_generic(arch) => 6,
        Some(release) if release < FIRST_WITH_V5 => 4,
        _ => 5,
    }
}

/// What is wrong with a runtime of this release for an arch, if anything.
pub fn problem(arch: &str, release: Option<(u32, u32)>) -> Option<String> {
    let (major, minor) = release.filter(|release| is_generic(arch) && *release < FIRST_WITH_V6)?;
    let (first_major, first_minor) = FIRST_WITH_V6;
    Some(format!(
        "objects for {arch} are of version 6, which HIP takes from {first_major}.{first_minor} on: this runtime is {major}.{minor}"
    ))
}

/// Whether it is a family of chips: `gfx11-generic`.
fn is_generic(arch: &str) -> bool {
    arch.split(':').next().is_some_and(|name| name.ends_with("-generic"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_gets_objects_that_it_loads() {
        for (arch, release, expected) in [
            ("gfx90a:sramecc+:xnack-", Some((5, 2)), 4),
            ("gfx1030", Some((5, 6)), 4),
            ("gfx1100", Some((5, 7)), 5),
            ("gfx1100", Some((6, 2)), 5),
            ("gfx1100", Some((6, 4)), 5),
            ("gfx950", Some((7, 2)), 5),
            ("gfx1100", None, 5),
            ("gfx11-generic", None, 6),
            ("gfx9-4-generic:xnack-", Some((6, 4)), 6),
        ] {
            assert_eq!(version(arch, release), expected, "{arch}, {release:?}");
        }
    }

    #[test]
    fn a_family_needs_a_runtime_that_knows_families() {
        assert!(problem("gfx11-generic", Some((5, 7))).is_some_and(|said| said.contains("from 6.3 on")));
        assert_eq!(problem("gfx11-generic", Some((6, 3))), None);
        assert_eq!(problem("gfx1100", Some((5, 7))), None);
    }
}
