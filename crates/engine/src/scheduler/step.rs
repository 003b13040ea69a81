//! The rows of one step.

use std::collections::BTreeSet;

use super::request::RequestId;
use super::sampling::Sampling;
use crate::graph::StepShape;
use kernel::step::StepKind;

/// One row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Slot of the cache.
    pub slot: u32,
    /// Position in the sequence.
    pub position: u32,
    /// Token at that position.
    pub token: RowToken,
}

/// The token of a row, as far as it is known when the step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    /// This.
    Id(u32),
    /// What the step before sampled for its logit row of this index.
    Sampled(u32),
}

impl RowToken {
    /// As `take_token`'s `from`.
    pub fn encoded(self) -> u32 {
        match self {
            Self::Id(id) => id,
            Self::Sampled(i) => 1 << 31 | i,
        }
    }
}

/// A row whose logits are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitRow {
    /// Index into [`Step::rows`].
    pub row: u32,
    /// How.
    pub sampling: Sampling,
    /// Decides the draw, in [0, 1); 0 where nothing is drawn.
    pub coin: f32,
    pub(super) slot: usize,
    pub(super) request: RequestId,
}

impl LogitRow {
    /// Whose it is.
    pub fn request(&self) -> RequestId {
        self.request
    }
}

/// Blocks of a group's caches that are copied, of every layer keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The group of layers.
    pub group: usize,
    /// The first block that is read.
    pub from: usize,
    /// The first block that is written.
    pub to: usize,
    /// Blocks side by side.
    pub n_blocks: usize,
}

/// The rows of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is copied before it, in this order.
    pub copies: Vec<BlockCopy>,
    /// All of them.
    pub rows: Vec<Row>,
    /// Those that give a token.
    pub logit_rows: Vec<LogitRow>,
}

impl Step {
    /// What decides its launches.
    pub fn shape(&self) -> StepShape {
        let mut slots = BTreeSet::new();
        let is_alone = |row: &Row| slots.insert(row.slot);
        let kind = if self.rows.iter().all(is_alone) { StepKind::Decode } else { StepKind::Mixed };
        StepShape { n_rows: self.rows.len(), n_logit_rows: self.logit_rows.len(), kind, compares: false }
    }

    /// Whether every token that it gives is the best one.
    pub fn is_greedy(&self) -> bool {
        self.logit_rows.iter().all(|row| row.sampling.temperature == 0.0)
    }

    /// Rows that were made with drafts: those behind the first that gives a token of a request.
    pub fn n_drafts(&self) -> usize {
        self.logit_rows.windows(2).filter(|pair| pair[0].request == pair[1].request).count()
    }

    /// A step whose every row gives logits, sampled greedily.
    pub fn with_all_logits(rows: Vec<Row>) -> Self {
        let (sampling, coin, request) = (Sampling::GREEDY, 0.0, RequestId(usize::MAX));
        let logit = |row: u32, slot: u32| LogitRow { row, sampling, coin, slot: slot as usize, request };
        let logit_rows = rows.iter().enumerate().map(|(i, row)| logit(i as u32, row.slot)).collect();
        Self { copies: Vec::new(), rows, logit_rows }
    }
}
