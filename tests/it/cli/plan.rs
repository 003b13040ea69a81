//! `kernels plan`: what it says is what is loaded, with the reasons; and what is said of a template that loses to a
//! row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::blueprint::{Blueprint, ModelOptions, PrefixCache};
use engine::graph::StepShape;
use engine::graph::placement::{EmbeddingPlace, Place};
use engine::plan::decisions::Decisions;
use engine::{Engine, EngineOptions};
use format::Dtype;
use gpu::host::HostDriver;
use kernel::choice::Chooser;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Params, Precision};
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use serde_json::{Value, json};

use crate::fixtures::models::Fixture;
use crate::fixtures::program::{Ran, argument, file, run, shared_cache};
use crate::fixtures::skipped;

/// A folder with templates and tables of one's own.
struct Own {
    folder: tempfile::TempDir,
}

impl Own {
    fn new() -> Self {
        let own = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        for name in ["templates", "tuning"] {
            fs::create_dir(own.folder.path().join(name)).expect("made");
        }
        own
    }

    fn path(&self, name: &str) -> String {
        argument(&self.folder.path().join(name))
    }

    /// Puts a built-in template into the folder under another name, with a priority.
    fn template(&self, from: &str, to: &str, priority: i64) {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(from));
        let text =
            text.expect("a built-in template").replacen("\nsummary ", &format!("\npriority = {priority}\nsummary "), 1);
        file(self.folder.path(), &format!("templates/{to}"), text.as_bytes());
    }

    /// Puts rows into a table: op and template of each.
    fn rows(&self, table: &str, rows: &[(&str, &str)]) {
        let mut text = "[provenance.hand]\nkind = \"hand\"\ndate = \"2026-11-22\"\nmethod = \"judgement\"\n".to_owned();
        for (op, template) in rows {
            text += &format!("\n[[rows]]\nop = {op}\nuse = \"{template}\"\nprovenance = \"hand\"\n");
        }
        file(self.folder.path(), &format!("tuning/{table}"), text.as_bytes());
    }

    /// A command with both folders.
    fn command(&self, args: &[&str]) -> Ran {
        let (templates, tuning) = (self.path("templates"), self.path("tuning"));
        run(&[args, &["--templates", &templates, "--tuning", &tuning]].concat())
    }

    /// The plan of the built-in tiny model on this machine's cores.
    fn plan(&self, args: &[&str]) -> Value {
        self.command(&[&["kernels", "plan", "--device", "cpu", "--json"], args].concat()).ok().json()
    }

    /// What a short run of it warns of.
    fn warnings(&self) -> Vec<String> {
        let ran = self.command(&["run", "--device", "cpu", "-i", "Once", "-n", "4"]).ok();
        ran.stderr.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
    }
}

fn launches(plan: &Value) -> &Vec<Value> {
    plan["launches"].as_array().expect("a list")
}

/// The launches of nodes of this name at so many rows of a decode step.
fn at<'a>(plan: &'a Value, nodes: &'a str, n: u64) -> Vec<&'a Value> {
    let holds = |launch: &&Value| {
        let rows = &launch["rows"];
        let range = rows["first"].as_u64().expect("a number")..=rows["last"].as_u64().expect("a number");
        launch["nodes"].as_str().expect("text").ends_with(nodes) && launch["step"] != "mixed" && range.contains(&n)
    };
    launches(plan).iter().filter(holds).collect()
}

/// Rows by which another kernel runs for few rows than for many, and a run of ops is fused for the fewest.
const ROWS: &str = r#"
[provenance.hand]
kind   = "hand"
date   = "2026-11-22"
method = "judgement"

[[rows]]
op         = "linear"
tokens     = "1-8"
use        = "linear/dot"
params     = { tile_t = 8 }
provenance = "hand"

[[rows]]
op         = "linear"
tokens     = "9+"
use        = "linear/dot"
params     = { tile_t = 64 }
provenance = "hand"

[[rows]]
op         = ["rmsnorm", "linear"]
tokens     = "1-2"
use        = "rmsnorm+linear/dot"
provenance = "hand"
"#;

#[test]
fn what_is_planned_without_a_device_is_what_is_loaded() {
    let fixture = Fixture::open("odd");
    let checkpoint = Checkpoint::open(Path::new(&fixture.path("model.bin")), Layout::Auto).expect("a model");
    let model = ModelOptions {
        precision: Precision::F32,
        kv_dtype: Dtype::F32,
        n_slots: 1,
        capacity_tokens: 64,
        max_rows: 512,
        max_logit_rows: 1,
        odd_window: None,
        kv_budget_bytes: 1 << 30,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::Device,
    };
    let library = || Library::load(&[]).expect("built in");
    let tables = || TuningTables::from_texts(&[("host", ROWS)]).expect("right");
    let Blueprint { graph, limits, .. } =
        Blueprint::new(&checkpoint, &model, &Target::host(), &library()).expect("fits");
    let chooser = Chooser::new(library(), tables(), Target::host()).expect("tables that are right");
    let decisions = Decisions::new(&graph, Place::Device, &chooser, limits).expect("templates fit");
    let first = |decision| &decisions.ranking(decision).choices[0];
    let planned: BTreeSet<(String, Params)> =
        decisions.all.iter().map(first).map(|choice| (choice.template.label(), choice.params.clone())).collect();

    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), CompilerOptions::new(worker));
    let driver = Arc::new(HostDriver::new(1).expect("a thread"));
    let pipeline = Pipeline::new(library(), tables(), Target::host(), store, driver).expect("tables that are right");
    let engine = Engine::load(
        &checkpoint,
        EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None },
        &(),
    )
    .expect("loads");
    let loaded = engine.executor().kernels().into_iter();
    let loaded: BTreeSet<(String, Params)> =
        loaded.map(|(_, kernel)| (kernel.rendered.label.clone(), kernel.rendered.params.clone())).collect();
    assert_eq!(planned, loaded);
    let of_linear = planned.iter().filter(|(label, _)| label == "linear/dot").count();
    assert!(of_linear == 2 && planned.iter().any(|(label, _)| label.contains('+')), "{planned:?}");

    for (n_rows, kind) in [(1, StepKind::Decode), (2, StepKind::Mixed), (9, StepKind::Mixed), (512, StepKind::Mixed)] {
        let shape = StepShape { n_rows, n_logit_rows: 1, kind, compares: false };
        let of_step = decisions.all.iter().filter(|decision| {
            let n = shape.count(decision.rows);
            decision.step == kind && (decision.first_row_count..=decision.last_row_count).contains(&n)
        });
        assert_eq!(of_step.count(), engine.executor().n_launches(shape), "{n_rows} rows");
    }
}

#[test]
fn gpt_oss_20b_is_planned_for_chips_that_are_not_here() {
    for (arch, of_a_layer) in [("gfx1100", 6), ("sm_90", 7)] {
        let plan = run(&["kernels", "plan", "--shape", "gpt-oss-20b", "--arch", arch, "--json"]).ok().json();
        assert_eq!((&plan["model"], &plan["target"]), (&"gpt-oss-20b".into(), &arch.into()));
        // Every layer is there once for each node and number of rows, and attention is of two kinds.
        let mlp1 = at(&plan, ".mlp.mlp1", 1);
        assert_eq!(mlp1.len(), 1, "{arch}");
        assert_eq!(mlp1[0]["layers"].as_array().expect("a list").len(), 24, "{arch}");
        let layers: Vec<usize> =
            at(&plan, ".attention", 1).iter().map(|one| one["layers"].as_array().expect("a list").len()).collect();
        assert_eq!(layers, [12, 12], "{arch}");
        // A step of one row has the launches that `cover.rs` counts; three more if it asks for all.
        let asked_for = |one: &&&Value| ["changed", "logprobs"].map(Some).contains(&one["rows"]["of"].as_str());
        assert_eq!(at(&plan, "", 1).iter().filter(asked_for).count(), 3);
        let n_launches: usize = at(&plan, "", 1)
            .iter()
            .filter(|one| !asked_for(one))
            .map(|one| one["layers"].as_array().expect("a list").len().max(1))
            .sum();
        assert_eq!(n_launches, 24 * of_a_layer + 6, "{arch}");
        for launch in launches(&plan) {
            check_row(&launch["row"]);
            launch["other_rows"].as_array().expect("a list").iter().for_each(check_row);
        }
        assert!(launches(&plan).iter().any(|one| !one["other_rows"].as_array().expect("a list").is_empty()), "{arch}");
        assert_eq!(plan["overruled"], json!([]));
    }
}

/// The row for three and four tokens keeps the rows of x in LDS, which has no room for four of 4,096 features. Defaults
/// would read the weights once for each token.
#[test]
fn a_run_whose_row_does_not_fit_is_done_one_by_one() {
    let plan = ["kernels", "plan", "--shape", "llama-3.1-8b", "--arch", "gfx1100", "--op", "linear", "--json"];
    let templates_at = |n_rows: &str| -> BTreeSet<String> {
        let plan = run(&[&plan[..], &["--tokens", n_rows]].concat()).ok().json();
        launches(&plan).iter().map(|one| one["template"].as_str().expect("a name").to_owned()).collect()
    };
    assert!(templates_at("2").contains("rmsnorm+linear/gemv"), "{:?}", templates_at("2"));
    assert!(!templates_at("4").contains("rmsnorm+linear/gemv"), "{:?}", templates_at("4"));
}

/// Where a row is said to be, there is one.
fn check_row(row: &Value) {
    let Some(place) = row["place"].as_str() else { return };
    let (table, line) = place.strip_prefix("<built in>/").and_then(|rest| rest.split_once(':')).expect(place);
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning").join(table)).expect(place);
    let line: usize = line.parse().expect(place);
    let lines: Vec<&str> = text.lines().skip(line - 1).collect();
    assert_eq!(lines[0], "[[rows]]", "{place}");
    let body: Vec<&str> = lines[1..].iter().take_while(|line| line.contains('=')).copied().collect();
    for quoted in [&row["use"], &row["provenance"]["name"]] {
        let quoted = format!("\"{}\"", quoted.as_str().expect("text"));
        assert!(body.iter().any(|line| line.contains(&quoted)), "{place}: {quoted} is not in {body:?}");
    }
}

#[test]
fn the_table_is_narrowed_and_has_all_reasons_if_asked() {
    let plan = ["kernels", "plan", "--shape", "gpt-oss-20b", "--arch", "gfx1100", "--op", "attention", "--tokens", "3"];
    let ran = run(&plan).ok();
    let lines: Vec<&str> = ran.text().lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 2, "two kinds of layers, two kinds of steps: {}", ran.text());
    assert!(lines[1].starts_with("block.0,2,..,22.attn.attention "), "{}", lines[1]);
    assert!(lines[1].contains(" decode ") && lines[1].contains(" <built in>/matrix.toml:"), "{}", lines[1]);
    let ran = run(&[&plan[..], &["--why"]].concat()).ok();
    for told in
        ["\n  by row     <built in>/matrix.toml:", "\n  behind it  ", "\n  no         attention/online is for C"]
    {
        assert!(ran.text().contains(told), "{told}: {}", ran.text());
    }
    assert!(ran.text().contains("priority 0; a tuning row goes before priorities"), "{}", ran.text());
    let stderr = run(&["kernels", "plan", "--arch", "gfx1100", "--op", "convolution"]).fails(2);
    assert!(stderr.contains("--op convolution: not in the forward pass, expected one of: take_token, "), "{stderr}");
    let stderr = run(&["kernels", "plan", "--arch", "gfx9999"]).fails_with_hint(1);
    assert!(stderr.contains("nothing is known about the arch `gfx9999`"), "{stderr}");
}

/// So that an answer does not depend on how many run beside it; but experts have another for up to 16 rows.
#[test]
fn a_host_with_a_matrix_unit_has_one_template_for_a_node_of_gpt_oss_whatever_the_rows() {
    if !Target::host().features.contains("amx_bf16") {
        return skipped("no AMX with bf16 that this process may use");
    }
    for shape in ["gpt-oss-20b", "gpt-oss-120b"] {
        let plan = run(&["kernels", "plan", "--device", "cpu", "--json", "--shape", shape]).ok().json();
        for (op, want) in [
            ("linear", ["linear/amx", "linear/dot"]), // the router's matrix is small
            ("attention", ["attention/amx"; 2]),
        ] {
            let mut of_nodes = BTreeMap::<String, BTreeSet<&str>>::new();
            let does = |launch: &&Value| launch["ops"].as_array().expect("a list").contains(&op.into());
            for launch in launches(&plan).iter().filter(does) {
                let template = launch["template"].as_str().expect("a name");
                of_nodes.entry(launch["nodes"].to_string()).or_default().insert(template);
            }
            assert!(!of_nodes.is_empty(), "{op}: {plan}");
            for (nodes, templates) in of_nodes {
                let is_one = templates.len() == 1 && templates.iter().all(|template| want.contains(template));
                assert!(is_one, "{shape}, {nodes}: {templates:?}");
            }
        }
        for op in ["moe_mlp1", "moe_mlp2"] {
            let does = |launch: &&Value| launch["ops"][0] == op;
            for launch in launches(&plan).iter().filter(does) {
                let few = launch["rows"]["last"].as_u64().expect("a number") <= 16;
                let want = format!("{op}/{}", if few { "grouped" } else { "amx" });
                assert_eq!(launch["template"], want, "{shape}: {launch}");
            }
        }
    }
}

#[test]
fn a_template_that_loses_to_a_row_is_told_once_and_a_row_makes_it_win() {
    let own = Own::new();
    own.template("linear/dot.c.j2", "linear/mine.c.j2", 10);
    // Where no row decides, its priority does.
    assert_eq!(at(&own.plan(&[]), ".attn.out", 1)[0]["template"], "linear/mine");

    own.rows("host.toml", &[("\"linear\"", "linear/dot")]);
    let plan = own.plan(&["--op", "linear"]);
    let out = at(&plan, ".attn.out", 1)[0];
    assert_eq!((&out["template"], &out["priority"]), (&"linear/dot".into(), &0.into()));
    assert_eq!(out["row"]["place"], format!("{}/host.toml:6", own.path("tuning")));
    assert_eq!(out["next"][0]["template"], "linear/mine");
    assert_eq!(out["next"][0]["why"], "priority 10; a tuning row goes before priorities");
    let overruled: Vec<&Value> = plan["overruled"].as_array().expect("a list").iter().collect();
    let by_row = overruled.iter().find(|one| one["why"].as_str().is_some_and(|why| why.contains("uses `linear/dot`")));
    let by_row = by_row.unwrap_or_else(|| panic!("{overruled:?}"));
    // Mixed steps begin at two rows; the few rows of theirs that give logits have it fused.
    let everywhere =
        json!([{ "step": "decode", "first": 1, "last": 32 }, { "step": "mixed", "first": 2, "last": 512 }]);
    assert_eq!((&by_row["template"], &by_row["rows"]), (&"linear/mine".into(), &everywhere));
    let text = own.command(&["kernels", "plan", "--device", "cpu"]).ok();
    assert!(text.text().contains("`linear/mine` of "), "{}", text.text());

    let warnings = own.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for told in ["`linear/mine` of ", "priority 10", "host.toml:6 uses `linear/dot`", "--tuning DIR", "kernels plan"] {
        assert!(warnings[0].contains(told), "{told}: {warnings:?}");
    }

    own.rows("host.toml", &[("\"linear\"", "linear/mine")]);
    assert_eq!(own.warnings(), Vec::<String>::new());
    let plan = own.plan(&[]);
    let out = at(&plan, ".attn.out", 1)[0];
    assert_eq!((&out["template"], &out["row"]["use"]), (&"linear/mine".into(), &"linear/mine".into()));
    assert_eq!(plan["overruled"], json!([]));
}

#[test]
fn a_template_whose_op_is_fused_is_told_and_a_row_has_the_ops_done_apart() {
    let own = Own::new();
    own.template("rmsnorm/rows.c.j2", "rmsnorm/mine.c.j2", 10);
    let plan = own.plan(&[]);
    let fused = at(&plan, ".attn.norm + qkv", 1);
    assert_eq!(fused.len(), 1, "the built-in rows fuse: {plan}");
    let why = plan["overruled"][0]["why"].as_str().expect("text");
    assert!(why.contains("fuses its op into `rmsnorm+linear/dot`"), "{why}");
    let warnings = own.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("use = \"apart\""), "{warnings:?}");

    own.rows("host.toml", &[("[\"rmsnorm\", \"linear\"]", "apart")]);
    let plan = own.plan(&[]);
    assert!(at(&plan, ".attn.norm + qkv", 1).is_empty(), "{plan}");
    let norm = at(&plan, ".attn.norm", 1)[0];
    assert_eq!(norm["template"], "rmsnorm/mine");
    let why = norm["unfused"].as_array().expect("a list").iter().map(|run| run["why"].clone()).collect::<Vec<_>>();
    assert_eq!(
        why,
        [json!(format!("the row {}/host.toml:6 says `apart`: its ops run one by one", own.path("tuning")))]
    );
    assert_eq!(own.warnings(), Vec::<String>::new());
}

/// Who copies the folder to change one file of it wrote none of the others.
#[test]
fn a_copy_of_a_built_in_template_is_nobodys_own() {
    let own = Own::new();
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/rmsnorm/rows.c.j2"));
    file(own.folder.path(), "templates/rmsnorm/rows.c.j2", &text.expect("a built-in template"));
    let plan = own.plan(&[]);
    assert_eq!(at(&plan, ".attn.norm + qkv", 1).len(), 1, "the built-in rows fuse: {plan}");
    assert_eq!(plan["overruled"], json!([]));
    assert_eq!(own.warnings(), Vec::<String>::new());
}

#[test]
fn a_fused_template_that_no_row_asks_for_is_told() {
    let own = Own::new();
    own.template("rmsnorm+linear/dot.c.j2", "rmsnorm+linear/mine.c.j2", 10);
    let plan = own.plan(&[]);
    let why: Vec<&str> =
        plan["overruled"].as_array().expect("a list").iter().filter_map(|one| one["why"].as_str()).collect();
    // Few rows: the built-in row uses another one. Many: none says that they are to be fused.
    assert!(why.iter().any(|why| why.contains("host.toml") && why.contains("uses `rmsnorm+linear/dot`")), "{why:?}");
    assert!(why.contains(&"no tuning row says that its ops are to be fused"), "{why:?}");
}

#[test]
fn what_shadows_what_and_which_rows_are_passed_over_is_planned() {
    let own = Own::new();
    own.template("rmsnorm/rows.c.j2", "rmsnorm/rows.c.j2", 3);
    own.rows("host.toml", &[("\"rmsnorm\"", "rmsnorm/gone"), ("[\"rmsnorm\", \"linear\"]", "rmsnorm+linear/dot")]);
    let ran = own.command(&["kernels", "plan", "--device", "cpu"]).ok();
    let hides = format!("{}/rmsnorm/rows.c.j2 hides rmsnorm/rows.c.j2 of built in", own.path("templates"));
    assert!(ran.text().contains(&hides), "{}", ran.text());
    let plan = own.plan(&[]);
    let norm = at(&plan, ".mlp.norm", 1)[0];
    assert_eq!(norm["row"], Value::Null);
    let passed = format!(
        "{}/host.toml:6: the row is passed over: there is no template `rmsnorm/gone`; did you mean `rmsnorm/row`?",
        own.path("tuning")
    );
    assert_eq!(norm["warnings"], json!([passed]));
    // The row of one's own stands before the built-in one.
    let fused = at(&plan, ".attn.norm + qkv", 1)[0];
    assert_eq!(fused["row"]["place"], format!("{}/host.toml:11", own.path("tuning")));
    let behind = fused["other_rows"][0]["place"].as_str().expect("the built-in row");
    assert!(behind.starts_with("<built in>/host.toml:"), "{behind}");
}

#[test]
fn a_shown_kernel_is_the_text_alone_and_stderr_says_what_it_is_for() {
    let ran = run(&["kernels", "show", "attention/flash", "--arch", "gfx1100"]).ok();
    let shown = run(&["kernels", "show", "attention/flash", "--arch", "gfx1100", "--json"]).ok().json();
    assert_eq!(shown["source"], ran.text());
    assert_eq!(shown["problem"]["from"], "block.0.attn.attention of gpt-oss-20b");
    assert_eq!(shown["problem"]["flags"]["matrix_layout"], true);
    let about = "attention/flash for gfx1100, as in block.0.attn.attention of gpt-oss-20b: ";
    assert!(ran.stderr.starts_with(about) && ran.stderr.contains("window=128"), "{}", ran.stderr);
    // Another model has other dimensions, where the op has any of them; what no model has is of the op's tests.
    let experts = |shape: &str| {
        let args = ["kernels", "show", "moe_mlp1/dot4", "--arch", "sm_90", "--json", "--shape", shape];
        run(&args).ok().json()["problem"]["dims"]["num_experts"].clone()
    };
    assert_eq!((experts("gpt-oss-20b"), experts("gpt-oss-120b")), (32.into(), 128.into()));
    let ran = run(&["kernels", "show", "peak_copy/stream", "--arch", "sm_90"]).ok();
    assert!(ran.stderr.contains("as in test 1 of peak_copy: "), "{}", ran.stderr);
}
