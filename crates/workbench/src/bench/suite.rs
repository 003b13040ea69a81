//! The workloads for a device: prompts, decoding and a whole run, in sizes that suit it.

use engine::Sizes;
use kernel::target::Target;

/// A kind of workload, as `bench --work` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A prompt, up to its first token
    Prefill,
    /// Token by token, for many sequences at a time
    Decode,
    /// Many prompts from first to last token, refilling freed slots at once
    Getp,
}

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A prompt of this many tokens.
    Prefill { tokens: usize },
    /// Sequences that have so many positions behind them.
    Decode {
        /// Sequences.
        batch: usize,
        /// Positions behind each, when it is measured first.
        context: usize,
    },
    /// Prompts, the new tokens of each, and sequences at a time.
    Getp {
        prompts: usize,
        new_tokens: usize,
        /// Sequences at a time.
        slots: usize,
    },
}

/// What the command line says, `None` where it says nothing.
#[derive(Clone, Debug, Default)]
pub struct SuiteOptions {
    pub kinds: Option<Vec<Kind>>,
    /// Batch sizes of decoding.
    pub batches: Option<Vec<u32>>,
    /// Tokens in the context before decoding is measured.
    pub context: Option<u32>,
    /// Lengths of the prompts that are prefilled.
    pub prefill: Option<Vec<u32>>,
    pub steps: Option<u32>,
    pub repeats: Option<u32>,
    /// Prompts of a getp run.
    pub prompts: Option<u32>,
    /// New tokens of each of them.
    pub new_tokens: Option<u32>,
    /// Sequences at a time in a getp run.
    pub slots: Option<u32>,
}

/// What is measured, and how much of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// In the order in which they are measured.
    pub(crate) works: Vec<Workload>,
    /// Decode steps that are measured, and runs of a prompt.
    pub effort: BenchEffort,
}

/// How much is measured of each work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchEffort {
    pub steps: usize,
    pub(crate) repeats: usize,
    /// Replays of each node, where kernels are timed.
    pub(crate) rounds: usize,
}

/// On a GPU all prompts together are no longer than this where no context was asked for: it is what precedes the
/// measurement.
const CONTEXT_BUDGET: u32 = 16_384;

/// The context of a GPU's decoding, where the budget allows it.
const CONTEXT: u32 = 512;

/// The shortest and the longest prompt of a run.
const PROMPT_TOKENS: [usize; 2] = [16, 64];

impl Suite {
    /// What was wished for, the rest as suits the device.
    pub fn new(asked: &SuiteOptions, target: &Target) -> Self {
        let is_gpu = target.is_real_gpu();
        let is_sim = target.is_simulated;
        let pick = |wish: Option<u32>, sim: u32, host: u32, gpu: u32| {
            wish.unwrap_or(if is_sim {
                sim
            } else if is_gpu {
                gpu
            } else {
                host
            }) as usize
        };
        let list = |wish: &Option<Vec<u32>>, sim: &[u32], host: &[u32], gpu: &[u32]| {
            let fallback = if is_sim {
                sim
            } else if is_gpu {
                gpu
            } else {
                host
            };
            wish.clone().unwrap_or_else(|| fallback.to_vec())
        };
        let kinds = asked.kinds.clone().unwrap_or_else(|| match is_gpu {
            true => vec![Kind::Prefill, Kind::Decode, Kind::Getp],
            false => vec![Kind::Prefill, Kind::Decode],
        });
        let mut works = Vec::new();
        for kind in kinds {
            match kind {
                Kind::Prefill => works.extend(
                    list(&asked.prefill, &[8], &[512], &[512, 4096])
                        .iter()
                        .map(|&tokens| Workload::Prefill { tokens: tokens as usize }),
                ),
                Kind::Decode => {
                    let batches = list(&asked.batches, &[1, 2], &[1, 8], &[1, 8, 32, 64, 128, 256, 1024]);
                    let context = |batch: u32| pick(asked.context, 4, 16, CONTEXT.min((CONTEXT_BUDGET / batch).max(1)));
                    works.extend(
                        batches
                            .iter()
                            .map(|&batch| Workload::Decode { batch: batch as usize, context: context(batch) }),
                    );
                }
                Kind::Getp => works.push(Workload::Getp {
                    prompts: pick(asked.prompts, 3, 16, 1024),
                    new_tokens: pick(asked.new_tokens, 2, 16, 256),
                    slots: pick(asked.slots, 2, 8, 1024).min(pick(asked.prompts, 3, 16, 1024)),
                }),
            }
        }
        let effort = BenchEffort {
            steps: pick(asked.steps, 2, 16, 60),
            repeats: pick(asked.repeats, 1, 1, 5),
            rounds: pick(asked.repeats, 1, 1, 5),
        };
        Self { works, effort }
    }

    /// Works that one engine does, with its sizes. A GPU's engine is made for each work: what it does for more slots
    /// than are used would be measured too. On a CPU weights are made anew with each engine, and one does all.
    pub fn sessions(&self, target: &Target, chunk: usize) -> Vec<(Vec<Workload>, Sizes)> {
        let sizes = |work: &Workload| work.sizes(self.effort, chunk);
        if target.is_gpu() {
            return self.works.iter().map(|work| (vec![*work], sizes(work))).collect();
        }
        let all = self.works.iter().map(sizes).reduce(|a, b| Sizes {
            n_slots: a.n_slots.max(b.n_slots),
            capacity_tokens: a.capacity_tokens.max(b.capacity_tokens),
            max_logit_rows: a.max_logit_rows.max(b.max_logit_rows),
        });
        all.map(|sizes| (self.works.clone(), sizes)).into_iter().collect()
    }
}

impl Workload {
    /// The name of its kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill { .. } => "prefill",
            Self::Decode { .. } => "decode",
            Self::Getp { .. } => "getp",
        }
    }

    /// Sequences at a time.
    pub fn batch(self) -> usize {
        match self {
            Self::Prefill { .. } => 1,
            Self::Decode { batch, .. } => batch,
            Self::Getp { slots, .. } => slots,
        }
    }

    /// Positions, on average while it is measured, that a sequence has; of a prompt its tokens.
    pub fn context(self, effort: BenchEffort) -> usize {
        match self {
            Self::Prefill { tokens } => tokens,
            Self::Decode { context, .. } => context + effort.steps / 2,
            Self::Getp { new_tokens, .. } => (PROMPT_TOKENS[0] + PROMPT_TOKENS[1] + new_tokens) / 2,
        }
    }

    fn sizes(self, effort: BenchEffort, chunk: usize) -> Sizes {
        match self {
            Self::Prefill { tokens } => Sizes::for_tokens(1, tokens, 1),
            Self::Decode { batch, context } => {
                Sizes::for_tokens(batch, context + decode_tokens(batch, context, effort, chunk), batch)
            }
            Self::Getp { new_tokens, slots, .. } => Sizes::for_tokens(slots, PROMPT_TOKENS[1] + new_tokens, slots),
        }
    }
}

/// Steps of decoding that are not measured: the first ones of a shape, and those whose parts are timed.
pub(crate) const OTHER_STEPS: usize = 16;

/// Tokens that each sequence may need until all have been measured: while the last prompts are taken in, the first
/// sequences generate already.
pub fn decode_tokens(batch: usize, context: usize, effort: BenchEffort, chunk: usize) -> usize {
    steps_to_take_in(batch, context, chunk.max(batch)) + effort.steps + OTHER_STEPS
}

/// Steps of the scheduler until every prompt has given its first token.
fn steps_to_take_in(batch: usize, context: usize, max_rows: usize) -> usize {
    let (mut generating, mut left, mut steps) = (0, 0, 0);
    while generating < batch {
        steps += 1;
        // `left` is what the sequence at `generating` still has to take in; those after it have not begun.
        let mut rows = max_rows - generating;
        while rows > 0 && generating < batch {
            let begun = if left == 0 { context } else { left };
            let taken = begun.min(rows);
            rows -= taken;
            left = begun - taken;
            if left == 0 {
                generating += 1;
            }
        }
    }
    steps
}

/// Tokens of prompt `i` of a run: all lengths between the bounds come, in an order that looks random.
pub(crate) fn prompt_tokens(i: usize) -> usize {
    let [shortest, longest] = PROMPT_TOKENS;
    shortest + i.wrapping_mul(2_654_435_761) % (longest - shortest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: BenchEffort = BenchEffort { steps: 16, repeats: 1, rounds: 1 };

    #[test]
    fn each_device_has_works_of_its_size_and_asked_come_first() {
        let works = |arch: &str| Suite::new(&SuiteOptions::default(), &Target::named(arch).expect(arch)).works;
        assert_eq!(works("host").len(), 3);
        let gpu = works("gfx942");
        assert_eq!(gpu.len(), 2 + 7 + 1);
        assert_eq!(gpu[2], Workload::Decode { batch: 1, context: 512 });
        assert_eq!(gpu[8], Workload::Decode { batch: 1024, context: 16 });
        assert_eq!(gpu[9], Workload::Getp { prompts: 1024, new_tokens: 256, slots: 1024 });
        let asked = SuiteOptions {
            kinds: Some(vec![Kind::Getp, Kind::Decode]),
            batches: Some(vec![3]),
            context: Some(100),
            prompts: Some(7),
            ..SuiteOptions::default()
        };
        let suite = Suite::new(&asked, &Target::named("host").expect("this machine"));
        let getp = Workload::Getp { prompts: 7, new_tokens: 16, slots: 7 };
        assert_eq!(suite.works, [getp, Workload::Decode { batch: 3, context: 100 }]);
    }

    #[test]
    fn a_sequence_has_room_for_what_it_generates_while_others_are_taken_in() {
        assert_eq!(steps_to_take_in(1, 512, 512), 1);
        assert_eq!(steps_to_take_in(1, 513, 512), 2);
        // 8 rows: both prompts of 4; with one row less the second one's last token waits for a step.
        assert_eq!((steps_to_take_in(2, 4, 8), steps_to_take_in(2, 4, 7)), (1, 2));
        // The first step takes in 3 of 4 prompts, the second has one row beside 3 that generate.
        assert_eq!(steps_to_take_in(4, 2, 6), 2);
        assert_eq!(steps_to_take_in(4, 2, 4), 1 + 1 + 2);
        assert_eq!(decode_tokens(1, 512, EFFORT, 512), 1 + 16 + OTHER_STEPS);
    }

    #[test]
    fn prompts_of_a_run_have_all_lengths() {
        let lengths: std::collections::BTreeSet<usize> = (0..1024).map(prompt_tokens).collect();
        assert_eq!(lengths, (16..=64).collect());
        let mean = (0..1024).map(prompt_tokens).sum::<usize>() as f64 / 1024.0;
        assert!((mean - 40.0).abs() < 0.5, "{mean}");
    }
}
