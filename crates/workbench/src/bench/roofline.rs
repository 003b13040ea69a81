//! How many bytes a step must move and how many operations it must do: counted from the model's matrices, which its
//! family lists, and from what its layers keep.

use std::collections::BTreeSet;

use super::limits::MachineLimits;
use engine::graph::kv_cache::KvDtypes;
use model::checkpoint::Checkpoint;
use model::checkpoint::tensors::{EMBEDDING, groups};
use model::config::{LayerState, ModelConfig};

/// What a step takes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights that are read, and of keys and values that are read and written. Activations stay in caches.
    pub bytes: f64,
    /// Operations; a multiply-add counts as two.
    pub flop: f64,
    /// What of the bytes is in main memory, for the processor beside the device.
    pub host_bytes: f64,
    /// What of the operations is the processor's.
    pub host_flop: f64,
    /// Seconds that weights take to come from main memory to the device, which computes with others meanwhile.
    pub copied_s: f64,
}

impl Cost {
    /// The least time in seconds: bytes and operations overlap perfectly, and the device and the processor beside it
    /// take turns.
    pub fn least_s(&self, limits: &MachineLimits, host: Option<&MachineLimits>) -> f64 {
        let rates = |limits: &MachineLimits| (limits.memory_bytes_per_s(), limits.flop_per_s());
        let (bytes, flop) = host.map_or((0.0, 0.0), |_| (self.host_bytes, self.host_flop));
        let of_host = host.map_or(0.0, |host| least_s((bytes, flop), rates(host)));
        (least_s((self.bytes - bytes, self.flop - flop), rates(limits)) + of_host).max(self.copied_s)
    }

    /// The same where the device does the processor's part, with weights that take so many seconds to come there.
    #[must_use]
    pub(crate) fn streamed(self, copied_s: f64) -> Self {
        Self { host_bytes: 0.0, host_flop: 0.0, copied_s, ..self }
    }

    /// The same for a device that computes everything, with these rates of bytes and operations.
    pub fn least_s_at(&self, bytes_per_s: f64, flop_per_s: f64) -> f64 {
        least_s((self.bytes, self.flop), (bytes_per_s, flop_per_s))
    }

    pub(crate) fn times(self, n: f64) -> Self {
        let Self { bytes, flop, host_bytes, host_flop, copied_s } = self;
        let (host_bytes, host_flop) = (n * host_bytes, n * host_flop);
        Self { bytes: n * bytes, flop: n * flop, host_bytes, host_flop, copied_s: n * copied_s }
    }
}

/// Of bytes and operations, at this many of each per second.
fn least_s((bytes, flop): (f64, f64), (bytes_per_s, flop_per_s): (f64, f64)) -> f64 {
    (bytes / bytes_per_s).max(flop / flop_per_s)
}

/// A model as far as its cost is concerned.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    /// Its matrices; those of a layer once for each that has them.
    matrices: Vec<Matrix>,
    /// Element types of the KV cache.
    kv: KvDtypes,
}

/// A matrix that rows are multiplied by, or looked up in.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    part: MatrixUse,
    elements: f64,
    /// Bytes of a weight, with its part of the scales that its block shares.
    bytes_each: f64,
    /// Of experts, the layer.
    layer: usize,
    is_on_host: bool,
}

/// Which rows a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixUse {
    Dense,
    /// Those that are sent to the expert.
    Experts,
    /// A row of it for each row.
    Embedding,
    /// Rows whose logits are needed.
    Unembedding,
}

/// What the rows of a step are to each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows {
    /// One row of each sequence.
    Decode {
        /// Sequences.
        batch: usize,
        /// Positions that a row sees in a layer without a window, on average.
        context: f64,
    },
    /// A prompt from its beginning, of which the last row gives logits.
    Prompt { tokens: usize },
}

/// A sequence of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Of these, those whose keys and values were there already.
    pub cached: usize,
    /// Tokens that it generated.
    pub new: usize,
}

impl Rows {
    fn n_rows(self) -> f64 {
        match self {
            Self::Decode { batch, .. } => batch as f64,
            Self::Prompt { tokens } => tokens as f64,
        }
    }

    fn n_logit_rows(self) -> f64 {
        match self {
            Self::Decode { batch, .. } => batch as f64,
            Self::Prompt { .. } => 1.0,
        }
    }

    /// Pairs of a row and a position that it sees.
    fn pairs(self, window: Option<usize>) -> f64 {
        match self {
            Self::Decode { batch, context } => batch as f64 * window.map_or(context, |w| context.min(w as f64)),
            Self::Prompt { tokens } => {
                let (t, w) = (tokens as f64, window.map_or(tokens, |w| w.min(tokens)) as f64);
                w * (w + 1.0) / 2.0 + (t - w) * w
            }
        }
    }

    /// Positions whose keys and values come from memory: those of a prompt were just made.
    fn positions_read(self, window: Option<usize>) -> f64 {
        match self {
            Self::Decode { .. } => self.pairs(window),
            Self::Prompt { .. } => 0.0,
        }
    }
}

impl Model {
    /// The matrices of a checkpoint, in their types.
    pub fn from_checkpoint(checkpoint: &Checkpoint, kv: KvDtypes) -> Self {
        let config = &checkpoint.config;
        let mut matrices = Vec::new();
        for group in groups(config).iter().filter(|group| group.tensor.name.ends_with("weight")) {
            let elements = group.shape.iter().product::<usize>() as f64;
            for &l in &group.layers {
                let name = group.name_in(l);
                let pieces = checkpoint.whole_or_pieces(&name);
                let n_rows = pieces.iter().map(|piece| piece.shape[0]).sum::<usize>() as f64;
                let mut add = |part| {
                    matrices.extend(pieces.iter().map(|piece| Matrix {
                        part,
                        elements: elements * piece.shape[0] as f64 / n_rows,
                        bytes_each: piece.dtype.stored_bits() / 8.0,
                        layer: l,
                        is_on_host: false,
                    }));
                };
                if name == EMBEDDING {
                    add(MatrixUse::Embedding);
                }
                if name == checkpoint.unembedding() {
                    add(MatrixUse::Unembedding);
                } else if name != EMBEDDING {
                    add(if group.tensor.is_expert { MatrixUse::Experts } else { MatrixUse::Dense });
                }
            }
        }
        Self { config: config.clone(), matrices, kv }
    }

    /// The same, with the experts of the last `n_layers` that have any in main memory.
    #[must_use]
    pub fn with_experts_on_host(mut self, n_layers: usize) -> Self {
        let experts = self.matrices.iter().filter(|matrix| matrix.part == MatrixUse::Experts);
        let layers: BTreeSet<usize> = experts.map(|matrix| matrix.layer).collect();
        let of_host: BTreeSet<usize> = layers.into_iter().rev().take(n_layers).collect();
        for matrix in self.matrices.iter_mut().filter(|matrix| matrix.part == MatrixUse::Experts) {
            matrix.is_on_host = of_host.contains(&matrix.layer);
        }
        self
    }

    /// Counts a step with one row of each of `batch` sequences, each of which sees `context` positions.
    pub fn decode_cost(&self, batch: usize, context: f64) -> Cost {
        self.cost(Rows::Decode { batch, context })
    }

    /// Counts a step. Each weight is read once; of the experts, as many as are expected to be chosen by anyone when
    /// every choice is equally likely: E (1 - (1 - K/E)^rows). For one row that is K exactly; real routing is skewed,
    /// and touches fewer. Norms and biases are not counted.
    pub(crate) fn cost(&self, rows: Rows) -> Cost {
        let Self { config, .. } = self;
        let n_rows = rows.n_rows();
        let dim = |name| config.get(name).unwrap_or(1) as f64;
        let (n_experts, chosen) = (dim("num_experts"), dim("experts_per_token"));
        let touched = 1.0 - (1.0 - chosen / n_experts).powf(n_rows);
        let mut cost = Cost::default();
        for &Matrix { part, elements, bytes_each, is_on_host, .. } in &self.matrices {
            let (read, rows) = match part {
                MatrixUse::Dense => (elements, n_rows),
                MatrixUse::Experts => (touched * elements, n_rows * chosen / n_experts),
                MatrixUse::Embedding => (n_rows * config.hidden_size as f64, 0.0),
                MatrixUse::Unembedding => (elements, rows.n_logit_rows()),
            };
            let (bytes, flop) = (read * bytes_each, 2.0 * rows * elements);
            cost.bytes += bytes;
            cost.flop += flop;
            if is_on_host {
                cost.host_bytes += bytes;
                cost.host_flop += flop;
            }
        }
        let attention_size = dim("num_attention_heads") * dim("head_dim");
        for l in 0..config.num_hidden_layers {
            let Some(LayerState::Positions { window }) = config.layer_state(l) else { continue };
            let of_position = self.kv.len_bytes(window, 1, config) as f64;
            cost.bytes += (rows.positions_read(window) + n_rows) * of_position;
            // q . k and p * v: two products of head_dim for every head and position.
            cost.flop += 4.0 * rows.pairs(window) * attention_size;
        }
        cost
    }

    /// Counts a run with a number of sequences at a time: the steps of decoding with all slots full, and the operations
    /// of the prompts, whose rows are in the same steps.
    pub fn cost_of_run(&self, sequences: &[Sequence], slots: usize) -> Cost {
        let (mut n_rows, mut n_seen, mut flop) = (0, 0, [0.0; 2]);
        let of_prompt = |tokens: usize| {
            let cost = if tokens > 0 { self.cost(Rows::Prompt { tokens }) } else { Cost::default() };
            [cost.flop, cost.host_flop]
        };
        for &Sequence { prompt, cached, new } in sequences {
            // The first token comes from the prompt's last row.
            let rows = new.saturating_sub(1);
            n_rows += rows;
            n_seen += rows * prompt + rows * new / 2;
            let (all, known) = (of_prompt(prompt), of_prompt(cached));
            flop = [flop[0] + all[0] - known[0], flop[1] + all[1] - known[1]];
        }
        let (batch, context) = (slots.min(sequences.len()).max(1), n_seen as f64 / n_rows.max(1) as f64);
        let steps = n_rows as f64 / batch as f64;
        let decode = self.cost(Rows::Decode { batch, context }).times(steps);
        Cost { flop: decode.flop + flop[0], host_flop: decode.host_flop + flop[1], ..decode }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Dtype;
    use kernel::template::Precision;
    use model::checkpoint::encoding::Encoding;
    use model::config::NamedShape;

    fn model(layers: Option<usize>, experts: Dtype) -> Model {
        let config = NamedShape::gpt_oss_20b().config(layers);
        let encoding = if experts == Dtype::Mxfp4 { Encoding::Mxfp4 } else { Encoding::Bf16 };
        Model::from_checkpoint(
            &Checkpoint::random(config, encoding, 1).expect("a model"),
            KvDtypes::new(Dtype::Bf16, Precision::Bf16),
        )
    }

    #[test]
    fn one_row_of_gpt_oss_20b_reads_its_active_parameters() {
        let cost = model(None, Dtype::Bf16).cost(Rows::Decode { batch: 1, context: 0.0 });
        // OpenAI's model card: 3.61 B active parameters, without the embedding; norms and biases are not counted here.
        let active = cost.flop / 2.0;
        assert!((active / 3.61e9 - 1.0).abs() < 0.01, "{active}");
        assert!((cost.bytes / cost.flop - 1.0).abs() < 1e-4, "{cost:?}");
    }

    #[test]
    fn many_rows_read_every_expert_and_one_reads_its_own() {
        let bytes = |experts, batch| model(Some(1), experts).cost(Rows::Decode { batch, context: 0.0 }).bytes;
        for (experts, each) in [(Dtype::Bf16, 2.0), (Dtype::Mxfp4, 17.0 / 32.0)] {
            let of_rows = 9_999.0 * (2880.0 * 2.0 + 2048.0); // the embedding, and what goes into the cache
            let expert = each * 3.0 * 2880.0 * 2880.0;
            let others = bytes(experts, 10_000) - bytes(experts, 1) - of_rows;
            assert!((others - 28.0 * expert).abs() < 1e-6 * expert, "{others}");
        }
    }

    #[test]
    fn what_the_processor_has_is_a_part_of_all_and_the_two_take_turns() {
        let rows = Rows::Decode { batch: 1, context: 0.0 };
        let all = model(Some(4), Dtype::Mxfp4);
        let of = |n| all.clone().with_experts_on_host(n).cost(rows);
        let expert = 3.0 * 2880.0 * 2880.0;
        for n in [0, 1, 4] {
            let cost = of(n);
            assert_eq!((cost.bytes, cost.flop), (all.cost(rows).bytes, all.cost(rows).flop));
            assert_eq!(cost.host_bytes, n as f64 * 4.0 * expert * 17.0 / 32.0);
            assert_eq!(cost.host_flop, n as f64 * 4.0 * expert * 2.0);
        }
        let cost = of(4);
        let limits = |bytes_per_s: f64| {
            let mut limits = MachineLimits::unknown();
            (limits.read_bytes_per_s, limits.multiply_add_flop_per_s) = (bytes_per_s, 1e15);
            limits
        };
        let (device, host) = (limits(1e12), limits(1e11));
        let expected = (cost.bytes - cost.host_bytes) / 1e12 + cost.host_bytes / 1e11;
        assert!((cost.least_s(&device, Some(&host)) / expected - 1.0).abs() < 1e-12);
        assert_eq!(cost.least_s(&device, None), cost.bytes / 1e12);
        // The device reads all of it, once it is there.
        assert_eq!(cost.streamed(1.0).least_s(&device, Some(&host)), 1.0);
        assert_eq!(cost.streamed(1e-9).least_s(&device, Some(&host)), cost.bytes / 1e12);
    }

    #[test]
    fn limits_of_an_h200_are_those_that_were_worked_out_by_hand() {
        // 4.3 TB/s and 790 TFLOP/s, MXFP4 experts, 512 positions: an independent count of the same model.
        let per_s = |rows, tokens: f64| tokens / model(None, Dtype::Mxfp4).cost(rows).least_s_at(4.3e12, 790e12);
        for (batch, limit) in [(1, 1_155.0), (32, 10_623.0), (256, 66_195.0), (1024, 107_628.0)] {
            let found = per_s(Rows::Decode { batch, context: 512.0 }, batch as f64);
            assert!((found / limit - 1.0).abs() < 1e-3, "batch {batch}: {found}, expected {limit}");
        }
        let found = per_s(Rows::Prompt { tokens: 4096 }, 4096.0);
        assert!((found / 121_842.0 - 1.0).abs() < 1e-3, "prefill: {found}");
    }

    #[test]
    fn a_run_is_steps_with_all_slots_full_and_what_is_new_of_the_prompts() {
        let model = model(Some(2), Dtype::Mxfp4);
        // Rows that see 11, 12 and 13 positions.
        let alike = [Sequence { prompt: 10, cached: 0, new: 4 }; 4];
        let prompt = |tokens| model.cost(Rows::Prompt { tokens }).flop;
        for (slots, batch) in [(2, 2), (8, 4)] {
            let decode = model.cost(Rows::Decode { batch, context: 12.0 }).times(12.0 / batch as f64);
            let run = model.cost_of_run(&alike, slots);
            assert!((run.bytes / decode.bytes - 1.0).abs() < 1e-12, "{run:?}, {decode:?}");
            assert!((run.flop / (decode.flop + 4.0 * prompt(10)) - 1.0).abs() < 1e-12, "{run:?}, {decode:?}");
        }
        let cached = model.cost_of_run(&[Sequence { prompt: 100, cached: 64, new: 1 }], 2);
        assert_eq!((cached.bytes, cached.flop), (0.0, prompt(100) - prompt(64)));
    }
}
