//! How the weights of a model are encoded: which element type, and for MXFP4 which tensors stand for one matrix.

use super::tensors::{Group, MLP1_WEIGHT, MLP2_WEIGHT};
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
    /// As [`Group::name`].
    pub name: &'static str,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one of them, outermost first; of MXFP4 in elements, rows in whole blocks.
    pub shape: Vec<usize>,
}

/// The name of the scales of a matrix in MXFP4: `block.0.mlp.mlp1_scale` of `block.0.mlp.mlp1_weight`.
pub fn scale_of(weight: &str) -> String {
    weight.replace("_weight", "_scale")
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
        let whole = |dtype| vec![Part { name: group.name, dtype, shape: group.shape.clone() }];
        let scale = match group.name {
            MLP1_WEIGHT => "mlp.mlp1_scale",
            MLP2_WEIGHT => "mlp.mlp2_scale",
            _ => return whole(self.dense()),
        };
        let dtype = self.experts();
        let Some(block_len) = dtype.block_len() else { return whole(dtype) };
        let (inputs, rows) = group.shape.split_last().expect("the experts' matrices have three dimensions");
        let blocks = inputs.div_ceil(block_len);
        let part = |name, dtype, last| Part { name, dtype, shape: [rows, &[last]].concat() };
        vec![part(group.name, dtype, blocks * block_len), part(scale, Dtype::U8, blocks)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tensors::groups;
    use super::super::tensors::tests::small;
    use super::*;

    #[test]
    fn experts_in_mxfp4_are_blocks_and_scales_and_the_rest_is_bf16() {
        let config = crate::config::ModelConfig { hidden_size: 70, ..small() };
        let parts: Vec<Part> = groups(&config).iter().flat_map(|group| Encoding::Mxfp4.parts(group)).collect();
        let of = |name: &str| parts.iter().find(|part| part.name == name).expect(name);
        assert_eq!(parts.len(), 18);
        assert_eq!((of("mlp.mlp1_weight").dtype, &of("mlp.mlp1_weight").shape[..]), (Dtype::Mxfp4, &[3, 10, 96][..]));
        assert_eq!((of("mlp.mlp1_scale").dtype, &of("mlp.mlp1_scale").shape[..]), (Dtype::U8, &[3, 10, 3][..]));
        assert_eq!(of("mlp.mlp2_weight").shape, [3, 70, 32]);
        assert_eq!(of("mlp.mlp2_scale").shape, [3, 70, 1]);
        assert!(parts.iter().all(|part| matches!(part.dtype, Dtype::Bf16) || part.name.starts_with("mlp.mlp")));
        assert_eq!(of("mlp.mlp1_bias").dtype, Dtype::Bf16);
        assert_eq!((scale_of(MLP1_WEIGHT), scale_of(MLP2_WEIGHT)), ("mlp.mlp1_scale".into(), "mlp.mlp2_scale".into()));
    }
}
