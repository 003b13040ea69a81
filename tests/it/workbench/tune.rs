//! `tune`, on this machine's cores: what is timed is right, the table says what is best, and rows are written.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use kernel::target::Target;
use serde_json::Value;

use crate::fixtures::program::{Ran, command, repository, run, shared_cache};

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
        // x, weight and bias in bf16, y, each once; a multiply-add is two.
        assert_eq!(result["bytes"], f64::from(2 * tokens * 64 + 2 * 32 * 64 + 2 * 32 + 4 * tokens * 32));
        assert_eq!(result["flop"], f64::from(2 * tokens * 64 * 32));
        let timed = result["timed"].as_array().expect("a list");
        // Six of each template, and the present one.
        let n_templates = if Target::host().features.contains("amx_bf16") { 2 } else { 1 };
        assert!((2..=6 * n_templates + 1).contains(&timed.len()), "{timed:?}");
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
    let folder = zeros("");
    let templates = folder.path().to_str().expect("a name");
    let ran = tune(&["--templates", templates, "--most", "2"]);
    assert!(
        ran.code == 0 && ran.stderr.contains("linear/zeros: `y`[0, ") && ran.stderr.contains("]: got 0, want"),
        "{}",
        ran.stderr
    );
    assert!(!String::from_utf8_lossy(&ran.stdout).contains("linear/zeros"));
    let stderr = tune(&["--templates", templates, "--variant", "zeros"]).fails(1);
    assert!(stderr.contains("no kernel of `linear` could be timed at 1 row"), "{stderr}");
}

/// A folder with one template of `linear` that gives zeros at once, and a statement before that.
fn zeros(statement: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = r#"{#
op       = "linear"
summary  = "all zeros"
priority = 9
[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/types.c.j2" %}
#include <stdlib.h>
{{ signature }} {
  STATEMENT
  for (u32 n = 0; n < {{ out_features }}; ++n) y[block_x * {{ out_features }} + n] = 0.0f;
}
"#;
    fs::create_dir(folder.path().join("linear")).expect("made");
    fs::write(folder.path().join("linear/zeros.c.j2"), text.replace("STATEMENT", statement)).expect("written");
    folder
}

#[test]
fn a_kernel_that_is_fast_and_wrong_or_ends_its_process_is_counted_and_in_no_row() {
    for (statement, count) in [("", "1 are wrong"), ("abort();", "1 ended their process")] {
        let (folder, tuning) = (zeros(statement), tempfile::tempdir().expect("a folder"));
        let new = tuning.path().join("new/folder");
        let (templates, new_folder) = (folder.path().to_str().expect("a name"), new.to_str().expect("a name"));
        let ran = tune(&["--templates", templates, "--most", "2", "--tuning", new_folder, "--write"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains(count), "{count}: {}", ran.stderr);
        let written = fs::read_dir(&new).expect("`--tuning` makes the folder");
        for file in written {
            let text = fs::read_to_string(file.expect("a file").path()).expect("a table");
            assert!(text.contains("use        = \"linear/dot\"") && !text.contains("zeros"), "{text}");
        }
    }
}

#[test]
fn what_a_killed_tune_measured_is_in_the_journal_of_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal.jsonl");
    let args = [&SMALL[..], &["--most", "6", "--journal", journal.to_str().expect("a name")]].concat();
    let mut command = command(shared_cache(), &args);
    let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.matches('\n').count());
    while lines() < 3 && killed.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().expect("SIGKILL"); // or it is done already, which the rest is true of too
    killed.wait().expect("reaped");
    let (n_before, text) = (lines(), fs::read_to_string(&journal).expect("read"));
    let ran = run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let after = fs::read_to_string(&journal).expect("read");
    assert!(n_before >= 3 && after.starts_with(&text), "what is there stays");
    let n_found: usize = ran
        .stderr
        .split(" verdicts were in the journal")
        .next()
        .and_then(|head| head.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()))
        .unwrap_or_else(|| panic!("{}", ran.stderr));
    assert!(n_found >= 3, "{n_found} of {n_before}");
    // Of a third nothing is measured: what it says is what the second said.
    let third = run(&args);
    assert_eq!((third.stdout, fs::read_to_string(&journal).expect("read")), (ran.stdout, after));
}

#[test]
fn run_says_once_which_rows_are_stale_and_tune_measures_just_those_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let tuning = folder.path().to_str().expect("a name");
    let tiny = repository().join("examples/tiny/model.bin");
    let tiny = tiny.to_str().expect("a name");
    let job = ["tune", tiny, "--device", "cpu", "--op", "linear", "--tokens", "1", "--most", "1", "--tuning", tuning];
    let ran = run(&[&job[..], &["--write"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let file = fs::read_dir(folder.path()).expect("listed").next().expect("a file").expect("a file").path();
    let text = fs::read_to_string(&file).expect("a table");
    let n_rows = text.matches("[[rows]]").count();
    assert!(n_rows >= 2, "{text}");

    let model = ["run", "--device", "cpu", "--tuning", tuning, "-i", "Once", "-n", "2"];
    let stale = |text: &str| {
        fs::write(&file, text).expect("written");
        let stderr = run(&model).ok().stderr;
        stderr.lines().filter(|line| line.contains("stale")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stale(&text), Vec::<String>::new());
    // As if the templates had been others when they were measured.
    let other = format!("source     = \"{}\"", "0".repeat(64));
    let is_source = |line: &&str| line.starts_with("source ");
    let others: String =
        text.lines().map(|line| format!("{}\n", if is_source(&line) { &other } else { line })).collect();
    let told = stale(&others);
    assert_eq!(told.len(), 1, "{told:?}");
    // Not all rows are used: ops of fused runs are not launched.
    let hint = "stale: gptoss-jit tune --stale --device cpu";
    assert!(told[0].contains(&file.display().to_string()) && told[0].contains(hint), "{told:?}");

    let again = run(&[&job[..], &["--stale", "--write", "--json"]].concat());
    assert_eq!(results(&again).len(), n_rows, "{}", again.stderr);
    let renewed = fs::read_to_string(&file).expect("a table");
    assert_eq!(renewed.matches("[[rows]]").count(), n_rows, "{renewed}");
    assert_eq!(stale(&renewed), Vec::<String>::new());
    let nothing = run(&[&job[..], &["--stale"]].concat()).ok();
    assert!(nothing.stderr.contains("is stale") && nothing.stderr.contains("no row for"), "{}", nothing.stderr);
    // Without a digest nothing is known of a row.
    let without: String =
        others.lines().filter(|line| !line.starts_with("source ")).map(|l| format!("{l}\n")).collect();
    assert_eq!(stale(&without), Vec::<String>::new());
}

#[test]
fn tables_are_held_against_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = r#"
        provenance.hand = { kind = "hand", date = "2026-11-22", method = "a test" }
        [[rows]]
        op = "rmsnorm"
        use = "rmsnorm/rows"
        params = PARAMS
        provenance = "hand"
    "#;
    let legal: Value =
        serde_json::from_slice(&run(&["kernels", "ls", "--op", "rmsnorm", "--json"]).stdout).expect("JSON");
    assert!(legal.to_string().contains("rmsnorm"), "{legal}");
    fs::write(folder.path().join("host.toml"), table.replace("PARAMS", "{}")).expect("written");
    let tables = folder.path().to_str().expect("a name");
    let words = ["tune", "diff", "built-in", tables, "--device", "cpu", "--op", "rmsnorm", "--tokens", "1", "--json"];
    let ran = run(&words);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    assert_eq!((ran.code, &report["differ"]), (0, &Value::Array(Vec::new())), "the same template: {report}");
}

/// Each table, and all that concern one chip. A row gets stale by any change of its template, and waits for its device;
/// one of a problem that no model has any more waits for `tune rekey` alone.
#[test]
fn built_in_tables_have_no_finding_but_stale_rows() {
    let findings = |arch: &[&str]| {
        let report = run(&[&["tune", "lint", "--json"], arch].concat()).ok().json();
        let all = report["findings"].as_array().expect("a list").iter();
        all.filter(|one| one["kind"] != "stale").cloned().collect::<Vec<Value>>()
    };
    assert_eq!(findings(&[]), Vec::<Value>::new());
    assert_eq!(findings(&["--arch", "gfx942"]), Vec::<Value>::new());
}

#[test]
fn lint_tells_rows_with_their_places() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = "provenance.hand = { kind = \"hand\", date = \"2026-11-22\", method = \"a test\" }\n\
                 [[rows]]\nop = \"linear\"\ntokens = \"1-8\"\nuse = \"linear/gone\"\nprovenance = \"hand\"\n";
    fs::write(folder.path().join("host.toml"), table).expect("written");
    let tables = folder.path().to_str().expect("a name");
    let ran = run(&["tune", "lint", "--arch", "x86-64-v3", "--tuning", tables, "--json"]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    let findings = report["findings"].as_array().expect("a list").iter();
    let place = format!("{tables}/host.toml:2");
    let kinds: Vec<&str> =
        findings.filter(|one| one["place"] == *place).map(|one| one["kind"].as_str().expect("text")).collect();
    assert_eq!((ran.code, kinds), (1, vec!["unusable", "gap"]), "{report}");
}

#[test]
fn lint_tells_a_row_of_an_op_that_only_runs_fused() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = "provenance.hand = { kind = \"hand\", date = \"2026-11-22\", method = \"a test\" }\n\
                 [[rows]]\nop = \"moe_sort\"\nwhere = { precision = \"bf16\" }\nuse = \"moe_sort/block\"\nprovenance = \"hand\"\n\
                 [[rows]]\nop = \"rmsnorm\"\nuse = \"rmsnorm/row\"\nprovenance = \"hand\"\n";
    fs::write(folder.path().join("gfx1100.toml"), table).expect("written");
    let tables = folder.path().to_str().expect("a name");
    let ran = run(&["tune", "lint", "--arch", "gfx1100", "--tuning", tables, "--json"]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    let told: Vec<&Value> = report["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|one| one["text"].as_str().is_some_and(|text| text.starts_with("no step asks for")))
        .collect();
    let [one] = told.as_slice() else { panic!("of the two rows one is not asked for: {report}") };
    assert_eq!((&one["place"], &one["kind"]), (&format!("{tables}/gfx1100.toml:2").into(), &"not asked for".into()));
}

/// Numbers for a flag, a flag for a number, sizes that no model has, and a type that the template does not take.
#[test]
fn lint_tells_rows_that_want_what_cannot_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let wants = [
        ("has_bias = 1", "unusable", "nothing asks for this row: `has_bias` of `linear`: expected true or false"),
        ("in_features = true", "unusable", "nothing asks for this row: `in_features` of `linear`: expected a number"),
        ("in_features = 12345", "not asked for", "none of the"),
        ("weight = \"q8_0\"", "", ""),
        ("weight = \"u32\"", "unusable", "nothing asks for this row: `weight` of `linear`: expected f32 or bf16"),
    ];
    let row = |(i, (want, ..)): (usize, &(&str, &str, &str))| {
        format!(
            "[[rows]]\nop = \"linear\"\nwhere = {{ {want} }}\ntokens = \"{}\"\nuse = \"linear/dot\"\nprovenance = \"hand\"\n",
            i + 1
        )
    };
    let rows: String = wants.iter().enumerate().map(row).collect();
    let table =
        "provenance.hand = { kind = \"hand\", date = \"2026-11-28\", method = \"a test\" }\n".to_owned() + &rows;
    fs::write(folder.path().join("host.toml"), table).expect("written");
    let tables = folder.path().to_str().expect("a name");
    let ran = run(&["tune", "lint", "--arch", "x86-64-v3", "--tuning", tables, "--json"]);
    assert!(ran.code == 1 && ran.stderr.contains("tuning rows that cannot be used: 3"), "{}", ran.stderr);
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    for (i, (want, kind, text)) in wants.iter().enumerate() {
        let place = format!("{tables}/host.toml:{}", 2 + 6 * i);
        let told = findings.iter().filter(|one| one["place"] == *place && one["kind"] != "gap");
        let told: Vec<_> = told.map(|one| (one["kind"].as_str().expect("text"), &one["text"])).collect();
        let is_told = told.first().is_some_and(|(_, told)| told.as_str().expect("text").starts_with(text));
        assert_eq!(told.iter().map(|(kind, _)| *kind).collect::<String>(), *kind, "{want}: {report}");
        assert!(kind.is_empty() || is_told, "{want}: {report}");
    }
}

#[test]
fn lint_of_a_table_that_nothing_can_use_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let row = "[[rows]]\nop = \"linear\"\ntokens = \"1-8\"\nuse = \"linear/dot\"\nprovenance = \"hand\"\n";
    let table =
        format!("provenance.hand = {{ kind = \"hand\", date = \"2026-11-28\", method = \"a test\" }}\n{row}{row}");
    fs::write(folder.path().join("gfx1100.toml"), table).expect("written");
    let ran = run(&["tune", "lint", "--tuning", folder.path().to_str().expect("a name")]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.text().contains("broken") && ran.stderr.contains("tables that cannot be used: 1"), "{}", ran.stderr);
}

/// The digest of gpt-oss-20b's attention without a window on GPUs, from before contracts had `has_sinks`.
const BEFORE_SINKS: &str = "233828e8031bf97cee7f37ab97abb537981482f186f6b87a6f5b978e7d1bf648";

#[test]
fn rows_follow_their_problem_when_its_contract_gets_a_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let (table, tables) = (folder.path().join("gfx1100.toml"), folder.path().to_str().expect("a name"));
    let text = format!(
        "provenance.hand = {{ kind = \"hand\", date = \"2026-11-22\", method = \"a test\" }}\n[[rows]] # mine\n\
         op = \"attention\"\nuse = \"attention/flash\"\nprovenance = \"hand\"\nproblem = \"{BEFORE_SINKS}\"\n"
    );
    fs::write(&table, &text).expect("written");
    let rekey = |added: &str| run(&["tune", "rekey", "--added", added, "--tuning", tables]);
    let ran = rekey("has_sinks=false");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&table).expect("there"), text, "gpt-oss has sinks");
    let ran = rekey("has_sinks=true");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let new = fs::read_to_string(&table).expect("there");
    let digest = new.split('"').rev().nth(1).expect("a digest");
    assert_eq!(new, text.replace(BEFORE_SINKS, digest));
    assert!(digest.len() == 64 && digest != BEFORE_SINKS, "{new}");
    let again = rekey("has_sinks=true");
    assert!(again.code == 0 && again.stderr.contains("no row in"), "{}", again.stderr);
    rekey("has_sinks").fails(2);
}

#[test]
fn what_cannot_be_tuned_is_refused_with_what_could_be() {
    let stderr = run(&["tune", "--op", "linear", "--within", "soon"]).fails(2);
    assert!(stderr.contains("expected a time like 90s, 20min or 2h"), "{stderr}");
    let stderr = run(&["tune", "--op", "linear", "--device", "sim:gfx1100"]).fails(2);
    assert!(stderr.contains("the simulator says nothing of speed"), "{stderr}");
    let stderr = run(&["tune", "--op", "linear", "--device", "cpu", "--dims", "rows=3"]).fails(2);
    assert!(stderr.contains("expected one of: in_features, out_features"), "{stderr}");
    let stderr = tune(&["--write", "--where", "colour"]).fails(2);
    assert!(stderr.contains("--where colour: expected some of: "), "{stderr}");
    let stderr = run(&["tune", "--op", "wishes", "--device", "cpu"]).fails(2);
    assert!(stderr.contains("wishes"), "{stderr}");
}
