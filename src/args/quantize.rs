//! The flags for the types of weights.

use clap::{Args, ValueEnum};
use kernel::target::Target;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::quantized::Quantization;

/// Which types of the file weights keep.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct StoredWeightsArgs {
    /// Which weights keep their file's types in memory [default: blocks; none on GPUs where that is faster (sm_90), if
    /// the model then takes at most half of the free memory; without a value: all]
    #[arg(long, value_enum, value_name = "TYPES", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all")]
    pub(crate) stored_weights: Option<StoredWeights>,
}

impl StoredWeightsArgs {
    /// What was asked for, or what is usual.
    pub(crate) fn usual(self) -> StoredWeights {
        self.stored_weights.unwrap_or_default()
    }

    /// What was asked for, or what is fastest on a target.
    pub(crate) fn on(self, target: &Target) -> StoredWeights {
        let fastest = if target.widen_blocks { StoredWeights::None } else { StoredWeights::default() };
        self.stored_weights.unwrap_or(fastest)
    }
}

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
