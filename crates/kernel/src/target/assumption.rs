//! Assumed facts of an arch that no table describes: a chip newer than this program, or a rare one.

use std::collections::BTreeSet;

use super::TargetFacts;

/// The family whose members differ most: GCN and every CDNA. A matrix unit of one is none of another.
const MIXED_FAMILY: &str = "gfx9";

/// Facts that may be wrong, and where they are from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assumption {
    pub(crate) facts: TargetFacts,
    /// The arch whose facts and tuning tables they are; none if they are what a family has in common.
    pub(crate) like: Option<String>,
    /// All of it in words, for a warning.
    pub(crate) text: String,
}

/// What to assume about `arch`, a name without flags, given what is known of others; none about another family.
///
/// - A chip that differs from a known one in its stepping alone (gfx1152, gfx1151) has that one's facts.
/// - An NVIDIA GPU has what the known one has whose compute capability is nearest, but for features of later ones.
/// - Of any other chip of a known family, and of a whole family (`gfx11-generic`), only what all known members have in
///   common is assumed, and no feature: a matrix instruction that is not there ends in a crash or in wrong numbers.
pub(crate) fn assume(arch: &str, known: &[(&str, &TargetFacts)]) -> Option<Assumption> {
    if let Some(number) = capability(arch) {
        return nvidia(arch, number, known);
    }
    let family = family(arch)?;
    let relatives: Vec<_> = known.iter().filter(|(name, _)| self::family(name) == Some(family)).collect();
    if family != MIXED_FAMILY
        && let Some((like, facts)) = nearest_stepping(arch, known)
    {
        let text = format!("nothing is known about {arch}: assumed to be like {like} ({})", in_words(facts));
        return Some(Assumption { facts: facts.clone(), like: Some(like.to_owned()), text });
    }
    let (_, first) = relatives.first()?;
    if relatives.iter().any(|(_, facts)| facts.wave_size != first.wave_size) {
        return None;
    }
    let facts = TargetFacts {
        wave_size: first.wave_size,
        lds_bytes: relatives.iter().map(|(_, facts)| facts.lds_bytes).min()?,
        features: BTreeSet::new(),
        since_hip: None,
        peer_flags: relatives.iter().all(|(_, facts)| facts.peer_flags),
        widen_blocks: false,
        notes: String::new(),
        compute_unit: None,
        product: None,
    };
    let text = format!("nothing is known about {arch}: assumed what {family} has in common ({})", in_words(&facts));
    Some(Assumption { facts, like: None, text })
}

/// 90 of `sm_90`: a compute capability without its point.
pub(super) fn capability(arch: &str) -> Option<u32> {
    arch.strip_prefix(super::NVIDIA)?.parse().ok()
}

/// NVIDIA keeps features from one generation to the next; a feature is named after the first that has it (`mma_sm80`).
/// One whose name ends in `a` is that generation's alone (`wgmma_sm90a`).
fn nvidia(arch: &str, number: u32, known: &[(&str, &TargetFacts)]) -> Option<Assumption> {
    let known = known.iter().filter_map(|(name, facts)| Some((capability(name)?.abs_diff(number), *name, *facts)));
    let (_, like, facts) = known.min_by_key(|(distance, name, _)| (*distance, *name))?;
    let is_there = |feature: &&String| {
        let Some((_, since)) = feature.rsplit_once("sm") else { return true };
        match since.strip_suffix('a') {
            Some(only) => only.parse() == Ok(number),
            None => since.parse().ok().is_none_or(|since: u32| since <= number),
        }
    };
    let features = facts.features.iter().filter(is_there).cloned().collect();
    let facts = TargetFacts { features, compute_unit: None, product: None, ..facts.clone() };
    let text = format!("nothing is known about {arch}: assumed to be like {like} ({})", in_words(&facts));
    Some(Assumption { facts, like: Some(like.to_owned()), text })
}

/// `gfx11` of `gfx1152` and of `gfx11-generic`, `gfx9` of `gfx9-4-generic`; none of what is no arch of an AMD GPU.
fn family(arch: &str) -> Option<&str> {
    let is_family = |family: &str| family.len() > 3 && family[3..].bytes().all(|byte| byte.is_ascii_digit());
    let family = match arch.strip_suffix("-generic") {
        Some(generic) => generic.split('-').next()?,
        // The last two characters are its minor version and stepping.
        None => arch.get(..arch.len().checked_sub(2)?)?,
    };
    (family.starts_with("gfx") && is_family(family) && arch.is_ascii()).then_some(family)
}

/// The known chip of the same version whose stepping is the nearest, the lower one of two.
fn nearest_stepping<'a>(arch: &str, known: &[(&'a str, &'a TargetFacts)]) -> Option<(&'a str, &'a TargetFacts)> {
    let stepping = |name: &str| name.chars().last()?.to_digit(16);
    let wanted = stepping(arch)?;
    let version = &arch[..arch.len() - 1];
    let same = known.iter().filter(|(name, _)| name.len() == arch.len() && name.starts_with(version));
    let by_distance = same.filter_map(|(name, facts)| {
        let found = stepping(name)?;
        Some(((found.abs_diff(wanted), found), (*name, *facts)))
    });
    by_distance.min_by_key(|(distance, _)| *distance).map(|(_, chip)| chip)
}

fn in_words(facts: &TargetFacts) -> String {
    let features = match facts.features.is_empty() {
        true => "no matrix unit".to_owned(),
        false => facts.features.iter().cloned().collect::<Vec<_>>().join(", "),
    };
    format!("waves of {}, {} bytes of LDS, {features}", facts.wave_size, facts.lds_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{Target, TargetError};

    #[test]
    fn a_new_stepping_is_like_the_nearest_known_one() {
        for (arch, like, feature) in [
            ("gfx1152", "gfx1151", "wmma_gfx11"),
            ("gfx1153", "gfx1151", "wmma_gfx11"),
            ("gfx1202", "gfx1201", "wmma_gfx12"),
        ] {
            let (target, text) = Target::gpu_or_similar(arch).expect(arch);
            assert_eq!((target.arch.as_str(), target.like.as_deref()), (arch, Some(like)));
            assert!(target.features.contains(feature) && target.wave_size == 32, "{target:?}");
            let text = text.expect("it is said");
            assert!(text.contains(arch) && text.contains(like) && text.contains(feature), "{text}");
            assert_eq!(target.families()[..3], [arch, like, &arch[..5]]);
        }
    }

    #[test]
    fn no_matrix_unit_is_guessed_across_generations() {
        for (arch, wave) in [
            ("gfx1250", 32),
            ("gfx1170", 32),
            ("gfx1010", 32),
            ("gfx900", 64),
            ("gfx908", 64),
            ("gfx90c", 64),
            ("gfx940", 64),
            ("gfx11-generic", 32),
            ("gfx9-4-generic", 64),
        ] {
            let (target, text) = Target::gpu_or_similar(arch).expect(arch);
            assert_eq!((target.wave_size, target.lds_bytes, target.features.len()), (wave, 65_536, 0), "{arch}");
            assert!(text.is_some_and(|text| text.contains("no matrix unit")), "{arch}");
            assert_eq!(target.peer_flags, wave == 32, "{arch}: gfx90a has none");
        }
        let (known, text) = Target::gpu_or_similar("gfx942:sramecc+:xnack-").expect("known");
        assert!(known.features.contains("mfma_gfx942") && text.is_none());
    }

    #[test]
    fn an_unknown_nvidia_gpu_is_like_the_known_one_without_what_came_later() {
        let (target, text) = Target::gpu_or_similar("sm_120").expect("assumed");
        assert_eq!((target.like.as_deref(), target.wave_size), (Some("sm_90"), 32));
        assert!(target.features.contains("mma_sm80") && text.is_some_and(|text| text.contains("sm_120")));
        assert!(!target.features.contains("wgmma_sm90a"), "Hopper's alone");
        assert!(Target::gpu_or_similar("sm_75").expect("assumed").0.features.is_empty());
    }

    #[test]
    fn other_families_and_other_words_are_errors() {
        for arch in ["gfx803", "gfx1300", "gfx", "gfxab", "gfx1", "sm_", "sm_x", "", "gfx11é2", "-generic"] {
            assert!(matches!(Target::gpu_or_similar(arch), Err(TargetError::UnknownArch { .. })), "{arch}");
        }
    }
}
