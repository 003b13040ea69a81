//! What becomes of matrices when a model is read.

use clap::{Args, ValueEnum};
use model::checkpoint::Checkpoint;
use model::checkpoint::quantized::Quantization;

/// What becomes of matrices.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct QuantizeArgs {
    /// Quantise matrices as they are read: those of attention, the embedding and the vocabulary, not the experts'
    #[arg(long, value_enum, default_value_t = Quantize::None, value_name = "FORMAT")]
    quantize: Quantize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Quantize {
    /// They stay as they are
    None,
    /// Bytes and a scale for every 32, as llama.cpp makes them: 8.5 bits a number
    #[value(name = "q8_0")]
    Q8_0,
    /// Bytes of e4m3 and a scale for every row: 8.25 bits a number
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
