//! Where the time of the steps goes, node by node; the layers of a model are added up.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time by node, over all steps so far.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    entries: BTreeMap<(String, String), ProfileEntry>,
}

/// The launches of one node of every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileEntry {
    /// Launches.
    pub calls: usize,
    /// Time from launch to completion, all of them.
    pub time: Duration,
}

impl Profile {
    /// Adds a launch.
    pub(super) fn add(&mut self, label: &str, template: &str, time: Duration) {
        let entry = self.entries.entry((without_layer(label), template.to_string())).or_default();
        entry.calls += 1;
        entry.time += time;
    }

    /// Node (layers as `*`), template and figures, the longest first.
    pub fn rows(&self) -> Vec<(&str, &str, ProfileEntry)> {
        let mut rows: Vec<_> =
            self.entries.iter().map(|((label, template), entry)| (&**label, &**template, *entry)).collect();
        rows.sort_by_key(|(_, _, entry)| std::cmp::Reverse(entry.time));
        rows
    }

    /// Time of all launches.
    pub fn total(&self) -> Duration {
        self.entries.values().map(|entry| entry.time).sum()
    }
}

/// `block.3.attn.qkv` as `block.*.attn.qkv`.
fn without_layer(label: &str) -> String {
    let is_layer = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    label.split('.').map(|part| if is_layer(&part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_added_up_and_the_longest_comes_first() {
        let mut profile = Profile::default();
        profile.add("block.0.attn.norm + block.0.attn.qkv", "a/b", Duration::from_millis(1));
        profile.add("block.11.attn.norm + block.11.attn.qkv", "a/b", Duration::from_millis(2));
        profile.add("sample", "sample/rows", Duration::from_millis(4));
        let rows = profile.rows();
        assert_eq!(rows[0].0, "sample");
        assert_eq!(rows[1].0, "block.*.attn.norm + block.*.attn.qkv");
        assert_eq!(rows[1].2, ProfileEntry { calls: 2, time: Duration::from_millis(3) });
        assert_eq!(profile.total(), Duration::from_millis(7));
    }
}
