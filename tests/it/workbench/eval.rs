//! `gptoss-jit eval`: perplexities and divergences that follow from Hugging Face's logits, files in llama.cpp's layout,
//! limits.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::fixtures::models::{Fixture, smollm2};
use crate::fixtures::program::{Ran, argument, file, keys, repository, run, run_with_stdin};

/// Two prompts of a fixture, cut to windows of one length, with what Hugging Face's model says of them.
struct Text {
    fixture: Fixture,
    context: usize,
    ids: Vec<u32>,
    /// (tokens, vocab_size)
    logits: Vec<Vec<f64>>,
    folder: tempfile::TempDir,
}

impl Text {
    fn new(name: &'static str, prompts: [usize; 2], context: usize) -> Self {
        let fixture = Fixture::open(name);
        let all = rows(Path::new(&fixture.path("logits.npy")));
        let (mut ids, mut logits) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let first: usize = fixture.prompts[..prompt].iter().map(Vec::len).sum();
            ids.extend_from_slice(&fixture.prompts[prompt][..context]);
            logits.extend_from_slice(&all[first..first + context]);
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { fixture, context, ids, logits, folder }
    }

    fn path(&self, name: &str) -> String {
        argument(&self.folder.path().join(name))
    }

    /// Runs `eval` on ids, of which a few more than two windows are given.
    fn eval_ids(&self, ids: &[u32], args: &[&str]) -> Ran {
        let line = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let ids =
            file(self.folder.path(), "ids.txt", format!("{}\n{}\n1", line(&ids[..1]), line(&ids[1..])).as_bytes());
        let (model, context) = (self.fixture.path("model.bin"), self.context.to_string());
        let words = ["eval", &model, "--ids", &ids, "--context", &context, "--device", "cpu"];
        run(&[&words[..], args].concat())
    }

    fn eval(&self, args: &[&str]) -> Ran {
        self.eval_ids(&self.ids, args)
    }

    /// The rows that are scored, and the token behind each: in a window of N from position N / 2 up to N - 2.
    fn scored<'a>(&'a self, logits: &'a [Vec<f64>]) -> Vec<(&'a [f64], usize)> {
        let positions =
            (0..self.ids.len()).filter(|i| (self.context / 2..self.context - 1).contains(&(i % self.context)));
        positions.map(|i| (&logits[i][..], self.ids[i + 1] as usize)).collect()
    }

    /// The negative logarithms of the probabilities of the scored tokens.
    fn nlls(&self) -> Vec<f64> {
        self.scored(&self.logits).iter().map(|(row, target)| -log_softmax(row)[*target]).collect()
    }
}

/// The rows of an array of f32.
fn rows(path: &Path) -> Vec<Vec<f64>> {
    let bytes = fs::read(path).expect("an array");
    let array = npyz::NpyFile::new(&bytes[..]).expect("an array");
    let width = array.shape()[1] as usize;
    let values: Vec<f64> = array.into_vec::<f32>().expect("f32").into_iter().map(f64::from).collect();
    values.chunks(width).map(<[f64]>::to_vec).collect()
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|logit| logit.exp()).sum(); // of logits that are small
    row.iter().map(|logit| logit - sum.ln()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[track_caller]
fn assert_near(got: &Value, want: f64, tolerance: f64) {
    assert!((number(got) - want).abs() <= tolerance, "{got}, expected {want}");
}

#[test]
fn the_perplexity_is_that_of_hugging_faces_logits() {
    for (name, prompts, context) in [("gqa8", [2, 3], 120), ("window", [4, 5], 23), ("odd", [2, 3], 13)] {
        let text = Text::new(name, prompts, context);
        let report = text.eval(&["--precision", "f32", "--json"]).ok().json();
        let nlls = text.nlls();
        let perplexity = mean(&nlls).exp();
        // Logits are within 2e-4, so logarithms within 4e-4.
        assert_near(&report["perplexity"]["value"], perplexity, 4e-4 * perplexity);
        let deviations: f64 = nlls.iter().map(|nll| (nll - mean(&nlls)).powi(2)).sum();
        let n = nlls.len() as f64;
        let error = perplexity * (deviations / n / (n - 1.0)).sqrt();
        assert_near(&report["perplexity"]["error"], error, 1e-3 * error);
        assert_eq!((&report["windows"], &report["tokens"]), (&2.into(), &nlls.len().into()), "{name}");
        assert_eq!((&report["against"], &report["context"]), (&Value::Null, &context.into()));
        // The first token of each window is the given one instead, whatever the text has there.
        let window = &text.ids[..context];
        let without_first = [&[1], &window[1..]].concat();
        let alone = text.eval_ids(window, &["--precision", "f32", "--chunks", "1", "--json"]).ok().json();
        let args = ["--precision", "f32", "--chunks", "1", "--json", "--bos", &window[0].to_string()];
        assert_eq!(text.eval_ids(&without_first, &args).ok().json(), alone, "{name}");
    }
}

#[test]
fn the_divergence_of_bf16_from_f32_follows_from_both_logits() {
    let text = Text::new("gqa8", [2, 3], 120);
    let report = text.eval(&["--precision", "bf16", "--against-precision", "f32", "--json"]).ok().json();
    // The same rows by `logits`, whose steps are of other lengths.
    let lines: Vec<String> =
        text.ids.chunks(120).map(|ids| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")).collect();
    let (ids, npy) = (file(text.folder.path(), "lines.txt", lines.join("\n").as_bytes()), text.path("bf16.npy"));
    let model = text.fixture.path("model.bin");
    run(&["logits", &model, "--ids", &ids, "-o", &npy, "--precision", "bf16", "--device", "cpu"]).ok();
    let bf16 = rows(Path::new(&npy));

    let (mut klds, mut n_same, mut gains) = (Vec::new(), 0, Vec::new());
    for ((base, target), (row, _)) in text.scored(&text.logits).into_iter().zip(text.scored(&bf16)) {
        let (p, q) = (log_softmax(base), log_softmax(row));
        klds.push(p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
        let best = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        n_same += usize::from(best(base) == best(row));
        gains.push(p[target] - q[target]);
    }
    let found = &report["against"];
    assert_near(&found["mean_kld"]["value"], mean(&klds), 0.02 * mean(&klds));
    klds.sort_by(f64::total_cmp);
    assert_near(&found["max_kld"], klds[klds.len() - 1], 0.02 * klds[klds.len() - 1]);
    assert_near(&found["median_kld"], (klds[58] + klds[59]) / 2.0, 0.05 * klds[59]);
    assert_near(&found["same_best"]["value"], n_same as f64 / klds.len() as f64, 1e-12);
    assert_near(&found["perplexity_gain"]["value"], mean(&gains).exp() - 1.0, 1e-3);
    assert!(number(&found["mean_kld"]["value"]) > 1e-6, "bf16 is not f32: {found}");
    assert_eq!(report["base"], "the same model (f32)");
    let names =
        ["base_perplexity", "perplexity_gain", "mean_kld", "median_kld", "kld_99", "kld_99_9", "max_kld", "same_best"];
    assert_eq!(keys(found), names.into());
}

#[test]
fn a_model_is_itself_and_nearly_what_its_base_file_says() {
    let text = Text::new("window", [4, 5], 23);
    let (base, model, svg) = (text.path("base"), text.fixture.path("model.bin"), text.path("plot.svg"));
    let itself = ["--precision", "f32", "--against", &model, "--against-precision", "f32"];
    let more = ["--write-base", &base, "--svg", &svg, "--max-kld", "0", "--min-agreement", "100", "--json"];
    let report = text.eval(&[&itself[..], &more, &["--max-perplexity-gain", "0"]].concat()).ok().json();
    let found = &report["against"];
    for kld in ["median_kld", "kld_99", "kld_99_9", "max_kld"] {
        assert_eq!(number(&found[kld]), 0.0, "{kld}");
    }
    assert_eq!((number(&found["mean_kld"]["value"]), number(&found["same_best"]["value"])), (0.0, 1.0));
    assert_eq!((&found["base_perplexity"], &report["within_limits"]), (&report["perplexity"], &true.into()));
    let drawn = fs::read_to_string(svg).expect("written");
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");

    // What is in the file: the header, the tokens, and rows of 8 + 2 * 98 bytes, which are the logarithms.
    let bytes = fs::read(&base).expect("written");
    let words: Vec<u32> =
        bytes[8..20].chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect();
    assert_eq!((&bytes[..8], &words[..]), (&b"_logits_"[..], &[23, 97, 2][..]));
    let ids: Vec<u32> =
        bytes[20..][..4 * 46].chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect();
    assert_eq!(ids, text.ids);
    let rows = bytes[20 + 4 * 46..].chunks(8 + 2 * 98);
    let scored = text.scored(&text.logits);
    assert_eq!(rows.len(), scored.len());
    for (row, (logits, _)) in rows.zip(&scored) {
        let parameter = |at: usize| f64::from(f32::from_le_bytes(row[at..at + 4].try_into().expect("four")));
        let expected = log_softmax(logits);
        let largest = expected.iter().copied().fold(f64::MIN, f64::max);
        for (id, want) in expected.iter().enumerate() {
            let code = f64::from(u16::from_le_bytes([row[8 + 2 * id], row[9 + 2 * id]]));
            let got = parameter(0) * code + parameter(4);
            assert!((got - want.max(largest - 16.0)).abs() < 6e-4, "{id}: {got}, expected {want}");
        }
    }

    // The file has its tokens, and the windows that they make; a text, if one is given, is the same.
    let alone = ["eval", &model, "--device", "cpu", "--precision", "f32", "--against", &base, "--json"];
    let report = run(&alone).ok().json();
    assert_eq!((&report["windows"], &report["context"]), (&2.into(), &23.into()));
    let kld = number(&report["against"]["mean_kld"]["value"]);
    assert!(kld.abs() < 1e-4 && number(&report["against"]["same_best"]["value"]) == 1.0, "{report}");
    // What is too improbable is more probable there.
    let nll = |(row, target): (&[f64], usize)| {
        let logarithms = log_softmax(row);
        -logarithms[target].max(logarithms.iter().copied().fold(f64::MIN, f64::max) - 16.0)
    };
    let expected = mean(&scored.into_iter().map(nll).collect::<Vec<_>>()).exp();
    assert_near(&report["against"]["base_perplexity"]["value"], expected, 1e-3 * expected);
    let first = text.eval(&["--precision", "f32", "--against", &base, "--chunks", "1", "--json"]).ok().json();
    assert_eq!(first["windows"], 1);
}

#[test]
fn limits_that_are_not_kept_end_with_a_sentence_each_behind_the_table() {
    let text = Text::new("window", [4, 5], 23);
    let limits = ["--max-kld", "0", "--min-agreement", "101", "--max-perplexity-gain", "1000"];
    let ran = text.eval(&[&["--precision", "bf16", "--against-precision", "f32"], &limits[..]].concat());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let lines: Vec<&str> = ran.text().lines().collect();
    assert!(
        lines.len() == 10 && lines[0].ends_with("value   error   limit") || lines[0].contains("limit"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("perplexity ") && lines[4].starts_with("mean KLD, nats "), "{lines:?}");
    assert!(lines[4].ends_with("<= 0") && lines[9].ends_with(">= 101"), "{lines:?}");
    assert!(
        ran.stderr.contains("error: the model is too far from the base: the mean divergence is 0.0"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("% of the tokens, expected at least 101 % (`--min-agreement`)"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("--max-perplexity-gain"), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_scored_or_compared_is_told() {
    let text = Text::new("window", [4, 5], 23);
    let base = text.path("base");
    text.eval(&["--write-base", &base, "--chunks", "1"]).ok();
    let stderr = text.eval(&["--chunks", "3"]).fails_with_hint(1);
    assert!(stderr.contains("the text has 47 tokens, expected at least 69: 3 windows of 23"), "{stderr}");
    assert!(stderr.contains("hint: `--chunks 2` takes what there is"), "{stderr}");
    let stderr = text.eval(&["--against", &base, "--chunks", "2"]).fails_with_hint(1);
    assert!(stderr.contains("the file has 1 windows, expected 2"), "{stderr}");
    let mut other = text.ids.clone();
    other[5] = (other[5] + 1) % 97;
    let stderr = text.eval_ids(&other, &["--against", &base]).fails_with_hint(1);
    assert!(stderr.contains("/base`\n  caused by: the file's token 5 is"), "{stderr}");
    let bytes = fs::read(&base).expect("written");
    let short = file(text.folder.path(), "short", &bytes[..bytes.len() - 1]);
    let stderr = text.eval(&["--against", &short]).fails_with_hint(1);
    assert!(stderr.contains(&format!("the file has {} bytes, expected {}", bytes.len() - 1, bytes.len())), "{stderr}");
    let other = Fixture::open("odd").path("model.bin");
    let stderr = text.eval(&["--against", &other]).fails_with_hint(1);
    assert!(stderr.contains("its vocabulary has 131 tokens, the model's 97"), "{stderr}");
    let stderr = run(&["eval", &other, "--against", &base]).fails_with_hint(1);
    assert!(stderr.contains("the file is of a vocabulary of 97 tokens, the model has 131"), "{stderr}");
    let stderr = text.eval(&["--bos", "97"]).fails(1);
    assert!(stderr.contains("token id 97 at position 0 is not below the model's vocab_size, 97"), "{stderr}");
    let stderr = text.eval(&["--max-kld", "1"]).fails(2);
    assert!(stderr.contains("limits are of a comparison: they need `--against`"), "{stderr}");
    let stderr = text.eval(&["--against", &base, "--against-precision", "f32"]).fails(2);
    assert!(stderr.contains("is a file of probabilities"), "{stderr}");
    let stderr = text.eval(&["--against", "/nowhere/base"]).fails(1);
    assert!(stderr.contains("/nowhere/base"), "{stderr}");
    let stderr = run(&["eval", "--text", "/nowhere/text"]).fails(1);
    assert!(stderr.contains("could not read the text `/nowhere/text`"), "{stderr}");
    let stderr = run(&["eval", "--context", "2"]).stderr;
    assert!(stderr.contains("2 is not in 3.."), "{stderr}");
}

#[test]
fn the_tiny_model_reads_a_story_from_a_pipe() {
    let story = "Once upon a time, there was a little girl named Lily. She had a red kite.\n\nOne day, she could not find \
                 her red kite. She looked under the bed, but it was not there.\n";
    let ran = run_with_stdin(&["eval", "--context", "16", "--device", "cpu"], story.as_bytes()).ok();
    let perplexity: f64 =
        ran.text().lines().nth(1).and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).expect("a number");
    assert!((1.0..4.0).contains(&perplexity), "{}", ran.text());
    assert!(
        ran.stderr.contains("the built-in tiny model: ") && ran.stderr.contains(" windows of 16 tokens"),
        "{}",
        ran.stderr
    );
    // Its last line end does not count, as in llama.cpp.
    let ended = run_with_stdin(&["eval", "--context", "16", "--device", "cpu"], story.trim_end().as_bytes()).ok();
    assert_eq!((ended.text(), &ended.stderr), (ran.text(), &ran.stderr));
    let stderr = run_with_stdin(&["eval", "--context", "1025", "--device", "cpu"], story.repeat(40).as_bytes())
        .fails_with_hint(1);
    assert!(stderr.contains("a window has 1025 tokens, expected at most the model's context, 1024"), "{stderr}");
    let stderr = run(&["eval"]).fails_with_hint(1); // nothing on stdin
    assert!(stderr.contains("the text has 0 tokens, expected at least 512: 1 window of 512"), "{stderr}");
}

#[test]
fn the_perplexity_of_smollm2_is_that_of_float64() {
    let Some(model) = smollm2() else { return };
    let record = fs::read(repository().join("tests/fixtures/smollm2/fixture.json")).expect("a fixture");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let each: Vec<f64> = serde_json::from_value(record["likelihood"]["each"].clone()).expect("numbers");
    let text = record["likelihood"]["text"].as_str().expect("a text");
    let args = ["--context", "48", "--chunks", "1", "--precision", "f32", "--device", "cpu", "--json"];
    let ran = run_with_stdin(&[&["eval", &argument(&model)], &args[..]].concat(), text.as_bytes()).ok();
    let expected = mean(&each[24..47]).exp(); // `each` begins with the second token
    assert_near(&ran.json()["perplexity"]["value"], expected, 1e-3 * expected);
}
