//! `bench` on the tiny model: what it says of itself agrees with itself, with the model, and in all three forms.

use std::fs;

use kernel::target::Target;
use serde_json::Value;

use crate::fixtures::program::run;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Limits, works and their profiles as `docs/bench.md` has them.
#[test]
fn works_kernels_and_limits_agree_with_each_other_and_with_the_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (save, svg) = (file("figures.json"), file("roofline.svg"));
    let works = ["--work", "prefill,decode,getp", "--prefill", "20", "-b", "3", "-n", "5", "--prompts", "4"];
    let rest = ["--new-tokens", "3", "--slots", "2", "--kernels", "--save", &save, "--svg", &svg];
    let ran = run(&[&["bench", "--device", "cpu"][..], &works, &rest].concat()).ok();
    let report: Value = serde_json::from_slice(&fs::read(&save).expect("saved")).expect("JSON");
    assert_eq!((&report["schema"], &report["layers"]), (&2.into(), &4.into()));

    let limits = &report["limits"];
    let operations = if Target::host().features.contains("amx_bf16") { "matrix" } else { "f32" };
    assert_eq!(limits["held_against"], serde_json::json!({ "memory": "read", "operations": operations }));
    for limit in ["read_gbps", "copy_gbps", "f32_tflops"] {
        assert!(number(&limits[limit]) > 0.0, "{limits}");
    }
    let measured = report["measured"].as_array().expect("a list");
    let kinds: Vec<&Value> = measured.iter().map(|work| &work["work"]).collect();
    assert_eq!(kinds, ["prefill", "decode", "getp"]);
    // A prompt; five groups of a step of three rows; four prompts of three new tokens, two at a time.
    let counted = |what: &str| measured.iter().map(|work| work[what].as_u64().expect("a count")).collect::<Vec<_>>();
    assert_eq!((counted("batch"), counted("tokens")), (vec![1, 3, 2], vec![20, 3, 12]));
    assert_eq!(counted("steps")[..2], [1, 1]);
    let repeats: Vec<usize> = measured.iter().map(|work| work["seconds"].as_array().expect("times").len()).collect();
    assert_eq!(repeats, [1, 5, 1]);
    for work in measured {
        work_agrees(work, limits);
        profile_agrees(&work["profile"], work["work"] == "getp");
    }
    in_words(ran.text(), &fs::read_to_string(&svg).expect("drawn"), measured);
}

fn work_agrees(work: &Value, limits: &Value) {
    let times: Vec<f64> = work["seconds"].as_array().expect("times").iter().map(number).collect();
    let median = times[times.len() / 2];
    assert!(times.is_sorted() && median > 0.0);
    assert!(close(number(&work["tok_per_s"]), number(&work["tokens"]) / median), "{work}");
    let (bytes, flop) = (number(&work["bytes"]), number(&work["flop"]));
    assert!(close(number(&work["gbps"]), bytes / median / 1e9) && close(number(&work["tflops"]), flop / median / 1e12));
    let most_tflops = number(limits["bf16_matrix"].get(0).map_or(&limits["f32_tflops"], |matrix| &matrix["tflops"]));
    let least = (bytes / 1e9 / number(&limits["read_gbps"])).max(flop / 1e12 / most_tflops);
    assert!(close(number(&work["limit_tok_per_s"]), number(&work["tokens"]) / least), "{work}");
    assert!(close(number(&work["limit_fraction"]), least / median), "{work}");
    let host = work["host_us_per_step"].as_object().expect("parts");
    assert_eq!(host.keys().collect::<Vec<_>>(), ["scheduling", "writing", "launching", "waiting"]);
    assert!(number(&host["launching"]) > 0.0, "a cpu launches by doing the work: {host:?}");
}

/// Every node is there; times and shares add up; a linear node's operations are those of its matrix.
fn profile_agrees(profile: &Value, is_a_run: bool) {
    let nodes = profile["nodes"].as_array().expect("a list");
    let sum: f64 = nodes.iter().map(|node| number(&node["ms"])).sum();
    assert!((sum - number(&profile["kernels_ms"])).abs() < 1e-6 * sum, "{profile}");
    let launches: u64 = nodes.iter().map(|node| node["calls"].as_u64().expect("a count")).sum();
    assert_eq!(profile["launches"], launches);
    // On a cpu launches follow each other at once, and nothing else is in a step.
    assert!(number(&profile["step_ms"]) >= sum, "{profile}");
    let mlp1: Vec<&Value> = nodes.iter().filter(|node| node["node"] == "block.*.mlp.mlp1").collect();
    let [mlp1] = mlp1[..] else { panic!("one template for mlp1: {profile}") };
    assert!(number(&mlp1["bytes"]) > 0.0 && number(&mlp1["flop"]) > 0.0);
    assert!(close(number(&mlp1["us_per_call"]), 1e3 * number(&mlp1["ms"]) / number(&mlp1["calls"])));
    let out: Vec<&Value> = nodes.iter().filter(|node| node["node"] == "block.*.attn.out").collect();
    let steps = number(&profile["steps"]);
    let n_rows = if is_a_run { None } else { Some(if steps == 1.0 { 20.0 } else { 3.0 }) };
    if let ([out], Some(n_rows)) = (&out[..], n_rows) {
        assert_eq!(number(&out["calls"]), 4.0 * steps, "four layers");
        assert_eq!(number(&out["flop"]), steps * 4.0 * n_rows * 2.0 * 128.0 * 128.0, "{out}");
    }
}

/// Text and plot name the same works and kernels.
fn in_words(text: &str, svg: &str, measured: &[Value]) {
    assert!(text.contains("limits measured now: copy ") && text.contains("on the host, us of a step: scheduling "));
    for title in ["prefill, 20 positions", "decode, batch 3, ", "getp, batch 2, "] {
        assert!(text.contains(title) && svg.contains(title), "{title}");
    }
    for node in measured.iter().flat_map(|work| work["profile"]["nodes"].as_array().expect("a list")) {
        let node = node["node"].as_str().expect("a name");
        assert!(text.contains(node) && svg.contains(node), "{node}");
    }
    assert_eq!(svg.matches("<polyline").count(), measured.len(), "a roof for each work");
}
