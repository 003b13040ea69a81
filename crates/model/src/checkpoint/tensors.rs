//! The tensors of a model, as its family lists them: names, shapes outermost first, in the order of a `.bin` file.
//! [`super::encoding`] says what a checkpoint in MXFP4 stores instead.

use crate::config::ModelConfig;
use crate::family::FamilyTensor;
pub use crate::family::check::{EMBEDDING, UNEMBEDDING};

/// A tensor that exists once, or once in every layer.
#[derive(Clone, Debug)]
pub struct Group {
    /// What the family says of it.
    pub tensor: &'static FamilyTensor,
    /// Shape of one of them, outermost first.
    pub shape: Vec<usize>,
    /// The layers that have it; of a tensor outside of the layers, 0.
    pub layers: Vec<usize>,
}

/// The router of one layer: `(num_experts, hidden_size)`.
pub(super) const GATE_WEIGHT: &str = "mlp.gate.weight";
/// The second expert matrix of one layer: `(num_experts, hidden_size, intermediate_size)`.
pub(super) const MLP2_WEIGHT: &str = "mlp.mlp2_weight";

/// All tensors, in the order in which a `.bin` file stores them; the layers of a group follow each other.
pub fn groups(config: &ModelConfig) -> Vec<Group> {
    let dims = config.scope();
    let group = |tensor: &'static FamilyTensor| {
        let layers = tensor.layers(&dims, config.num_hidden_layers);
        (!layers.is_empty()).then(|| Group { tensor, shape: tensor.shape(&dims), layers })
    };
    config.family.tensors.iter().filter_map(group).collect()
}

/// The canonical name of the tensor `name` in layer `l`; `l` does not matter for a tensor outside of the layers.
pub(super) fn name_in(name: &str, per_layer: bool, l: usize) -> String {
    if per_layer { format!("block.{l}.{name}") } else { name.to_owned() }
}

impl Group {
    /// The canonical name of the tensor in layer `l`; `l` does not matter for a tensor outside of the layers.
    pub fn name_in(&self, l: usize) -> String {
        name_in(&self.tensor.name, self.tensor.per_layer, l)
    }

    /// Elements of one of them; `None` past 2^64.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n as u64))
    }
}

/// Number of weights of a model; `None` past 2^64. The dimensions must have passed [`ModelConfig::check`].
pub fn parameters(config: &ModelConfig) -> Option<u64> {
    groups(config)
        .iter()
        .try_fold(0u64, |sum, group| sum.checked_add(group.elements()?.checked_mul(group.layers.len() as u64)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::NamedShape;

    /// Small, and with no two dimensions alike.
    pub(crate) fn small() -> ModelConfig {
        NamedShape::gpt_oss_20b().config_with(&[
            ("vocab_size", 11.0),
            ("hidden_size", 6.0),
            ("num_experts", 3.0),
            ("experts_per_token", 2.0),
            ("intermediate_size", 5.0),
            ("num_hidden_layers", 2.0),
            ("head_dim", 4.0),
            ("num_attention_heads", 4.0),
            ("num_key_value_heads", 2.0),
            ("max_seq_len", 64.0),
        ])
    }

    pub(crate) fn gpt_oss_20b() -> ModelConfig {
        NamedShape::gpt_oss_20b().config_with(&[("max_seq_len", 2048.0)])
    }

    #[test]
    fn the_published_models_have_their_published_sizes() {
        let large = gpt_oss_20b().with("num_experts", 128).with("num_hidden_layers", 36);
        assert_eq!(parameters(&gpt_oss_20b()), Some(20_914_757_184));
        assert_eq!(parameters(&large), Some(116_829_156_672));
    }

    #[test]
    fn names_are_those_of_the_original_checkpoint() {
        let names: Vec<String> = groups(&small()).iter().map(|group| group.name_in(7)).collect();
        assert_eq!(names[0], "embedding.weight");
        assert_eq!(names[4], "norm.scale");
        assert_eq!(names[5], "block.7.attn.qkv.weight");
        assert_eq!(names[14], "block.7.mlp.mlp2_weight");
    }

    #[test]
    fn a_model_past_two_to_the_64_is_none_not_a_wrap() {
        let config = small().with("num_experts", 1 << 16).with("hidden_size", 1 << 20);
        let config = config.with("intermediate_size", 1 << 20).with("num_hidden_layers", 1 << 12);
        config.check().unwrap();
        assert_eq!(parameters(&config), None);
    }
}
