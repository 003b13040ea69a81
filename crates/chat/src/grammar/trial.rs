//! Tries clients' grammars in a bounded process before they are compiled here.
//!
//! A few lines can take all memory, minutes of time or more stack than a thread has: `a?` ten thousand times, forty
//! patterns that must all hold, nested rules. Only trying shows some of it, so a separate process does it first
//! ([`system::bounded_process`]): it compiles the grammar and walks through it, over a vocabulary of single bytes,
//! which is quick to make. A grammar that takes too much there is refused.

use std::io;
use std::path::Path;
use std::thread;

use llguidance::Matcher;
use serde::{Deserialize, Serialize};

use super::{GrammarError, parse, vocabulary};
use model::tokenizer::Tokenizer;
use system::bounded_process::{self, BoundedError};

/// The hidden command that tries a grammar: [`try_worker`].
pub(crate) const COMMAND: &str = "__try-grammar";

/// Most memory that a compiled grammar may take.
const MAX_MEMORY_BYTES: u64 = 96 << 20;

/// Stack of the threads on which masks are made: half of what threads have here.
const MASK_STACK_BYTES: usize = 1 << 20;

/// Tokens of the way through a grammar.
const STEPS: usize = 100;

#[derive(Serialize, Deserialize)]
struct TrialJob {
    grammar: String,
    n_tokens: usize,
    /// The special tokens, which grammars name by their names or ids.
    specials: Vec<(u32, String)>,
}

/// The result; none if nothing could be tried.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tried {
    /// What the grammar took, compiled.
    pub(crate) memory_bytes: u64,
}

/// Tries a grammar for a tokenizer in a process of `program`, which calls [`try_worker`] when its only argument is
/// [`COMMAND`].
///
/// # Errors
/// [`GrammarError::TooComplex`]; [`GrammarError::NotTried`] where the process could not be had.
pub(super) fn run(program: &Path, grammar: &str, tokenizer: &Tokenizer) -> Result<Tried, GrammarError> {
    let name =
        |id: u32| tokenizer.decode(id).map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let n_tokens = tokenizer.vocab_size();
    let specials = (0..n_tokens as u32).filter(|id| tokenizer.is_special(*id)).map(|id| (id, name(id))).collect();
    let job = TrialJob { grammar: grammar.to_owned(), n_tokens, specials };
    let job = serde_json::to_vec(&job).expect("texts and numbers alone");
    let too_complex = |why: String| GrammarError::TooComplex { why };
    let not_tried = |why: String| GrammarError::NotTried { why };
    let answer = bounded_process::run(program, COMMAND, &job).map_err(|error| match error {
        BoundedError::NotStarted { ref source, .. } => not_tried(format!("{error}: {source}")),
        _ => too_complex(error.to_string()),
    })?;
    let tried: Option<Tried> = serde_json::from_slice(&answer).map_err(|error| not_tried(error.to_string()))?;
    let tried = tried.ok_or_else(|| not_tried("the process that was to do it could not".into()))?;
    if tried.memory_bytes > MAX_MEMORY_BYTES {
        let [found, most] = [tried.memory_bytes, MAX_MEMORY_BYTES].map(|bytes| bytes >> 20);
        return Err(too_complex(format!("it takes {found} MiB of memory, at most {most} are spent on one")));
    }
    Ok(tried)
}

/// The process's side: reads a job from stdin, writes the result to stdout.
///
/// # Errors
/// They cannot be read or written.
pub(crate) fn try_worker() -> io::Result<()> {
    bounded_process::answer(|job| {
        let tried = serde_json::from_slice(job).ok().and_then(|job| try_it(&job));
        serde_json::to_vec(&tried).expect("numbers alone")
    })
}

fn try_it(job: &TrialJob) -> Option<Tried> {
    let tokenizer = Tokenizer::of_bytes(job.n_tokens, &job.specials);
    let factory = vocabulary::factory(&tokenizer).ok()?;
    let before = memory_bytes();
    // That it is no grammar is told by whoever compiles it.
    if let Ok(matcher) = parse(&factory, &job.grammar) {
        // As threads do that have less stack than this one.
        thread::scope(|scope| {
            let walk = || walked(matcher.deep_clone(), tokenizer.vocab_size());
            if let Ok(walker) = thread::Builder::new().stack_size(MASK_STACK_BYTES).spawn_scoped(scope, walk) {
                drop(walker.join()); // one that panics is no grammar to anybody
            }
        });
    }
    Some(Tried { memory_bytes: memory_bytes().saturating_sub(before) })
}

/// A way through a grammar: of what may come neither always the first nor always the last, and the same every time.
fn walked(mut matcher: Matcher, vocab_size: usize) -> Vec<u32> {
    let mut way = Vec::new();
    while way.len() < STEPS {
        let Ok(mask) = matcher.compute_mask() else { break };
        let allowed: Vec<u32> = mask.iter().filter(|id| (*id as usize) < vocab_size).collect();
        let Some(&id) = allowed.get((way.len() * 7919) % allowed.len().max(1)) else { break };
        if matcher.consume_token(id).is_err() {
            break;
        }
        way.push(id);
        if matcher.is_stopped() {
            break;
        }
    }
    way
}

/// The most memory that this process has had.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    peak.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_through_a_grammar_takes_now_this_and_now_that() {
        let tokenizer = Tokenizer::of_bytes(256, &[]);
        let factory = vocabulary::factory(&tokenizer).expect("bytes");
        let way = walked(parse(&factory, "start: /[a-e]+/").expect("a grammar"), tokenizer.vocab_size());
        // Of five letters that of 7919 times the step, from the second on it could also end.
        let expected: Vec<u32> = (0..STEPS as u32).map(|step| u32::from(b'a') + step * 7919 % 5).collect();
        assert_eq!(way, expected);
        let short = walked(parse(&factory, "start: \"ab\"").expect("a grammar"), tokenizer.vocab_size());
        assert_eq!(short, [u32::from(b'a'), u32::from(b'b')]);
    }

    #[test]
    fn that_nothing_could_be_tried_is_not_the_grammars_fault() {
        let tried = run(Path::new("/no/such/program"), "start: \"a\"", &Tokenizer::of_bytes(256, &[]));
        assert!(matches!(tried, Err(GrammarError::NotTried { .. })), "{tried:?}");
    }
}
