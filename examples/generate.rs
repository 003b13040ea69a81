//! A prompt and what a model makes of it, token by token.
//!
//! ```text
//! cargo run --release --example generate -- [MODEL [PROMPT]]
//! ```

#![expect(clippy::print_stdout, reason = "that is what it is for")]

mod common;

use std::error::Error;
use std::io::{self, Write};

use common::Loaded;
use engine::scheduler::{Event, Request, Sampling};
use model::tokenizer::stream::TextStream;

const MAX_NEW_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    // Kernels are compiled in processes of this program's own.
    if let Some(done) = engine::worker() {
        return Ok(done?);
    }
    let mut words = std::env::args().skip(1);
    let model = words.next();
    let prompt = words.next().unwrap_or_else(|| "Once upon a time".into());
    let Loaded { mut engine, tokenizer } = common::load(model, 1, prompt.len() + MAX_NEW_TOKENS)?;

    let prompt = tokenizer.encode(prompt.as_bytes())?;
    let stop = tokenizer.special("<|endoftext|>").into_iter().collect();
    engine.submit(Request::new(prompt, MAX_NEW_TOKENS, stop, Sampling::GREEDY))?;
    let mut text = TextStream::default();
    while !engine.is_idle() {
        for event in engine.step()? {
            if let Event::Token { token, .. } = event
                && !tokenizer.is_special(token)
            {
                print!("{}", text.push(tokenizer.decode(token)?));
                io::stdout().flush()?;
            }
        }
    }
    println!("{}", text.finish());
    Ok(())
}
