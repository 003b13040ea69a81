//! The tensors of a model, as its family lists them: names, shapes outermost first, in the order of a `.bin` file. What
//! of them a checkpoint in MXFP4 stores instead is in [`super::encoding`].

use crate::config::ModelConfig;
use crate::family::{Family, FamilyTensor};

/// A tensor that exists once, or once in every layer.
#[derive(Clone, Debug)]
pub struct Group {
    /// What the family says of it.
    pub tensor: &'static FamilyTensor,
    /// Shape of one of them, outermost first.
    pub shape: Vec<usize>,
}

/// The router of one layer: `(num_experts, hidden_size)`.
pub(super) const GATE_WEIGHT: &str = "mlp.gate.weight";
/// The first expert matrix of one layer: `(num_experts, 2 * intermediate_size, hidden_size)`.
pub(super) const MLP1_WEIGHT: &str = "mlp.mlp1_weight";
/// The second expert matrix of one layer: `(num_experts, hidden_size, intermediate_size)`.
pub(super) const MLP2_WEIGHT: &str = "mlp.mlp2_weight";
/// `(vocab_size, hidden_size)`.
pub(super) const EMBEDDING: &str = "embedding.weight";
/// `(vocab_size, hidden_size)`.
pub(super) const UNEMBEDDING: &str = "unembedding.weight";

/// All tensors, in the order in which a `.bin` file stores them; the layers of a group follow each other.
pub fn groups(config: &ModelConfig) -> Vec<Group> {
    let dims = config.scope();
    let group = |tensor: &'static FamilyTensor| Group { tensor, shape: tensor.shape(&dims) };
    Family::gpt_oss().tensors.iter().map(group).collect()
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

    /// How many there are: one, or one per layer.
    pub fn count(&self, config: &ModelConfig) -> usize {
        if self.tensor.per_layer { config.num_hidden_layers } else { 1 }
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
        .try_fold(0u64, |sum, group| sum.checked_add(group.elements()?.checked_mul(group.count(config) as u64)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Small, and with no two dimensions alike.
    pub fn small() -> ModelConfig {
        ModelConfig {
            vocab_size: 11,
            hidden_size: 6,
            num_experts: 3,
            experts_per_token: 2,
            intermediate_size: 5,
            num_hidden_layers: 2,
            head_dim: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            max_seq_len: 64,
            initial_context_length: 4096,
            rope_theta: 150_000.0,
            rope_scaling_factor: 32.0,
            sliding_window: 128,
            swiglu_limit: 7.0,
        }
    }

    /// gpt-oss-20b.
    pub fn gpt_oss_20b() -> ModelConfig {
        ModelConfig {
            vocab_size: 201_088,
            hidden_size: 2880,
            num_experts: 32,
            experts_per_token: 4,
            intermediate_size: 2880,
            num_hidden_layers: 24,
            head_dim: 64,
            num_attention_heads: 64,
            num_key_value_heads: 8,
            max_seq_len: 2048,
            ..small()
        }
    }

    #[test]
    fn the_published_models_have_their_published_sizes() {
        let large = ModelConfig { num_experts: 128, num_hidden_layers: 36, ..gpt_oss_20b() };
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
        let mut config = ModelConfig { num_experts: 1 << 16, hidden_size: 1 << 20, ..small() };
        config.intermediate_size = 1 << 20;
        config.num_hidden_layers = 1 << 12;
        config.check().unwrap();
        assert_eq!(parameters(&config), None);
    }
}
