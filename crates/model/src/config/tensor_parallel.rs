//! The dimensions of a device's part of a model. `checkpoint::tensor_parallel` cuts the tensors.

use std::ops::Range;

use super::ModelConfig;
use crate::family::Sharding;
use hint::Hint;

/// Which part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TpRank {
    /// Counted from 0.
    pub rank: usize,
    pub size: usize,
}

/// Experts' hidden features are cut between blocks of this many, as formats have them.
pub(crate) const BLOCK: usize = 32;

/// The dimensions that are cut, and the width of a head: every family that can be cut has these names.
pub(crate) const HEADS: &str = "num_attention_heads";
pub(crate) const KV_HEADS: &str = "num_key_value_heads";
pub(crate) const HEAD_DIM: &str = "head_dim";
pub(crate) const FEATURES: &str = "intermediate_size";
/// The features of layers without experts, in families that have both and call them so.
pub(crate) const DENSE_FEATURES: &str = "dense_intermediate_size";

/// The dimensions of a model cannot be shared out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnevenDimensions {
    /// The family has other names.
    #[error("could not cut the model: its family `{family}` has no dimension `{name}`, by which models are cut")]
    NoDimension { family: String, name: &'static str },
    /// A tensor is of all heads at once.
    #[error(
        "could not cut the model: `{tensor}` of the family `{family}` is of all heads together, which no device has"
    )]
    OneDevice { family: String, tensor: String },
    /// Heads cannot be shared out.
    #[error(
        "could not cut the model for {size} devices: it has {kv_heads} key and value heads, which {size} does not divide"
    )]
    Heads { size: usize, kv_heads: usize },
}

/// What to do where a family's file does not say how its models are cut.
pub(crate) const NO_CUT_HINT: &str = "`models/README.md` says what `cut` needs; without `--tp` nothing is cut";

impl Hint for UnevenDimensions {
    fn hint(&self) -> Option<String> {
        let kv_heads = match self {
            Self::Heads { kv_heads, .. } => kv_heads,
            Self::OneDevice { .. } => return Some("leave out `--tp`: this model is for one device".to_owned()),
            Self::NoDimension { .. } => return Some(NO_CUT_HINT.to_owned()),
        };
        let sizes: Vec<String> =
            (2..=*kv_heads).filter(|size| kv_heads.is_multiple_of(*size)).map(|size| size.to_string()).collect();
        Some(match sizes.is_empty() {
            true => "this model is for one device".to_owned(),
            false => format!("`--tp` takes {} here", sizes.join(", ")),
        })
    }
}

impl TpRank {
    /// The part of a single device: everything.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };

    /// Its own of `n` things that are shared out evenly.
    pub(crate) fn own(self, n: usize) -> Range<usize> {
        n / self.size * self.rank..n / self.size * (self.rank + 1)
    }

    /// Its own hidden features of an expert that has `n`, and how many each device computes.
    pub(crate) fn features(self, n: usize) -> (Range<usize>, usize) {
        let each = n.div_ceil(BLOCK).div_ceil(self.size) * BLOCK;
        ((each * self.rank).min(n)..(each * (self.rank + 1)).min(n), each)
    }

    /// The ids whose logits it computes, of a vocabulary of this size: a part of them if the vocabulary divides evenly.
    pub fn ids(self, vocab_size: usize) -> Range<usize> {
        if vocab_size.is_multiple_of(self.size) { self.own(vocab_size) } else { 0..vocab_size }
    }

    /// The dimensions of its part. The vocabulary is the whole one: every device samples of all logits.
    ///
    /// # Errors
    /// [`UnevenDimensions`].
    pub(crate) fn config(self, whole: &ModelConfig) -> Result<ModelConfig, UnevenDimensions> {
        if self.size == 1 {
            return Ok(whole.clone());
        }
        if let Some(name) = [HEADS, KV_HEADS, HEAD_DIM, FEATURES].into_iter().find(|name| whole.get(name).is_none()) {
            return Err(UnevenDimensions::NoDimension { family: whole.family.name.clone(), name });
        }
        if let Some(tensor) = whole.family.tensors.iter().find(|tensor| tensor.cut == Sharding::OneDevice) {
            let (family, tensor) = (whole.family.name.clone(), tensor.name.clone());
            return Err(UnevenDimensions::OneDevice { family, tensor });
        }
        let kv_heads = whole.dim(KV_HEADS);
        if !kv_heads.is_multiple_of(self.size) {
            return Err(UnevenDimensions::Heads { size: self.size, kv_heads });
        }
        let part = whole.clone().with(HEADS, whole.dim(HEADS) / self.size).with(KV_HEADS, kv_heads / self.size);
        let features = [FEATURES, DENSE_FEATURES].into_iter().filter_map(|name| Some((name, whole.get(name)?)));
        Ok(features.fold(part, |part, (name, n)| part.with(name, self.features(n).1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NamedShape;

    fn gpt_oss_20b() -> ModelConfig {
        NamedShape::gpt_oss_20b().config(None)
    }

    #[test]
    fn features_are_cut_between_blocks() {
        let of = |size: usize| -> Vec<usize> {
            (0..size).map(|rank| TpRank { rank, size }.features(2880).0.len() / 32).collect()
        };
        assert_eq!(of(2), [45, 45]);
        assert_eq!(of(4), [23, 23, 23, 21]);
        assert_eq!(of(8), [12, 12, 12, 12, 12, 12, 12, 6]);
        let config = |size| TpRank { rank: 1, size }.config(&gpt_oss_20b()).expect("it divides").dim(FEATURES);
        assert_eq!([2, 4, 8].map(config), [1440, 736, 384]);
    }

    #[test]
    fn ids_are_shared_out_where_they_can_be_and_else_each_device_has_all() {
        let of = |size: usize, n| (0..size).map(|rank| TpRank { rank, size }.ids(n)).collect::<Vec<_>>();
        assert_eq!(of(2, 201_088), [0..100_544, 100_544..201_088]);
        assert_eq!(of(3, 7), [0..7, 0..7, 0..7]);
    }

    #[test]
    fn devices_that_do_not_divide_the_heads_are_refused_in_words() {
        for size in [3, 5, 6, 16] {
            let error = TpRank { rank: 0, size }.config(&gpt_oss_20b()).expect_err("8 heads");
            assert!(error.to_string().contains(&format!("8 key and value heads, which {size} does not divide")));
            assert_eq!(error.hint().as_deref(), Some("`--tp` takes 2, 4, 8 here"));
        }
    }
}
