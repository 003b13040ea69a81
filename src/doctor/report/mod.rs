//! `gptoss-jit doctor --report`: one file that shows what this program does on a machine, for owners of GPUs that we
//! do not have. Every part is a `child` process with a time limit, so that none ends another; the file is rewritten
//! after each part. [`page`] is its form, [`private`] removes private data.

mod page;
mod private;

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use serde_json::{Value, json};

use super::child;
use crate::args::source;
use crate::output::Output;
use crate::output_file::OutputFile;
use engine::device::Device;
use kernel::target::Language;
use kernel::template::library::Library;
use page::{Page, ReportSection, State};
use private::Private;

/// What the tiny model is asked to go on with, and for how long.
const PROMPT: [&str; 4] = ["-i", "Once upon a time", "--max-new-tokens", "48"];

/// How long `kernels check` may take, of reports of the usual length.
const CHECK: Duration = Duration::from_secs(60);

/// Layers of gpt-oss-20b's that are measured where not all of them fit.
const FEW_LAYERS: &str = "6";

/// What a report is made of so far.
struct Report<'a> {
    file: &'a Path,
    output: &'a Output,
    private: Private,
    until: Instant,
    /// How long all of it may take.
    limit: Duration,
    device: String,
    parts: Vec<ReportSection>,
}

/// Writes the report.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn run(file: &Path, device: &Device, seconds: u32, output: &Output) -> anyhow::Result<()> {
    let limit = Duration::from_secs(seconds.into());
    let private = Private::of_process();
    let until = Instant::now() + limit;
    let mut report = Report { file, output, private, until, limit, device: device.to_string(), parts: Vec::new() };
    report.write(false)?;
    report.machine()?;
    let doctor = report.command("doctor", &["doctor"], 200)?;
    let devices = report.command("devices", &["devices"], 60)?;
    if *device == Device::Auto {
        // A GPU that hangs may have taken all of doctor's time: it is the one to report on.
        let first = || {
            let mut names = devices["devices"].as_array()?.iter().filter_map(|one| one["device"].as_str());
            names.find(|name| *name != "cpu")
        };
        report.device = doctor["device"].as_str().or_else(first).unwrap_or("cpu").to_owned();
    } else if let Some(absent) = Absent::of_device(device, &devices) {
        report.leave_out("all parts of the device", absent.to_string())?;
        report.write(true)?;
        report.print()?;
        return Err(absent.into());
    }
    report.tables()?;
    report.texts()?;
    report.check()?;
    report.peaks()?;
    report.bench()?;
    report.write(true)?;
    report.print()
}

/// A GPU that was to be reported on and is not there.
#[derive(Debug, thiserror::Error)]
#[error("there is no device {device} here, only {}", here.join(", "))]
struct Absent {
    device: String,
    here: Vec<String>,
}

impl Absent {
    /// Of a GPU that is not among those that `devices` listed.
    fn of_device(device: &Device, devices: &Value) -> Option<Self> {
        let Device::Gpu { runtime, ordinal, .. } = device else { return None };
        let device = format!("{}:{ordinal}", runtime.names().device);
        let listed = devices["devices"].as_array()?;
        let here: Vec<String> = listed.iter().filter_map(|one| Some(one["device"].as_str()?.to_owned())).collect();
        (!here.contains(&device)).then_some(Self { device, here })
    }
}

impl Report<'_> {
    fn is_gpu(&self) -> bool {
        self.device.starts_with("hip") || self.device.starts_with("cuda")
    }

    /// Writes the present state of the file: the next part may crash the machine.
    fn write(&self, is_complete: bool) -> anyhow::Result<()> {
        let page = Page { device: &self.device, is_complete, parts: &self.parts };
        let text = page.text();
        OutputFile::create(self.file, "a report")?.fill(|file| io::Write::write_all(file, text.as_bytes()))
    }

    /// Says that a part begins, and how long it may take: what it wants, as far as there is time.
    fn begin(&self, name: &str, seconds: u64) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        let limit = left.min(Duration::from_secs(seconds));
        self.output.note(&format!("{name} (at most {:.0} s)", limit.as_secs_f64()));
        limit
    }

    fn add(&mut self, part: ReportSection) -> anyhow::Result<()> {
        let part = part.without(&self.private);
        let reason = part.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        self.output.note(&format!("  {}, {:.1} s{reason}", part.state.words(), part.seconds));
        self.parts.push(part);
        self.write(false)
    }

    fn leave_out(&mut self, name: &'static str, reason: impl Into<String>) -> anyhow::Result<()> {
        let reason = Some(reason.into());
        self.output.note(name);
        let (seconds, commands, notes) = (0.0, Vec::new(), Vec::new());
        self.add(ReportSection { name, state: State::LeftOut, seconds, reason, commands, result: Value::Null, notes })
    }

    /// Runs a command with `--json`, and returns its result.
    fn ask(&self, words: &[&str], limit: Duration) -> io::Result<CommandResult> {
        let words: Vec<String> = words.iter().chain(&["--json"]).map(|word| (*word).to_owned()).collect();
        let child::Ended { result, notes, problem, is_late, took } = child::run(&words, limit)?;
        // Errors are told as the problem; a line for each compiled kernel is no news.
        let notes = notes.into_iter().filter(|line| !line.starts_with("error: ")).collect();
        let result = serde_json::from_str(&result).unwrap_or(Value::Null);
        Ok(CommandResult { command: command(&words), result, notes, problem, is_late, took })
    }

    /// A part that is one command; its result.
    fn command(&mut self, name: &'static str, words: &[&str], seconds: u64) -> anyhow::Result<Value> {
        let limit = self.begin(name, seconds);
        if limit.is_zero() {
            return self.leave_out(name, NO_TIME).map(|()| Value::Null);
        }
        let answer = self.ask(words, limit)?;
        let result = answer.result.clone();
        self.add(answer.part(name))?;
        Ok(result)
    }

    /// What the other parts run on, without asking anybody but the system.
    fn machine(&mut self) -> anyhow::Result<()> {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line = |text: String, name: &str, by: char| {
            let found = text.lines().find_map(|line| {
                let (key, value) = line.split_once(by)?;
                (key.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
            });
            found.unwrap_or_else(|| "?".into())
        };
        let size = |bytes: Option<usize>| bytes.map(|bytes| bytes as u64);
        let memory = gpu::host::memory();
        let result = json!({
            "program": env!("CARGO_PKG_VERSION"),
            "system": line(text("/etc/os-release"), "PRETTY_NAME", '='),
            "kernel": text("/proc/sys/kernel/osrelease").trim(),
            "rocm": Some(text("/opt/rocm/.info/version").trim()).filter(|version| !version.is_empty()),
            "processor": line(text("/proc/cpuinfo"), "model name", ':'),
            "cores": thread::available_parallelism().map_or(0, usize::from),
            "memory_bytes": size(memory.map(|memory| memory.total_bytes)),
            "free_bytes": size(memory.map(|memory| memory.free_bytes)),
        });
        let (seconds, commands, notes) = (0.0, Vec::new(), Vec::new());
        self.add(ReportSection { name: "machine", state: State::Ok, seconds, reason: None, commands, result, notes })
    }

    /// Which templates run on it, and by which rows of which tables.
    fn tables(&mut self) -> anyhow::Result<()> {
        let device = self.device.clone();
        let words = ["kernels", "plan", "--shape", "gpt-oss-20b", "--device", &device, "--tokens", "1,32,512"];
        self.command("tables", &words, 120).map(drop)
    }

    /// What the tiny model says in both precisions, here and on the cpu.
    fn texts(&mut self) -> anyhow::Result<()> {
        for (name, precision) in [("text in f32", "f32"), ("text in bf16", "bf16")] {
            let limit = self.begin(name, 180);
            if limit.is_zero() {
                self.leave_out(name, NO_TIME)?;
                continue;
            }
            let device = self.device.clone();
            let on = |device: &str| -> io::Result<(child::Ended, String)> {
                let words = ["run", "--precision", precision, "--device", device];
                let words: Vec<String> = words.iter().chain(&PROMPT).map(|word| (*word).to_owned()).collect();
                Ok((child::run(&words, limit / 2)?, command(&words)))
            };
            let (here, command) = on(&device)?;
            let mut commands = vec![command];
            let mut is_late = here.is_late;
            let (mut seconds, mut problem) = (here.took, here.problem.map(|problem| format!("{device}: {problem}")));
            let mut result = json!({ "device": here.result });
            if device != "cpu" {
                let (cpu, command) = on("cpu")?;
                let is_same = here.result == cpu.result;
                result["cpu"] = cpu.result.into();
                result["is_same"] = is_same.into();
                problem = problem.or(cpu.problem.map(|problem| format!("cpu: {problem}")));
                problem = problem.or((!is_same).then(|| format!("{device} says something else than cpu")));
                is_late |= cpu.is_late;
                seconds += cpu.took;
                commands.push(command);
            }
            let state = State::of_problem(problem.as_ref(), is_late);
            let (seconds, reason, notes) = (seconds.as_secs_f64(), problem, here.notes);
            self.add(ReportSection { name, state, seconds, reason, commands, result, notes })?;
        }
        Ok(())
    }

    /// As many templates against their references as there is time for, an op after the other.
    fn check(&mut self) -> anyhow::Result<()> {
        let name = "kernels check";
        let budget = self.begin(name, CHECK.max(self.limit / 10).as_secs());
        let end = Instant::now() + budget;
        let start = Instant::now();
        let (mut rows, mut skipped, mut notes, mut problems) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut is_late = true; // if anything, that is what went wrong
        let device = self.device.clone();
        for op in ops(&device)? {
            let left = end.saturating_duration_since(Instant::now());
            if left < Duration::from_secs(1) {
                skipped.push(op);
                continue;
            }
            // None may take all of the time from those after it.
            let limit = (left / 2).max(Duration::from_secs(10)).min(left);
            let answer = self.ask(&["kernels", "check", "--device", &device, "--op", &op], limit)?;
            let found = answer.result["templates"].as_array().cloned().unwrap_or_default();
            if found.is_empty() && answer.problem.is_some() {
                is_late &= answer.is_late;
                problems.extend(answer.problem.map(|problem| format!("{op}: {problem}")));
            }
            rows.extend(found);
            notes.extend(answer.notes);
        }
        if rows.is_empty() && problems.is_empty() {
            return self.leave_out(name, NO_TIME);
        }
        let is_right = |row: &Value| row["failures"].as_array().is_some_and(Vec::is_empty);
        let n_wrong = rows.iter().filter(|row| !is_right(row)).count();
        if n_wrong > 0 {
            is_late = false;
            problems.insert(0, format!("{n_wrong} of {} rows are wrong", rows.len()));
        }
        let command = format!("gptoss-jit kernels check --device {device}");
        self.add(ReportSection {
            name,
            state: State::of_problem(problems.first(), is_late),
            seconds: start.elapsed().as_secs_f64(),
            reason: (!problems.is_empty()).then(|| problems.join("; ")),
            commands: vec![command],
            result: json!({ "templates": rows, "ops_left_out_for_time": skipped }),
            notes,
        })
    }

    /// What the device does at most: copies, reads, its matrix unit.
    fn peaks(&mut self) -> anyhow::Result<()> {
        if self.device.starts_with("sim") {
            return self.leave_out("peaks", "a simulator's times say nothing of a GPU");
        }
        let device = self.device.clone();
        let words = ["bench", "--device", &device, "--work", "decode", "--batch", "1", "--steps", "4"];
        self.command("peaks", &words, 180).map(drop)
    }

    /// gpt-oss-20b's shape with random weights, or a part of it.
    fn bench(&mut self) -> anyhow::Result<()> {
        let name = "bench of gpt-oss-20b's shape";
        if !self.is_gpu() {
            return self.leave_out(name, "only GPUs are measured");
        }
        let limit = self.begin(name, 420);
        if limit.is_zero() {
            return self.leave_out(name, NO_TIME);
        }
        let device = self.device.clone();
        let mut words = vec!["bench", "--shape", "gpt-oss-20b", "--device", &device, "--work", "prefill,decode"];
        words.extend(["--batch", "1,8,32", "--prefill", "512", "--kernels"]);
        let mut answer = self.ask(&words, limit)?;
        if answer.problem.as_ref().is_some_and(|problem| problem.contains("could not fit the model")) {
            let why = answer.problem.take().unwrap_or_default();
            words.extend(["--layers", FEW_LAYERS]);
            answer = self.ask(&words, limit.saturating_sub(answer.took))?;
            answer.notes.insert(0, format!("with {FEW_LAYERS} of its layers, because all of them do not fit: {why}"));
        }
        self.add(answer.part(name))
    }

    /// A line for each part, and where all of it is.
    fn print(&self) -> anyhow::Result<()> {
        if self.output.is_json() {
            let file = self.file.display().to_string();
            return Ok(self
                .output
                .json(&json!({ "schema": 1, "file": file, "device": self.device, "parts": self.parts }))?);
        }
        let row = |part: &ReportSection| {
            let reason = part.reason.clone().unwrap_or_default();
            vec![part.name.into(), part.state.words().into(), format!("{:.1}", part.seconds), reason]
        };
        let rows: Vec<Vec<String>> = self.parts.iter().map(row).collect();
        self.output.table(&["part", "state", "seconds", ""], &rows, &["seconds"])?;
        self.output.note(&format!("all of it is in `{}`: read it before you send it", self.file.display()));
        Ok(())
    }
}

/// Why a part was left out at the end.
const NO_TIME: &str = "no time was left: `--seconds` gives more";

/// The result of a command with `--json`.
struct CommandResult {
    command: String,
    result: Value,
    notes: Vec<String>,
    problem: Option<String>,
    /// Whether the problem is that its time was up.
    is_late: bool,
    took: Duration,
}

impl CommandResult {
    fn part(self, name: &'static str) -> ReportSection {
        ReportSection {
            name,
            state: State::of_problem(self.problem.as_ref(), self.is_late),
            seconds: self.took.as_secs_f64(),
            reason: self.problem,
            commands: vec![self.command],
            result: self.result,
            notes: self.notes,
        }
    }
}

/// A command as a person would type it.
fn command(words: &[String]) -> String {
    let quoted = words.iter().map(|word| if word.contains(' ') { format!("\"{word}\"") } else { word.clone() });
    std::iter::once("gptoss-jit".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// The ops that have a template for a device.
///
/// # Errors
/// If the user's templates cannot be read.
fn ops(device: &str) -> anyhow::Result<Vec<String>> {
    let library = source::library(&Library::default_search(None))?;
    let language = if device == "cpu" { Language::C } else { Language::Hip };
    let mut ops = Vec::new();
    for template in library.templates_where(|_, of| of == language) {
        for op in template.ops.iter().filter(|_| template.ops.len() == 1) {
            if !ops.contains(op) {
                ops.push(op.clone());
            }
        }
    }
    Ok(ops)
}
