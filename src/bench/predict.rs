//! `bench --predict`: predicts the time of a decode step on a GPU that is not here. The plan is the one that loading
//! the model makes; its kernels are compiled, and [`workbench::predict`] reads their machine code.

use std::io::Write;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Args;
use crate::args::source::named_target;
use crate::compile_progress::CompileProgress;
use crate::output::Output;
use crate::output_file::OutputFile;
use crate::planned_steps::PlannedSteps;
use engine::blueprint::{Blueprint, precision_for};
use engine::graph::kv_cache::KvDtypes;
use hint::chain;
use kernel::choice::Chooser;
use kernel::object::store::Store;
use kernel::target::compute_unit::Product;
use kernel::template::Precision;
use model::config::NamedShape;
use workbench::bench::roofline::{Cost, Model};
use workbench::bench::suite::{Kind, Suite, SuiteOptions};
use workbench::isa::speed::IssueModel;
use workbench::predict::step::{LaunchTime, StepLaunch, StepTime, error_on_h200};
use workbench::predict::{PredictError, Prediction, Predictor, Round};

/// What a launch may take by itself, in microseconds: about what it takes where a step is captured and replayed as one
/// graph (an H200: 0.87), and where the host launches kernel by kernel.
const LAUNCHES_US: [f64; 2] = [1.0, 5.0];

/// Default batch sizes.
const BATCHES: [u32; 3] = [1, 8, 32];

/// A step that was predicted.
struct Predicted {
    batch: usize,
    /// Positions that a row sees in a layer without a window.
    context: usize,
    cost: Cost,
    time: StepTime,
}

/// All of them, and of what.
struct Report<'a> {
    model: String,
    n_layers: usize,
    weights: String,
    kv: String,
    precision: Precision,
    target: String,
    product: &'a Product,
    /// Whether dense matrices are in blocks.
    has_blocks: bool,
    steps: Vec<Predicted>,
}

pub(super) fn run(args: &Args, save: Option<OutputFile>, output: &Output) -> anyhow::Result<()> {
    let source = &args.device.source;
    let (library, tables, store) = (source.library()?, source.tables()?, Store::from_env()?.without_bundles());
    let target = named_target(args.arch.as_deref().unwrap_or_default(), &tables)?;
    let kept = args.device.stored.on(&target);
    let (precision, checkpoint) = precision_for(&args.model.open(output)?, args.device.precision, kept);
    let asked = SuiteOptions {
        kinds: Some(vec![Kind::Decode]),
        batches: Some(args.batch.clone().unwrap_or_else(|| BATCHES.to_vec())),
        ..args.asked()
    };
    let suite = Suite::new(&asked, &target);
    let facts = tables.facts(&target.arch).cloned();
    let chooser = Chooser::new(library, tables, target)?;
    let predictor = Predictor::new(chooser.library(), chooser.target(), &store, facts.as_ref())?;
    if let Some(notice) = predictor.model().and_then(IssueModel::notice) {
        output.note(&notice);
    }
    let product = facts.as_ref().and_then(|facts| facts.product.as_ref()).context("a predictor has a product")?;
    let kv = args.cache.dtype(precision);
    let model = Model::from_checkpoint(&checkpoint, KvDtypes::new(kv, precision));
    let mut steps = Vec::new();
    let chunk = args.cache.chunk.unwrap_or(0) as usize;
    for (works, sizes) in suite.sessions(chooser.target(), chunk) {
        let kv_budget_bytes = args.cache.kv_memory.map_or(usize::MAX, |mib| mib.saturating_mul(1 << 20));
        let options = args.cache.model_options(precision, sizes, kv_budget_bytes);
        let Blueprint { graph, limits, .. } =
            Blueprint::new(&checkpoint, &options, chooser.target(), chooser.library())?;
        let planned = PlannedSteps::new(graph, limits, &chooser)?;
        for work in works {
            let (batch, context) = (work.batch(), work.context(suite.effort));
            let launches = planned.launches(batch, context);
            let progress = CompileProgress::new(output);
            let time = StepTime::new(launches, &predictor, chooser.library(), &progress)?;
            steps.push(Predicted { batch, context, cost: model.decode_cost(batch, context as f64), time });
        }
    }
    let report = Report {
        model: args.model.shape.shape.map_or("checkpoint", NamedShape::name).to_string(),
        n_layers: checkpoint.config.num_hidden_layers,
        weights: checkpoint.weights(),
        kv: kv.to_string(),
        precision,
        target: chooser.target().id(),
        product,
        has_blocks: checkpoint.tensor(checkpoint.unembedding()).dtype.stored_bits() < 16.0,
        steps,
    };
    let report = report.known()?;
    report.print(output)?;
    save.map_or(Ok(()), |save| save.fill(|file| writeln!(file, "{}", report.json())))
}

impl Predicted {
    /// Tokens per second where a launch takes so many microseconds by itself.
    fn tok_per_s(&self, launch_us: f64) -> f64 {
        self.batch as f64 / self.time.seconds(1e-6 * launch_us)
    }

    /// The same, if the model is as wrong as it was on an H200.
    fn tok_per_s_less_error(&self, launch_us: f64, has_blocks: bool) -> f64 {
        self.tok_per_s(launch_us) / error_on_h200(self.batch, has_blocks)
    }

    /// What no GPU passes whose memory and matrix units do what their maker says.
    fn limit_tok_per_s(&self, product: &Product) -> f64 {
        let flop_per_s = Some(1e12 * product.matrix_tflops()).filter(|flop| *flop > 0.0).unwrap_or(f64::INFINITY);
        self.batch as f64 / self.cost.least_s_at(1e9 * product.memory_gbps, flop_per_s)
    }

    /// The launches, those first that take most of the step.
    fn by_time(&self) -> Vec<&(StepLaunch, LaunchTime)> {
        let all = |(launch, time): &(StepLaunch, LaunchTime)| {
            time.kernel_s().map_or(f64::INFINITY, |seconds| launch.n_launches as f64 * seconds)
        };
        let mut sorted: Vec<_> = self.time.launches.iter().collect();
        sorted.sort_by(|a, b| all(b).total_cmp(&all(a)));
        sorted
    }

    fn cells(&self, (launch, time): &(StepLaunch, LaunchTime), product: &Product) -> Vec<String> {
        let (n, bytes) = (launch.n_launches as f64, time.work.total_bytes());
        let of = |number: Option<f64>, digits: usize| number.map_or("-".into(), |number| format!("{number:.digits$}"));
        let seconds = time.kernel_s();
        let bytes_per_s = seconds.map(|seconds| bytes / seconds);
        vec![
            launch.label.clone(),
            launch.candidate.template.label(),
            launch.n_launches.to_string(),
            of(seconds.map(|seconds| 1e6 * seconds), 1),
            of(seconds.map(|seconds| 1e6 * n * seconds), 0),
            of(seconds.map(|seconds| 100.0 * n * seconds / self.time.kernels_s()), 1),
            format!("{:.2}", bytes / 1e6),
            of(bytes_per_s.map(|rate| 1e-7 * rate / product.memory_gbps), 0),
            time.prediction.as_ref().map_or_else(|error| chain(error), |(_, one)| one.bound().to_string()),
        ]
    }

    fn json(&self, product: &Product, has_blocks: bool) -> Value {
        let round = |round: Round| {
            json!({
                "instructions": round.n_instructions, "alone_cycles": round.alone_cycles,
                "busy_cycles": round.busy_cycles, "flop": round.flop, "memory_bytes": round.memory_bytes,
            })
        };
        let launches = self.time.launches.iter().map(|(launch, time)| {
            let parts = time.prediction.as_ref().ok();
            let us = |of: fn(&Prediction) -> f64| parts.map(|(_, one)| 1e6 * of(one));
            json!({
                "nodes": launch.label, "ops": launch.problem.ops, "template": launch.candidate.template.label(),
                "params": launch.candidate.params, "launches": launch.n_launches, "us": us(Prediction::kernel_s),
                "memory_us": us(|one| one.memory_s), "cache_us": us(|one| one.cache_s),
                "compute_us": us(|one| one.compute_s), "waves_us": us(|one| one.waves_s),
                "blocks_per_unit": parts.map(|(_, one)| one.blocks_per_unit),
                "generations": parts.map(|(_, one)| one.generations),
                "vgprs": parts.map(|(code, _)| code.vgprs),
                "main_loop": parts.and_then(|(code, _)| code.main_loop).map(round),
                "outside": parts.map(|(code, _)| round(code.outside)),
                "bytes": time.work.total_bytes(), "flop": time.work.flop,
                "bound": parts.map(|(_, one)| one.bound().to_string()),
                "error": time.prediction.as_ref().err().map(|error| chain(error)),
            })
        });
        let at = LAUNCHES_US.map(|us| {
            let tok_per_s = self.tok_per_s(us);
            json!({
                "launch_us": us, "tok_per_s": tok_per_s, "of_limit": tok_per_s / self.limit_tok_per_s(product),
                "tok_per_s_less_error": self.tok_per_s_less_error(us, has_blocks),
            })
        });
        json!({
            "batch": self.batch, "context": self.context, "bytes": self.cost.bytes, "flop": self.cost.flop,
            "limit_tok_per_s": self.limit_tok_per_s(product), "n_launches": self.time.n_launches(),
            "n_unknown": self.time.n_unknown(), "kernels_us": 1e6 * self.time.kernels_s(), "at": at,
            "launches": launches.collect::<Vec<_>>(),
        })
    }
}

impl Report<'_> {
    /// The report, unless of no kernel anything is known: then what is missing is missing for all.
    fn known(mut self) -> Result<Self, PredictError> {
        for step in &mut self.steps {
            if step.time.n_unknown() == step.time.n_launches()
                && let Some((_, LaunchTime { prediction: Err(error), .. })) = step.time.launches.pop()
            {
                return Err(error);
            }
        }
        Ok(self)
    }

    fn print(&self, output: &Output) -> anyhow::Result<()> {
        if output.is_json() {
            return Ok(output.json(&self.json())?);
        }
        let Product { name, memory_gbps, .. } = self.product;
        output.line(&format!(
            "{}, {} layers, {}, keys and values {}, for {} ({name}, {memory_gbps:.0} GB/s): predicted, nothing measured",
            self.model, self.n_layers, self.weights, self.kv, self.target
        ))?;
        for step in &self.steps {
            output.line(&format!("\ndecode, batch {}, context {}:", step.batch, step.context))?;
            const RIGHT: [&str; 6] = ["launches", "us each", "us", "% of kernels", "MB each", "% of memory"];
            let mut cells: Vec<Vec<String>> =
                step.by_time().into_iter().map(|launch| step.cells(launch, self.product)).collect();
            cells.push(vec![
                "all".into(),
                String::new(),
                step.time.n_launches().to_string(),
                String::new(),
                format!("{:.0}", 1e6 * step.time.kernels_s()),
            ]);
            output.table(&[&["nodes", "template"][..], &RIGHT, &["bound by"]].concat(), &cells, &RIGHT)?;
            if step.time.n_unknown() > 0 {
                output.warning(&format!(
                    "{} launches have no prediction and count as nothing: the step takes longer",
                    step.time.n_unknown()
                ));
            }
        }
        output.line("")?;
        self.print_steps(output)
    }

    /// Whole steps, with each time that a launch may take.
    fn print_steps(&self, output: &Output) -> anyhow::Result<()> {
        const RIGHT: [&str; 10] = [
            "batch",
            "context",
            "GB",
            "launches",
            "us a launch",
            "ms/step",
            "tok/s",
            "limit tok/s",
            "% of limit",
            "less error",
        ];
        let cells = self.steps.iter().flat_map(|step| {
            LAUNCHES_US.iter().map(|&launch_us| {
                let (tok_per_s, limit) = (step.tok_per_s(launch_us), step.limit_tok_per_s(self.product));
                vec![
                    step.batch.to_string(),
                    step.context.to_string(),
                    format!("{:.2}", step.cost.bytes / 1e9),
                    step.time.n_launches().to_string(),
                    format!("{launch_us:.0}"),
                    format!("{:.3}", 1e3 * step.time.seconds(1e-6 * launch_us)),
                    format!("{tok_per_s:.0}"),
                    format!("{limit:.0}"),
                    format!("{:.1}", 100.0 * tok_per_s / limit),
                    format!("{:.0}", step.tok_per_s_less_error(launch_us, self.has_blocks)),
                ]
            })
        });
        output.table(&RIGHT, &cells.collect::<Vec<_>>(), &RIGHT)?;
        output.note(
            "1 us a launch is about what a captured step takes, 5 us one that the host launches kernel by kernel; the last \
             column is divided by this model's error on an H200 at the same number of rows",
        );
        Ok(())
    }

    /// The object that `--json` prints; `docs/bench.md` has its fields.
    fn json(&self) -> Value {
        let Product { name, memory_gbps, .. } = self.product;
        json!({
            "schema": 1, "model": self.model, "layers": self.n_layers, "weights": self.weights, "kv": self.kv,
            "precision": self.precision.name(), "target": self.target, "predicted": true,
            "product": { "name": name, "memory_gbps": memory_gbps, "matrix_tflops": self.product.matrix_tflops() },
            "steps": self.steps.iter().map(|step| step.json(self.product, self.has_blocks)).collect::<Vec<_>>(),
        })
    }
}
