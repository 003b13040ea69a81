//! `kernels check --watch FILE`: at each save, one line that says whether the kernel is right, and how fast it is
//! compared with what runs today.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context as _;

use super::beside::{Beside, Choosers, ShapeArgs, today};
use super::quick::{On, Quick};
use crate::args::source::{SourceArgs, TargetArgs, named_target};
use crate::output::Output;
use crate::usage::UsageError;
use engine::device::{Device, of_arch};
use hint::chain;
use kernel::choice::Chooser;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::{Language, Platform, Target};
use kernel::template::Params;
use kernel::template::library::{Broken, Library};
use kernel::tuning::TuningTables;
use workbench::check::Checked;
use workbench::isa::speed::IssueModel;
use workbench::predict::Prediction;
use workbench::timing::{Bench, Candidate, ROUNDS, Setup, Weights};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Default time for the cases of all precisions.
const WITHIN: Duration = Duration::from_secs(2);

/// What a last cache holds where no table says it, in bytes.
const CACHE_BYTES: usize = 256 << 20;

/// What is watched, and on what it is tried.
pub(super) struct Watch<'a> {
    pub(crate) file: &'a Path,
    pub(crate) target: &'a TargetArgs,
    pub(crate) device: Option<&'a Device>,
    pub(crate) shape: &'a ShapeArgs,
    pub(crate) within: Option<Duration>,
    pub(crate) deadline: Duration,
}

/// The place of a template among others: its folder is that of the op, in a folder of templates.
pub(super) struct Place {
    pub(crate) templates: PathBuf,
    pub(crate) op: String,
    pub(crate) variant: String,
    pub(crate) language: Language,
}

/// Looks at the file until the program is ended.
///
/// # Errors
/// If the file is no template, or there is nothing to try it on.
pub(super) fn run(watch: &Watch<'_>, output: &Output) -> anyhow::Result<()> {
    let place = Place::from_path(watch.file)?;
    let source = SourceArgs { templates: Some(place.templates.clone()), tuning: watch.target.source.tuning.clone() };
    let tables = source.tables()?;
    let (target, on) = watch.place(&place, &tables)?;
    let where_to = match &on {
        On::Device(device) => format!("checked and timed on {device}"),
        On::Simulator if target.is_simulated => format!("checked in the simulator of {}", target.arch),
        On::Simulator => format!("checked in the simulator, predicted for {}", target.id()),
    };
    output.note(&format!("{}/{}: {where_to}; ^C ends", place.op, place.variant));
    let store = Store::from_env()?.without_bundles();
    store.try_compiler(&target)?;
    if matches!(on, On::Simulator) {
        store.try_compiler(&target.clone().simulated())?;
        if let Some(notice) = IssueModel::find(&target.arch).notice().filter(|_| target.platform == Platform::Amd) {
            output.note(&notice);
        }
    }
    let today = Arc::new(today(&source, &target)?);
    let (mut last, mut before): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    loop {
        // A file that is being replaced is not there for a moment, and one that is written over is not all there: it
        // is tried when two looks see the same.
        let text = fs::read(watch.file).ok();
        let is_whole = text == std::mem::replace(&mut before, text.clone());
        if is_whole && text.is_some() && text != last {
            last = text;
            let begun = Instant::now();
            let stop = Arc::new(AtomicBool::new(false));
            let line = thread::scope(|scope| {
                let tries = scope.spawn(|| watch.try_once(&place, &source, &today, &on, (&store, &stop), output));
                while !tries.is_finished() {
                    thread::sleep(LOOK);
                    if !stop.load(Ordering::Relaxed) && fs::read(watch.file).ok() != last {
                        stop.store(true, Ordering::Relaxed);
                        store.compiler().compile_until(Some(Instant::now()));
                    }
                }
                tries.join().expect("it does not panic")
            });
            store.compiler().compile_until(None);
            // The verdict is of another text than the one that is there.
            if stop.load(Ordering::Relaxed) {
                output.detail("saved during the check: starting again");
                last = None; // also where the bytes are the same again
                continue;
            }
            output.line(&line.unwrap_or_else(|error| format!("error: {}", chain(error.as_ref()))))?;
            output.detail(&format!("{:.1} s", begun.elapsed().as_secs_f64()));
        }
        thread::sleep(LOOK);
    }
}

impl Place {
    pub(crate) fn from_path(file: &Path) -> anyhow::Result<Self> {
        let full = file.canonicalize().with_context(|| format!("could not read `{}`", file.display()))?;
        let name = full.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let language = Language::ALL.into_iter().find(|language| name.ends_with(language.extension()));
        let folder = full.parent().filter(|folder| folder.parent().is_some());
        let op = folder.and_then(|folder| folder.file_name()?.to_str());
        let (Some(language), Some(folder), Some(op)) = (language, folder, op) else {
            let what = "expected a template, like `mine/attention/quick.hip.j2`: a folder of templates, an op, a name";
            return Err(UsageError(format!("{}: {what}", file.display())).into());
        };
        Ok(Self {
            templates: folder.parent().expect("it has one").to_owned(),
            op: op.to_owned(),
            variant: name.strip_suffix(language.extension()).expect("it ends so").to_owned(),
            language,
        })
    }
}

impl Watch<'_> {
    /// The target, and the nearest of what can run its kernels: its own device, else the simulator.
    fn place(&self, place: &Place, tables: &TuningTables) -> anyhow::Result<(Target, On)> {
        if let Some(device) = self.device {
            let (target, _) = device.open(tables, 0)?;
            return Ok((target, On::Device(device.to_string())));
        }
        match (&self.target.arch, place.language) {
            (Some(arch), Language::Hip) => {
                let target = named_target(arch, tables)?;
                let here = of_arch(arch, tables).is_ok();
                let on = if here { self.device_of(arch, tables)? } else { On::Simulator };
                Ok((target, on))
            }
            (None, Language::Hip) => {
                let (target, _) = Device::Auto.open(tables, 0)?;
                if target.is_real_gpu() {
                    return Ok((target, On::Device("auto".into())));
                }
                Err(UsageError("there is no GPU here; `--arch gfx1100` says for which one the kernel is".into()).into())
            }
            (_, Language::C) => {
                let (target, _) = Device::Cpu.open(tables, 0)?;
                Ok((target, On::Device("cpu".into())))
            }
        }
    }

    /// The word for the first device of an arch that is here.
    fn device_of(&self, arch: &str, tables: &TuningTables) -> anyhow::Result<On> {
        for word in ["hip", "cuda"] {
            let Ok(device) = word.parse::<Device>() else { continue };
            if device.open(tables, 0).is_ok_and(|(target, _)| target.arch.split(':').next() == Some(arch)) {
                return Ok(On::Device(word.to_owned()));
            }
        }
        Ok(On::Simulator)
    }

    /// One line about the file as it is now.
    fn try_once(
        &self,
        place: &Place,
        source: &SourceArgs,
        today: &Arc<Chooser>,
        on: &On,
        (store, stop): (&Store, &Arc<AtomicBool>),
        output: &Output,
    ) -> anyhow::Result<String> {
        let target = today.target();
        let choosers = Choosers::beside_today(source, Arc::clone(today))?;
        let library = choosers.library();
        let label = format!("{}/{}", place.op, place.variant);
        let prefix = format!("{label}.");
        let is_of_it = |broken: &Broken| broken.name.starts_with("lib/") || broken.name.starts_with(&prefix);
        if let Some(broken) = library.broken().into_iter().find(is_of_it) {
            return Ok(format!("broken: {}", chain(&*broken.error)));
        }
        let template = Arc::clone(library.template(&label, place.language)?);
        if let Err(misfit) = template.fits_target(target) {
            return Ok(format!("does not fit {}: it {misfit}", target.id()));
        }
        let beside = choosers.beside(&template, self.shape)?.into_iter().next();
        // The objects of the real shapes are compiled while the small ones run.
        let (checked, times) = thread::scope(|scope| {
            let elsewhere = beside.as_ref().filter(|_| matches!(on, On::Simulator) && !target.is_simulated);
            let thread = elsewhere.map(|beside| scope.spawn(|| predicted(&choosers, beside, store)));
            let within = self.within.unwrap_or_else(|| WITHIN / template.precisions().count() as u32);
            let checked: anyhow::Result<Vec<Checked>> = self.check(place, target, on, (store, stop), library, within);
            (checked, thread.map(|thread| thread.join().expect("it does not panic")))
        });
        let checked = checked?;
        // What was not checked to its end may hang, and what is timed runs in this process.
        if stop.load(Ordering::Relaxed) {
            return Ok(String::new());
        }
        if let Some(wrong) = wrong(&checked) {
            return Ok(wrong);
        }
        if let Some(why) = checked.iter().find_map(|one| one.unknown.clone()) {
            return Ok(format!("not run: {}", why.text));
        }
        let times = match (on, &beside, times) {
            (_, _, Some(predicted)) => predicted?,
            (On::Device(device), Some(beside), _) => self.timed(device, beside, source, output)?,
            (On::Simulator, Some(_), None) => format!("`--arch {}` predicts a time", target.arch),
            _ => "at none of the model's shapes".to_owned(),
        };
        let worst = checked.iter().map(|checked| checked.worst).fold(0.0, f64::max);
        let unseen = checked.iter().find_map(|one| one.unseen.told());
        let unseen = unseen.map_or(String::new(), |why| format!("; not all of it ran: {why}"));
        Ok(format!("right ({:.0} % of tolerance), {times}{unseen}", 100.0 * worst))
    }

    /// The cases that are most likely to fail, in processes of their own, one for each precision.
    fn check(
        &self,
        place: &Place,
        target: &Target,
        on: &On,
        (store, stop): (&Store, &Arc<AtomicBool>),
        library: &Library,
        within: Duration,
    ) -> anyhow::Result<Vec<Checked>> {
        let (templates, op, variant) = (Some(&*place.templates), &*place.op, &*place.variant);
        let (params, deadline) = (Params::new(), self.deadline);
        let quick = Quick { templates, op, variant, params, within, deadline, stop };
        Ok(quick.check(target, on, store, library)?)
    }

    /// Times both on the device.
    fn timed(&self, device: &str, beside: &Beside, source: &SourceArgs, output: &Output) -> anyhow::Result<String> {
        let tables = source.tables()?;
        let (target, driver) = device.parse::<Device>().map_err(anyhow::Error::msg)?.open(&tables, 0)?;
        let product = tables.facts(&target.arch).and_then(|facts| facts.product.as_ref());
        let cache_bytes = product.and_then(|product| product.cache_bytes).unwrap_or(CACHE_BYTES);
        let pipeline = Pipeline::new(source.library()?, tables, target, Store::from_env()?.without_bundles(), driver)?;
        let setup = Setup { cache_bytes, ..beside.setup.clone() };
        let bench = Bench::new(&pipeline, &beside.problem, &setup, &mut Weights::default())?;
        let both: Vec<Candidate> = std::iter::once(&beside.candidate).chain(&beside.incumbent).cloned().collect();
        let mut timed = bench.time(both, ROUNDS, &(), &mut |_| ()).into_iter();
        let mut us = || match timed.next() {
            Some((_, Ok(timed))) => format!("{:.1} us", timed.median_us()),
            Some((candidate, Err(error))) => {
                output.detail(&format!("{}: {error}", candidate.template.label()));
                "not timed".to_owned()
            }
            None => "-".to_owned(),
        };
        Ok(with_incumbent(&us(), beside, us))
    }
}

/// `predicted 14.1 us, incumbent decode_matrix 10.7 us`.
fn predicted(choosers: &Choosers, beside: &Beside, store: &Store) -> anyhow::Result<String> {
    let both = choosers.predict(beside, store)?;
    let us = |prediction: &Prediction| format!("{:.1} us", 1e6 * prediction.seconds());
    let candidate = match &both.candidate {
        Ok(prediction) => us(prediction),
        Err(error) => return Ok(format!("at {}: {}", beside.label, chain(error))),
    };
    let incumbent = both.incumbent.as_ref().map(|incumbent| match incumbent {
        Ok(prediction) => us(prediction),
        Err(error) => chain(error),
    });
    Ok(with_incumbent(&format!("predicted {candidate}"), beside, || incumbent.unwrap_or_else(|| "none".into())))
}

fn with_incumbent(candidate: &str, beside: &Beside, incumbent: impl FnOnce() -> String) -> String {
    match &beside.incumbent {
        Some(other) => format!("{candidate}, incumbent {} {}", other.template.variant, incumbent()),
        None => format!("{candidate}, no incumbent"),
    }
}

/// What is wrong, if anything is: the first of it.
pub(super) fn wrong(checked: &[Checked]) -> Option<String> {
    let failures: Vec<_> =
        checked.iter().flat_map(|one| one.failures.iter().map(move |f| (one.precision, f))).collect();
    let (precision, first) = failures.first()?;
    let more = if failures.len() > 1 { format!("\n  and {} more", failures.len() - 1) } else { String::new() };
    Some(format!("wrong, {precision}: {first}{more}"))
}
