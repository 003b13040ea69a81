//! `kernels predict`: the times of a journal of `tune`, compared with predictions from the kernels' objects.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::args::source::TargetArgs;
use crate::compile_progress::CompileProgress;
use crate::model_problems;
use crate::output::Output;
use crate::output_file::OutputFile;
use crate::rows_plot::{self, Dot, Panel};
use crate::usage::UsageError;
use kernel::choice::Chooser;
use kernel::object::store::Store;
use kernel::template::work::Work;
use kernel::template::{Precision, Problem};
use model::config::NamedShape;
use workbench::isa::speed::IssueModel;
use workbench::predict::against::{self, Agreement, Measured, agreement};
use workbench::predict::{Code, Compiled, Prediction, Predictor, Round};
use workbench::timing::{self, Candidate, Setup};

#[derive(clap::Args)]
pub(super) struct PredictArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Measured times: the journal that `tune` writes, a JSON object per line
    #[arg(long, value_name = "JOURNAL")]
    against: PathBuf,

    /// Only these ops
    #[arg(long, value_delimiter = ',', value_name = "OP,…")]
    op: Vec<String>,

    /// The model whose problems were measured
    #[arg(long, value_enum, default_value = "gpt-oss-20b")]
    model: NamedShape,

    /// Positions that the last row of a slot sees, if the journal does not say
    #[arg(long, default_value_t = 1024, value_name = "N")]
    context: u32,

    /// Print every kernel, not only the sums
    #[arg(long)]
    all: bool,

    /// Also draw them into this file: time by rows, the limit, and the tables' choice
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A kernel with both times.
struct Both {
    measured: Measured,
    prediction: Prediction,
    compiled: Arc<Compiled>,
    problem: Problem,
    work: Work,
    /// The least time of any kernel, in microseconds.
    limit_us: f64,
    /// Whether the tables choose it.
    is_choice: bool,
}

pub(super) fn run(args: &PredictArgs, output: &Output) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.against)
        .with_context(|| format!("could not read `{}`", args.against.display()))?;
    let mut measured = against::read(&text);
    measured.retain(|one| args.op.is_empty() || args.op.contains(&one.op));
    if measured.is_empty() {
        let what = format!("`{}` has no times of these ops", args.against.display());
        return Err(UsageError(what).into());
    }
    let plot = args.svg.as_deref().map(|path| OutputFile::create(path, "a plot")).transpose()?;
    let source = &args.target.source;
    let (library, tables, store) = (source.library()?, source.tables()?, Store::from_env()?.without_bundles());
    let target = args.target.target(&tables)?;
    let facts = tables.facts(&target.arch).cloned();
    store.try_compiler(&target)?;
    let chooser = Chooser::new(library, tables, target)?;
    let predictor = Predictor::new(chooser.library(), chooser.target(), &store, facts.as_ref())?;
    if let Some(notice) = predictor.model().and_then(IssueModel::notice) {
        output.note(&notice);
    }
    let n_measured = measured.len();
    let mut both = Vec::new();
    for (problem, of_problem) in by_problem(measured, args, &chooser)? {
        both.extend(predicted(&problem, of_problem, args, &chooser, &predictor, output)?);
    }
    if let Some(plot) = plot {
        let name = args.against.file_name().unwrap_or_default().to_string_lossy();
        let text = rows_plot::svg(&format!("{}, {name}", chooser.target().id()), &panels(&both));
        plot.fill(|file| file.write_all(text.as_bytes()))?;
    }
    let n_left = n_measured - both.len();
    if n_left > 0 {
        output.note(&format!(
            "{n_left} of {n_measured} times belong to kernels that no longer exist, cannot be compiled, or have no \
             prediction"
        ));
    }
    let pairs: Vec<(Measured, f64)> =
        both.iter().map(|both| (both.measured.clone(), both.prediction.seconds())).collect();
    let agreements = agreement(&pairs);
    if output.is_json() {
        let kernels: Vec<Value> = both.iter().map(Both::json).collect();
        let ops: Vec<Value> = agreements.iter().map(of_agreement).collect();
        let target = chooser.target().id();
        return Ok(output.json(&json!({ "schema": 1, "target": target, "ops": ops, "kernels": kernels }))?);
    }
    if args.all {
        const RIGHT: [&str; 11] = [
            "rows",
            "measured us",
            "predicted us",
            "memory",
            "cache",
            "compute",
            "waves",
            "blocks/CU",
            "generations",
            "alone",
            "busy",
        ];
        let header = [&["op", "dims", "template", "params"][..], &RIGHT, &["bound"]].concat();
        output.table(&header, &both.iter().map(Both::cells).collect::<Vec<_>>(), &RIGHT)?;
        output.line("")?;
    }
    const RIGHT: [&str; 8] = [
        "n",
        "rank correlation",
        "predicted/measured",
        "10 % to 90 %",
        "choices",
        "correlation within",
        "regret, mean (most)",
        "of chance",
    ];
    let cells: Vec<Vec<String>> = agreements.iter().map(cells).collect();
    output.table(&[&["op"][..], &RIGHT].concat(), &cells, &RIGHT)?;
    Ok(())
}

/// The times by the problems of the model that they are of; those of no problem are left out.
fn by_problem(
    measured: Vec<Measured>,
    args: &PredictArgs,
    chooser: &Chooser,
) -> anyhow::Result<Vec<(Problem, Vec<Measured>)>> {
    let mut of_op: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
    let mut all: Vec<(Problem, Vec<Measured>)> = Vec::new();
    for one in measured {
        if !of_op.contains_key(&one.op) {
            let fusions = chooser.fusions();
            let (target, library) = (chooser.target(), chooser.library());
            let found = model_problems::list(&one.op, args.model, Precision::Bf16, target, library, &fusions)?;
            of_op.insert(one.op.clone(), found.into_iter().map(|found| found.problem).collect());
        }
        let Some(problem) = of_op[&one.op].iter().find(|problem| one.is_of(problem)) else { continue };
        match all.iter_mut().find(|(known, _)| known == problem) {
            Some((_, of_problem)) => of_problem.push(one),
            None => all.push((problem.clone(), vec![one])),
        }
    }
    Ok(all)
}

fn predicted(
    problem: &Problem,
    measured: Vec<Measured>,
    args: &PredictArgs,
    chooser: &Chooser,
    predictor: &Predictor<'_>,
    output: &Output,
) -> anyhow::Result<Vec<Both>> {
    let (library, target) = (chooser.library(), chooser.target());
    let mut wanted = Vec::new();
    for one in measured {
        let Ok(template) = library.template(&one.template, target.language()) else { continue };
        let is_legal = template.fits(problem, target).is_ok()
            && template
                .legal_params(problem, target)
                .any(|params| one.params.iter().all(|(n, v)| params.get(n) == Some(v)));
        if !is_legal {
            output.detail(&format!("{} {:?}: no legal parameters", one.template, one.params));
            continue;
        }
        let params = template.resolve_params(&one.params, problem, target)?;
        wanted.push((one, Candidate { template: Arc::clone(template), params }));
    }
    let candidates = wanted.iter().map(|(_, candidate)| candidate.clone()).collect();
    let compiled = predictor.compile(problem, candidates, &CompileProgress::new(output));
    let mut both = Vec::new();
    // Counting what random inputs come to takes longer than all else.
    let mut works: HashMap<(u32, &str, u32), Work> = HashMap::new();
    for ((measured, _), (candidate, compiled)) in wanted.into_iter().zip(compiled) {
        let compiled = match compiled {
            Ok(compiled) => Arc::new(compiled),
            Err(error) => {
                output.detail(&format!("{}: {error}", candidate.template.label()));
                continue;
            }
        };
        let context = measured.context.unwrap_or(args.context);
        let setup = Setup::for_problem(problem, measured.n_tokens, measured.step, context, 0);
        let work = match works.entry((measured.n_tokens, measured.step.name(), context)) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => new.insert(timing::work(library, problem, &setup)?).clone(),
        };
        let prediction = compiled.predict(&setup.scalars, &work)?;
        let limit_us = 1e6 * predictor.chip().least_s(&work);
        let ranking = chooser.ranking(problem, measured.n_tokens as usize, measured.step)?;
        let choice = &ranking.choices[0];
        let is_choice = choice.template.label() == candidate.template.label() && choice.params == candidate.params;
        both.push(Both { measured, prediction, compiled, problem: problem.clone(), work, limit_us, is_choice });
    }
    Ok(both)
}

/// A panel for each problem and kind of step.
fn panels(both: &[Both]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for one in both {
        let Both { measured, prediction, problem, .. } = one;
        let dims = problem.dims.iter().map(|(name, value)| format!("{name} {value}"));
        let step = if problem.ops.iter().any(|op| op == "attention") { measured.step.name() } else { "" };
        let context = measured.context.map_or(String::new(), |context| format!(", {context} positions"));
        let dims = dims.collect::<Vec<_>>().join(", ");
        let title = [measured.op.as_str(), " ", step, ", ", &dims, &context].concat().replace(" ,", ",");
        let index = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            panels.push(Panel { title, limit: Vec::new(), dots: Vec::new() });
            panels.len() - 1
        });
        let panel = &mut panels[index];
        let rows = measured.n_tokens;
        panel.limit.push((rows, one.limit_us));
        let params: Vec<String> = measured.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for (us, is_measured) in [(measured.time_us, true), (1e6 * prediction.seconds(), false)] {
            let (template, is_choice) = (measured.template.clone(), one.is_choice && is_measured);
            panel.dots.push(Dot { rows, us, template, params: params.join(" "), is_measured, is_choice });
        }
    }
    for panel in &mut panels {
        panel.limit.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        panel.limit.dedup_by_key(|limit| limit.0);
    }
    panels
}

impl Both {
    fn cells(&self) -> Vec<String> {
        let Self { measured, prediction, compiled, .. } = self;
        let us = |seconds: f64| format!("{:.2}", 1e6 * seconds);
        let (main, outside) = (compiled.code.main_loop.unwrap_or_default(), compiled.code.outside);
        let params: Vec<String> = measured.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        vec![
            measured.op.clone(),
            measured.dims.values().map(u32::to_string).collect::<Vec<_>>().join("x"),
            measured.template.clone(),
            params.join(" "),
            measured.n_tokens.to_string(),
            format!("{:.2}", measured.time_us),
            us(prediction.seconds()),
            us(prediction.memory_s),
            us(prediction.cache_s),
            us(prediction.compute_s),
            us(prediction.waves_s),
            prediction.blocks_per_unit.to_string(),
            format!("{:.2}", prediction.generations),
            format!("{:.0}+{:.0}", main.alone_cycles, outside.alone_cycles),
            format!("{:.0}+{:.0}", main.busy_cycles, outside.busy_cycles),
            prediction.bound().to_string(),
        ]
    }

    fn json(&self) -> Value {
        let Self { measured, prediction, compiled, work, .. } = self;
        let Code { vgprs, lds_bytes, private_bytes, main_loop, outside } = compiled.code;
        let round = |round: Round| {
            json!({
                "instructions": round.n_instructions, "alone_cycles": round.alone_cycles,
                "busy_cycles": round.busy_cycles, "flop": round.flop, "memory_bytes": round.memory_bytes,
            })
        };
        json!({
            "op": measured.op, "dims": measured.dims, "rows": measured.n_tokens, "step": measured.step.name(),
            "template": measured.template, "params": measured.params, "measured_us": measured.time_us,
            "predicted_us": 1e6 * prediction.seconds(), "memory_us": 1e6 * prediction.memory_s,
            "cache_us": 1e6 * prediction.cache_s, "compute_us": 1e6 * prediction.compute_s,
            "waves_us": 1e6 * prediction.waves_s, "launch_us": 1e6 * prediction.launch_s,
            "bound": prediction.bound().to_string(), "blocks_per_unit": prediction.blocks_per_unit,
            "generations": prediction.generations, "block_size": compiled.rendered.launch.block_size(),
            "vgprs": vgprs, "lds_bytes": lds_bytes, "private_bytes": private_bytes,
            "main_loop": main_loop.map(round), "outside": round(outside), "flop": work.flop, "bytes": work.bytes,
        })
    }
}

fn cells(one: &Agreement) -> Vec<String> {
    let number = |number: Option<f64>| number.map_or("-".into(), |number| format!("{number:.2}"));
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    vec![
        one.op.clone(),
        one.n.to_string(),
        number(one.correlation),
        format!("{:.2}", one.ratio[0]),
        format!("{:.2} to {:.2}", one.ratio[1], one.ratio[2]),
        format!("{} of {}", one.n_groups, one.n_in_groups),
        number(one.within),
        one.regret.map_or("-".into(), |[mean, most]| format!("{} ({})", percent(mean), percent(most))),
        one.regret_of_chance.map_or("-".into(), percent),
    ]
}

fn of_agreement(one: &Agreement) -> Value {
    json!({
        "op": one.op, "n": one.n, "rank_correlation": one.correlation, "ratio": one.ratio[0],
        "ratio_10_90": [one.ratio[1], one.ratio[2]], "choices": one.n_groups, "candidates": one.n_in_groups,
        "rank_correlation_within": one.within, "regret": one.regret.map(|regret| regret[0]),
        "regret_most": one.regret.map(|regret| regret[1]), "regret_of_chance": one.regret_of_chance,
    })
}
