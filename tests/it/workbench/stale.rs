//! Rows that are not of the text that runs now: which are, where they are judged anew, and who tells.

use std::fs;

use kernel::choice::Chooser;
use kernel::object::key::Digest;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::render::render;
use kernel::tuning::TuningTables;
use serde_json::Value;
use workbench::tune::stale::{self, Stale};

use super::{predict, tuner::World};
use crate::fixtures::program::run;
use crate::object::hiprtc;

/// A row of the host for any problem of f32, with more lines.
fn row(lines: &str) -> String {
    format!(
        "provenance.mine = {{ kind = \"measured\", date = \"2026-11-28\", method = \"a test\" }}\n[[rows]]\n\
         op = \"linear\"\nwhere = {{ precision = \"f32\" }}\ntokens = \"3-8\"\nuse = \"linear/dot\"\n\
         provenance = \"mine\"\n{lines}"
    )
}

fn world(lines: &str) -> World {
    World::new(TuningTables::from_texts(&[("host", &row(lines))]).expect("right"))
}

fn stale(world: &World) -> Vec<Stale> {
    stale::rows(&world.job, &world.chooser)
}

#[test]
fn a_row_is_stale_by_its_problem_or_if_no_problem_that_it_decides_has_its_source() {
    let first = world("");
    let problem = &first.job.problems[0].problem;
    let ranking = first.chooser.ranking(problem, 4, StepKind::Decode).expect("it fits");
    let choice = &ranking.choices[0];
    let rendered = render(first.chooser.library(), &choice.template, problem, &choice.params, first.chooser.target());
    let right = Digest::of(rendered.expect("legal").source.as_bytes()).to_string();
    let source = |digest: &str| format!("source = \"{digest}\"\n");
    let other = source(&"0".repeat(64));
    let of_problem = |identity: &str| format!("problem = \"{identity}\"\n");
    let its = of_problem(&problem.identity());

    assert_eq!(stale(&first), [], "of a row without a source nothing is known");
    assert_eq!(stale(&world(&source(&right))), []);
    assert_eq!(stale(&world(&(source(&right) + &its))), []);
    let told = |lines: &str| stale(&world(lines)).iter().map(|one| one.is_of_no_problem).collect::<Vec<_>>();
    assert_eq!(told(&(other.clone() + &its)), [false]);
    assert_eq!(told(&other), [true]);
    assert_eq!(told(&(other.clone() + &of_problem(&"f".repeat(64)))), [false; 0], "it is another problem's");

    // It is judged anew where it was measured, and at both ends.
    let world = world(&(other + &its + "timed_at = 5\n"));
    let pieces = stale(&world)[0].pieces(&world.job, &world.chooser);
    assert_eq!(pieces.iter().map(|piece| piece.n_tokens).collect::<Vec<_>>(), [3, 5, 8]);
}

#[test]
fn no_row_is_stale_for_a_simulator_whose_text_is_another_by_its_nature() {
    let text = row(&format!("source = \"{}\"\n", "0".repeat(64)));
    let tables =
        || TuningTables::from_texts(&[("gfx1100", &text.replace("linear/dot", "linear/tile"))]).expect("right");
    let job = world("").job;
    let stale_on = |target: Target| {
        let library = Library::from_layers(vec![Layer::built_in()]);
        stale::rows(&job, &Chooser::new(library, tables(), target).expect("they fit")).len()
    };
    let target = Target::gpu("gfx1100").expect("known");
    assert_eq!((stale_on(target.clone()), stale_on(target.simulated())), (1, 0));
}

#[test]
fn a_row_of_sizes_that_no_model_has_is_judged_by_its_where_or_told_as_unknown() {
    let other = format!("source = \"{}\"\n", "0".repeat(64));
    let first = world("");
    let mut problem = first.job.problems[0].problem.clone();
    *problem.dims.get_mut("in_features").expect("a linear has it") += 32;
    let its = format!("{other}problem = \"{}\"\n", problem.identity());
    let told = |wants: &str, lines: &str| {
        let text = row(lines).replace("precision = \"f32\"", wants);
        let mut world = World::new(TuningTables::from_texts(&[("host", &text)]).expect("right"));
        let unknown = stale::add_measured(&mut world.job, &world.chooser);
        (stale(&world).len(), unknown)
    };
    let wants = format!("precision = \"f32\", in_features = {}", problem.dims["in_features"]);
    assert_eq!(told(&wants, &its), (1, vec![]), "its `where` has what no model has");
    let place = vec!["host.toml:2".to_owned()];
    assert_eq!(told("precision = \"f32\"", &its), (0, place), "nothing says which sizes it is for");
    assert_eq!(told("precision = \"f32\"", ""), (0, vec![]), "no source, nothing to judge");
}

#[test]
fn a_source_without_its_problem_is_told_by_lint_and_by_the_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = row(&format!("source = \"{}\"\n", "0".repeat(64)))
        .replace("linear/dot", "attention/flash")
        .replace("\"linear\"", "\"attention\"")
        .replace("f32", "bf16");
    fs::write(folder.path().join("gfx1100.toml"), table).expect("written");
    let tables = folder.path().to_str().expect("a name");

    let report: Value = run(&["tune", "lint", "--arch", "gfx1100", "--tuning", tables, "--json"]).ok().json();
    let findings = report["findings"].as_array().expect("a list").iter();
    let told: Vec<&Value> = findings.filter(|one| one["kind"] == "stale").collect();
    let [one] = told[..] else { panic!("{report}") };
    assert_eq!(one["place"], format!("{tables}/gfx1100.toml:2"));
    let text = one["text"].as_str().expect("text");
    assert!(text.contains("it has no `problem` that says which was measured"), "{text}");
    assert!(text.ends_with("`gptoss-jit tune --stale --arch gfx1100` judges it anew"), "{text}");

    let plan = |arch: &str| {
        let args = ["--arch", arch, "--op", "attention", "--tokens", "3", "--tuning", tables, "--why"];
        let ran = run(&[&["kernels", "plan", "--shape", "gpt-oss-20b"][..], &args].concat()).ok();
        let is_by_it = format!("  by row     {tables}/gfx1100.toml:2: `attention/flash`");
        assert!(ran.text().contains(&is_by_it), "{}", ran.text());
        ran.text().matches("\n  stale      its `source` is not what runs here, and it has no `problem`").count()
    };
    // Two kinds of layers and two of steps.
    assert_eq!((plan("gfx1100"), plan("sim:gfx1100")), (4, 0));
}

#[test]
fn a_row_is_judged_anew_for_every_known_model_and_only_where_no_other_row_decides() {
    if hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [
        ("hidden_size = 4096", "1+", 256), // Llama's, and of other models than the default
        ("hidden_size = 2880", "33+", 256),
        ("hidden_size = 2880, scale = \"bf16\"", "300-400", 512),
    ];
    let row = |(wants, tokens, block_size): (&str, &str, u32)| {
        format!(
            "[[rows]]\nop = \"rmsnorm\"\nwhere = {{ {wants}, precision = \"bf16\" }}\ntokens = \"{tokens}\"\n\
             use = \"rmsnorm/row\"\nparams = {{ block_size = {block_size} }}\nprovenance = \"mine\"\n\
             source = \"{}\"\n",
            "0".repeat(64)
        )
    };
    let table = "provenance.mine = { kind = \"predicted\", date = \"2026-11-28\", method = \"a test\" }\n".to_owned()
        + &rows.map(row).concat();
    let path = folder.path().join("gfx1100.toml");
    fs::write(&path, table).expect("written");
    let tables = folder.path().to_str().expect("a name");
    let job = ["tune", "--stale", "--arch", "gfx1100", "--op", "rmsnorm", "--most", "1", "--tuning", tables, "--write"];
    predict::run(&job).ok();

    let written: toml::Table = fs::read_to_string(&path).expect("there").parse().expect("a table");
    let rows = written["rows"].as_array().expect("rows").iter().filter(|row| row.get("timed_at").is_some());
    let of = |row: &toml::Value| {
        let number = |value: &toml::Value| value.as_integer().expect("a number");
        let text = |value: &toml::Value| value.as_str().expect("text").to_owned();
        (number(&row["where"]["hidden_size"]), text(&row["tokens"]), number(&row["params"]["block_size"]))
    };
    let found: Vec<(i64, String, i64)> = rows.map(of).collect();
    // The two of 2,880 choose alike, so they are one; what lies behind 400 was judged nowhere.
    assert_eq!(found, [(2880, "33-400".into(), 256), (4096, "1+".into(), 256)]);
}

#[test]
fn a_row_of_another_model_is_measured_anew_by_the_process_that_measures() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = row(&format!("source = \"{}\"\n", "0".repeat(64)))
        .replace("precision", "hidden_size = 1024, precision") // Qwen3-0.6B's
        .replace("linear/dot", "rmsnorm/rows")
        .replace("\"linear\"", "\"rmsnorm\"")
        .replace("3-8", "3");
    fs::write(folder.path().join("host.toml"), table).expect("written");
    let (tables, journal) = (folder.path().to_str().expect("a name"), folder.path().join("journal"));
    let job = ["tune", "--stale", "--device", "cpu", "--op", "rmsnorm", "--most", "1", "--tuning", tables, "--write"];
    run(&[&job[..], &["--journal", journal.to_str().expect("a name")]].concat()).ok();

    let files = fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("an entry").path());
    let written: Vec<String> = files
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("x86-64")))
        .map(|path| fs::read_to_string(path).expect("text"))
        .collect();
    let [table] = &written[..] else { panic!("{written:?}") };
    let table: toml::Table = table.parse().expect("a table");
    let [row] = &table["rows"].as_array().expect("rows")[..] else { panic!("{table}") };
    assert_eq!(row["where"]["hidden_size"].as_integer(), Some(1024));
    assert_eq!(row["timed_at"].as_integer(), Some(3));
    assert!(row["time_us"].as_float().is_some_and(|us| us > 0.0), "{row}");
}
