//! `kernels replay`: repeats a launch that `run --capture-launch` wrote, with any kernel on any device.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;

use crate::args::source::SourceArgs;
use crate::output::Output;
use crate::usage::UsageError;
use engine::device::Device;
use engine::plan::capture::CapturedLaunch;
use gpu::sim::catch_signals;
use kernel::choice::{Choice, Chooser};
use kernel::object::store::Store;
use kernel::template::Params;
use system::units::counted;
use workbench::check::show_command;
use workbench::replay::file;
use workbench::replay::{AgainstReference, NEAR, On, Replayed, ReplayedOutput, replay};

#[derive(clap::Args)]
pub(super) struct ReplayArgs {
    /// A file of `run --capture-launch`
    file: PathBuf,

    /// Where to launch: `sim:gfx1100`, `cpu`, `cuda`, `hip:1`
    #[arg(long, value_name = "DEVICE")]
    device: Device,

    /// The kernel, by its name or as `linear/gemv` [default: the captured one if it fits the device, else the one
    /// chosen there]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,

    /// A parameter; others have their defaults [default: the captured ones, else the tables' choice]
    #[arg(long = "set", value_name = "PARAM=VALUE", value_parser = super::show::assignment_of_number)]
    set: Vec<(String, u32)>,

    /// In the simulator, compile for a debugger: with variables, and statements in order (see docs/debugging.md)
    #[arg(long)]
    debug: bool,

    #[command(flatten)]
    source: SourceArgs,
}

/// What a debugger wants of the C++ compiler.
const FOR_A_DEBUGGER: [&str; 2] = ["-g", "-Og"];

/// The outputs are wrong.
#[derive(Debug, thiserror::Error)]
#[error("the kernel is wrong")]
struct ReplayWrong;

pub(super) fn run(args: &ReplayArgs, output: &Output) -> anyhow::Result<()> {
    if matches!(args.device, Device::Sim(_)) {
        catch_signals(); // before a file is mapped: what watches that hands on what is not its own
    }
    let name = args.file.display();
    let bytes = mapped_file::map(&args.file).with_context(|| format!("could not read `{name}`"))?;
    let stored = file::read(&bytes).with_context(|| format!("could not read `{name}`"))?;
    let tables = args.source.tables()?;
    let (target, driver) = args.device.open(&tables, 0)?;
    let chooser = Chooser::new(args.source.library()?, tables, target)?;
    let (choice, params) = args.choose(&stored, &chooser, output)?;
    let store = Store::from_env()?.without_bundles();
    store.try_compiler(chooser.target())?;
    if args.debug && !chooser.target().is_simulated {
        return Err(UsageError(format!("--debug is for the simulator, not {}: sim:gfx1100", args.device)).into());
    }
    let options = if args.debug { &FOR_A_DEBUGGER[..] } else { &[] };
    let (library, target) = (chooser.library(), chooser.target());
    let on = On { library, store: &store, target, driver: &*driver, options };
    let label = choice.template.label();
    if args.debug {
        let show = show_command(&label, &stored.problem, &params, target, "");
        output.note(&format!("`{show} > kernel.hip` writes the text whose lines a debugger asks for"));
    }
    let replayed = replay(&stored, &on, &choice.template, &params)?;
    if output.is_json() {
        output.json(&to_json(&stored, &label, &args.device.to_string(), &replayed))?;
    } else {
        print(&stored, &label, &args.device.to_string(), &replayed, output)?;
    }
    if replayed.is_right() { Ok(()) } else { Err(ReplayWrong.into()) }
}

impl ReplayArgs {
    /// The kernel and its parameters.
    fn choose(&self, stored: &CapturedLaunch, chooser: &Chooser, output: &Output) -> anyhow::Result<(Choice, Params)> {
        let ranking = chooser.ranking(&stored.problem, stored.n_rows(), stored.step);
        let ranking = ranking
            .with_context(|| format!("nothing here does what {} asked for on {}", stored.label, stored.target))?;
        let is_it = |choice: &&Choice| match &self.variant {
            Some(name) => choice.template.variant == *name || choice.template.label() == *name,
            None => choice.template.label() == stored.template,
        };
        let found = ranking.choices.iter().find(is_it);
        let choice = match (&self.variant, found) {
            (_, Some(found)) => found,
            (None, None) => &ranking.choices[0],
            (Some(name), None) => {
                let known: Vec<String> = ranking.choices.iter().map(|choice| choice.template.label()).collect();
                let what = format!("--variant {name}: expected one that fits: {}", known.join(", "));
                return Err(UsageError(what).into());
            }
        };
        let (template, target) = (&choice.template, chooser.target());
        let params = match (self.set.is_empty(), template.label() == stored.template) {
            (false, _) => template.resolve_params(&self.set.iter().cloned().collect(), &stored.problem, target)?,
            // The template may have other parameters since, or this device not take them.
            (true, true) => template.resolve_params(&stored.params, &stored.problem, target).unwrap_or_else(|error| {
                output.warning(&format!(
                    "{} does not take the captured parameters{} on {}: {}; those of the tables are taken",
                    stored.template,
                    listed(&stored.params),
                    self.device,
                    hint::chain(&error)
                ));
                choice.params.clone()
            }),
            (true, false) => choice.params.clone(),
        };
        Ok((choice.clone(), params))
    }
}

fn listed(params: &Params) -> String {
    params.iter().map(|(name, value)| format!(" {name}={value}")).collect()
}

fn print(
    stored: &CapturedLaunch,
    label: &str,
    device: &str,
    replayed: &Replayed,
    output: &Output,
) -> anyhow::Result<()> {
    output.note(&format!(
        "{}, {} of a {} step: captured on {} by {}{}",
        stored.label,
        counted(stored.n_rows(), "row"),
        stored.step.name(),
        stored.target,
        stored.template,
        listed(&stored.params)
    ));
    let verdict = match &replayed.reference {
        AgainstReference::Right(worst) => format!("right ({:.0} % of tolerance)", 100.0 * worst),
        AgainstReference::Wrong(difference) => format!("wrong: {difference}"),
        AgainstReference::Unknown(why) if replayed.is_right() => {
            format!("as captured, to {:.1e} of the norm at most; {why}", NEAR)
        }
        AgainstReference::Unknown(why) => format!("wrong: not what was captured; {why}"),
    };
    output.line(&format!("{label}{} on {device}: {verdict}", listed(&replayed.params)))?;
    for ReplayedOutput { name, n_elements, n_open, n_different, largest, relative } in &replayed.outputs {
        let open = if *n_open > 0 { format!("; the contract leaves {n_open} more open") } else { String::new() };
        output.line(&match n_different {
            0 => format!("  `{name}`: its {n_elements} elements are those that were captured{open}"),
            _ => format!(
                "  `{name}`: {n_different} of {n_elements} elements differ from those that were captured, by {largest:.3e} at \
                 most, {relative:.1e} of the norm{open}"
            ),
        })?;
    }
    if let Some(uses) = &replayed.uses {
        let (vgprs, sgprs, lds, spills) = (uses.vgprs, uses.sgprs, uses.lds_bytes, uses.spills());
        output.line(&format!("  {vgprs} VGPRs, {sgprs} SGPRs, {lds} bytes of LDS, {spills} spilled"))?;
    }
    match replayed.median_us() {
        Some((median, spread)) => output.line(&format!(
            "  {median:.1} us, the middle of {} launches one by one, whose middle half differs by {:.0} %",
            replayed.times_us.len(),
            100.0 * spread
        ))?,
        None => output.note("the simulator says nothing of speed"),
    }
    Ok(())
}

fn to_json(stored: &CapturedLaunch, label: &str, device: &str, replayed: &Replayed) -> serde_json::Value {
    let finite = |number: f64| Some(number).filter(|number| number.is_finite());
    let outputs = replayed.outputs.iter().map(|one| {
        json!({
            "name": one.name, "elements": one.n_elements, "open": one.n_open, "different": one.n_different,
            "largest": finite(one.largest), "relative": finite(one.relative),
        })
    });
    let (worst, why) = match &replayed.reference {
        AgainstReference::Right(worst) => (Some(*worst), None),
        AgainstReference::Wrong(difference) => (None, Some(difference.to_string())),
        AgainstReference::Unknown(why) => (None, Some(why.clone())),
    };
    let median = replayed.median_us();
    json!({
        "schema": 1, "node": stored.label, "rows": stored.n_rows(), "step": stored.step.name(),
        "captured": { "target": stored.target, "template": stored.template, "params": stored.params },
        "device": device, "template": label, "params": replayed.params, "right": replayed.is_right(),
        "worst_error": worst, "why": why, "outputs": outputs.collect::<Vec<_>>(),
        "median_us": median.map(|(median, _)| median), "spread": median.map(|(_, spread)| spread),
        "uses": replayed.uses.as_ref().map(|uses| json!({
            "vgprs": uses.vgprs, "sgprs": uses.sgprs, "lds_bytes": uses.lds_bytes, "spills": uses.spills(),
        })),
    })
}
