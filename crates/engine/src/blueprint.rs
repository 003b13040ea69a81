//! The graph and the sizes of a model's steps before anything is loaded. Needs a target, but no device.

use std::collections::BTreeMap;

use crate::graph::forward::{ForwardError, ForwardOptions, Strides, forward};
use crate::graph::kv_cache::{KvDtypes, KvLayout, KvRequest, KvTooLarge};
use crate::graph::placement::EmbeddingPlace;
use crate::graph::{Graph, Rows, StepLimits};
use crate::plan::error::PlanError;
use crate::scheduler::DraftOptions;
use format::Dtype;
use hint::Hint;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Precision, Problem};
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::config::ModelConfig;
use model::config::tensor_parallel::TpRank;

/// Sizes and precision of a model, on any device.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    pub precision: Precision,
    /// Element type of the KV cache; of one with scales that of the layers that see everything ([`KvDtypes::new`]).
    pub kv_dtype: Dtype,
    /// Sequences at a time.
    pub n_slots: usize,
    /// Longest sequence, in tokens.
    pub capacity_tokens: usize,
    /// Most rows of one step, and so the chunk size of prompts.
    pub max_rows: usize,
    /// Most rows of one step that give logits; at least `n_slots`.
    pub max_logit_rows: usize,
    /// Window of the layers that see everything, gpt-oss's odd ones; `None` is all.
    pub odd_window: Option<usize>,
    /// Memory for keys and values, in bytes.
    pub kv_budget_bytes: usize,
    /// Most prompt rows in a step in which other sequences generate; `None` is as many as fit.
    pub max_prompt_rows: Option<usize>,
    /// Sizes of the prefix cache.
    pub prefix_cache: PrefixCache,
    /// How tokens are drafted; `None` disables it. Draft rows come in addition to `max_logit_rows`.
    pub drafts: Option<DraftOptions>,
    /// Where the table is that tokens are looked up in.
    pub embedding: EmbeddingPlace,
}

/// Sizes of the prefix cache: idle blocks are kept, and this many snapshots of the window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCache {
    /// Most snapshots at a time; 0 disables the prefix cache. One is made at the end of every prompt and answer, and
    /// takes as much memory as a window of each such layer.
    pub n_snapshots: usize,
    /// Tokens of a long prompt after which another one is made.
    pub snapshot_tokens: usize,
    /// Sequences of full length that blocks are kept for besides those of the slots, as far as memory goes.
    pub n_kept: usize,
}

impl PrefixCache {
    /// No prefix cache: a prompt reuses nothing of earlier ones.
    pub const OFF: Self = Self::new(0);

    /// This many snapshots, at the default distance, and the blocks that the slots leave.
    pub const fn new(n_snapshots: usize) -> Self {
        Self { n_snapshots, snapshot_tokens: 4096, n_kept: 0 }
    }
}

/// The precision for a checkpoint, by default that of its weights; and the checkpoint in the form that this precision
/// needs, with weights that keep their file's types as far as `kept` says so.
pub fn precision_for(
    checkpoint: &Checkpoint,
    asked: Option<Precision>,
    kept: StoredWeights,
) -> (Precision, Checkpoint) {
    let rounded = checkpoint.rounded();
    let natural = if rounded.dense_dtype() == Dtype::F32 { Precision::F32 } else { Precision::Bf16 };
    match asked.unwrap_or(natural) {
        Precision::Bf16 => (Precision::Bf16, rounded.as_stored(kept)),
        Precision::F32 => (Precision::F32, checkpoint.as_stored(kept)),
    }
}

/// Errors of planning a model's steps.
#[derive(Debug, thiserror::Error)]
pub enum BlueprintError {
    /// The KV cache does not fit its budget.
    #[error(transparent)]
    Kv(#[from] KvTooLarge),
    /// The family's layer cannot be written down.
    #[error("could not build the forward pass")]
    Forward(#[from] ForwardError),
}

impl Hint for BlueprintError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Kv(error) => error.hint(),
            Self::Forward(error) => error.hint(),
        }
    }
}

/// The forward pass of a model, and the sizes of its steps.
pub struct Blueprint {
    pub graph: Graph,
    /// Where keys and values lie.
    pub(crate) layout: KvLayout,
    pub limits: StepLimits,
}

impl Blueprint {
    /// Writes the forward pass down for a target.
    ///
    /// # Errors
    /// [`BlueprintError`].
    pub fn new(
        checkpoint: &Checkpoint,
        options: &ModelOptions,
        target: &Target,
        library: &Library,
    ) -> Result<Self, BlueprintError> {
        Self::of_part(checkpoint, TpRank::WHOLE, Strides::default(), options, target, library)
    }

    /// The same of a part of a model, which `checkpoint` is. Sizes do not depend on `strides`.
    ///
    /// # Errors
    /// [`BlueprintError`].
    pub(crate) fn of_part(
        checkpoint: &Checkpoint,
        part: TpRank,
        strides: Strides,
        options: &ModelOptions,
        target: &Target,
        library: &Library,
    ) -> Result<Self, BlueprintError> {
        let (layout, limits) = sizes(&checkpoint.config, options, target)?;
        let StepLimits { max_rows, max_logit_rows, .. } = limits;
        let (precision, takes_tokens) = (options.precision, target.is_gpu());
        // Elsewhere a row's bits depend on no other row.
        let shares_stream = target.is_gpu() && precision == Precision::Bf16;
        let options =
            ForwardOptions { precision, max_rows, max_logit_rows, takes_tokens, part, strides, shares_stream };
        let graph = forward(checkpoint, &layout, &options, library)?;
        Ok(Self { graph, layout, limits })
    }
}

/// Operations of the longest launch of a step for one of its rows: of the row that sees a whole sequence.
///
/// # Errors
/// If a contract cannot be read, or its work gives no number.
pub fn longest_flop_of_row(graph: &Graph, capacity_tokens: usize, library: &Library) -> Result<f64, PlanError> {
    let last = capacity_tokens.saturating_sub(1) as i64;
    let inputs = BTreeMap::from([("position".to_owned(), vec![last])]);
    let mut problems: Vec<&Problem> = Vec::new();
    let mut most = 0.0_f64;
    for node in graph.nodes.iter().filter(|node| node.rows == Rows::All) {
        if problems.contains(&&node.problem) {
            continue;
        }
        problems.push(&node.problem);
        let contract = library.contract(&node.problem.ops[0])?;
        let mut scalars: BTreeMap<String, u64> =
            node.scalars.iter().map(|(name, value)| (name.clone(), u64::from(*value))).collect();
        scalars.insert("n_tokens".into(), 1);
        let work = contract.work.count(&node.problem, &[], &scalars, &inputs)?;
        most = most.max(work.flop.unwrap_or(0.0));
    }
    Ok(most)
}

/// Where keys and values of a model lie, or of a device's part of it, and how large its steps are.
///
/// # Errors
/// If the KV cache does not fit its budget.
pub fn sizes(
    config: &ModelConfig,
    options: &ModelOptions,
    target: &Target,
) -> Result<(KvLayout, StepLimits), KvTooLarge> {
    let max_rows = options.max_rows.max(options.n_slots);
    let n_drafts = options.drafts.map_or(0, |drafts| drafts.most_rows(options.n_slots));
    let max_logit_rows = (options.max_logit_rows.max(options.n_slots) + n_drafts).min(max_rows);
    let request = KvRequest {
        n_slots: options.n_slots,
        n_snapshots: options.prefix_cache.n_snapshots,
        n_kept: options.prefix_cache.n_kept,
        capacity_tokens: options.capacity_tokens,
        max_rows,
        dtypes: KvDtypes::new(options.kv_dtype, options.precision),
        matrix_layout: target.has_matrix_layout(),
        odd_window: options.odd_window,
        budget_bytes: options.kv_budget_bytes,
    };
    let limits = StepLimits { max_rows, max_logit_rows, max_decode_rows: options.n_slots };
    Ok((KvLayout::new(config, &request)?, limits))
}
