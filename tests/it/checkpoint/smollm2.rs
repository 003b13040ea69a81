//! A published model: logits, answers and likelihoods of SmolLM2-135M-Instruct, by numbers that float64 gives
//! (`tests/fixtures/smollm2`).

use std::fs;

use serde_json::{Value, json};

use crate::fixtures::models::smollm2;
use crate::fixtures::program::{argument, file, parse_ids, repository, run};

/// Of the 307 tokens of the text that the fixture has, so many are read: they are in three blocks of the cache.
const N_READ: usize = 150;

/// The largest difference of a logit in f32. numpy's own float32 is off by 1.4e-4.
const ATOL: f64 = 1e-3;

fn fixture(name: &str) -> String {
    fs::read_to_string(repository().join("tests/fixtures/smollm2").join(name)).expect("a fixture")
}

fn json() -> Value {
    serde_json::from_str(&fixture("fixture.json")).expect("JSON")
}

#[test]
fn logits_of_smollm2_and_the_likelihood_of_a_text_are_those_of_float64() {
    let Some(model) = smollm2() else { return };
    let (record, lines) = (json(), parse_ids(&fixture("ids.txt")));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let npy = folder.path().join("logits.npy");
    let lines: Vec<&[u32]> = lines.iter().map(|ids| &ids[..ids.len().min(N_READ)]).collect();
    let words = |ids: &&[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
    let ids = file(folder.path(), "ids.txt", lines.iter().map(words).collect::<String>().as_bytes());
    run(&["logits", &argument(&model), "--ids", &ids, "-o", &argument(&npy), "--precision", "f32", "--device", "cpu"])
        .ok();
    let bytes = fs::read(npy).expect("an array");
    let array = npyz::NpyFile::new(&bytes[..]).expect("an array");
    let vocab_size = array.shape()[1] as usize;
    let logits: Vec<f32> = array.into_vec().expect("f32");
    let rows: Vec<&[f32]> = logits.chunks(vocab_size).collect();
    assert_eq!(rows.len(), lines.iter().map(|ids| ids.len()).sum::<usize>());

    let prompts = record["prompts"].as_array().expect("a list");
    let mut from = 0;
    for (prompt, ids) in prompts.iter().zip(&lines) {
        from += ids.len();
        let row = rows[from - 1];
        let top: Vec<(usize, f64)> = serde_json::from_value(prompt["top"].clone()).expect("pairs");
        let every: Vec<f64> = serde_json::from_value(prompt["every_512"].clone()).expect("numbers");
        let every = every.into_iter().enumerate().map(|(i, logit)| (512 * i, logit));
        for (id, want) in top.into_iter().chain(every) {
            let got = f64::from(row[id]);
            assert!((got - want).abs() <= ATOL, "{}: logit {id} is {got}, expected {want}", prompt["name"]);
        }
    }

    let each: Vec<f64> = serde_json::from_value(record["likelihood"]["each"].clone()).expect("numbers");
    let (text, rows) = (&lines[prompts.len()], &rows[from..]);
    assert_eq!((each.len() + 1).min(N_READ), text.len());
    for (i, want) in each.iter().take(text.len() - 1).enumerate() {
        let most = rows[i].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = rows[i].iter().map(|logit| f64::from(logit - most).exp()).sum();
        let got = sum.ln() + f64::from(most) - f64::from(rows[i][text[i + 1] as usize]);
        assert!((got - want).abs() <= ATOL, "token {}: {got}, expected {want}", i + 1);
    }
}

/// Of the 64 tokens of each answer that the fixture has, so many are asked for: each takes a fifth of a second.
const N_TOKENS: usize = 12;

#[test]
fn answers_of_smollm2_are_those_of_float64() {
    let Some(model) = smollm2() else { return };
    let (prompts, greedy) = (parse_ids(&fixture("ids.txt")), parse_ids(&fixture("greedy.txt")));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines: String = prompts[..greedy.len()].iter().map(|ids| json!({ "ids": ids }).to_string() + "\n").collect();
    let input = file(folder.path(), "input.jsonl", lines.as_bytes());
    let n_tokens = N_TOKENS.to_string();
    let args = ["run", &argument(&model), "-m", "getp", "-i", &input, "--max-new-tokens", &n_tokens, "-b", "3"];
    let ran = run(&[&args[..], &["--precision", "f32", "--device", "cpu"]].concat()).ok();
    let ids = |line: &str| -> Vec<u32> {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        serde_json::from_value(answer["ids"].clone()).expect("ids")
    };
    let answers: Vec<Vec<u32>> = ran.text().lines().map(ids).collect();
    // What ends an answer may be left out of it.
    let end = json()["end"].as_u64().expect("an id") as u32;
    let without_end = |ids: &Vec<u32>| ids.iter().copied().take(N_TOKENS).filter(|id| *id != end).collect::<Vec<u32>>();
    assert_eq!(answers.iter().map(without_end).collect::<Vec<_>>(), greedy.iter().map(without_end).collect::<Vec<_>>());
}
