//! What fits a device's memory.

use engine::Sizes;
use engine::blueprint;
use engine::graph::kv_cache::{KvLayout, KvRequest, KvTooLarge};
use kernel::target::Target;
use kernel::template::Precision;
use model::checkpoint::Checkpoint;
use model::config::ModelConfig;

use super::kv::KvArgs;

/// What a device has room for, before a model is loaded.
pub(crate) struct Room<'a> {
    /// Of the model what one device has.
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) target: &'a Target,
    pub(super) cache: &'a KvArgs,
    pub(super) precision: Precision,
    pub(super) kv_budget_bytes: usize,
    /// What the weights leave free, where the device tells.
    pub(super) spare_bytes: Option<usize>,
}

impl Room<'_> {
    /// Whether this is a GPU that executes kernels itself.
    pub(crate) fn is_gpu(&self) -> bool {
        self.target.is_gpu() && !self.target.is_simulated
    }

    /// The model's dimensions.
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.checkpoint.config
    }

    /// What the KV cache of one short sequence is sized for.
    pub(crate) fn kv_request(&self) -> KvRequest {
        self.cache.request(self.precision, self.target, self.kv_budget_bytes)
    }

    /// What the weights leave free, in bytes, where the device tells.
    pub(crate) fn spare_bytes(&self) -> Option<usize> {
        self.spare_bytes
    }

    /// Whether keys and values of sequences in these sizes are within what they may take.
    pub(crate) fn holds(&self, sizes: Sizes) -> bool {
        self.layout(sizes, usize::MAX).is_ok_and(|layout| layout.total_bytes() <= self.kv_budget_bytes)
    }

    /// Whether one of the sequences in these sizes finds room beside what every slot keeps for itself.
    pub(crate) fn has_pool_for_one(&self, sizes: Sizes) -> bool {
        self.layout(sizes, self.kv_budget_bytes).is_ok()
    }

    fn layout(&self, sizes: Sizes, kv_budget_bytes: usize) -> Result<KvLayout, KvTooLarge> {
        let options = self.cache.model_options(self.precision, sizes, kv_budget_bytes);
        Ok(blueprint::sizes(&self.checkpoint.config, &options, self.target)?.0)
    }

    /// The largest number up to `most` of which `holds` is true, where it is true of all smaller ones; at least 1.
    pub(crate) fn largest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
        if most <= 1 || holds(most) {
            return most.max(1);
        }
        let (mut fits, mut too_many) = (1, most);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            *(if holds(middle) { &mut fits } else { &mut too_many }) = middle;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_that_fits_is_found() {
        for most in 0..40 {
            for limit in 0..40 {
                assert_eq!(Room::largest(most, |n| n <= limit), most.min(limit).max(1), "{limit} of {most}");
            }
        }
    }
}
