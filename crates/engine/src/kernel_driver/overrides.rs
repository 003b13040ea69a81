//! `HSA_OVERRIDE_GFX_VERSION`, which makes AMD's runtime take a chip for another one. This program never needs it:
//! kernels are compiled for the actual chip, and code for another one ends the process.

use std::env;

use super::{Gpu, KernelDriver, node};

/// The variable; with `_1` after it, that of node 1 alone.
pub const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// The dropped variables, for a process that was started again without them: `NAME=VALUE`, separated by blanks.
pub const IGNORED: &str = "GPTOSS_JIT_IGNORED_OVERRIDES";

impl KernelDriver {
    /// The variables, as names and values, that give a GPU another arch than the driver does: `NAME=VALUE` each.
    /// Without a driver that names its GPUs they cannot be checked.
    pub fn false_overrides(&self, variables: &[(String, String)]) -> Vec<String> {
        let is_false = |(name, value): &&(String, String)| {
            let of_node = name.strip_prefix(OVERRIDE);
            let is_of = |gpu: &&Gpu| of_node == Some("") || of_node == Some(&format!("_{}", gpu.node));
            !value.is_empty() && self.gpus.iter().filter(is_of).any(|gpu| arch(value).as_deref() != Some(&gpu.arch))
        };
        variables.iter().filter(is_false).map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// What there is to say of such variables beside a device that a runtime calls by this arch: that this process was
    /// started again without them, or that they are set where nobody knows better.
    pub(crate) fn told_of_overrides(&self, device: &str, arch: &str) -> Vec<String> {
        let set = env::var(OVERRIDE).ok().filter(|value| !value.is_empty() && self.gpus.is_empty());
        let set = set.map(|value| {
            format!("{OVERRIDE}={value} is set: {device} says that it is a {arch}, and kernels are compiled for that")
        });
        self.ignored().into_iter().chain(set).collect()
    }

    /// What there is to say of those that this process was started again without.
    pub fn ignored(&self) -> Vec<String> {
        self.ignored_overrides(env::var(IGNORED).ok().as_deref())
    }

    pub(super) fn ignored_overrides(&self, ignored: Option<&str>) -> Vec<String> {
        let chips: Vec<String> = self.gpus.iter().map(|gpu| format!("node {} is a {}", gpu.node, gpu.arch)).collect();
        let chips = chips.join(" and ");
        let line =
            |one: &str| format!("`{one}` is ignored: {chips}, and kernels are compiled for the actual chip; unset it");
        ignored.unwrap_or_default().split_whitespace().map(line).collect()
    }
}

/// `gfx1030` of `10.3.0`.
fn arch(version: &str) -> Option<String> {
    let parts: Vec<u32> = version.split('.').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let [major, minor, stepping] = parts[..] else { return None };
    node::arch(major * 10_000 + minor * 100 + stepping)
}
