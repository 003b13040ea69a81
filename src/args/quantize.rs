//! The flag for converting matrices while a model is read.

use clap::{Args, ValueEnum};
use model::checkpoint::Checkpoint;
use model::checkpoint::quantized::Quantization;

/// What becomes of matrices.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct QuantizeArgs {
    /// Quantise matrices as they are read: attention, embedding and vocabulary, but not experts
    #[arg(long, value_enum, default_value_t = Quantize::None, value_name = "FORMAT")]
    quantize: Quantize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Quantize {
    /// Keep the checkpoint's types
    None,
    /// 8-bit integers with a scale per 32, as in llama.cpp: 8.5 bits a number
    #[value(name = "q8_0")]
    Q8_0,
    /// 8-bit floats (E4M3) with a scale per row: 8.25 bits a number
    #[value(name = "fp8")]
    Fp8,
}

impl QuantizeArgs {
    /// The checkpoint with its matrices quantised, if that was asked for.
    pub(crate) fn applied(self, checkpoint: Checkpoint) -> Checkpoint {
        match self.quantize {
            Quantize::None => checkpoint,
            Quantize::Q8_0 => checkpoint.quantized(Quantization::Q8_0),
            Quantize::Fp8 => checkpoint.quantized(Quantization::F8E4M3),
        }
    }

    /// Whether anything is.
    pub(crate) fn is_some(self) -> bool {
        self.quantize != Quantize::None
    }
}
