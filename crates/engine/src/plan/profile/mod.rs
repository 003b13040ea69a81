//! Where the time of a step goes, node by node; a model's layers are added up.
//!
//! To time one launch the host must wait for it, which takes longer than a short kernel. So if the device replays
//! graphs, the launches of one node in all layers are captured alone and replayed between two events: they follow each
//! other as in a step, on the step's own data. For this, the activations of every layer get their own memory
//! (`replayed`). On other devices each launch is timed as it is made (`in_order`). `work` counts the bytes and
//! operations of a launch.

mod in_order;
mod replayed;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::error::PlanError;
use super::segment::Steps;
use crate::graph::StepShape;
use kernel::step::StepKind;

/// Which steps are timed, where timing one takes more than running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiled {
    /// All, each so many times: the median counts.
    Every {
        /// Replays of every node.
        rounds: usize,
    },
    /// Of steps that are alike in kind and, but for a factor of two, in rows: the 1st, 4th, 16th, 64th…; each stands
    /// for those up to the next.
    Some,
}

/// Time by node, over all steps so far.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Number of profiled steps.
    pub steps: usize,
    /// Time of the device for these steps as a whole, when no kernel's time was taken.
    pub step_time: Duration,
    entries: BTreeMap<(String, String), ProfileEntry>,
}

/// The launches of one node of every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileEntry {
    pub calls: usize,
    /// Time of all of them, one following the other.
    pub time: Duration,
    /// Bytes that they have to move at least, by the ops' contracts.
    pub bytes: f64,
    /// Operations that they have to do; a multiply-add is two.
    pub flop: f64,
}

impl Profile {
    /// Adds the launches of a node.
    pub fn add(&mut self, node: &str, template: &str, added: ProfileEntry) {
        *self.entries.entry((node.to_owned(), template.to_owned())).or_default() += added;
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        self.steps += other.steps;
        self.step_time += other.step_time;
        for ((node, template), entry) in &other.entries {
            self.add(node, template, *entry);
        }
    }

    /// Node (layers as `*`), template and figures, the longest first.
    pub fn rows(&self) -> Vec<(&str, &str, ProfileEntry)> {
        let mut rows: Vec<_> =
            self.entries.iter().map(|((node, template), entry)| (&**node, &**template, *entry)).collect();
        rows.sort_by_key(|(_, _, entry)| std::cmp::Reverse(entry.time));
        rows
    }

    /// The sum over all nodes.
    pub fn total(&self) -> ProfileEntry {
        let mut total = ProfileEntry::default();
        self.entries.values().for_each(|entry| total += *entry);
        total
    }
}

/// Takes the times of steps as they come.
pub(super) struct Profiler {
    which: Profiled,
    total: Profile,
    alike: HashMap<(StepKind, u32), Alike>,
    /// Whether the device replays nothing.
    is_in_order: bool,
}

/// Steps of a kind, and of rows up to a power of two.
#[derive(Default)]
struct Alike {
    seen: usize,
    /// Of the one that was timed last.
    latest: Profile,
}

impl Profiler {
    /// - `is_alone`: whether no other device takes part in the steps. Where one does, nothing is launched that it does
    ///   not launch too: they meet once in a step, and what one writes the other reads.
    pub(crate) fn new(which: Profiled, is_alone: bool) -> Self {
        Self { which, total: Profile::default(), alike: HashMap::new(), is_in_order: !is_alone }
    }

    /// Takes times of a step that was prepared and is to run now. `true`, and it has run, where its launches were timed
    /// as they were made; else it must still run, which puts right whatever was changed here.
    pub(crate) fn step(&mut self, steps: &Steps<'_>, shape: StepShape) -> Result<bool, PlanError> {
        let alike = self.alike.entry((shape.kind, shape.n_rows.next_power_of_two().ilog2())).or_default();
        let rounds = match self.which {
            Profiled::Every { rounds } => Some(rounds),
            Profiled::Some => is_power_of_four(alike.seen + 1).then_some(1),
        };
        self.is_in_order |= steps.sites.host.is_some(); // of two places that take turns no graph is made
        if let Some(rounds) = rounds
            && !self.is_in_order
        {
            match replayed::profile(steps, shape, rounds)? {
                Some(profile) => alike.latest = profile,
                None => self.is_in_order = true,
            }
        }
        if self.is_in_order {
            alike.latest = in_order::profile(steps, shape)?;
        }
        alike.seen += 1;
        self.total.add_all(&alike.latest);
        Ok(self.is_in_order)
    }

    pub(crate) fn finish(self) -> Profile {
        self.total
    }
}

fn is_power_of_four(n: usize) -> bool {
    n.is_power_of_two() && n.ilog2().is_multiple_of(2)
}

impl std::ops::AddAssign for ProfileEntry {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.time += other.time;
        self.bytes += other.bytes;
        self.flop += other.flop;
    }
}

/// `block.3.attn.qkv` as `block.*.attn.qkv`.
pub(super) fn without_layer(label: &str) -> String {
    let is_layer = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    label.split('.').map(|part| if is_layer(&part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_looked_at_ever_more_seldom() {
        assert_eq!((1..=300).filter(|&n| is_power_of_four(n)).collect::<Vec<_>>(), [1, 4, 16, 64, 256]);
    }

    #[test]
    fn layers_are_added_up_and_the_longest_comes_first() {
        let entry = |ms| ProfileEntry { calls: 1, time: Duration::from_millis(ms), bytes: 10.0, flop: 3.0 };
        let mut profile = Profile::default();
        for (label, ms) in [("block.0.attn.norm + block.0.attn.qkv", 1), ("block.11.attn.norm + block.11.attn.qkv", 2)]
        {
            profile.add(&without_layer(label), "a/b", entry(ms));
        }
        let mut other = Profile { steps: 1, ..Profile::default() };
        other.add("sample", "sample/rows", entry(4));
        profile.add_all(&other);
        let rows = profile.rows();
        assert_eq!(rows[0].0, "sample");
        assert_eq!(rows[1].0, "block.*.attn.norm + block.*.attn.qkv");
        let both = ProfileEntry { calls: 2, time: Duration::from_millis(3), bytes: 20.0, flop: 6.0 };
        assert_eq!(rows[1].2, both);
        assert_eq!((profile.steps, profile.total().time), (1, Duration::from_millis(7)));
    }
}
