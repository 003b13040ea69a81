//! How the weights of a model are encoded: which element type, and in a format with blocks which tensors stand for one
//! matrix.

use super::tensors::{Group, name_in};
use format::Dtype;

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

/// One tensor of a checkpoint: a group's own, or a parameter of its blocks beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The canonical name; of a tensor in a layer, what follows `block.{l}.`.
    pub name: String,
    /// Whether every layer has one.
    pub(crate) per_layer: bool,
    pub dtype: Dtype,
    /// Shape of one of them in elements, outermost first; codes of blocks in rows of whole ones.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// The canonical name of the tensor in layer `l`.
    pub(crate) fn name_in(&self, l: usize) -> String {
        name_in(&self.name, self.per_layer, l)
    }
}

impl Encoding {
    /// The type of everything but the experts' matrices.
    pub(crate) fn dense(self) -> Dtype {
        match self {
            Self::Mxfp4 | Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
        }
    }

    /// The type of the experts' matrices; their biases have the others'.
    pub(crate) fn experts(self) -> Dtype {
        match self {
            Self::Mxfp4 => Dtype::Mxfp4,
            Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
        }
    }

    /// The tensors that hold a group's numbers: one, or in a format with blocks the codes, then each parameter.
    pub fn parts(self, group: &Group) -> Vec<TensorInfo> {
        parts(group, if group.tensor.is_expert { self.experts() } else { self.dense() })
    }
}

/// The tensors that hold a group's numbers in this type.
pub(crate) fn parts(group: &Group, dtype: Dtype) -> Vec<TensorInfo> {
    let per_layer = group.tensor.per_layer;
    let parts = dtype.parts(&group.tensor.name, &group.shape).into_iter();
    parts.map(|format::TensorPart { name, dtype, shape }| TensorInfo { name, per_layer, dtype, shape }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tensors::groups;
    use super::super::tensors::tests::small;
    use super::*;

    #[test]
    fn experts_in_mxfp4_are_blocks_and_scales_and_the_rest_is_bf16() {
        let config = small().with("hidden_size", 70);
        let parts: Vec<TensorInfo> = groups(&config).iter().flat_map(|group| Encoding::Mxfp4.parts(group)).collect();
        let of = |name: &str| parts.iter().find(|part| part.name == name).expect(name);
        assert_eq!(parts.len(), 18);
        assert_eq!((of("mlp.mlp1_weight").dtype, &of("mlp.mlp1_weight").shape[..]), (Dtype::Mxfp4, &[3, 10, 96][..]));
        assert_eq!((of("mlp.mlp1_scale").dtype, &of("mlp.mlp1_scale").shape[..]), (Dtype::U8, &[3, 10, 3][..]));
        assert_eq!(of("mlp.mlp2_weight").shape, [3, 70, 32]);
        assert_eq!(of("mlp.mlp2_scale").shape, [3, 70, 1]);
        assert!(parts.iter().all(|part| matches!(part.dtype, Dtype::Bf16) || part.name.starts_with("mlp.mlp")));
        assert_eq!(of("mlp.mlp1_bias").dtype, Dtype::Bf16);
    }
}
