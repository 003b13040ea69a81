//! How the weights of a model are encoded: which element type, and for MXFP4 which tensors stand for one matrix.

use super::tensors::{Group, name_in};
use crate::dtype::Dtype;

/// Element types of a model's weights; by default as the models are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// The experts' matrices in 4 bits, with a factor for every 32 of a row; everything else bf16
    #[default]
    Mxfp4,
    /// Everything bf16
    Bf16,
    /// Everything f32
    F32,
}

/// One tensor of a checkpoint: a group's own, or the scales beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The canonical name; of a tensor in a layer, what follows `block.{l}.`.
    pub name: String,
    /// Whether every layer has one.
    pub per_layer: bool,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one of them, outermost first; of MXFP4 in elements, rows in whole blocks.
    pub shape: Vec<usize>,
}

/// The name of the scales of a matrix in MXFP4: `block.0.mlp.mlp1_scale` of `block.0.mlp.mlp1_weight`.
pub fn scale_of(weight: &str) -> String {
    weight.replace("_weight", "_scale")
}

impl Part {
    /// The canonical name of the tensor in layer `l`.
    pub fn name_in(&self, l: usize) -> String {
        name_in(&self.name, self.per_layer, l)
    }
}

impl Encoding {
    /// The type of everything but the experts' matrices.
    pub fn dense(self) -> Dtype {
        match self {
            Self::Mxfp4 | Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
        }
    }

    /// The type of the experts' matrices; their biases have the others'.
    pub fn experts(self) -> Dtype {
        match self {
            Self::Mxfp4 => Dtype::Mxfp4,
            Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
        }
    }

    /// The tensors that hold a group's numbers: one, or for MXFP4 the packed numbers and a u8 scale for every block of
    /// a row, which stands for the factor 2^(scale - 127).
    pub fn parts(self, group: &Group) -> Vec<Part> {
        let (name, per_layer) = (&group.tensor.name, group.tensor.per_layer);
        let part = |name: &str, dtype, shape| Part { name: name.to_owned(), per_layer, dtype, shape };
        let dtype = if group.tensor.is_expert { self.experts() } else { self.dense() };
        let Some(block_len) = dtype.block_len() else { return vec![part(name, dtype, group.shape.clone())] };
        let (inputs, rows) = group.shape.split_last().expect("the experts' matrices have three dimensions");
        let blocks = inputs.div_ceil(block_len);
        let of_rows = |last: usize| [rows, &[last]].concat();
        vec![part(name, dtype, of_rows(blocks * block_len)), part(&scale_of(name), Dtype::U8, of_rows(blocks))]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tensors::groups;
    use super::super::tensors::tests::small;
    use super::*;

    #[test]
    fn experts_in_mxfp4_are_blocks_and_scales_and_the_rest_is_bf16() {
        let config = small().with("hidden_size", 70);
        let parts: Vec<Part> = groups(&config).iter().flat_map(|group| Encoding::Mxfp4.parts(group)).collect();
        let of = |name: &str| parts.iter().find(|part| part.name == name).expect(name);
        assert_eq!(parts.len(), 18);
        assert_eq!((of("mlp.mlp1_weight").dtype, &of("mlp.mlp1_weight").shape[..]), (Dtype::Mxfp4, &[3, 10, 96][..]));
        assert_eq!((of("mlp.mlp1_scale").dtype, &of("mlp.mlp1_scale").shape[..]), (Dtype::U8, &[3, 10, 3][..]));
        assert_eq!(of("mlp.mlp2_weight").shape, [3, 70, 32]);
        assert_eq!(of("mlp.mlp2_scale").shape, [3, 70, 1]);
        assert!(parts.iter().all(|part| matches!(part.dtype, Dtype::Bf16) || part.name.starts_with("mlp.mlp")));
        assert_eq!(of("mlp.mlp1_bias").dtype, Dtype::Bf16);
        assert_eq!(scale_of("mlp.mlp1_weight"), "mlp.mlp1_scale");
    }
}
