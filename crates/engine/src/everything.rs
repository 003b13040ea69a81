//! Every kernel that a model's steps can use on a target, for any number of rows: for bundles, without a device.

use crate::blueprint::{Blueprint, BlueprintError, ModelOptions, PrefixCache};
use crate::graph::kv_cache::BLOCK_TOKENS;
use crate::graph::placement::{EmbeddingPlace, Place};
use crate::plan::error::PlanError;
use crate::plan::everything::{add, add_random_weights};
use format::Dtype;
use hint::Hint;
use kernel::ahead::TargetKernels;
use kernel::choice::Chooser;
use kernel::object::store::{Progress, Store};
use kernel::template::Precision;
use model::checkpoint::Checkpoint;

/// Why the kernels of a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum EverythingError {
    #[error(transparent)]
    Blueprint(#[from] BlueprintError),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Hint for EverythingError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Blueprint(error) => error.hint(),
            Self::Plan(error) => error.hint(),
        }
    }
}

/// Adds them: those of steps that the device computes alone, and those where the processor has the experts of a model
/// that is larger than the device. Random weights are made by kernels too, whose types are those of the checkpoint.
///
/// - `kv_dtype`: element type of keys and values
///
/// # Errors
/// [`EverythingError`].
pub fn add_all(
    kernels: &mut TargetKernels,
    checkpoint: &Checkpoint,
    (precision, kv_dtype): (Precision, Dtype),
    chooser: &Chooser,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), EverythingError> {
    let options = ModelOptions {
        precision,
        kv_dtype,
        n_slots: 1,
        capacity_tokens: BLOCK_TOKENS,
        max_rows: 1,
        max_logit_rows: 1,
        odd_window: None,
        kv_budget_bytes: usize::MAX,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::Device,
    };
    let (target, library) = (chooser.target(), chooser.library());
    // Rows that want logits are chosen where a step has others too: that is a node of its own.
    let all_want_logits = Blueprint::new(checkpoint, &options, target, library)?.graph;
    let Blueprint { graph, .. } =
        Blueprint::new(checkpoint, &ModelOptions { max_rows: 2, ..options }, target, library)?;
    for graph in [&graph, &all_want_logits] {
        add(kernels, graph, Place::Device, chooser, store, progress)?;
    }
    if !checkpoint.expert_bytes().is_empty() {
        let mut shared = graph.clone();
        shared.place_experts(checkpoint.config.family, checkpoint.config.num_hidden_layers);
        let places = if target.is_gpu() { &[Place::Device, Place::Streamed][..] } else { &[Place::Host] };
        for place in places {
            add(kernels, &shared, *place, chooser, store, progress)?;
        }
    }
    Ok(add_random_weights(kernels, &graph, checkpoint, chooser, store, progress)?)
}
