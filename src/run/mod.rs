//! `run`: text in, text out, in three modes.
//!
//! The short flags, their defaults and what `-n` counts are those of the seeds (gpt-oss-amd and its fork), so that
//! their users change one word. [`generate`] continues a text, [`chat`] talks in the model's chat format, [`getp`]
//! runs a file of prompts for throughput.

mod capture;
pub(crate) mod chat;
mod generate;
pub(crate) mod getp;
mod verify;

use std::ffi::OsString;
use std::io::{IsTerminal, stdin};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use super::kernel_table::KernelTable;
use super::output::Output;
use super::usage::UsageError;
use crate::args::chat_template::ChatTemplateArgs;
use crate::args::tokenizer::TokenizerArgs;
use crate::args::{DeviceArgs, KvArgs, ModelArgs, Room, Speculate};
use ::chat::Reasoning;
use ::chat::chat_format::specials::Specials;
use ::chat::chat_format::{Has, Prompts, Word, choose};
use batch::prompter::{self, Prompter};
use engine::plan::profile::Profiled;
use engine::scheduler::{Sampling, SamplingWishes};
use engine::{Engine, Sizes};
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;
use model::config::ModelConfig;
use model::tokenizer::Tokenizer;
use system::bounded_process::this_program;
use workbench::bench::limits::{self, MachineLimits};

/// What `run` does with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// Continue a text
    Generate,
    /// Chat, in the format of the checkpoint's chat template, or in harmony
    Chat,
    /// Continue every line of a file, many at a time
    Getp,
}

/// Who writes the prompts of a chat. Answers are read as the model's vocabulary says in any case, unless it is harmony
/// that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ChatFormat {
    /// The checkpoint's chat template, or harmony if it has none
    Checkpoint,
    /// OpenAI's harmony, built in; only for gpt-oss models
    Harmony,
}

/// Run a model: continue a text, chat, or work through a file of prompts
#[derive(clap::Args, Debug)]
#[command(args_override_self = true)] // the last of two counts, as in the seeds: scripts append flags
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What to do [default: generate; chat if there is no `-i` and stdin is a terminal]
    #[arg(short, long, value_enum)]
    mode: Option<Mode>,

    /// The prompt (generate) [default: stdin without its last line end]; the first message (chat); or the file of
    /// prompts (getp; `-` is stdin, `*` and `?` match names, and a text that does not look like a file is the only
    /// prompt)
    #[arg(short, long, value_name = "TEXT|FILE", allow_hyphen_values = true)]
    input: Option<OsString>,

    /// File for the answers, a line per prompt (getp) [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Most positions, the prompt included; 0 means the model's limit [default: 1024; chat: the limit of the model and
    /// the memory]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    steps: Option<i64>,

    /// Most new tokens, whatever the prompt's length (instead of `-n`)
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    max_new_tokens: Option<usize>,

    /// Sequences at a time (getp) [default: on a GPU what fits its memory, at most 1024; else 32]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,

    /// Temperature; 0 takes the most probable token [default: 0; chat at a terminal: 1]
    #[arg(short = 'T', long, value_name = "F", allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Draw from the most probable tokens that together have this probability; 0 and 1 draw from all [default: 0.9;
    /// chat at a terminal: 1]
    #[arg(short = 'p', long, value_name = "F", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Draw from the N most probable tokens; 0 draws from all
    #[arg(short = 'k', long, default_value_t = 0, value_name = "N")]
    top_k: u32,

    /// Draw from tokens with at least F times the probability of the most probable one; 0 draws from all
    #[arg(long, default_value_t = 0.0, value_name = "F")]
    min_p: f32,

    /// Log-probabilities of each token and its N most probable alternatives, up to 20 (generate, with --json)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    logprobs: Option<u8>,

    /// Seed of the random numbers; 0 takes the time
    #[arg(short, long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    seed: i64,

    /// How chats become prompts [default: checkpoint; for conversations in a file (getp) harmony, if the model knows
    /// it]
    #[arg(long, value_enum, value_name = "FORMAT")]
    chat_format: Option<ChatFormat>,

    /// How long the model thinks (chat; getp: default for prompts) [default: medium]
    #[arg(long, value_enum, value_name = "EFFORT")]
    reasoning: Option<Reasoning>,

    /// The system message (chat)
    #[arg(short = 'y', long, value_name = "TEXT")]
    system: Option<String>,

    /// Only the first N prompts (getp); 0 means all [default: 0]
    #[arg(short = 't', long, value_name = "N", allow_negative_numbers = true)]
    lines: Option<i64>,

    /// Compare with a file of expected ids (getp); exit 1 if they differ
    #[arg(short, long, value_name = "FILE")]
    verify: Option<PathBuf>,

    /// Another token that ends a sequence, besides the model's own such as <|endoftext|>: an id, or a name such as
    /// `<|end|>`
    #[arg(long, value_name = "ID|NAME")]
    stop: Vec<String>,

    /// Print the time spent in each op, on stderr
    #[arg(short = 'f', long, value_name = "0|1", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    profile: u8,

    #[command(flatten)]
    capture: capture::CaptureArgs,
    #[command(flatten)]
    chat: chat::ChatArgs,
    #[command(flatten)]
    chat_template: ChatTemplateArgs,
    #[command(flatten)]
    getp: getp::GetpArgs,
    #[command(flatten)]
    tokenizer: TokenizerArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: KvArgs,
}

pub(crate) fn run(mut args: Args, output: &Output) -> anyhow::Result<()> {
    let mode = args.mode();
    args.refuse_what_is_ignored(mode)?;
    if mode == Mode::Chat {
        args.cache.snapshots.get_or_insert(CHAT_SNAPSHOTS);
    }
    args.cache.speculate.get_or_insert(Speculate::Auto);
    if args.capture.is_given() && (args.device.tp > 1 || args.getp.ranks.is_some()) {
        let why = "`--capture-launch` is for one device: not with `--tp` or `-g`";
        return Err(UsageError(why.into()).into());
    }
    let captures = args.capture.create()?;
    let device = args.device.device.clone();
    match mode {
        Mode::Generate => generate::run(&args, output),
        Mode::Chat => chat::run(&args, output),
        Mode::Getp => getp::run(args, output),
    }?;
    captures.map_or(Ok(()), |captures| captures.finish(&device, output))
}

/// Writes what shards of getp kept: see [`super::merge`].
pub(super) fn merge(args: &Args, output: &Output) -> anyhow::Result<()> {
    args.refuse_what_is_ignored(Mode::Getp)?;
    getp::merge::run(args, output)
}

/// A turn begins with the previous prompt and its answer, or with an earlier one after `/regenerate`.
const CHAT_SNAPSHOTS: u32 = 4;

/// Where the time of the steps went, on stderr, if it was taken: beside the machine's limits, which are measured for
/// it.
fn show_profile(engine: &mut Engine, output: &Output) -> anyhow::Result<()> {
    let Some(profile) = engine.take_profile() else { return Ok(()) };
    let limits = limits_of(engine.executor().pipeline(), output);
    let table = KernelTable { profile: &profile, limits: &limits, n_steps: 1 };
    let header = table.header();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    if limits.are_known() {
        limits.lines().iter().for_each(|line| output.note(line));
    }
    output.note_table(&header, &table.rows(), &header[2..]);
    output.note(&format!("{} steps; {}", profile.steps, table.summary()));
    Ok(())
}

/// The device's limits. A simulator has none, and where they cannot be measured the times are worth showing without
/// them.
fn limits_of(pipeline: &Pipeline, output: &Output) -> MachineLimits {
    if pipeline.target().is_simulated {
        return MachineLimits::unknown();
    }
    limits::measure(pipeline, limits::Care::Little).unwrap_or_else(|error| {
        output.warning(&format!("the device's limits could not be measured: {error:#}"));
        MachineLimits::unknown()
    })
}

/// Defaults for omitted flags: greedy, as in the seeds.
const AS_SEEDS: Sampling = Sampling { top_p: 0.9, ..Sampling::GREEDY };

/// Positions to run, as in the seeds.
const STEPS: i64 = 1024;

impl Args {
    /// The mode of `-m`; without it, chat if there is no input and stdin is a terminal.
    fn mode(&self) -> Mode {
        match (self.mode, &self.input) {
            (Some(mode), _) => mode,
            (None, None) if stdin().is_terminal() => Mode::Chat,
            (None, _) => Mode::Generate,
        }
    }

    /// Refuses flags of another mode, which would have no effect.
    fn refuse_what_is_ignored(&self, mode: Mode) -> Result<(), UsageError> {
        /// A flag, and whether it was given.
        type Given = (&'static str, bool);
        let of_getp = [
            ("-o", self.output.is_some()),
            ("-v", self.verify.is_some()),
            ("-b", self.batch.is_some()),
            ("-t", self.lines.is_some()),
            ("--in-format", self.getp.in_format.is_some()),
            ("--out-format", self.getp.out_format.is_some()),
            ("--order", self.getp.order.is_some()),
            ("--records", self.getp.records.is_some()),
            ("--restart", self.getp.restart),
            ("--metrics", self.getp.metrics.is_some()),
            ("--shard", self.getp.shard.is_some()),
            ("-g", self.getp.ranks.is_some()),
        ];
        let of_generate = [("--logprobs", self.logprobs.is_some())];
        let of_chat = [("--show-reasoning", self.chat.show_reasoning)];
        let of_both = [("--reasoning", self.reasoning.is_some())];
        let (name, foreign): (_, Vec<(&[Given], &str)>) = match mode {
            Mode::Getp => ("getp", vec![(&of_chat, "`-m chat`"), (&of_generate, "`-m generate`")]),
            Mode::Chat => ("chat", vec![(&of_getp, "`-m getp`"), (&of_generate, "`-m generate`")]),
            Mode::Generate => {
                let foreign: [(&[Given], _); 3] =
                    [(&of_getp, "`-m getp`"), (&of_chat, "`-m chat`"), (&of_both, "`-m chat` and `-m getp`")];
                ("generate", foreign.to_vec())
            }
        };
        let mut given =
            foreign.iter().flat_map(|(flags, of)| flags.iter().map(move |(flag, is_given)| (flag, is_given, of)));
        match given.find(|(_, is_given, _)| **is_given) {
            Some((flag, _, of)) => {
                Err(UsageError(format!("`{flag}` does nothing with `-m {name}`: it is a flag of {of}")))
            }
            None => Ok(()),
        }
    }

    /// Loads the model, and takes times if asked.
    fn load(&self, checkpoint: &Checkpoint, sizes: Sizes, output: &Output) -> anyhow::Result<Engine> {
        self.load_sized(checkpoint, |_| sizes, output)
    }

    /// The same, in sizes that depend on what the device has room for.
    fn load_sized(
        &self,
        checkpoint: &Checkpoint,
        sizes: impl Fn(&Room<'_>) -> Sizes,
        output: &Output,
    ) -> anyhow::Result<Engine> {
        let (mut engine, _) = self.device.load_sized(checkpoint, &self.cache, sizes, output)?;
        self.capture.begin(&engine)?;
        if self.profile != 0 {
            engine.start_profile(Profiled::Some);
        }
        Ok(engine)
    }

    /// How many positions may be run: `-n` as the seeds take it.
    fn steps(&self, config: &ModelConfig) -> usize {
        match usize::try_from(self.steps.unwrap_or(STEPS)) {
            Ok(steps) if steps > 0 => steps.min(config.max_seq_len),
            _ => config.max_seq_len,
        }
    }

    /// Positions that a sequence may reach: those of `-n`, or all where new tokens are counted instead.
    fn reach(&self, config: &ModelConfig) -> usize {
        if self.max_new_tokens.is_some() { config.max_seq_len } else { self.steps(config) }
    }

    /// How the next token is chosen, with the seeds' bounds on each value. `sequence` tells requests apart, which
    /// draw from random numbers of their own.
    fn sampling(&self, sequence: usize) -> Sampling {
        self.sampling_or(AS_SEEDS, self.first_seed().wrapping_add(sequence as u64))
    }

    /// The same, from a seed, and with other values where no flag says one.
    fn sampling_or(&self, usual: Sampling, seed: u64) -> Sampling {
        let share = |share: &f32| SamplingWishes::SHARE.contains(share);
        let wishes = SamplingWishes {
            temperature: self.temperature,
            top_p: self.top_p.filter(share),
            top_k: Some(self.top_k.into()),
            min_p: Some(self.min_p).filter(share),
            ..SamplingWishes::default()
        };
        wishes.sampling(Sampling { seed, ..usual })
    }

    /// What makes prompts of conversations and texts. The models of OpenAI expect their own system message; the
    /// built-in tiny one was trained on a plain system text, or none.
    fn prompter(
        &self,
        checkpoint: &Checkpoint,
        tokenizer: Tokenizer,
        current_date: &str,
        mode: Mode,
    ) -> anyhow::Result<Prompter> {
        let usual = if mode == Mode::Getp { ChatFormat::Harmony } else { ChatFormat::Checkpoint };
        let format = self.chat_format.unwrap_or(usual);
        let asked = self.chat_format.filter(|format| *format == ChatFormat::Harmony).map(|_| Word::Harmony);
        let word = asked.or_else(|| Word::of_family(checkpoint.config.family));
        let template = checkpoint.origin.chat_template.as_deref();
        let prompts = match format {
            ChatFormat::Checkpoint if template.is_some() => Prompts::Checkpoint,
            _ if self.model.is_built_in() => Prompts::Plain,
            ChatFormat::Checkpoint | ChatFormat::Harmony => Prompts::Format,
        };
        let specials = Specials::read(checkpoint, &tokenizer)?;
        let besides = self.chat_template.besides(checkpoint);
        let has = Has { tokenizer: &tokenizer, specials: &specials, template, program: &this_program(), besides };
        let chat = choose(word, prompts, &has);
        let usual = prompter::Usual { current_date: current_date.to_owned(), reasoning: self.reasoning };
        Ok(Prompter::new(tokenizer, chat, usual))
    }

    /// The seeds read a C `int`: a larger number wraps, and a negative one is a large unsigned one.
    fn first_seed(&self) -> u64 {
        match self.seed as i32 {
            0 => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs()),
            seed => i64::from(seed) as u64,
        }
    }

    /// Ids that end a sequence: the vocabulary's, and those of `--stop`.
    fn stop_ids(&self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
        let mut ids = Specials::read(checkpoint, tokenizer)?.ends;
        for stop in &self.stop {
            let id = stop.parse().ok().or_else(|| tokenizer.special(stop));
            ids.push(id.ok_or_else(|| UsageError(format!("`--stop {stop}` is neither an id nor a special token")))?);
        }
        Ok(ids)
    }
}
