//! `run` in its default mode: what is printed, how many tokens, and how they are drawn.

use std::process::Stdio;

use crate::fixtures::models::{Counter, letters};
use crate::fixtures::program::{command, file, keys, run, shared_cache};

#[test]
fn the_first_token_and_as_many_as_there_are_steps_are_printed() {
    let counter = Counter::new(20);
    let text = |prompt: &[u32], steps: &str| {
        let ran = counter.run(&["-i", &letters(prompt), "-n", steps]).ok();
        ran.text().strip_suffix('\n').expect("a line").to_owned()
    };
    let line = |last: u32| letters(&(0..=last).map(|i| i % 8).collect::<Vec<_>>());
    assert_eq!(text(&[0], "1"), "AaAb");
    assert_eq!(text(&[0, 1, 2], "5"), "AaAbAcAdAeAf");
    assert_eq!(text(&[0, 1, 2], "2"), "AaAbAc");
    // As in the seeds, steps that do not reach the prompt's end cut it.
    assert_eq!(text(&[0, 1, 2], "1"), "AaAb");
    assert_eq!(text(&[0], "19"), line(19));
    for steps in ["20", "0", "-3", "21", "1024"] {
        assert_eq!(text(&[0], steps), line(20), "-n {steps}");
    }
}

#[test]
fn new_tokens_are_counted_up_to_the_context() {
    let counter = Counter::new(20);
    let ids = |prompt: &[u32], n: &str| {
        let json = counter.run(&["-i", &letters(prompt), "--max-new-tokens", n, "--json"]).ok().json();
        assert_eq!(json["prompt_tokens"], prompt.len().min(21));
        json["ids"].as_array().expect("ids").len()
    };
    assert_eq!([ids(&[0], "0"), ids(&[0], "3"), ids(&[0], "100")], [0, 3, 20]);
    assert_eq!([ids(&[0; 19], "5"), ids(&[0; 20], "5"), ids(&[0; 21], "5"), ids(&[0; 40], "5")], [2, 1, 0, 0]);
}

#[test]
fn json_tells_the_whole_story() {
    let counter = Counter::new(20);
    let json = |args: &[&str]| counter.run(&[&["-i", "AgAh", "--json"], args].concat()).ok().json();
    let story = json(&["-n", "6", "--stop", "3"]);
    let expected = [
        "schema",
        "mode",
        "text",
        "prompt_tokens",
        "ids",
        "finish_reason",
        "tok_per_s",
        "first_token_s",
        "device",
        "kernels",
    ];
    let steps = ["steps", "drafted_tokens", "accepted_tokens"];
    assert_eq!(keys(&story), expected.into_iter().chain(steps).collect());
    assert_eq!(steps.map(|name| story[name].as_u64()), [4, 0, 0].map(Some), "a step for each token");
    assert_eq!(story["mode"], "generate");
    assert_eq!(story["text"], "AgAhAaAbAc", "the stop token is in the ids and not in the text");
    assert_eq!(story["ids"], serde_json::json!([0, 1, 2, 3]));
    assert_eq!((&story["prompt_tokens"], &story["finish_reason"]), (&2.into(), &"stop".into()));
    assert!(story["tok_per_s"].as_f64().expect("a number") > 0.0 && story["first_token_s"].as_f64().is_some());
    assert_eq!(keys(&story["kernels"]), ["from_cache", "from_bundles", "compiled"].into());

    let story = json(&["-n", "3"]);
    assert_eq!((&story["text"], &story["finish_reason"]), (&"AgAhAaAb".into(), &"length".into()));
    let story = json(&["--max-new-tokens", "0"]);
    assert_eq!((&story["text"], &story["first_token_s"]), (&"AgAh".into(), &serde_json::Value::Null));
}

#[test]
fn characters_come_out_whole() {
    let counter = Counter::new(40);
    let mut tokenizer = 1_i32.to_le_bytes().to_vec();
    for byte in "🎈aéb".bytes().chain(b'0'..=b'9').chain(b'A'..=b'H') {
        tokenizer.extend([0.0_f32.to_le_bytes(), 1_i32.to_le_bytes()].concat());
        tokenizer.push(byte);
    }
    let bytes = file(counter.folder.path(), "bytes.bin", &tokenizer);
    let model = counter.path("model.bin");
    let text =
        |steps: &str, args: &[&str]| run(&[&["run", &model, "-z", &bytes, "-i", "a", "-n", steps], args].concat());
    assert_eq!(text("7", &[]).ok().text(), "aéb🎈\n");
    assert_eq!(text("15", &["--json"]).ok().json()["text"], "aéb🎈aéb🎈");
    // What is left of a character is printed as it is; JSON, which holds characters only, tells it as such.
    for (steps, bytes, expected) in [
        ("1", &b"a\xc3\n"[..], "a\u{fffd}"),
        ("4", b"a\xc3\xa9b\xf0\n", "aéb\u{fffd}"),
        ("6", b"a\xc3\xa9b\xf0\x9f\x8e\n", "aéb\u{fffd}"),
    ] {
        assert_eq!(text(steps, &[]).ok().stdout, bytes);
        assert_eq!(text(steps, &["--json"]).ok().json()["text"], expected);
    }
}

/// The seeds' sampler, from its description: xorshift64*, softmax, top-k, top-p.
struct Sampler {
    state: u64,
    temperature: f64,
    top_k: usize,
    top_p: f64,
}

impl Sampler {
    fn coin(&mut self) -> f64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        f64::from((self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as u32) / 16_777_216.0
    }

    fn draw(&mut self, logits: &[f64]) -> u32 {
        let weights: Vec<f64> = logits.iter().map(|logit| (logit / self.temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut candidates: Vec<(usize, f64)> = weights.iter().map(|weight| weight / sum).enumerate().collect();
        let cuts = self.top_p > 0.0 && self.top_p < 1.0;
        if cuts || self.top_k > 0 {
            let least = if cuts { (1.0 - self.top_p) / (logits.len() - 1) as f64 } else { 0.0 };
            candidates.retain(|(_, p)| *p >= least);
            candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
            candidates.truncate(if self.top_k > 0 { self.top_k } else { candidates.len() });
            let mut total = 0.0;
            let kept = candidates.iter().position(|(_, p)| {
                total += p;
                cuts && total > self.top_p
            });
            candidates.truncate(kept.map_or(candidates.len(), |last| last + 1));
        }
        let mut left = self.coin() * if cuts || self.top_k > 0 { candidates.iter().map(|c| c.1).sum() } else { 1.0 };
        for (id, p) in &candidates {
            left -= p;
            if left < 0.0 {
                return *id as u32;
            }
        }
        candidates.last().expect("one at least").0 as u32
    }
}

/// The logits of a [`Counter`] after a token.
fn counter_logits(token: u32) -> Vec<f64> {
    let mut logits = vec![0.0; 26];
    if token < 8 {
        logits[(token as usize + 1) % 8] = 1.0 / (0.125_f64 + 1e-5).sqrt();
    }
    logits
}

#[test]
fn tokens_are_drawn_as_the_seeds_draw_them() {
    let counter = Counter::new(400);
    for (seed, temperature, top_k, top_p) in
        [(7, 0.8, 0, 0.9), (8, 0.8, 0, 1.0), (7, 1.7, 5, 1.0), (9, 1.0, 3, 0.55), (10, 0.6, 0, 0.0), (-1, 2.5, 20, 0.7)]
    {
        let mut sampler = Sampler { state: seed as u64, temperature, top_k, top_p };
        let mut last = 0;
        let expected: Vec<u32> = (0..300)
            .map(|_| {
                last = sampler.draw(&counter_logits(last));
                last
            })
            .collect();
        let [t, k, p, s] = [temperature.to_string(), top_k.to_string(), top_p.to_string(), seed.to_string()];
        let args = ["-i", "Aa", "-n", "300", "--json", "-T", &t, "-k", &k, "-p", &p, "-s", &s];
        let json = counter.run(&args).ok().json();
        assert_eq!(json["ids"], serde_json::json!(expected), "{args:?}");
        assert!((0..300).any(|i| expected[i] as usize != (i + 1) % 8), "the draws are those of argmax: {args:?}");
    }
}

#[test]
fn a_seed_repeats_itself_and_one_candidate_is_no_choice() {
    let counter = Counter::new(100);
    let text = |args: &[&str]| counter.run(&[&["-i", "Aa", "-n", "60"], args].concat()).ok().text().to_owned();
    let drawn = text(&["-T", "0.8", "-s", "7"]);
    assert_eq!(text(&["-T", "0.8", "-s", "7"]), drawn);
    assert_ne!(text(&["-T", "0.8", "-s", "8"]), drawn);
    assert_ne!(text(&["-T", "0.9", "-s", "7"]), drawn);
    let greedy = text(&[]);
    assert_eq!(text(&["-T", "0", "-s", "5"]), greedy);
    assert_eq!(text(&["-T", "-1", "-s", "5"]), greedy, "below 0 is 0");
    assert_eq!(text(&["-T", "1.5", "-k", "1", "-s", "7"]), greedy);
    assert_eq!(text(&["-T", "0.8", "-s", "7", "-p", "1.5"]), drawn, "outside of 0 to 1 it is 0.9");
    // getp draws each line from numbers of its own, whatever is run beside it.
    let input = b"3\nAa\nAa\nAa\n";
    let lines = |batch: &str| counter.getp(input, &["-n", "40", "-T", "1.5", "-s", "7", "-b", batch]).ok().ids();
    let all = lines("3");
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
    assert_eq!(lines("1"), all);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let counter = Counter::new(4000);
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let args = ["run", &model, "-z", &tokenizer, "-i", "Aa", "-n", "4000"];
    let mut child =
        command(shared_cache(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("reaped");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
