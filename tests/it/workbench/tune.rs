//! `tune`, on this machine's cores: what is timed is right, the table says what is best, and rows are written.

use std::fs;

use serde_json::Value;

use crate::fixtures::program::{Ran, run};

/// One small problem on the cpu device.
const SMALL: [&str; 9] =
    ["tune", "--op", "linear", "--device", "cpu", "--dims", "in_features=64,out_features=32", "--tokens", "1,3"];

fn tune(more: &[&str]) -> Ran {
    run(&[&SMALL[..], more].concat())
}

fn results(ran: &Ran) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    assert_eq!((ran.code, &report["schema"]), (0, &1.into()), "{}", ran.stderr);
    let results = report["results"].as_array().expect("a list").iter();
    results.filter(|result| result["between"] == false).cloned().collect()
}

#[test]
fn the_fastest_of_a_grid_is_told_beside_the_present_choice() {
    let results = results(&tune(&["--most", "6", "--json"]));
    assert_eq!(results.len(), 2);
    for (result, tokens) in results.iter().zip([1, 3]) {
        assert_eq!(result["tokens"], tokens);
        // x, weight in bf16, bias, y, each once; a multiply-add is two.
        assert_eq!(result["bytes"], f64::from(4 * tokens * 64 + 2 * 32 * 64 + 2 * 32 + 4 * tokens * 32));
        assert_eq!(result["flop"], f64::from(2 * tokens * 64 * 32));
        let timed = result["timed"].as_array().expect("a list");
        assert!((2..=7).contains(&timed.len()), "{timed:?}");
        assert_eq!(timed.iter().filter(|one| one["present"] == true).count(), 1, "{timed:?}");
        let times: Vec<f64> = timed.iter().map(|one| one["time_us"].as_f64().expect("a number")).collect();
        assert!(times.iter().all(|time| *time > 0.0));
        assert!(timed.iter().all(|one| one["worst_error"].as_f64().expect("a number") <= 1.0), "{timed:?}");
    }
}

#[test]
fn what_is_written_is_what_the_next_run_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let tuning = folder.path().to_str().expect("a name");
    let written =
        tune(&["--most", "4", "--tuning", tuning, "--write", "--where", "in_features,out_features", "--json"]);
    let best = results(&written);
    let file = fs::read_dir(folder.path()).expect("listed").next().expect("a file").expect("a file").path();
    let text = fs::read_to_string(&file).expect("a table");
    for line in
        ["kind     = \"measured\"", "device   = \"cpu (", "where      = { in_features = 64, out_features = 32 }"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains(tuning), "folders are of one machine: {text}");
    let again = results(&tune(&["--most", "1", "--tuning", tuning, "--json"]));
    for (before, now) in best.iter().zip(&again) {
        let present = now["timed"].as_array().expect("a list").iter().find(|one| one["present"] == true);
        let present = &present.expect("it is timed")["params"];
        let known = before["timed"].as_array().expect("a list").iter().map(|one| &one["params"]);
        assert!(known.clone().any(|params| params == present), "{present} is none of {:?}", known.collect::<Vec<_>>());
    }
}

#[test]
fn a_kernel_that_is_wrong_is_told_and_not_timed() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = r#"{#
op       = "linear"
summary  = "all zeros"
priority = 9
[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/types.c.j2" %}
{{ signature }} {
  for (u32 n = 0; n < {{ out_features }}; ++n) y[block_x * {{ out_features }} + n] = 0.0f;
}
"#;
    fs::create_dir(folder.path().join("linear")).expect("made");
    fs::write(folder.path().join("linear/zeros.c.j2"), text).expect("written");
    let templates = folder.path().to_str().expect("a name");
    let ran = tune(&["--templates", templates, "--most", "2"]);
    assert!(
        ran.code == 0 && ran.stderr.contains("linear/zeros: `y`[0, ") && ran.stderr.contains("]: got 0, want"),
        "{}",
        ran.stderr
    );
    assert!(!String::from_utf8_lossy(&ran.stdout).contains("linear/zeros"));
    let stderr = tune(&["--templates", templates, "--variant", "zeros"]).fails(1);
    assert!(stderr.contains("no kernel of `linear` could be timed at 1 rows"), "{stderr}");
}

#[test]
fn what_cannot_be_tuned_is_refused_with_what_could_be() {
    let stderr = run(&["tune", "--op", "linear", "--arch", "gfx1100"]).fails_with_hint(1);
    assert!(stderr.contains("no device of the arch `gfx1100` is here"), "{stderr}");
    assert!(stderr.contains("kernels check --arch gfx1100 --speed"), "{stderr}");
    let stderr = run(&["tune", "--op", "linear", "--device", "sim:gfx1100"]).fails(2);
    assert!(stderr.contains("the simulator says nothing of speed"), "{stderr}");
    let stderr = run(&["tune", "--op", "linear", "--device", "cpu", "--dims", "rows=3"]).fails(2);
    assert!(stderr.contains("expected one of: in_features, out_features"), "{stderr}");
    let stderr = tune(&["--write", "--where", "colour"]).fails(2);
    assert!(stderr.contains("--where colour: expected some of: "), "{stderr}");
    let stderr = run(&["tune", "--op", "wishes", "--device", "cpu"]).fails(1);
    assert!(stderr.contains("wishes"), "{stderr}");
}
