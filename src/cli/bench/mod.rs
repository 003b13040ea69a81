//! `bench`: tokens per second beside what the machine could do at most.
//!
//! Bytes and operations are counted from the model's dimensions ([`work`]); the limits they are held against are
//! measured in the same run ([`limits`]), and so is what other programs took of the cores ([`machine`]).

mod limits;
mod machine;
mod work;

use std::time::Instant;

use serde_json::json;

use super::model::{CacheArgs, DeviceArgs, ModelArgs, Sizes, kernel_counts};
use super::output::Output;
use super::shapes::NamedShape;
use crate::dtype::Dtype;
use crate::engine::Engine;
use crate::scheduler::{Event, Request, Sampling};
use limits::Limits;
use machine::CpuTimes;
use work::{Shape, Work};

/// Measure prefill and decode, beside the machine's own limits measured in the same run
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Batch sizes to decode at
    #[arg(short, long, value_delimiter = ',', default_values_t = [1, 8], value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,

    /// Tokens of the prompt that is prefilled
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    prefill: u32,

    /// Tokens in the context before decoding is measured
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,

    /// Decode steps that are measured
    #[arg(short = 'n', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Others may take this much of the cores before a measurement is called disturbed.
const MOST_OTHERS: f64 = 0.02;

/// One measured phase.
struct Measured {
    phase: &'static str,
    batch: usize,
    /// Tokens that the phase moved on, all sequences together.
    tokens: usize,
    seconds: f64,
    work: Work,
    /// The share of the cores that others took meanwhile.
    others: Option<f64>,
}

/// Runs the command.
pub fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let checkpoint = args.model.open(output)?;
    let limits = limits::measure(&args.device.pipeline()?)?;
    let most = *args.batch.iter().max().expect("clap gives a default") as usize;
    let longest =
        (args.prefill as usize).max(args.context as usize + args.steps as usize + 2 + most * args.context as usize);
    let sizes = Sizes { n_slots: most, capacity_tokens: longest, max_logit_rows: most };
    let mut engine = args.device.load(&checkpoint, &args.cache, sizes, output)?;
    let dtype = checkpoint.dense_dtype();

    let mut measured = vec![prefill(&mut engine, dtype, args.prefill as usize)?];
    for &batch in &args.batch {
        measured.push(decode(&mut engine, dtype, batch as usize, args.context as usize, args.steps as usize)?);
    }
    let name = args.model.shape.shape.map_or("checkpoint", NamedShape::name);
    report(name, &engine, limits, &measured, output)
}

/// Token ids that spread over the vocabulary: neighbours should not share experts by accident.
fn prompt(vocab_size: usize, len: usize, salt: usize) -> Vec<u32> {
    (0..len).map(|i| ((i + 31 * salt + 1).wrapping_mul(2_654_435_761) % vocab_size) as u32).collect()
}

fn request(prompt: Vec<u32>, max_new_tokens: usize) -> Request {
    Request { prompt, max_new_tokens, stop: Vec::new(), sampling: Sampling::GREEDY }
}

/// A prompt and its first token: the second of two runs, so that no page is touched for the first time.
fn prefill(engine: &mut Engine, dtype: Dtype, n_tokens: usize) -> anyhow::Result<Measured> {
    let mut seconds = 0.0;
    let mut others = None;
    for run in 0..2 {
        engine.submit(request(prompt(engine.config().vocab_size, n_tokens, run), 1))?;
        let (start, times) = (Instant::now(), CpuTimes::now());
        while !engine.is_idle() {
            engine.step()?;
        }
        seconds = start.elapsed().as_secs_f64();
        others = times.zip(CpuTimes::now()).map(|(start, end)| end.others_since(start));
    }
    let shape = Shape { n_rows: n_tokens, n_logit_rows: 1, context_tokens: (n_tokens + 1) as f64 / 2.0 };
    let work = work::count(engine.config(), dtype, engine.kv_layout().dtype, shape);
    Ok(Measured { phase: "prefill", batch: 1, tokens: n_tokens, seconds, work, others })
}

/// Steps of one token for every sequence, once all of them have their prompts behind them.
fn decode(engine: &mut Engine, dtype: Dtype, batch: usize, context: usize, steps: usize) -> anyhow::Result<Measured> {
    for sequence in 0..batch {
        // While the last prompts are prefilled, the first sequences generate already: at most a step for each row.
        let most = steps + 2 + batch * context;
        engine.submit(request(prompt(engine.config().vocab_size, context, sequence), most))?;
    }
    while step(engine)? < batch {}
    let (start, times) = (Instant::now(), CpuTimes::now());
    for _ in 0..steps {
        step(engine)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let others = times.zip(CpuTimes::now()).map(|(start, end)| end.others_since(start));
    engine.abort();
    let shape = Shape { n_rows: batch, n_logit_rows: batch, context_tokens: (context + steps / 2) as f64 };
    let once = work::count(engine.config(), dtype, engine.kv_layout().dtype, shape);
    let work = Work { bytes: once.bytes * steps as f64, flop: once.flop * steps as f64 };
    Ok(Measured { phase: "decode", batch, tokens: batch * steps, seconds, work, others })
}

/// Runs a step; gives how many tokens came out.
fn step(engine: &mut Engine) -> anyhow::Result<usize> {
    Ok(engine.step()?.iter().filter(|event| matches!(event, Event::Token { .. })).count())
}

fn report(name: &str, engine: &Engine, limits: Limits, measured: &[Measured], output: &Output) -> anyhow::Result<()> {
    let config = engine.config();
    let pipeline = engine.executor().pipeline();
    let (from_cache, compiled) = kernel_counts(engine);
    if output.is_json() {
        let rows: Vec<_> = measured.iter().map(|m| m.json(limits)).collect();
        output.json(&json!({
            "schema": 1, "model": name, "layers": config.num_hidden_layers, "device": pipeline.driver().describe(),
            "target": pipeline.target().id(),
            "read_gbps": limits.read_bytes_per_s / 1e9, "f32_gflops": limits.flop_per_s / 1e9,
            "measured": rows, "kernels": { "from_cache": from_cache, "compiled": compiled },
        }))?;
        return Ok(());
    }
    output.line(&format!(
        "{name}, {} layers, on {}, {}",
        config.num_hidden_layers,
        pipeline.driver().describe(),
        pipeline.target().id()
    ))?;
    output.line(&format!(
        "limits measured now: read {:.1} GB/s, f32 multiply-add {:.0} GFLOP/s",
        limits.read_bytes_per_s / 1e9,
        limits.flop_per_s / 1e9
    ))?;
    let header = ["phase", "batch", "tokens", "tok/s", "GB/s", "% of read", "GFLOP/s", "% of f32 peak", "others %"];
    let rows: Vec<Vec<String>> = measured.iter().map(|m| m.row(limits)).collect();
    output.table(&header, &rows, &header[1..])?;
    if measured.iter().any(|m| m.others.is_some_and(|others| others > MOST_OTHERS)) {
        output
            .warning("other programs took some of the cores: these figures are too low; run again on an idle machine");
    }
    output.note(&format!("kernels: {from_cache} from cache, {compiled} compiled"));
    Ok(())
}

impl Measured {
    fn row(&self, limits: Limits) -> Vec<String> {
        let (bytes_per_s, flop_per_s) = (self.work.bytes / self.seconds, self.work.flop / self.seconds);
        vec![
            self.phase.to_string(),
            self.batch.to_string(),
            self.tokens.to_string(),
            format!("{:.2}", self.tokens as f64 / self.seconds),
            format!("{:.2}", bytes_per_s / 1e9),
            format!("{:.1}", 100.0 * bytes_per_s / limits.read_bytes_per_s),
            format!("{:.1}", flop_per_s / 1e9),
            format!("{:.1}", 100.0 * flop_per_s / limits.flop_per_s),
            self.others.map_or("?".into(), |others| format!("{:.1}", 100.0 * others)),
        ]
    }

    fn json(&self, limits: Limits) -> serde_json::Value {
        let (bytes_per_s, flop_per_s) = (self.work.bytes / self.seconds, self.work.flop / self.seconds);
        json!({
            "phase": self.phase, "batch": self.batch, "tokens": self.tokens, "seconds": self.seconds,
            "tok_per_s": self.tokens as f64 / self.seconds, "gbps": bytes_per_s / 1e9,
            "read_fraction": bytes_per_s / limits.read_bytes_per_s, "gflops": flop_per_s / 1e9,
            "f32_peak_fraction": flop_per_s / limits.flop_per_s, "others_fraction": self.others,
        })
    }
}
