//! User templates may take all memory, nest without end or never end. So their length is bounded, they are compiled
//! with a large stack, and they are rendered in a bounded process.

use std::collections::BTreeMap;
use std::path::Path;
use std::{io, thread};

use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};

use super::environment::{environment, once};
use data::SourceFile;
use expression::{Scope, describe};
use system::bounded_process::{self, BoundedError};

/// The hidden command that renders a template: [`render_worker`].
pub const COMMAND: &str = "__kernel-template";

/// Source longer than this is a runaway template, in bytes.
pub(super) const MAX_SOURCE_BYTES: usize = 4 << 20;

/// The longest file that is compiled; the longest in the tree has a sixth.
pub(super) const MAX_TEMPLATE_BYTES: usize = 128 << 10;

/// Stack for compiling: the engine goes one level down for each term of a sum, and the longest file has room for some
/// ten thousand. No more of it is used than that takes.
const STACK_BYTES: usize = 256 << 20;

/// Why rendering failed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Fault {
    /// It gave more than [`MAX_SOURCE_BYTES`].
    TooLong,
    /// The innermost file and line that the engine knows, and what it says.
    At { file: Option<String>, line: usize, message: String },
}

#[derive(Serialize, Deserialize)]
struct RenderJob {
    root: String,
    files: BTreeMap<String, String>,
    words: BTreeMap<String, Value>,
}

/// Does something that may go down many levels.
///
/// # Errors
/// There is no thread with such a stack.
pub(super) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
        worker.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

/// Renders a template of an engine that has compiled it.
pub(super) fn rendered(environment: &Environment<'_>, name: &str, words: &Scope) -> Result<String, Fault> {
    let mut source = Capped(Vec::new());
    let result = environment
        .get_template(name)
        .and_then(|compiled| compiled.render_captured_to(Value::from_object(words.clone()), &mut source).map(drop));
    if source.0.len() > MAX_SOURCE_BYTES {
        return Err(Fault::TooLong);
    }
    result.map_err(|error| fault(&error))?;
    Ok(String::from_utf8(source.0).expect("the engine writes whole strings"))
}

/// Has `program`, which calls [`render_worker`] for [`COMMAND`], render a template of these files.
pub(super) fn ask(
    program: &Path,
    root: &SourceFile,
    files: &[&SourceFile],
    words: &Scope,
) -> Result<Result<String, Fault>, BoundedError> {
    let files = files.iter().map(|file| (file.name.clone(), file.text.to_string())).collect();
    let job = RenderJob { root: root.name.clone(), files, words: words.known().clone() };
    let answer = bounded_process::run(program, COMMAND, &serde_json::to_vec(&job).expect("texts and numbers"))?;
    let nonsense = |error: serde_json::Error| {
        let message = format!("the process that renders it answered nonsense ({error})");
        Err(Fault::At { file: None, line: 0, message })
    };
    Ok(serde_json::from_slice(&answer).unwrap_or_else(nonsense))
}

/// The side of the process that renders: reads a job from stdin, leaves its answer on stdout.
///
/// # Errors
/// They cannot be read or written.
pub(crate) fn render_worker() -> io::Result<()> {
    bounded_process::answer(|job| {
        let answer = match serde_json::from_slice(job) {
            Ok(job) => render(&job),
            Err(error) => {
                let message = format!("this command is started by the program itself ({error})");
                Err(Fault::At { file: None, line: 0, message })
            }
        };
        serde_json::to_vec(&answer).expect("texts and numbers")
    })
}

fn render(job: &RenderJob) -> Result<String, Fault> {
    let mut environment = environment();
    for (name, text) in &job.files {
        environment.add_template_owned(name.clone(), compiled_text(name, text)).map_err(|error| fault(&error))?;
    }
    rendered(&environment, &job.root, &Scope::new(job.words.clone()))
}

/// The text of a file as the engine gets it.
pub(super) fn compiled_text(name: &str, text: &str) -> String {
    if name.starts_with("lib/") { once(name, text) } else { text.to_owned() }
}

fn fault(error: &Error) -> Fault {
    let mut innermost = error;
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(inner) = inner.downcast_ref::<Error>().filter(|inner| inner.name().is_some()) {
            innermost = inner;
        }
        cause = inner.source();
    }
    let message = match innermost.kind() {
        ErrorKind::OutOfFuel => "it runs too long: a loop without end?".to_owned(),
        _ => describe(innermost),
    };
    Fault::At { file: innermost.name().map(str::to_owned), line: innermost.line().unwrap_or(0), message }
}

/// Takes bytes up to the limit and one write more.
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() > MAX_SOURCE_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
