//! `run -m getp`: a file of prompts in, token ids out, as many tokens a second as the machine gives.
//!
//! The input's first line says how many prompts follow, one a line. The output has a line of ids for each prompt, in
//! the order of the input: what was generated, a stop token included, the prompt not.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;

use super::verify::Expected;
use super::{Args, BATCH};
use crate::cli::model::kernel_counts;
use crate::cli::output::Output;
use crate::cli::output_file::OutputFile;
use crate::cli::usage::UsageError;
use crate::engine::{Engine, Sizes};
use crate::scheduler::{Event, Request};
use crate::tokenizer::Tokenizer;

/// Runs the file.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let Some(input) = &args.input else {
        return Err(UsageError("getp needs a file of prompts: `-i FILE`".into()).into());
    };
    let prompts = prompts(input, args.lines.unwrap_or(0), output)?;
    let expected = args.verify.as_deref().map(Expected::read).transpose()?;
    let checkpoint = args.model.open(output)?;
    let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
    let longest = args.reach(&checkpoint.config);
    let encode_start = Instant::now();
    let requests = requests(args, &prompts, &tokenizer, longest, output)?;
    let encode_s = encode_start.elapsed().as_secs_f64();
    // Nothing is longer than its prompt and what it may generate: short files need little cache.
    let needed = requests.iter().flatten().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(1);
    let n_slots = requests.iter().flatten().count().clamp(1, args.batch.unwrap_or(BATCH) as usize);
    let sizes = Sizes::for_tokens(n_slots, longest.min(needed), n_slots);
    let file = args.output.as_deref().map(|path| OutputFile::create(path, "ids")).transpose()?;
    let mut engine = args.load(&checkpoint, sizes, output)?;

    let start = Instant::now();
    let generated = generate(&mut engine, requests, output)?;
    let seconds = start.elapsed().as_secs_f64() + encode_s;
    write_ids(file, &generated, output)?;
    summarise(&engine, &generated, seconds, output)?;
    super::show_profile(&mut engine, output)?;
    expected.map_or(Ok(()), |expected| expected.compare(&generated, output))
}

/// The prompts of the file, or where there is none the text that was given in its place.
fn prompts(input: &OsStr, first_lines: i64, output: &Output) -> anyhow::Result<Vec<Vec<u8>>> {
    let path = Path::new(input);
    let is_absent = matches!(
        path.metadata().map_err(|error| error.kind()),
        Err(ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
    );
    if is_absent && !looks_like_a_path(input) {
        output.note("note: there is no such file: what `-i` says is the only prompt");
        return Ok(vec![input.as_encoded_bytes().to_vec()]);
    }
    let bytes = std::fs::read(path).with_context(|| format!("could not read prompts `{}`", path.display()))?;
    read_prompts(path, &bytes, first_lines, output)
}

/// Whether a text was meant as the name of a file: one word, with a folder or an extension. A mistyped name is not to
/// be run as a prompt.
fn looks_like_a_path(text: &OsStr) -> bool {
    let is_one_word = !text.as_encoded_bytes().iter().any(u8::is_ascii_whitespace);
    let has_extension = Path::new(text).extension().is_some_and(|extension| !extension.is_empty());
    is_one_word && (has_extension || text.as_encoded_bytes().contains(&b'/'))
}

/// The prompts of a file's bytes: the first line's count of them, `-t` of them, or as many as there are.
fn read_prompts(path: &Path, bytes: &[u8], first_lines: i64, output: &Output) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let count = leading_number(first).ok_or_else(|| NoCount {
        path: path.display().to_string(),
        found: String::from_utf8_lossy(first).chars().take(40).collect(),
    })?;
    let wanted = match usize::try_from(first_lines) {
        Ok(first_lines) if first_lines > 0 => first_lines.min(count),
        _ => count,
    };
    let mut prompts: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
    if bytes.ends_with(b"\n") {
        prompts.pop(); // nothing stands behind the last line end
    }
    if prompts.len() < wanted {
        output.note(&format!("note: `{}` says {count} prompts and has {}", path.display(), prompts.len()));
    }
    prompts.truncate(wanted);
    let n_returns = prompts.iter().filter(|prompt| prompt.ends_with(b"\r")).count();
    if n_returns > 0 {
        let what = "end in a carriage return, which is part of them: the file's lines end as Windows ends them";
        output.note(&format!("note: {n_returns} prompts of `{}` {what}", path.display()));
    }
    Ok(prompts)
}

/// The first line is no number.
#[derive(Debug, thiserror::Error)]
#[error("could not read prompts `{path}`: line 1 is the number of prompts, found `{found}`")]
pub(in crate::cli) struct NoCount {
    path: String,
    found: String,
}

impl crate::error::Hint for NoCount {
    fn hint(&self) -> Option<String> {
        Some("put the number of prompts on a line of its own before them".into())
    }
}

/// The number that a line begins with, as C's `atoi` reads it: `6 prompts` is 6.
fn leading_number(line: &[u8]) -> Option<usize> {
    let text = line.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// A request for every prompt that may generate something; `None` for the others, whose line stays empty.
fn requests(
    args: &Args,
    prompts: &[Vec<u8>],
    tokenizer: &Tokenizer,
    longest: usize,
    output: &Output,
) -> anyhow::Result<Vec<Option<Request>>> {
    let stop = args.stop_ids(tokenizer)?;
    let mut full = Vec::new(); // prompts that leave no room
    let mut request = |(i, prompt): (usize, &Vec<u8>)| {
        let prompt = tokenizer.encode(prompt).with_context(|| format!("could not encode prompt {}", i + 1))?;
        // The seeds run positions 0 to steps - 2, and what the last of them gives is the last token.
        let room = longest.saturating_sub(prompt.len());
        if room == 0 {
            full.push(i + 1);
        }
        let max_new_tokens = args.max_new_tokens.map_or(room, |n| n.min(room));
        let has_work = !prompt.is_empty() && max_new_tokens > 0;
        let sampling = args.sampling(i);
        Ok(has_work.then(|| Request::new(prompt, max_new_tokens, stop.clone(), sampling)))
    };
    let requests = prompts.iter().enumerate().map(&mut request).collect::<anyhow::Result<_>>()?;
    if let Some(first) = full.first() {
        let n = full.len();
        output.note(&format!(
            "note: {n} prompts have {longest} tokens or more, the first is prompt {first}: no room for new ones"
        ));
    }
    Ok(requests)
}

/// Runs all requests. Gives the generated ids of each, in their order.
fn generate(engine: &mut Engine, requests: Vec<Option<Request>>, output: &Output) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut generated = vec![Vec::new(); requests.len()];
    let mut line_of = Vec::new(); // by request id
    for (line, request) in requests.into_iter().enumerate() {
        if let Some(request) = request {
            engine.submit(request).with_context(|| format!("could not run prompt {}", line + 1))?;
            line_of.push(line);
        }
    }
    let bar = progress(line_of.len(), output);
    let (start, mut n_tokens) = (Instant::now(), 0);
    while !engine.is_idle() {
        for event in engine.step()? {
            match event {
                Event::Token { request, token, .. } => {
                    generated[line_of[request.0]].push(token);
                    n_tokens += 1;
                }
                Event::Finished { .. } => bar.inc(1),
                Event::Admitted { .. } => {}
            }
        }
        bar.set_message(format!("{:.1} tok/s", f64::from(n_tokens) / start.elapsed().as_secs_f64()));
    }
    bar.finish_and_clear();
    Ok(generated)
}

fn progress(n_requests: usize, output: &Output) -> indicatif::ProgressBar {
    if !output.shows_progress() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} prompts, {msg}, {eta} left");
    indicatif::ProgressBar::new(n_requests as u64).with_style(style.expect("a constant template"))
}

/// One line for each prompt, ids separated by single blanks.
fn write_ids(file: Option<OutputFile>, generated: &[Vec<u32>], output: &Output) -> anyhow::Result<()> {
    let line = |ids: &Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
    let text: String = generated.iter().map(line).collect();
    match file {
        Some(file) => file.fill(|file| file.write_all(text.as_bytes())),
        None if output.is_json() => Ok(()),
        None => Ok(output.text(&text)?),
    }
}

fn summarise(engine: &Engine, generated: &[Vec<u32>], seconds: f64, output: &Output) -> anyhow::Result<()> {
    let n_tokens: usize = generated.iter().map(Vec::len).sum();
    let tok_per_s = (seconds > 0.0 && n_tokens > 0).then(|| n_tokens as f64 / seconds);
    let (from_cache, compiled) = kernel_counts(engine);
    if output.is_json() {
        output.json(&json!({
            "schema": 1,
            "mode": "getp",
            "requests": generated.len(),
            "ids": generated,
            "tokens": n_tokens,
            "seconds": seconds,
            "tok_per_s": tok_per_s,
            "kernels": { "from_cache": from_cache, "compiled": compiled },
        }))?;
    } else {
        let rate = tok_per_s.map_or_else(String::new, |rate| format!(": {rate:.1} tok/s"));
        output.note(&format!(
            "{} prompts, {n_tokens} tokens in {seconds:.2} s{rate}; kernels: {from_cache} from cache, {compiled} compiled",
            generated.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_as_c_reads_it() {
        assert_eq!(leading_number(b"6 prompts"), Some(6));
        assert_eq!(leading_number(b"  +12"), Some(12));
        assert_eq!(leading_number(b"0"), Some(0));
        assert_eq!(leading_number(b"Once upon a time"), None);
        assert_eq!(leading_number(b""), None);
        assert_eq!(leading_number(b"99999999999999999999999"), None);
    }

    #[test]
    fn a_word_with_a_folder_or_an_extension_was_meant_as_a_file() {
        for path in ["/nowhere/in.txt", "prompts.txt", "data/input", "../in"] {
            assert!(looks_like_a_path(OsStr::new(path)), "{path}");
        }
        for text in ["Once upon a time", "Once", "Hello.", "see a/b and c.txt", "a.txt\n", ""] {
            assert!(!looks_like_a_path(OsStr::new(text)), "{text}");
        }
    }
}
