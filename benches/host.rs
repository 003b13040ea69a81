//! What this machine's cores do for a step beside the device's work: `cargo bench --bench host`.
//!
//! Steps are those of the tiny model on the cpu, whose launches do the work themselves: of them the other parts count.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

#[path = "../examples/common/mod.rs"]
mod common;

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use chat::chat_format::specials::Specials;
use chat::chat_format::{Besides, Has, Prompts, Word, choose};
use chat::grammar::{AnswerFormat, Grammars, Thoughts, ToolChoice, Wanted};
use common::Loaded;
use engine::scheduler::{Request, Sampling};
use model::tokenizer::Tokenizer;
use serde_json::json;

/// Sequences that run together, and tokens of each.
const N_SEQUENCES: usize = 64;
const N_TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(done) = chat::worker() {
        return Ok(done?);
    }
    println!("{:34} {:>10}  unit", "what", "median");
    steps()?;
    texts()?;
    masks()
}

fn line(what: &str, mut figures: Vec<f64>, unit: &str) {
    figures.sort_by(f64::total_cmp);
    println!("{what:34} {:10.2}  {unit}", figures[figures.len() / 2]);
}

/// Time of `work`, in seconds, several times.
fn seconds(work: &mut dyn FnMut()) -> Vec<f64> {
    let mut once = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    once(); // what is made once
    (0..7).map(|_| once()).collect()
}

/// The parts of a step of 64 sequences.
fn steps() -> Result<(), Box<dyn Error>> {
    let Loaded { mut engine, tokenizer } = common::load(None, N_SEQUENCES, 2 * N_TOKENS)?;
    let prompt = tokenizer.encode(b"Once upon a time")?;
    let mut parts: Vec<(&str, Vec<f64>)> = Vec::new();
    for _ in 0..5 {
        let before = engine.host_times();
        for _ in 0..N_SEQUENCES {
            engine.submit(Request::new(prompt.clone(), N_TOKENS, vec![], Sampling::GREEDY))?;
        }
        while !engine.is_idle() {
            engine.step()?;
        }
        let times = engine.host_times() - before;
        for (i, (name, time)) in times.parts().into_iter().enumerate() {
            let of_one = time.as_secs_f64() * 1e6 / times.steps as f64;
            match parts.get_mut(i) {
                Some((_, figures)) => figures.push(of_one),
                None => parts.push((name, vec![of_one])),
            }
        }
    }
    for (name, figures) in parts {
        line(&format!("a step of {N_SEQUENCES}, {name}"), figures, "us");
    }
    Ok(())
}

/// Text to tokens and back.
fn texts() -> Result<(), Box<dyn Error>> {
    let tokenizer = Tokenizer::o200k_harmony();
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))?.repeat(50);
    let ids = tokenizer.encode(&text)?;
    let rate = |seconds: Vec<f64>| seconds.into_iter().map(|s| text.len() as f64 / s / 1e6).collect();
    let encoded = seconds(&mut || drop(black_box(tokenizer.encode(&text).expect("as before"))));
    line("o200k_harmony, encode", rate(encoded), "MB/s");
    let decoded = seconds(&mut || drop(black_box(tokenizer.decode_all(&ids).expect("its own"))));
    line("o200k_harmony, decode", rate(decoded), "MB/s");
    Ok(())
}

/// Which of 201,088 tokens may come next in an answer of a JSON schema.
fn masks() -> Result<(), Box<dyn Error>> {
    let tokenizer = Tokenizer::o200k_harmony();
    let (specials, program) = (Specials::of_names(&tokenizer), std::env::current_exe()?);
    let has = Has {
        tokenizer: &tokenizer,
        specials: &specials,
        template: None,
        program: &program,
        besides: Besides::default(),
    };
    let format = choose(Some(Word::Harmony), Prompts::Format, &has)?;
    let grammars = Arc::new(Grammars::new(tokenizer.clone(), format));
    let schema = json!({
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false
    });
    let wanted = Wanted {
        tools: vec![],
        choice: ToolChoice::None,
        format: Some(AnswerFormat::Schema(schema)),
        thoughts: Thoughts::None,
    };
    let answer = r#"<|channel|>final <|constrain|>json<|message|>{"name": "Ada Lovelace", "age": 36}<|return|>"#;
    let answer = tokenizer.encode_with_specials(answer.as_bytes())?;
    let walked = seconds(&mut || {
        let mut mask = grammars.mask(&wanted).expect("a grammar");
        for &id in &answer {
            black_box(mask.allowed());
            mask.push(id);
        }
    });
    line("a mask of a JSON schema", walked.into_iter().map(|s| s * 1e6 / answer.len() as f64).collect(), "us a token");
    Ok(())
}
