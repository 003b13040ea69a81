//! `run -m generate`: continues a prompt.

use std::io::{IsTerminal, stdin};
use std::time::Instant;

use serde_json::{Value, json};

use super::Args;
use crate::args::kernel_counts;
use crate::output::Output;
use crate::text_input;
use crate::usage::UsageError;
use engine::scheduler::{Event, Figures, FinishReason, LogitRowLogprobs, Request};
use engine::{Engine, Sizes};
use model::tokenizer::Tokenizer;
use system::units::counted;

/// Prints the prompt and what follows it, as it comes.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let start = Instant::now();
    let prompt = prompt(args)?;
    let checkpoint = args.model.open(output)?;
    let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
    let mut prompt = tokenizer.begun(tokenizer.encode_prompt(&prompt)?);

    // The seeds run positions 0 to steps - 1 and print one token more than that.
    let steps = args.reach(&checkpoint.config);
    if prompt.len() > steps + 1 {
        let (n_prompt, n_fit) = (prompt.len(), steps + 1);
        output.note(&format!("note: the prompt has {n_prompt} tokens, of which {n_fit} fit: nothing is generated"));
        prompt.truncate(n_fit);
    }
    let room = steps + 1 - prompt.len();
    let max_new_tokens = args.max_new_tokens.map_or(room, |n| n.min(room));
    let sizes = Sizes::for_tokens(1, (prompt.len() + max_new_tokens).saturating_sub(1), 1);
    let mut engine = args.load(&checkpoint, sizes, output)?;
    let stop = args.stop_ids(&checkpoint, &tokenizer)?;
    let n_logprobs = args.logprobs.map(usize::from);
    if n_logprobs.is_some() && !output.is_json() {
        return Err(UsageError("`--logprobs` has no place in a text: it takes `--json`".into()).into());
    }
    let request = Request { n_logprobs, ..Request::new(prompt, max_new_tokens, stop, args.sampling(0)) };
    Generation { output, tokenizer: &tokenizer, start }.run(&mut engine, request)
}

/// The text to continue: `-i`, or the text from a pipe, without the line end that `echo` adds.
fn prompt(args: &Args) -> anyhow::Result<Vec<u8>> {
    if let Some(text) = &args.input {
        return Ok(text.as_encoded_bytes().to_vec());
    }
    let mut text = Vec::new();
    if !stdin().is_terminal() {
        text = text_input::from_stdin("the prompt")?;
    }
    if text.is_empty() {
        return Err(UsageError("generate needs a prompt: `-i TEXT`, or a text on stdin".into()).into());
    }
    let end = [&b"\r\n"[..], b"\n"].into_iter().find(|end| text.ends_with(end)).map_or(0, <[u8]>::len);
    text.truncate(text.len() - end);
    Ok(text)
}

struct Generation<'a> {
    output: &'a Output,
    tokenizer: &'a Tokenizer,
    start: Instant,
}

impl Generation<'_> {
    fn run(&self, engine: &mut Engine, request: Request) -> anyhow::Result<()> {
        let (prompt, stop) = (request.prompt.clone(), request.stop.clone());
        engine.submit(request)?;
        let mut text = self.tokenizer.text_of(&prompt[self.tokenizer.n_begun(&prompt)..])?;
        self.show(&text)?;
        let begin = Instant::now();

        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        let mut first_token = None;
        let mut reason = FinishReason::Length;
        while !engine.is_idle() {
            for event in engine.step()? {
                match event {
                    Event::Token { token, logprobs: told, .. } => {
                        logprobs.extend(told.map(|told| *told));
                        first_token.get_or_insert_with(Instant::now);
                        ids.push(token);
                        if !stop.contains(&token) {
                            let piece = self.tokenizer.decode(token)?;
                            self.show(piece)?;
                            text.extend_from_slice(piece);
                        }
                    }
                    Event::Finished { reason: why, .. } => reason = why,
                    Event::Admitted { .. } | Event::PromptToken { .. } => {}
                }
            }
        }
        self.show(b"\n")?;
        let text = String::from_utf8_lossy(&text).into_owned();
        self.summarise(engine, &Generated { n_prompt: prompt.len(), ids, logprobs, text, begin, first_token, reason })?;
        super::show_profile(engine, self.output)
    }

    /// The bytes of tokens as they are, as in the seeds: they need not be whole characters, nor characters at all.
    fn show(&self, bytes: &[u8]) -> anyhow::Result<()> {
        if !self.output.is_json() {
            self.output.bytes(bytes)?;
        }
        Ok(())
    }

    fn summarise(&self, engine: &Engine, generated: &Generated) -> anyhow::Result<()> {
        let seconds = generated.begin.elapsed().as_secs_f64();
        let tok_per_s = generated.tok_per_s(seconds);
        let kernels = kernel_counts(engine);
        let first_token_s = generated.first_token.map(|at| (at - self.start).as_secs_f64());
        let Figures { drafted_tokens, accepted_tokens, .. } = engine.figures();
        let device = engine.executor().pipeline().driver().describe();
        if self.output.is_json() {
            let mut report = json!({
                "schema": 1,
                "mode": "generate",
                "device": device,
                "text": generated.text,
                "prompt_tokens": generated.n_prompt,
                "ids": generated.ids,
                "finish_reason": if generated.reason == FinishReason::Stop { "stop" } else { "length" },
                "tok_per_s": tok_per_s,
                "first_token_s": first_token_s,
                "kernels": kernels.json(),
                "steps": engine.host_times().steps,
                "drafted_tokens": drafted_tokens,
                "accepted_tokens": accepted_tokens,
            });
            if !generated.logprobs.is_empty() {
                report["logprobs"] = generated.logprobs.iter().map(one_logprob).collect();
            }
            self.output.json(&report)?;
        } else {
            let first = first_token_s.map_or_else(String::new, |s| format!(", first after {s:.2} s"));
            let rate = tok_per_s.map_or_else(String::new, |rate| format!("; {rate:.1} tok/s"));
            self.output.note(&format!(
                "{}, {} new{first}{rate}, on {device}; kernels: {kernels}",
                counted(generated.n_prompt, "prompt token"),
                generated.ids.len(),
            ));
            if drafted_tokens > 0 {
                let n_steps = engine.host_times().steps;
                self.output
                    .detail(&format!("{n_steps} steps: of {drafted_tokens} drafts {accepted_tokens} were right"));
            }
        }
        Ok(())
    }
}

/// A token's, and those of the most probable ones.
fn one_logprob(of: &LogitRowLogprobs) -> Value {
    let top = of.top.iter().map(|one| json!({ "id": one.token, "logprob": one.logprob }));
    json!({ "logprob": of.chosen, "top": top.collect::<Vec<_>>() })
}

struct Generated {
    n_prompt: usize,
    /// What was generated, the stop token included.
    ids: Vec<u32>,
    /// Of each of them, if asked for.
    logprobs: Vec<LogitRowLogprobs>,
    text: String,
    begin: Instant,
    first_token: Option<Instant>,
    reason: FinishReason,
}

impl Generated {
    /// Positions per second, those of the prompt included: what the seeds print as `achieved tok/s`. A run that
    /// generated nothing has no such rate.
    fn tok_per_s(&self, seconds: f64) -> Option<f64> {
        let positions = (self.n_prompt + self.ids.len()).saturating_sub(1);
        (seconds > 0.0 && !self.ids.is_empty()).then(|| positions as f64 / seconds)
    }
}
