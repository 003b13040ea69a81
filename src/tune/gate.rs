//! Checks predicted rows: a kernel that they would choose has run in the simulator, or has the text that the program's
//! own tests run there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::progress::Bar;
use super::setup::Setup;
use super::{Args, write};
use crate::CHECK_WORKER;
use crate::output::Output;
use kernel::object::key::Digest;
use kernel::target::Target;
use kernel::template::Problem;
use kernel::template::library::{Layer, Library};
use kernel::template::render::render;
use kernel::tuning::edit::NewRow;
use kernel::tuning::table::{APART, ProvenanceKind};
use system::bounded_process::this_program;
use workbench::check::parent::Children;
use workbench::check::{Checked, Checker, Selection};
use workbench::tune::journal::{Journal, Key};
use workbench::tune::judge::{Reason, Verdict};
use workbench::tune::tuner::Tuned;

/// How long the cases of a kernel run at each precision, about.
const SECONDS: f64 = 2.0;

/// How long one case may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Of `--within`, a quarter is left for the simulator, but no more than this.
pub(super) const FOR_CHECKS: Duration = Duration::from_secs(30);

/// The result of a kernel in the simulator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Finding {
    Right,
    Wrong(String),
    Unchecked(String),
}

struct Gate<'a> {
    setup: &'a Setup,
    journal: &'a mut Journal,
    bar: &'a Bar<'a>,
    until: Option<Instant>,
    /// The templates without those of anybody else.
    built_in: Library,
    simulated: Target,
    /// By the digest of what runs there, its template and its parameters.
    known: BTreeMap<String, Finding>,
}

/// The rows of what was found, each of a kernel that was checked, with the digest of the source that was: what a device
/// measured it also checked, and of a prediction the simulator runs whatever is not built in. A kernel that is not
/// right there is refused in `all`, and the rows are those without it.
pub(super) fn rows(
    all: &mut [Tuned],
    args: &Args,
    setup: &Setup,
    journal: &mut Journal,
    (bar, output): (&Bar<'_>, &Output),
    until: Option<Instant>,
) -> anyhow::Result<Vec<NewRow>> {
    let simulated = setup.target().clone().simulated();
    let built_in = Library::from_layers(vec![Layer::built_in()]);
    let mut gate = Gate { setup, journal, bar, until, built_in, simulated, known: BTreeMap::new() };
    loop {
        let mut rows = write::rows(all, args, setup)?;
        if args.unchecked || setup.kind() == ProvenanceKind::Measured {
            return Ok(rows);
        }
        let mut is_clean = true;
        for row in rows.iter_mut().filter(|row| row.template != APART) {
            let (evidence, finding) = gate.look(row)?;
            let (reason, why) = match finding {
                Finding::Right => {
                    row.proof.evidence = Some(evidence);
                    continue;
                }
                Finding::Wrong(why) => (Reason::Wrong, why),
                Finding::Unchecked(why) => (Reason::Unchecked, why),
            };
            is_clean = false;
            let params: Vec<String> = row.params.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            let (label, params) = (&row.template, params.concat());
            output.warning(&match reason {
                Reason::Wrong => format!("{label}{params} is wrong in the simulator and is not used: {why}"),
                _ => format!("{label}{params} was not checked, so it is not used (`--unchecked` uses it): {why}"),
            });
            refuse(all, row, reason, &why);
        }
        if is_clean {
            return Ok(rows);
        }
    }
}

/// No time of a template that is wrong counts; of one that was not checked, none with these parameters.
fn refuse(all: &mut [Tuned], row: &NewRow, reason: Reason, why: &str) {
    for entry in all.iter_mut().flat_map(|tuned| &mut tuned.entries) {
        let is_it = entry.candidate.template.label() == row.template;
        if is_it && (reason == Reason::Wrong || entry.candidate.params == row.params) && entry.verdict.time().is_some()
        {
            entry.verdict = Verdict::refused(reason, why);
        }
    }
}

/// Whether any template or library is not built in: then there may be something for the simulator to do.
pub(super) fn may_have_work(setup: &Setup) -> bool {
    setup.kind() == ProvenanceKind::Predicted && setup.chooser.library().has_own_templates()
}

impl Gate<'_> {
    /// The digest of the text for the simulator, and its result.
    fn look(&mut self, row: &NewRow) -> anyhow::Result<(String, Finding)> {
        let problems = self.setup.job.problems.iter().map(|one| &one.problem);
        let mut problems = problems.filter(|problem| row.proof.problem.as_ref() == Some(&problem.identity()));
        let problem = problems.next().expect("a row is of a problem of the job").clone();
        let library = self.setup.chooser.library();
        let source = self.rendered(library, row, &problem, &self.simulated)?;
        let evidence = Digest::of(source.as_bytes()).to_string();
        let key = format!("{evidence} {} {:?}", row.template, row.params);
        if let Some(finding) = self.known.get(&key) {
            return Ok((evidence, finding.clone()));
        }
        let here = Digest::of(self.rendered(library, row, &problem, self.setup.target())?.as_bytes()).to_string();
        let of_tests = |target: &Target| self.rendered(&self.built_in, row, &problem, target).ok();
        let is_built_in = of_tests(&self.simulated).as_ref() == Some(&source)
            && of_tests(self.setup.target()).is_some_and(|own| Digest::of(own.as_bytes()).to_string() == here);
        let finding = if is_built_in { Finding::Right } else { self.run(row, &problem, &evidence)? };
        self.known.insert(key, finding.clone());
        Ok((evidence, finding))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn rendered(&self, library: &Library, row: &NewRow, problem: &Problem, target: &Target) -> anyhow::Result<String> {
        let template = library.template(&row.template, target.language())?;
        Ok(render(library, template, problem, &row.params, target)?.source)
    }

    /// Runs it on its test shapes with the row's parameters, unless the journal has the result.
    fn run(&mut self, row: &NewRow, problem: &Problem, evidence: &str) -> anyhow::Result<Finding> {
        let simulator = format!("sim:{}", self.simulated.arch);
        let about = json!({ "simulator": simulator, "template": row.template, "params": row.params });
        // Parameters may be of the launch alone, and not in the text.
        let key = about.to_string();
        let about = about.as_object().expect("it is one").clone();
        let key = Key::new(["simulator", evidence, env!("CARGO_PKG_VERSION"), &key], about);
        if let Some(finding) = self.journal.find(&key) {
            return Ok(finding);
        }
        let no_time = || Ok(Finding::Unchecked("no time was left".into()));
        if self.is_over() {
            return no_time();
        }
        if let Err(error) = self.setup.store.try_compiler(&self.simulated) {
            return Ok(Finding::Unchecked(hint::chain(&error)));
        }
        self.bar.say(&format!("in the simulator: {}", row.template));
        let (op, variant) = row.template.split_once('/').unwrap_or((&row.template, ""));
        let source = &self.setup.args().source;
        let mut words: Vec<OsString> = vec![CHECK_WORKER.into(), "kernels".into(), "check".into()];
        words.extend(["--arch".into(), simulator.into(), "--op".into(), op.into()]);
        words.extend(["--variant".into(), variant.into(), "--tuned=false".into()]);
        words.push(format!("--within={SECONDS}").into());
        for (flag, folder) in [("--templates", &source.templates), ("--tuning", &source.tuning)] {
            words.extend(folder.iter().flat_map(|folder| [flag.into(), folder.clone().into_os_string()]));
        }
        for (name, value) in &row.params {
            words.extend(["--set".into(), format!("{name}={value}").into()]);
        }
        let (stop, until) = (Default::default(), self.until);
        let children =
            Children { program: this_program(), words, deadline: DEADLINE, stops_at_hang: true, stop, until };
        let selection = Selection {
            op: vec![op.to_owned()],
            op_alone: true,
            variant: vec![variant.to_owned()],
            params: row.params.clone(),
            precision: Some(problem.precision),
            within: Some(Duration::from_secs_f64(SECONDS)),
            more_rows: true,
            is_fenced: true,
            ..Selection::default()
        };
        let (library, store, target) = (self.setup.chooser.library(), &self.setup.store, &self.simulated);
        let checker = Checker { library, target, store, runner: None, compute_unit: None };
        let checked = checker.check_in_children(&selection, &children, &mut |_| ())?;
        let not_run = checked.iter().find_map(Checked::not_run);
        let failures = || checked.iter().flat_map(|one| &one.failures);
        let wrong = failures().find(|failure| failure.wrong.is_of_the_kernel());
        let finding = match (wrong, not_run, failures().next()) {
            (Some(failure), ..) => Finding::Wrong(failure.to_string()),
            (None, Some(why), _) => Finding::Unchecked(why),
            (None, None, Some(failure)) => Finding::Unchecked(failure.to_string()),
            (None, None, None) if checked.iter().any(|one| one.n_cases > 0) => Finding::Right,
            (None, None, None) if self.is_over() => return no_time(),
            (None, None, None) => Finding::Unchecked("no test shape takes its parameters".into()),
        };
        if !matches!(finding, Finding::Unchecked(_)) {
            self.journal.keep(&key, &finding)?;
        }
        Ok(finding)
    }
}
