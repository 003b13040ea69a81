//! Where kernels came from.

use std::fmt;
use std::iter::Sum;

use kernel::object::store::Stats;
use serde_json::{Value, json};

/// How many came from where.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelCounts(Stats);

impl KernelCounts {
    /// The object `kernels` of reports.
    pub(crate) fn json(self) -> Value {
        let Stats { from_cache, from_bundles, compiled } = self.0;
        json!({ "from_cache": from_cache, "from_bundles": from_bundles, "compiled": compiled })
    }

    /// As processes tell it to each other.
    pub(crate) fn numbers(self) -> [usize; 3] {
        [self.0.from_cache, self.0.from_bundles, self.0.compiled]
    }
}

impl From<Stats> for KernelCounts {
    fn from(stats: Stats) -> Self {
        Self(stats)
    }
}

impl From<[usize; 3]> for KernelCounts {
    fn from([from_cache, from_bundles, compiled]: [usize; 3]) -> Self {
        Self(Stats { from_cache, from_bundles, compiled })
    }
}

impl Sum for KernelCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let add = |a: [usize; 3], b: Self| {
            let b = b.numbers();
            [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
        };
        all.fold([0; 3], add).into()
    }
}

impl fmt::Display for KernelCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { from_cache, from_bundles, compiled } = self.0;
        if from_bundles > 0 {
            write!(f, "{from_bundles} from bundles, ")?;
        }
        write!(f, "{from_cache} from cache, {compiled} compiled")
    }
}
