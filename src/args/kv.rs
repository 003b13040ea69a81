//! Flags of keys and values, and of the length of steps.

use clap::Args;
use engine::Sizes;
use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::kv_cache::{BLOCK_TOKENS, KvDtypes, KvLayout, KvRequest};
use engine::graph::placement::EmbeddingPlace;
use engine::scheduler::DraftOptions;
use format::Dtype;
use hint::Hint;
use kernel::pipeline::Pipeline;
use kernel::target::Target;
use kernel::template::Precision;

use super::placement::Shares;

/// How much memory the KV cache takes, and what it holds.
#[derive(Args, Clone, Debug)]
pub(crate) struct KvArgs {
    /// Type of keys and values. fp8 and int8 have a scale per token and head, and apply to layers with full attention;
    /// window layers keep the type of `--precision` [default: as `--precision`]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) kv_dtype: Option<KvDtype>,

    /// `--kv-dtype bf16`
    #[arg(long, conflicts_with_all = ["kv32", "kv_dtype"])]
    pub(crate) kv16: bool,

    /// `--kv-dtype f32`
    #[arg(long, conflicts_with = "kv_dtype")]
    pub(crate) kv32: bool,

    /// Memory for keys and values, in MiB [default: half of what the weights leave free; seven eighths on a GPU of 64
    /// GiB or more]
    #[arg(long, value_name = "MIB")]
    pub(crate) kv_memory: Option<usize>,

    /// Window of the odd layers, in tokens; 0 means all
    #[arg(long = "odd-win", alias = "odd_win", default_value_t = 0, value_name = "N")]
    pub(crate) odd_window: usize,

    /// Share the computation of common beginnings of prompts, with N snapshots of the window layers; 0 shares nothing
    /// [default: 128 for serve, 4 for chat, else 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub(crate) snapshots: Option<u32>,

    /// Sequences of full length that blocks are kept for besides those of the slots, as far as memory goes.
    #[arg(skip)]
    pub(crate) n_kept: u32,

    /// Most prompt rows in a step in which other sequences generate [default: as many as fit]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) prompt_rows: Option<u32>,

    /// Most rows of one step, and so the chunk size of prompts [default: 512; on a GPU of 64 GiB or more 2048; with
    /// experts in main memory 4096]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) chunk: Option<u32>,

    /// Draft tokens from earlier text while at most four sequences run: a text that repeats itself or its prompt takes
    /// fewer steps, with the same result in f32. On a GPU, such steps are not launched ahead [default: auto for run and
    /// serve, else off]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) speculate: Option<Speculate>,
}

/// Element types that a cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KvDtype {
    /// 8-bit floats (E4M3) with a scale
    Fp8,
    /// 8-bit integers with a scale
    Int8,
    Bf16,
    F32,
}

impl KvDtype {
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::Fp8 => Dtype::Fp8,
            Self::Int8 => Dtype::Int8,
            Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
        }
    }
}

/// A cache of eight bits for a model all of whose layers have a window.
#[derive(Debug, thiserror::Error)]
#[error("could not keep keys and values in {dtype}: no layer of the model sees everything")]
pub(crate) struct NoSuchLayer {
    dtype: Dtype,
}

impl Hint for NoSuchLayer {
    fn hint(&self) -> Option<String> {
        Some("layers with a window keep the type of `--precision`: leave `--kv-dtype` or `--odd-win` out".into())
    }
}

/// Whether tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Speculate {
    /// On the cpu, and on a GPU in bf16
    Auto,
    /// On any device
    On,
    /// Never
    Off,
}

/// Default rows of a step: rings for windows grow with them, and so does the time for which a prompt's part of a step
/// delays the others.
const CHUNK: u32 = 512;

/// The same on a GPU with [`LARGE_MEMORY`]. With 256 sequences of 512 + 256 tokens an H200 made 12,209 tok/s so, and
/// 9,330 with 512 rows: half of these were the sequences' own.
const LARGE_CHUNK: u32 = 2048;

/// The same where every such step brings experts from main memory: they come as often as a prompt has chunks.
const STREAMED_CHUNK: u32 = 4096;

const LARGE_MEMORY: usize = 64 << 30;
/// What is kept there for all but weights, keys and values: of 1,024 sequences logits alone are 0.8 GB.
const LARGE_REST: usize = 4 << 30;

/// Whether a pipeline is that of a GPU with [`LARGE_MEMORY`].
pub(super) fn is_large(pipeline: &Pipeline) -> anyhow::Result<bool> {
    let is_gpu = pipeline.target().is_gpu() && !pipeline.target().is_simulated;
    Ok(is_gpu && pipeline.memory()?.is_some_and(|memory| memory.total_bytes >= LARGE_MEMORY))
}

impl KvArgs {
    /// The element type of keys and values.
    pub(crate) fn dtype(&self, precision: Precision) -> Dtype {
        match (self.kv_dtype, self.kv16, self.kv32) {
            (Some(asked), ..) => asked.dtype(),
            (None, true, _) => Dtype::Bf16,
            (None, _, true) => Dtype::F32,
            _ => precision.activation(),
        }
    }

    /// # Errors
    /// If no layer of the layout has the type that was asked for.
    pub(super) fn check(&self, layout: &KvLayout) -> Result<(), NoSuchLayer> {
        let dtype = layout.dtypes.all;
        if self.kv_dtype.is_none() || layout.has_dtype(dtype) { Ok(()) } else { Err(NoSuchLayer { dtype }) }
    }

    /// Most rows of a step of a model that this runs.
    ///
    /// - `streams`: whether steps of many rows bring experts from main memory to the device
    pub(crate) fn chunk_on(&self, pipeline: &Pipeline, streams: bool) -> anyhow::Result<u32> {
        let is_gpu = pipeline.target().is_gpu() && !pipeline.target().is_simulated;
        let usual = match is_gpu {
            true if streams => STREAMED_CHUNK,
            true if is_large(pipeline)? => LARGE_CHUNK,
            _ => CHUNK,
        };
        Ok(self.chunk.unwrap_or(usual))
    }

    /// Whether tokens are drafted on a target: on or off.
    pub(super) fn speculate_on(&self, target: &Target, precision: Precision) -> Speculate {
        match self.speculate {
            Some(Speculate::On) => Speculate::On,
            Some(Speculate::Auto) if DraftOptions::usual_on(target, precision).is_some() => Speculate::On,
            _ => Speculate::Off,
        }
    }

    /// What a cache for one short sequence is sized for.
    pub(super) fn request(&self, precision: Precision, target: &Target, budget_bytes: usize) -> KvRequest {
        KvRequest {
            n_slots: 1,
            n_snapshots: self.snapshots.unwrap_or(0) as usize,
            n_kept: self.n_kept as usize,
            capacity_tokens: BLOCK_TOKENS,
            max_rows: self.chunk.unwrap_or(CHUNK) as usize,
            dtypes: KvDtypes::new(self.dtype(precision), precision),
            matrix_layout: target.has_matrix_layout(),
            odd_window: (self.odd_window > 0).then_some(self.odd_window),
            budget_bytes,
        }
    }

    /// How a model is run in these sizes.
    pub(crate) fn model_options(&self, precision: Precision, sizes: Sizes, kv_budget_bytes: usize) -> ModelOptions {
        ModelOptions {
            precision,
            kv_dtype: self.dtype(precision),
            n_slots: sizes.n_slots,
            capacity_tokens: sizes.capacity_tokens,
            max_rows: self.chunk.unwrap_or(CHUNK) as usize,
            max_logit_rows: sizes.max_logit_rows,
            odd_window: (self.odd_window > 0).then_some(self.odd_window),
            kv_budget_bytes,
            max_prompt_rows: self.prompt_rows.map(|rows| rows as usize),
            prefix_cache: PrefixCache {
                n_kept: self.n_kept as usize,
                ..PrefixCache::new(self.snapshots.unwrap_or(0) as usize)
            },
            drafts: (self.speculate == Some(Speculate::On)).then_some(DraftOptions::USUAL),
            embedding: EmbeddingPlace::Device,
        }
    }

    /// What keys and values may take by a flag, in bytes.
    pub(super) fn asked_bytes(&self) -> Option<usize> {
        self.kv_memory.map(|mib| mib.saturating_mul(1 << 20))
    }

    /// What keys and values may take: as asked, or half of what the weights leave free; an eighth where experts make
    /// room for it, which the processor then computes. A GPU with [`LARGE_MEMORY`] is there to compute for many: all
    /// but an eighth, or [`LARGE_REST`] if that is more. Where the weights leave nothing, it is they that do not fit,
    /// which the memory plan will say.
    pub(super) fn budget_bytes(&self, shares: Shares, is_large: bool) -> usize {
        let part = |left: usize| match shares.yields {
            true => left / 8,
            false if is_large => left.saturating_sub((left / 8).max(LARGE_REST)).max(left / 2),
            false => left / 2,
        };
        self.asked_bytes().or(shares.left.map(part)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        cache: KvArgs,
    }

    /// Shares of free memory in GiB: a card's half, a large GPU's seven eighths with 4 at least for the rest, an eighth
    /// where experts yield, and what is asked for whatever is there.
    #[test]
    fn keys_and_values_have_their_part_of_what_weights_leave() {
        let bytes = |words: &[&str], left: usize, yields: bool, is_large: bool| {
            let cache = Command::parse_from([&["gptoss-jit"], words].concat()).cache;
            cache.budget_bytes(Shares { weights: 0, left: Some(left << 30), yields }, is_large) as f64
                / f64::from(1 << 30)
        };
        assert_eq!(bytes(&[], 10, false, false), 5.0);
        assert_eq!(bytes(&[], 64, false, true), 56.0);
        assert_eq!(bytes(&[], 16, false, true), 12.0);
        assert_eq!(bytes(&[], 6, false, true), 3.0);
        assert_eq!(bytes(&[], 16, true, true), 2.0);
        assert_eq!(bytes(&["--kv-memory", "1024"], 64, false, true), 1.0);
    }
}
