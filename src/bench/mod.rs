//! `bench`: tokens per second, compared with the machine's limits, and where the time goes.
//!
//! [`workbench::bench`] measures; [`report`] and [`plot`] show the results. [`predict`] is `--predict`, which measures
//! nothing.

mod plot;
mod predict;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use super::output::Output;
use super::output_file::OutputFile;
use super::step_timeout;
use crate::args::{DeviceArgs, KvArgs, ModelArgs};
use engine::Sizes;
use model::checkpoint::Checkpoint;
use model::config::NamedShape;
use report::{Kernels, Report};
use workbench::bench::limits::MachineLimits;
use workbench::bench::measure::{Bench, Measured};
use workbench::bench::roofline::Model;
use workbench::bench::suite::{Kind, Suite, SuiteOptions, Workload};
use workbench::bench::{limits, links};

/// Measure prefill, decode and whole runs, and compare them with the machine's measured limits
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What to measure [default: prefill and decode; on a GPU getp too]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WORK,…")]
    work: Option<Vec<Kind>>,

    /// Batch sizes to decode at [default: 1,8; on a GPU 1,8,32,64,128,256,1024]
    #[arg(short, long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<Vec<u32>>,

    /// Prompt lengths to prefill, in tokens [default: 512; on a GPU 512,4096]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..))]
    prefill: Option<Vec<u32>>,

    /// Most rows of a prefill step [default: --chunk; on a GPU the prompt's length, up to 4096]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_chunk: Option<u32>,

    /// Tokens in each context before decoding is measured [default: 16; on a GPU 512, or 16384 divided by the
    /// sequences]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,

    /// Decode steps to measure [default: 16; on a GPU 60]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,

    /// Repetitions of a prefill, and rounds in which kernels are timed [default: 1; on a GPU 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,

    /// Prompts of a getp run, of 16 to 64 tokens [default: 16; on a GPU 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompts: Option<u32>,

    /// New tokens of each prompt of a getp run [default: 16; on a GPU 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: Option<u32>,

    /// Sequences at a time in a getp run [default: 8; on a GPU 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: Option<u32>,

    /// Print the time of each kernel, and of the host, for each workload
    #[arg(long)]
    kernels: bool,

    /// Draw a roofline of each workload's kernels into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Measure nothing: compile the kernels of a decode step for --arch, and predict from their machine code the time
    /// of each and of the step; no GPU needed. Batch sizes are 1, 8 and 32 unless --batch is given
    #[arg(long, requires = "arch", conflicts_with_all = ["device", "threads", "tp", "work", "prefill", "prompts", "kernels", "svg"])]
    predict: bool,

    /// The GPU to predict, here or not: `gfx1100`, `sm_90`
    #[arg(long, value_name = "ARCH", requires = "predict")]
    arch: Option<String>,

    /// Also write what --json prints into a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: KvArgs,
}

/// Rows of a step that a GPU takes a prompt in by, where it has as many.
const GPU_PREFILL_CHUNK: usize = 4096;

/// Rows that devices sum up together: a step of one sequence, of a few, of many, and of a prompt.
const SUMMED_ROWS: [usize; 5] = [1, 8, 32, 256, 4096];

pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let plot = args.svg.as_deref().map(|path| OutputFile::create(path, "a plot")).transpose()?;
    let save = args.save.as_deref().map(|path| OutputFile::create(path, "figures")).transpose()?;
    if args.predict {
        return predict::run(&args, save, output);
    }
    let checkpoint = args.model.open(output)?;
    let (pipeline, device) = args.device.pipeline(&args.device.precision(&checkpoint).1, output)?;
    let (precision, checkpoint) = args.device.precision_on(&checkpoint, &pipeline)?;
    let chosen = DeviceArgs { device, ..args.device.clone() };
    let mut pipelines = args.device.peers(&chosen.device, pipeline.target())?;
    let limits = limits::measure(&pipeline, limits::Care::Usual)?.at(precision);
    let suite = Suite::new(&args.asked(), pipeline.target());
    let sessions = suite.sessions(pipeline.target(), args.cache.chunk_on(&pipeline, false)? as usize);
    let (device, target) = (pipeline.driver().describe(), pipeline.target().id());
    let n_devices = args.device.tp as usize;
    let links = if n_devices > 1 {
        pipelines.insert(0, pipeline);
        let watchdog = step_timeout::watchdog(&chosen.device, output)?;
        links::measure(&pipelines, checkpoint.config.hidden_size, &SUMMED_ROWS, watchdog.as_ref())?
    } else {
        drop(pipeline); // an engine opens its own
        None
    };

    let mut session = Session {
        args: &args,
        device: &chosen,
        checkpoint: &checkpoint,
        output,
        suite: &suite,
        kernels: Kernels::default(),
        host: None,
    };
    let mut measured = Vec::new();
    for (works, sizes) in sessions {
        measured.extend(session.run(&works, sizes, limits.is_gpu())?);
    }
    let report = Report {
        model: args.model.shape.shape.map_or("checkpoint", NamedShape::name).to_string(),
        n_layers: checkpoint.config.num_hidden_layers,
        weights: checkpoint.weights(),
        kv: args.cache.dtype(precision).to_string(),
        device,
        target,
        limits: &limits,
        host: session.host.as_ref().map(|(n_layers, limits)| (*n_layers, limits)),
        n_devices,
        links: links.as_ref(),
        measured: &measured,
        kernels: session.kernels,
    };
    report.print(output)?;
    if let Some(save) = save {
        save.fill(|file| writeln!(file, "{}", report.json()))?;
    }
    plot.map_or(Ok(()), |plot| plot.fill(|file| plot::write(file, &report)))
}

/// Works that are done by an engine of their own.
struct Session<'a> {
    args: &'a Args,
    /// Every engine runs on the device whose limits were measured.
    device: &'a DeviceArgs,
    checkpoint: &'a Checkpoint,
    output: &'a Output,
    suite: &'a Suite,
    kernels: Kernels,
    /// Layers whose experts the processor computed, and its limits, where it did.
    host: Option<(usize, MachineLimits)>,
}

impl Session<'_> {
    fn run(&mut self, works: &[Workload], sizes: Sizes, is_gpu: bool) -> anyhow::Result<Vec<Measured>> {
        let mut cache = self.args.cache.clone();
        if let [Workload::Prefill { tokens }] = works {
            let chunk = is_gpu.then_some((*tokens).min(GPU_PREFILL_CHUNK) as u32).or(cache.chunk);
            cache.chunk = self.args.prefill_chunk.or(chunk);
        }
        let start = Instant::now();
        let mut engine = self.device.load(self.checkpoint, &cache, sizes, self.output)?;
        let load_s = start.elapsed().as_secs_f64();
        let n_on_host = engine.executor().memory_plan().host.as_ref().map_or(0, |host| host.n_layers[0]);
        let model = Model::from_checkpoint(self.checkpoint, engine.kv_layout().dtypes).with_experts_on_host(n_on_host);
        if let (Some(pipeline), None) = (engine.executor().host_pipeline(), &self.host) {
            self.host = Some((n_on_host, limits::measure(pipeline, limits::Care::Usual)?));
        }
        let profiles = self.args.kernels || self.args.svg.is_some();
        let effort = self.suite.effort;
        let mut bench = Bench { engine: &mut engine, model: &model, effort, profiles, load_s };
        let measured = works.iter().map(|work| bench.measure(*work)).collect::<Result<_, _>>()?;
        self.kernels.add(&engine);
        Ok(measured)
    }
}

impl Args {
    fn asked(&self) -> SuiteOptions {
        SuiteOptions {
            kinds: self.work.clone(),
            batches: self.batch.clone(),
            context: self.context,
            prefill: self.prefill.clone(),
            steps: self.steps,
            repeats: self.repeats,
            prompts: self.prompts,
            new_tokens: self.new_tokens,
            slots: self.slots,
        }
    }
}
