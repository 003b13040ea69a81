//! The rows of one step.

use std::collections::BTreeSet;

use super::request::RequestId;
use super::sampling::Sampling;
use crate::graph::StepShape;
use kernel::step::StepKind;

/// A token of a step, with its slot and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub(crate) slot: u32,
    /// Position in the sequence.
    pub(crate) position: u32,
    /// Token at that position.
    pub(crate) token: RowToken,
}

/// The token of a row, or where it comes from if it is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    Id(u32),
    /// What the step before sampled for its logit row of this index.
    Sampled(u32),
}

impl RowToken {
    /// As `take_token`'s `from`.
    pub(crate) fn encoded(self) -> u32 {
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
    pub(crate) row: u32,
    pub(crate) sampling: Sampling,
    /// Decides the draw, in [0, 1); 0 where nothing is drawn.
    pub(crate) coin: f32,
    /// The token of a prompt that follows the row, where no other is wanted but how probable this one is.
    pub(crate) given: Option<u32>,
    pub(super) slot: usize,
    pub(super) request: RequestId,
}

impl LogitRow {
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }
}

/// Blocks of a group's caches that are copied, of every layer keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The group of layers.
    pub(crate) group: usize,
    /// The first block that is read.
    pub(crate) from: usize,
    /// The first block that is written.
    pub(crate) to: usize,
    /// Blocks side by side.
    pub(crate) n_blocks: usize,
}

/// The rows of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is copied before it, in this order.
    pub(crate) copies: Vec<BlockCopy>,
    pub(crate) rows: Vec<Row>,
    /// Those that give a token.
    pub(crate) logit_rows: Vec<LogitRow>,
}

impl Step {
    /// The shape, which decides its launches.
    pub(crate) fn shape(&self) -> StepShape {
        let mut slots = BTreeSet::new();
        let is_alone = |row: &Row| slots.insert(row.slot);
        let kind = if self.rows.iter().all(is_alone) { StepKind::Decode } else { StepKind::Mixed };
        StepShape { n_rows: self.rows.len(), n_logit_rows: self.logit_rows.len(), kind, compares: false }
    }

    /// Whether every token that it gives is the best one.
    pub(crate) fn is_greedy(&self) -> bool {
        self.logit_rows.iter().all(|row| row.sampling.temperature == 0.0)
    }

    /// Rows that were made with drafts: those after the first that gives a token of a request.
    pub(crate) fn n_drafts(&self) -> usize {
        let is_draft = |pair: &&[LogitRow]| pair[0].request == pair[1].request && pair[0].given.is_none();
        self.logit_rows.windows(2).filter(is_draft).count()
    }

    /// A step whose every row gives logits, sampled greedily.
    pub(crate) fn with_all_logits(rows: Vec<Row>) -> Self {
        let (sampling, coin, request) = (Sampling::GREEDY, 0.0, RequestId(usize::MAX));
        let logit = |row: u32, slot: u32| LogitRow { row, sampling, coin, given: None, slot: slot as usize, request };
        let logit_rows = rows.iter().enumerate().map(|(i, row)| logit(i as u32, row.slot)).collect();
        Self { copies: Vec::new(), rows, logit_rows }
    }
}
