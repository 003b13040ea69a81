//! A checkpoint's size: numbers, bytes, and bytes that a token reads.

use std::collections::BTreeMap;

use super::tensors::{EMBEDDING, parameters};
use super::{Checkpoint, Tensor};

impl Checkpoint {
    /// Number of weights, without scales and without padding in the last block of a row.
    pub fn parameters(&self) -> u64 {
        parameters(&self.config).expect("readers refuse models of more than 2^64 bytes")
    }

    /// Bytes of all tensors in memory.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.len_bytes() as u64).sum()
    }

    /// Bytes in memory of the experts of each layer that has any.
    pub fn expert_bytes(&self) -> BTreeMap<usize, usize> {
        let mut layers = BTreeMap::new();
        for tensor in self.tensors.values() {
            if let Some(layer) = self.config.family.expert_layer(&tensor.name) {
                *layers.entry(layer).or_insert(0) += tensor.len_bytes();
            }
        }
        layers
    }

    /// Bytes of the experts of the last `n_layers` with experts; a step for one token reads some of them.
    pub fn bytes_per_token_of_last_experts(&self, n_layers: usize) -> u64 {
        let layers = self.expert_bytes();
        let first = layers.keys().rev().take(n_layers).next_back().copied().unwrap_or(usize::MAX);
        let is_of_them =
            |tensor: &&Tensor| self.config.family.expert_layer(&tensor.name).is_some_and(|layer| layer >= first);
        self.tensors.values().filter(is_of_them).map(|tensor| self.bytes_for_a_token(tensor)).sum()
    }

    /// Bytes in memory of the table that tokens are looked up in, where that is all that it is for: none if logits
    /// are computed with it as well.
    pub fn looked_up_bytes(&self) -> usize {
        self.tensors.values().filter(|tensor| self.is_looked_up(tensor)).map(Tensor::len_bytes).sum()
    }

    /// Whether a tensor is that table, or has the parameters of its blocks.
    fn is_looked_up(&self, tensor: &Tensor) -> bool {
        let is_embedding = EMBEDDING.strip_suffix("weight").is_some_and(|stem| tensor.name.starts_with(stem));
        is_embedding && self.unembedding() != EMBEDDING
    }

    /// Bytes of weights that a step for one token reads: everything once, but of the embedding one row, and of the
    /// experts those that the token is sent to.
    pub fn bytes_per_token(&self) -> u64 {
        self.tensors.values().map(|tensor| self.bytes_for_a_token(tensor)).sum()
    }

    fn bytes_for_a_token(&self, tensor: &Tensor) -> u64 {
        let len_bytes = tensor.len_bytes() as u64;
        if self.is_looked_up(tensor) {
            len_bytes / self.config.vocab_size as u64
        } else if self.config.family.is_of_experts(&tensor.name) {
            let [num_experts, experts_per_token] = ["num_experts", "experts_per_token"].map(|dim| self.config.dim(dim));
            len_bytes / num_experts as u64 * experts_per_token as u64
        } else {
            len_bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::Encoding;
    use super::super::tensors::tests::gpt_oss_20b;
    use super::*;

    #[test]
    fn gpt_oss_20b_has_its_parameters_and_reads_few_of_them_for_a_token() {
        let sizes = |encoding| {
            let checkpoint = Checkpoint::random(gpt_oss_20b(), encoding, 1).expect("a model");
            assert_eq!(checkpoint.parameters(), 20_914_757_184);
            (checkpoint.tensor_bytes(), checkpoint.bytes_per_token())
        };
        // By hand. Bytes of a layer's experts: 32 * 3 * 2880 * 2880 numbers of 4.25 bits and 32 * 3 * 2880 biases of 2
        // bytes, an eighth of them for a token. Everything else is 2 bytes a number.
        let n_biases = 24 * 32 * 3 * 2880;
        let n_in_experts = n_biases * 2880;
        let n_in_tables = 2 * 201_088 * 2880;
        let n_others = 20_914_757_184 - n_in_experts - n_biases - n_in_tables;
        let n_for_a_token = n_others + n_in_tables / 2 + 2880;
        let mxfp4 = n_in_experts * 17 / 32 + 2 * n_biases;
        assert_eq!(sizes(Encoding::Mxfp4), (mxfp4 + 2 * (n_others + n_in_tables), mxfp4 / 8 + 2 * n_for_a_token));
        let checkpoint = Checkpoint::random(gpt_oss_20b(), Encoding::Mxfp4, 1).expect("a model");
        assert_eq!(checkpoint.looked_up_bytes(), 1_158_266_880); // 201,088 rows of 2,880 numbers of two bytes
        assert_eq!(sizes(Encoding::F32).0, 83_659_028_796 - 60);
        assert_eq!(sizes(Encoding::Bf16), (41_829_514_368, (n_in_experts + n_biases) / 4 + 2 * n_for_a_token));
    }
}
