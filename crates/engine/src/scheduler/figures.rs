//! A scheduler's state in numbers, for metrics.

use serde::{Deserialize, Serialize};

/// For metrics, and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Sequences that have a slot.
    pub running: usize,
    /// Sequences that wait for one.
    pub waiting: usize,
    /// Blocks of the pool that sequences hold.
    pub blocks_held: usize,
    /// Idle blocks, which the next sequence with the same beginning will find. The rest is free.
    pub blocks_cached: usize,
    /// All blocks of the pool.
    pub blocks: usize,
    /// How often a sequence lost its blocks to another one, so far.
    pub preemptions: u64,
    /// Tokens of the prompts that were looked up in the prefix cache so far.
    pub(crate) prefix_query_tokens: u64,
    /// Of these, tokens found in the cache.
    pub prefix_hit_tokens: u64,
    /// Tokens that steps had draft rows for so far.
    pub drafted_tokens: u64,
    /// Of these, drafts that were right.
    pub accepted_tokens: u64,
}
