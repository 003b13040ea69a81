//! Block formats, whose numbers share parameters: a table with a row for each.
//!
//! In memory, and as a kernel's arguments, a tensor in such a format is several tensors: the codes, row after row,
//! each row filled to whole blocks, and every parameter, with one value for each block or each part of one. Codes of
//! fewer bits than a byte share bytes, the first in the lowest bits; further bits of a code are a parameter too.
//! Readers know how files store blocks; the reference knows what a code means.

use super::Dtype;

/// A block format of weights: its codes, and the parameters that numbers share.
#[derive(Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// The type of the codes, which names the format.
    pub dtype: Dtype,
    /// Rows and columns of a block.
    pub block: [usize; 2],
    /// What the numbers of a block share, in the order in which kernels take it and files have it.
    pub parameters: &'static [Parameter],
}

/// A value that neighbouring numbers of a row share.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameter {
    /// What takes the place of `weight` in the name of the tensor or argument; one of [`Parameter::NAMES`].
    pub name: &'static str,
    pub dtype: Dtype,
    /// How many numbers of a row share a value: a block's, or a part of these.
    pub every: usize,
}

const fn scale(dtype: Dtype, every: usize) -> Parameter {
    Parameter { name: "scale", dtype, every }
}

const fn offset(every: usize) -> Parameter {
    Parameter { name: "offset", dtype: Dtype::F16, every }
}

/// The bits of this many codes that are not among the codes', the first code's lowest; together they fill a word.
const fn high(every: usize) -> Parameter {
    Parameter { name: "high", dtype: Dtype::U32, every }
}

/// A factor of the scale.
const fn group_scale(every: usize) -> Parameter {
    Parameter { name: "group_scale", dtype: Dtype::U8, every }
}

/// A factor of the offset.
const fn group_offset(every: usize) -> Parameter {
    Parameter { name: "group_offset", dtype: Dtype::U8, every }
}

/// A format whose blocks are so many numbers of a row.
const fn row(dtype: Dtype, columns: usize, parameters: &'static [Parameter]) -> BlockFormat {
    BlockFormat { dtype, block: [1, columns], parameters }
}

static FORMATS: [BlockFormat; 14] = [
    row(Dtype::Mxfp4, 32, &[scale(Dtype::U8, 32)]),
    row(Dtype::Q8_0, 32, &[scale(Dtype::F16, 32)]),
    row(Dtype::Q4_1, 32, &[scale(Dtype::F16, 32), offset(32)]),
    row(Dtype::Q4_0, 32, &[scale(Dtype::F16, 32)]),
    row(Dtype::Q5_0, 32, &[scale(Dtype::F16, 32), high(32)]),
    row(Dtype::Q5_1, 32, &[scale(Dtype::F16, 32), offset(32), high(32)]),
    row(Dtype::Iq4Nl, 32, &[scale(Dtype::F16, 32)]),
    row(Dtype::Q4K, 256, &[scale(Dtype::F16, 256), offset(256), group_scale(32), group_offset(32)]),
    row(Dtype::Q5K, 256, &[scale(Dtype::F16, 256), offset(256), high(32), group_scale(32), group_offset(32)]),
    row(Dtype::Q6K, 256, &[scale(Dtype::F16, 256), high(16), group_scale(16)]),
    // The low half of a group's byte is the factor of the scale, the high half that of the offset.
    row(Dtype::Q2K, 256, &[scale(Dtype::F16, 256), offset(256), group_scale(16)]),
    row(Dtype::Q3K, 256, &[scale(Dtype::F16, 256), high(32), group_scale(16)]),
    row(Dtype::Iq4Xs, 256, &[scale(Dtype::F16, 256), group_scale(32)]),
    // Files have a scale for a row, or for 128 by 128 numbers, in types up to f32.
    row(Dtype::F8E4M3, 128, &[scale(Dtype::F32, 128)]),
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
    /// The format whose codes have this type; none for plain numbers.
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
    /// The table, a row for each format.
    pub const fn all() -> &'static [Self] {
        &FORMATS
    }

    /// Numbers in a block; a row has a multiple of this.
    pub const fn block_len(&self) -> usize {
        self.block[0] * self.block[1]
    }

    /// Bytes of a block in memory, its parameters among them.
    pub fn block_bytes(&self) -> usize {
        let values = |parameter: &Parameter| parameter.dtype.len_bytes(self.block[1] / parameter.every);
        self.dtype.len_bytes(self.block_len()) + self.parameters.iter().map(values).sum::<usize>()
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
        let mut outer_blocks = outer.to_vec();
        if let Some(axis) = outer_blocks.last_mut() {
            *axis = axis.div_ceil(rows);
        } else {
            assert_eq!(rows, 1, "blocks of several rows need two axes");
        }
        let parameter = |parameter: &Parameter| TensorPart {
            name: parameter.name_beside(name),
            dtype: parameter.dtype,
            shape: [&outer_blocks[..], &[last.div_ceil(columns) * (columns / parameter.every)]].concat(),
        };
        let codes = TensorPart { name: name.to_owned(), dtype: self.dtype, shape: of_codes };
        [codes].into_iter().chain(self.parameters.iter().map(parameter)).collect()
    }
}

impl Parameter {
    /// What parameters are called, in the order in which kernels take those that a format has.
    pub const NAMES: [&'static str; 5] = ["scale", "offset", "high", "group_scale", "group_offset"];

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

    /// Bytes of a block are those of ggml's, `block_mxfp4` and so on, but where factors of 6 bits have bytes here.
    #[test]
    fn blocks_have_the_bytes_of_ggml_and_those_of_unpacked_factors() {
        let bytes = |dtype: Dtype| {
            let format = dtype.format().expect("in blocks");
            (format.block_len(), format.block_bytes())
        };
        assert_eq!([Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_1].map(bytes), [(32, 17), (32, 34), (32, 20)]);
        assert_eq!([Dtype::Q4_0, Dtype::Q5_0, Dtype::Q5_1].map(bytes), [(32, 18), (32, 22), (32, 24)]);
        assert_eq!([Dtype::Iq4Nl, Dtype::Q6K, Dtype::Q2K].map(bytes), [(32, 18), (256, 210), (256, 84)]);
        assert_eq!([Dtype::Q4K, Dtype::Q5K].map(bytes), [(256, 144 + 4), (256, 176 + 4)]);
        assert_eq!([Dtype::Q3K, Dtype::Iq4Xs].map(bytes), [(256, 110 + 4), (256, 136 + 2)]);
        assert_eq!(bytes(Dtype::F8E4M3), (128, 128 + 4));
        assert!([Dtype::F32, Dtype::Bf16, Dtype::U8].iter().all(|dtype| dtype.format().is_none()));
    }

    #[test]
    fn parameters_come_in_the_order_of_their_names_and_fill_their_words() {
        for format in BlockFormat::all() {
            let place = |parameter: &Parameter| Parameter::NAMES.iter().position(|name| *name == parameter.name);
            let places: Vec<_> = format.parameters.iter().map(|one| place(one).expect(one.name)).collect();
            assert!(places.is_sorted(), "{}", format.dtype);
            assert!(format.parameters.iter().all(|one| format.block_len().is_multiple_of(one.every)));
        }
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
        let parts = Dtype::Q5K.parts("weight", &[7, 300]);
        let want: [(&str, Dtype, &[usize]); 6] = [
            ("weight", Dtype::Q5K, &[7, 512]),
            ("scale", Dtype::F16, &[7, 2]),
            ("offset", Dtype::F16, &[7, 2]),
            ("high", Dtype::U32, &[7, 16]),
            ("group_scale", Dtype::U8, &[7, 16]),
            ("group_offset", Dtype::U8, &[7, 16]),
        ];
        assert_eq!(named(&parts), want);
    }

    #[test]
    fn a_block_may_have_rows() {
        const FORMAT: BlockFormat =
            BlockFormat { dtype: Dtype::U8, block: [128, 128], parameters: &[scale(Dtype::F32, 128)] };
        let parts = FORMAT.parts("weight", &[2, 300, 200]);
        let want: [(&str, Dtype, &[usize]); 2] =
            [("weight", Dtype::U8, &[2, 300, 256]), ("scale", Dtype::F32, &[2, 3, 2])];
        assert_eq!(named(&parts), want);
    }
}
