//! Models whose dimensions are known by name, with random weights.

use model::checkpoint::encoding::Encoding;
use model::checkpoint::{Checkpoint, CheckpointError};
use model::config::NamedShape;

/// A model that is not there: the dimensions of one, and random weights.
#[derive(clap::Args, Debug)]
pub(crate) struct ShapeArgs {
    /// Random weights of this model's dimensions instead of a checkpoint, generated on the device
    #[arg(long, value_enum, conflicts_with = "model")]
    pub(crate) shape: Option<NamedShape>,

    /// Only the first N layers of the shape
    #[arg(long, requires = "shape", value_parser = clap::value_parser!(u32).range(1..=1000))]
    layers: Option<u32>,

    /// How the random weights are encoded
    #[arg(long, requires = "shape", value_enum, default_value_t = Encoding::default())]
    weights: Encoding,
}

/// The seed of all random weights: figures and tokens of two machines are to be of the same model.
const SEED: u64 = 1;

impl ShapeArgs {
    /// The checkpoint that was asked for, if one was.
    pub(crate) fn checkpoint(&self) -> Option<Result<Checkpoint, CheckpointError>> {
        let config = self.shape?.config(self.layers.map(|layers| layers as usize));
        Some(Checkpoint::random(config, self.weights, SEED))
    }
}
