//! More prompts than slots: each gets one when another is done, and all that run share every step.
//!
//! ```text
//! cargo run --release --example batch -- [MODEL]
//! ```

#![expect(clippy::print_stdout, reason = "that is what it is for")]

mod common;

use std::collections::HashMap;
use std::error::Error;

use common::Loaded;
use engine::scheduler::{Event, Request, Sampling};

const PROMPTS: [&str; 5] = ["Once upon a time", "Tom had a ball.", "Lily was sad.", "The dog", "One day, a bird"];
const N_SLOTS: usize = 2;
const MAX_NEW_TOKENS: usize = 24;

fn main() -> Result<(), Box<dyn Error>> {
    // Kernels are compiled in processes of this program's own.
    if let Some(done) = engine::worker() {
        return Ok(done?);
    }
    let longest = PROMPTS.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let Loaded { mut engine, tokenizer } = common::load(std::env::args().nth(1), N_SLOTS, longest + MAX_NEW_TOKENS)?;

    let mut ids = HashMap::new();
    for prompt in PROMPTS {
        let request = Request::new(tokenizer.encode(prompt.as_bytes())?, MAX_NEW_TOKENS, vec![], Sampling::GREEDY);
        ids.insert(engine.submit(request)?, (prompt, Vec::new()));
    }
    let mut n_steps = 0;
    while !engine.is_idle() {
        n_steps += 1;
        for event in engine.step()? {
            match event {
                Event::Token { request, token, .. } => ids.get_mut(&request).expect("submitted").1.push(token),
                Event::Finished { request, reason } => {
                    let (prompt, tokens) = ids.remove(&request).expect("submitted");
                    let text = String::from_utf8_lossy(&tokenizer.decode_all(&tokens)?).replace('\n', " ");
                    println!("step {n_steps:>3}, {reason:?}: {prompt}{text}");
                }
                Event::Admitted { .. } | Event::PromptToken { .. } => {}
            }
        }
    }
    Ok(())
}
