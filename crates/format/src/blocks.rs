//! Formats of numbers that share parameters block by block: a row for each.
//!
//! In memory, and as arguments of kernels, a tensor in such a format is several: the codes, a row after the other, each
//! filled to whole blocks, and beside them every parameter, one for each block. In GGUF files a block is its parameters
//! in the same order, then its codes. What a code stands for is in
//! `crates/reference/src/formats.rs`.

use super::Dtype;

/// A format in blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// The type of the codes, which names the format.
    pub dtype: Dtype,
    /// Rows and columns of a block.
    pub block: [usize; 2],
    /// What the numbers of a block share, in the order in which kernels take it and files have it.
    pub parameters: &'static [Parameter],
}

/// One value of every block.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameter {
    /// What takes the place of `weight` in the name of the tensor or argument.
    pub name: &'static str,
    pub dtype: Dtype,
}

const fn parameter(name: &'static str, dtype: Dtype) -> Parameter {
    Parameter { name, dtype }
}

static FORMATS: [BlockFormat; 3] = [
    BlockFormat { dtype: Dtype::Mxfp4, block: [1, 32], parameters: &[parameter("scale", Dtype::U8)] },
    BlockFormat { dtype: Dtype::Q8_0, block: [1, 32], parameters: &[parameter("scale", Dtype::F16)] },
    BlockFormat {
        dtype: Dtype::Q4_1,
        block: [1, 32],
        parameters: &[parameter("scale", Dtype::F16), parameter("offset", Dtype::F16)],
    },
];

/// One of the arrays that hold a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    pub name: String,
    pub dtype: Dtype,
    /// Its shape in elements, outermost axis first.
    pub shape: Vec<usize>,
}

impl Dtype {
    /// The format whose codes have this type; none where numbers stand alone.
    pub fn format(self) -> Option<&'static BlockFormat> {
        BlockFormat::all().iter().find(|format| format.dtype == self)
    }

    /// Names and types of the arrays that hold a tensor: see [`Self::parts`].
    pub fn named_parts(self, name: &str) -> Vec<(String, Self)> {
        let parameters = self.format().map_or(&[][..], |format| format.parameters);
        let of_parameters = parameters.iter().map(|parameter| (parameter.name_beside(name), parameter.dtype));
        [(name.to_owned(), self)].into_iter().chain(of_parameters).collect()
    }

    /// The arrays that hold a tensor of numbers of this type: itself or, in a format with blocks, codes and parameters.
    /// The name is a tensor's or that of a contract's argument; the shape says how many numbers there are.
    ///
    /// # Panics
    /// If it has fewer axes than a block.
    pub fn parts(self, name: &str, shape: &[usize]) -> Vec<TensorPart> {
        match self.format() {
            None => vec![TensorPart { name: name.to_owned(), dtype: self, shape: shape.to_vec() }],
            Some(format) => format.parts(name, shape),
        }
    }
}

impl BlockFormat {
    /// All of them.
    pub const fn all() -> &'static [Self] {
        &FORMATS
    }

    /// Numbers of a block.
    pub const fn block_len(&self) -> usize {
        self.block[0] * self.block[1]
    }

    /// Bytes of a block, its parameters among them.
    pub fn block_bytes(&self) -> usize {
        let parameters = self.parameters.iter().map(|parameter| parameter.dtype.len_bytes(1));
        self.dtype.len_bytes(self.block_len()) + parameters.sum::<usize>()
    }

    /// Where in a file's block a parameter begins; behind the last one are the codes.
    pub fn offset_bytes(&self, parameter: usize) -> usize {
        self.parameters[..parameter].iter().map(|parameter| parameter.dtype.len_bytes(1)).sum()
    }

    /// The parameter of that name.
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The codes, then every parameter, as [`Dtype::parts`] has them.
    fn parts(&self, name: &str, shape: &[usize]) -> Vec<TensorPart> {
        let [rows, columns] = self.block;
        let (&last, outer) = shape.split_last().expect("a tensor of blocks has axes");
        let of_codes = [outer, &[last.next_multiple_of(columns)]].concat();
        let mut of_blocks = [outer, &[last.div_ceil(columns)]].concat();
        if let Some(axis) = of_blocks.iter_mut().rev().nth(1) {
            *axis = axis.div_ceil(rows);
        } else {
            assert_eq!(rows, 1, "blocks of several rows need two axes");
        }
        let parameter = |parameter: &Parameter| TensorPart {
            name: parameter.name_beside(name),
            dtype: parameter.dtype,
            shape: of_blocks.clone(),
        };
        let codes = TensorPart { name: name.to_owned(), dtype: self.dtype, shape: of_codes };
        [codes].into_iter().chain(self.parameters.iter().map(parameter)).collect()
    }
}

impl Parameter {
    /// What the parameter of a tensor or argument is called: `mlp.mlp1_scale` of `mlp.mlp1_weight`, `table_scale` of
    /// `table`.
    pub fn name_beside(&self, name: &str) -> String {
        match name.rsplit_once("weight") {
            Some((before, after)) => format!("{before}{}{after}", self.name),
            None => format!("{name}_{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(parts: &[TensorPart]) -> Vec<(&str, Dtype, &[usize])> {
        parts.iter().map(|part| (part.name.as_str(), part.dtype, part.shape.as_slice())).collect()
    }

    /// Bytes of a block are those of ggml's `block_mxfp4`, `block_q8_0` and `block_q4_1`.
    #[test]
    fn blocks_have_the_bytes_of_ggml() {
        let bytes = [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_1].map(|dtype| {
            let format = dtype.format().expect("in blocks");
            (format.block_len(), format.block_bytes(), format.offset_bytes(format.parameters.len()))
        });
        assert_eq!(bytes, [(32, 17, 1), (32, 34, 2), (32, 20, 4)]);
        assert!([Dtype::F32, Dtype::Bf16, Dtype::U8].iter().all(|dtype| dtype.format().is_none()));
    }

    #[test]
    fn a_tensor_is_its_codes_in_whole_blocks_and_their_parameters() {
        let parts = Dtype::Q4_1.parts("block.0.attn.qkv.weight", &[5, 33]);
        let want: [(&str, Dtype, &[usize]); 3] = [
            ("block.0.attn.qkv.weight", Dtype::Q4_1, &[5, 64]),
            ("block.0.attn.qkv.scale", Dtype::F16, &[5, 2]),
            ("block.0.attn.qkv.offset", Dtype::F16, &[5, 2]),
        ];
        assert_eq!(named(&parts), want);
        let parts = Dtype::Mxfp4.parts("mlp.mlp1_weight", &[3, 10, 64]);
        let want: [(&str, Dtype, &[usize]); 2] =
            [("mlp.mlp1_weight", Dtype::Mxfp4, &[3, 10, 64]), ("mlp.mlp1_scale", Dtype::U8, &[3, 10, 2])];
        assert_eq!(named(&parts), want);
        assert_eq!(named(&Dtype::Bf16.parts("table", &[7, 33])), [("table", Dtype::Bf16, &[7, 33][..])]);
        assert_eq!(Dtype::Q8_0.parts("table", &[7, 32])[1].name, "table_scale");
    }

    #[test]
    fn a_block_may_have_rows() {
        const FORMAT: BlockFormat =
            BlockFormat { dtype: Dtype::U8, block: [128, 128], parameters: &[parameter("inverse_scale", Dtype::F32)] };
        let parts = FORMAT.parts("weight", &[2, 300, 200]);
        let want: [(&str, Dtype, &[usize]); 2] =
            [("weight", Dtype::U8, &[2, 300, 256]), ("inverse_scale", Dtype::F32, &[2, 3, 2])];
        assert_eq!(named(&parts), want);
    }
}
