//! Cuts a model's tensors for several devices: each has some heads of every layer, and a part of every expert. The
//! devices compute parts of sums, which are added up twice in a layer. [`crate::config::tensor_parallel`] has the
//! dimensions of a device's part.
//!
//! Each part is computed like a whole model with other dimensions. Query heads stay with their key and value heads.
//! Experts' hidden features are cut at MXFP4's blocks of 32, and the last device's part is padded with zeros, which
//! change no sum. A device's part of a row in blocks must be whole blocks. The vocabulary is cut if it divides, and
//! logits are concatenated.

use std::collections::BTreeMap;
use std::ops::Range;

use super::kept::{name_of_piece, piece};
use super::slice::{Cut, Slice};
use super::tensors::{EMBEDDING, UNEMBEDDING};
use super::{Checkpoint, Elements, Tensor};
use crate::config::ModelConfig;
use crate::config::tensor_parallel::{HEAD_DIM, HEADS, KV_HEADS, NO_CUT_HINT, TpRank, UnevenDimensions};
use crate::family::Sharding;
use hint::Hint;

/// A model cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorParallelError {
    /// Its dimensions cannot.
    #[error(transparent)]
    Dimensions(#[from] UnevenDimensions),
    /// A tensor is not made of what is cut.
    #[error("could not cut `{name}`: the family's `cut` does not suit a tensor of shape {shape:?}")]
    Misfit { name: String, shape: Vec<usize> },
    /// A device's own columns are no whole blocks.
    #[error("could not cut `{name}` for {size} devices: {columns} columns each are no whole blocks of {block}")]
    Blocks {
        size: usize,
        name: String,
        columns: usize,
        /// Columns of a block of the tensor's format.
        block: usize,
    },
}

impl Cut {
    /// Whether a tensor of this many elements consists of the matrices that it cuts.
    fn fits(&self, n_elements: usize) -> bool {
        let [n_rows, row_len] = self.matrix;
        let n_taken: usize = self.rows.iter().map(Range::len).sum();
        n_rows * row_len > 0
            && n_elements.is_multiple_of(n_rows * row_len)
            && self.columns.end <= row_len
            && self.rows.iter().all(|rows| rows.end <= n_rows)
            && n_taken <= self.made[0]
            && self.columns.len() <= self.made[1]
    }
}

impl Hint for TensorParallelError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Dimensions(error) => error.hint(),
            Self::Misfit { .. } => Some(NO_CUT_HINT.to_owned()),
            Self::Blocks { .. } => {
                Some("use fewer devices, which have more columns each, or `--stored-weights=none`".to_owned())
            }
        }
    }
}

/// How the family has a tensor cut, and the name of the tensor of whose blocks it is a parameter: those are cut as what
/// they belong to.
fn rule(whole: &ModelConfig, name: &str) -> (Sharding, Option<String>) {
    let Some((tensor, is_parameter)) = whole.family.tensor_or_whole(name) else { return (Sharding::Whole, None) };
    let of = || {
        let of = tensor.canonical_beside(name);
        piece(whole.family, name).map_or(of.clone(), |(_, number)| name_of_piece(&of, number))
    };
    (tensor.cut, is_parameter.then(of))
}

/// Hidden features that a tensor has rows or columns of; of others 0.
fn n_features(whole: &ModelConfig, name: &str) -> usize {
    let Some((tensor, _)) = whole.family.tensor_or_whole(name) else { return 0 };
    let shape = tensor.shape(&whole.scope());
    match tensor.cut {
        Sharding::GateAndUpRows => shape.get(1).map_or(0, |rows| rows / 2),
        Sharding::GateRowsUpRows => shape[0] / 2,
        Sharding::FeatureColumns => shape[shape.len() - 1],
        _ => 0,
    }
}

/// How many columns of numbers there are to what a tensor consists of.
#[derive(Clone, Copy)]
struct Grain {
    /// To a block; 1 where there are none.
    block: usize,
    /// To an element: several, where it is a parameter of blocks.
    element: usize,
}

impl Checkpoint {
    fn grain(&self, tensor: &Tensor) -> Grain {
        let of = rule(&self.config, &tensor.name).1;
        let format = of.as_ref().map_or(tensor, |of| self.tensor(of)).dtype.format();
        let Some(format) = format else { return Grain { block: 1, element: 1 } };
        let is_it = |of: &String| format.parameters.iter().find(|one| one.name_beside(of) == tensor.name);
        Grain { block: format.block_len(), element: of.as_ref().and_then(is_it).map_or(1, |one| one.every) }
    }
}

impl TpRank {
    /// Whether its own columns of a tensor in blocks are whole ones.
    fn check_blocks(self, tensor: &Tensor, grain: Grain, whole: &ModelConfig) -> Result<(), TensorParallelError> {
        let columns = match rule(whole, &tensor.name).0 {
            Sharding::QueryHeadColumns => whole.dim(HEADS) / self.size * whole.dim(HEAD_DIM),
            Sharding::FeatureColumns => self.features(n_features(whole, &tensor.name)).1,
            _ => return Ok(()),
        };
        if tensor.dtype.format().is_some() && !columns.is_multiple_of(grain.block) {
            let (size, name) = (self.size, tensor.name.clone());
            return Err(TensorParallelError::Blocks { size, name, columns, block: grain.block });
        }
        Ok(())
    }

    /// What of a tensor is its own; `None` if it is all of it.
    ///
    /// - `of_whole`: of a piece of a matrix, the rows of the whole that it has
    fn cut(
        self,
        tensor: &Tensor,
        of_whole: Option<Range<usize>>,
        grain: Grain,
        whole: &ModelConfig,
    ) -> Option<(Cut, Vec<usize>)> {
        let (rule, of) = rule(whole, &tensor.name);
        let (is_parameter, Grain { block, element }) = (of.is_some(), grain);
        let [head_dim, num_attention_heads, num_key_value_heads] =
            [HEAD_DIM, HEADS, KV_HEADS].map(|name| whole.dim(name));
        let intermediate_size = n_features(whole, &tensor.name);
        let scaled = |range: Range<usize>, by: usize| range.start * by..range.end * by;
        let (features, n_features) = self.features(intermediate_size);
        let shape = &tensor.shape;
        let &last = shape.last().expect("every tensor has a dimension");
        // Biases and sinks have an element for each row.
        let row_len = if tensor.name.ends_with("weight") || is_parameter { last } else { 1 };
        let rows_of = |rows: Vec<Range<usize>>, n_rows: usize, n_made: usize| Cut {
            matrix: [n_rows, row_len],
            rows,
            columns: 0..row_len,
            made: [n_made, row_len],
        };
        let all = 0..1;
        let columns_of = |columns: Range<usize>, n_made: usize| Cut {
            matrix: [1, last],
            rows: vec![all.clone()],
            columns,
            made: [1, n_made],
        };
        let cut = match rule {
            Sharding::HeadRows => {
                let (q, kv) = (num_attention_heads * head_dim, num_key_value_heads * head_dim);
                let behind = |range: Range<usize>, first: usize| first + range.start..first + range.end;
                let (own_q, own_kv) =
                    (scaled(self.own(num_attention_heads), head_dim), scaled(self.own(num_key_value_heads), head_dim));
                let own = [own_q, behind(own_kv.clone(), q), behind(own_kv, q + kv)];
                let of_whole = of_whole.unwrap_or(0..q + 2 * kv);
                let own = own.into_iter().filter(|rows| of_whole.contains(&rows.start));
                let own: Vec<_> = own.map(|rows| rows.start - of_whole.start..rows.end - of_whole.start).collect();
                let n_made = own.iter().map(Range::len).sum();
                rows_of(own, of_whole.len(), n_made)
            }
            Sharding::QueryHeadRows => {
                let own = self.own(num_attention_heads);
                let n_made = own.len();
                rows_of(vec![own], num_attention_heads, n_made)
            }
            Sharding::QueryHeadColumns => {
                let own = scaled(self.own(num_attention_heads), head_dim);
                let n_made = own.len() / element;
                columns_of(own.start / element..own.end / element, n_made)
            }
            Sharding::GateAndUpRows => rows_of(vec![scaled(features, 2)], 2 * intermediate_size, 2 * n_features),
            // Two matrices, of which each is filled up.
            Sharding::GateRowsUpRows => rows_of(vec![features], intermediate_size, n_features),
            // Of rows of blocks there are whole ones, and so are there of what is cut.
            Sharding::FeatureColumns => {
                let at = |feature: usize| (feature.next_multiple_of(block) / element).min(last);
                columns_of(at(features.start)..at(features.end), n_features / element)
            }
            Sharding::VocabularyRows => {
                let own = self.ids(whole.vocab_size);
                let n_made = own.len();
                rows_of(vec![own], whole.vocab_size, n_made)
            }
            Sharding::Whole | Sharding::OneDevice => return None,
            Sharding::FirstDevice if self.rank == 0 => return None,
            Sharding::FirstDevice => Cut { matrix: [1, last], rows: vec![], columns: 0..last, made: [1, last] },
        };
        let mut made = shape.clone();
        match rule {
            Sharding::HeadRows | Sharding::QueryHeadRows | Sharding::VocabularyRows => made[0] = cut.made[0],
            Sharding::GateRowsUpRows => made[0] = shape[0] / cut.matrix[0] * cut.made[0],
            Sharding::GateAndUpRows => made[1] = cut.made[0],
            Sharding::QueryHeadColumns | Sharding::FeatureColumns => *made.last_mut().expect("the same") = cut.made[1],
            Sharding::Whole | Sharding::FirstDevice | Sharding::OneDevice => {}
        }
        Some((cut, made))
    }
}

impl Checkpoint {
    /// A device's part of the model: its dimensions, and of each tensor what it needs.
    ///
    /// # Errors
    /// [`TensorParallelError`].
    pub fn part(&self, of: TpRank) -> Result<Self, TensorParallelError> {
        if of.size == 1 {
            return Ok(self.clone());
        }
        let config = of.config(&self.config)?;
        self.tensors.values().try_for_each(|tensor| of.check_blocks(tensor, self.grain(tensor), &self.config))?;
        let own = |tensor: &Tensor| of.cut(tensor, self.rows_of_piece(&tensor.name), self.grain(tensor), &self.config);
        let part = |tensor: &Tensor| match own(tensor) {
            Some((cut, _)) if !cut.fits(tensor.len()) => {
                Err(TensorParallelError::Misfit { name: tensor.name.clone(), shape: tensor.shape.clone() })
            }
            Some((cut, shape)) => {
                let elements = Elements::Slice(Slice::new(tensor.clone(), cut));
                Ok(Tensor { shape, elements, ..tensor.clone() })
            }
            None => Ok(tensor.clone()),
        };
        let parts = self.tensors.iter().map(|(name, tensor)| Ok((name.clone(), part(tensor)?)));
        let mut tensors: BTreeMap<String, Tensor> = parts.collect::<Result<_, TensorParallelError>>()?;
        if self.unembedding() == EMBEDDING {
            // Rows are looked up in all of it, and multiplied by a part of it.
            let dtype = self.tensor(EMBEDDING).dtype;
            for ((from, _), (to, _)) in dtype.named_parts(EMBEDDING).into_iter().zip(dtype.named_parts(UNEMBEDDING)) {
                let whole = Tensor { name: to.clone(), ..self.tensor(&from).clone() };
                let n_rows = of.ids(self.config.vocab_size).len();
                let &[rows, row_len] = &whole.shape[..] else { unreachable!("the family was checked") };
                let own = of.ids(self.config.vocab_size);
                let cut =
                    Cut { matrix: [rows, row_len], rows: vec![own], columns: 0..row_len, made: [n_rows, row_len] };
                let shape = vec![n_rows, row_len];
                let elements = Elements::Slice(Slice::new(whole.clone(), cut));
                tensors.insert(to, Tensor { shape, elements, ..whole });
            }
        }
        Ok(Self { config, tensors, findings: self.findings.clone(), origin: self.origin.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::Encoding;
    use super::super::tensors::groups;
    use super::super::tensors::tests::gpt_oss_20b;
    use super::*;
    use format::Dtype;
    use format::TensorPart;

    /// The model, its matrices in a format with blocks.
    fn in_blocks(config: ModelConfig, dtype: Dtype) -> Checkpoint {
        let mut checkpoint = Checkpoint::random(config, Encoding::F32, 1).expect("a model");
        let all = std::mem::take(&mut checkpoint.tensors).into_values();
        let tensors = all.flat_map(|tensor| {
            let own = if tensor.name.ends_with("weight") { dtype } else { Dtype::F32 };
            let part =
                |part: TensorPart| Tensor { name: part.name, dtype: part.dtype, shape: part.shape, ..tensor.clone() };
            own.parts(&tensor.name, &tensor.shape).into_iter().map(part).collect::<Vec<_>>()
        });
        checkpoint.tensors = tensors.map(|tensor| (tensor.name.clone(), tensor)).collect();
        checkpoint
    }

    #[test]
    fn parameters_of_blocks_are_cut_as_what_they_belong_to() {
        let config = gpt_oss_20b().with("num_hidden_layers", 1);
        let rank = TpRank { rank: 1, size: 2 };
        let config = config.with("intermediate_size", 3072); // of 256, too, two parts are whole blocks
        for dtype in [Dtype::Q8_0, Dtype::Q4_1, Dtype::Q5_1, Dtype::Q5K, Dtype::Q6K, Dtype::Q2K] {
            let part = in_blocks(config.clone(), dtype).part(rank).expect("it divides");
            let expected = groups(&part.config).into_iter().flat_map(|group| {
                let own = if group.tensor.name.ends_with("weight") { dtype } else { Dtype::F32 };
                own.parts(&group.name_in(0), &group.shape)
            });
            for TensorPart { name, dtype, mut shape } in expected {
                if name.starts_with("unembedding") {
                    shape[0] = 100_544;
                }
                let tensor = part.tensor(&name);
                assert_eq!((&tensor.shape, tensor.dtype), (&shape, dtype), "{name}");
                if let Elements::Slice(slice) = &tensor.elements {
                    assert_eq!(slice.len_bytes(), tensor.len_bytes(), "{name}");
                }
            }
        }
    }

    #[test]
    fn columns_that_are_no_whole_blocks_are_refused_in_words() {
        let config = gpt_oss_20b().with("num_hidden_layers", 1).with("head_dim", 24).with("num_attention_heads", 8);
        let error =
            in_blocks(config, Dtype::Q8_0).part(TpRank { rank: 0, size: 4 }).expect_err("48 columns").to_string();
        let told = "could not cut `block.0.attn.out.weight` for 4 devices: 48 columns each are no whole blocks of 32";
        assert_eq!(error, told);
        let config = gpt_oss_20b().with("num_hidden_layers", 1);
        let error = in_blocks(config, Dtype::Q6K).part(TpRank { rank: 0, size: 2 }).expect_err("1440").to_string();
        let told =
            "could not cut `block.0.mlp.mlp2_weight` for 2 devices: 1440 columns each are no whole blocks of 256";
        assert_eq!(error, told);
    }

    #[test]
    fn parts_have_the_shapes_of_a_model_of_their_dimensions() {
        for encoding in [Encoding::Mxfp4, Encoding::Bf16] {
            let config = gpt_oss_20b().with("num_hidden_layers", 1);
            let whole = Checkpoint::random(config, encoding, 1).expect("a model");
            for (size, rank) in [(2, 1), (4, 3), (8, 7), (8, 0)] {
                let part = whole.part(TpRank { rank, size }).expect("it divides");
                let expected: Vec<(String, Vec<usize>)> = groups(&part.config)
                    .iter()
                    .flat_map(|group| encoding.parts(group))
                    .map(|part| (part.name_in(0), part.shape))
                    .collect();
                for (name, mut shape) in expected {
                    if name == "unembedding.weight" {
                        shape[0] = 201_088 / size; // its config has all ids, of which it samples
                    }
                    let tensor = part.tensor(&name);
                    assert_eq!(tensor.shape, shape, "{name} of {rank}/{size}");
                    if let Elements::Slice(slice) = &tensor.elements {
                        assert_eq!(slice.len_bytes(), tensor.len_bytes(), "{name}");
                    }
                }
            }
        }
    }

    /// Of 4096 columns of heads, and 3072 of features, the second device has the second half; a scale is for 32.
    #[test]
    fn parameters_of_blocks_are_those_of_the_columns_that_are_cut() {
        let config = gpt_oss_20b().with("num_hidden_layers", 1).with("intermediate_size", 3072);
        let whole = in_blocks(config.clone(), Dtype::Q8_0);
        let columns = |name: &str| {
            let tensor = whole.tensor(name);
            let (cut, shape) =
                TpRank { rank: 1, size: 2 }.cut(tensor, None, whole.grain(tensor), &config).expect("a part");
            (cut.columns, shape.last().copied())
        };
        assert_eq!(columns("block.0.attn.out.weight"), (2048..4096, Some(2048)));
        assert_eq!(columns("block.0.attn.out.scale"), (64..128, Some(64)));
        assert_eq!(columns("block.0.mlp.mlp2_weight"), (1536..3072, Some(1536)));
        assert_eq!(columns("block.0.mlp.mlp2_scale"), (48..96, Some(48)));
    }

    #[test]
    fn what_is_added_once_is_the_first_devices() {
        let config = gpt_oss_20b().with("num_hidden_layers", 1);
        let whole = Checkpoint::random(config, Encoding::Bf16, 1).expect("a model");
        let [first, second] = [0, 1].map(|rank| whole.part(TpRank { rank, size: 2 }).expect("it divides"));
        let name = "block.0.attn.out.bias";
        assert!(!matches!(first.tensor(name).elements, Elements::Slice(_)), "the first has it as it is");
        let (cut, shape) = TpRank { rank: 1, size: 2 }
            .cut(whole.tensor(name), None, Grain { block: 1, element: 1 }, &whole.config)
            .expect("the second has zeros");
        assert_eq!((cut.rows, shape), (vec![], vec![2880]));
        for part in [&first, &second] {
            assert!(matches!(part.tensor("block.0.attn.qkv.weight").elements, Elements::Slice(_)));
        }
    }

    #[test]
    fn rows_of_gates_and_of_ups_are_as_many_as_features() {
        let shape =
            <crate::config::NamedShape as clap::ValueEnum>::from_str("llama-3.2-1b", false).expect("it is known");
        let config = shape.config(None);
        let is_of_both = |tensor: &&crate::family::FamilyTensor| tensor.cut == Sharding::GateRowsUpRows;
        let gates = config.family.tensors.iter().find(is_of_both).expect("it has them");
        assert_eq!(n_features(&config, &format!("block.0.{}", gates.name)), 8192);
    }
}
