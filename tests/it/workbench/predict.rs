//! Predicted times: of a kernel that hipRTC makes, and held against a journal, which here says what it is told to.

use std::path::Path;
use std::process::Command;

use format::Dtype;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::render::render;
use kernel::template::work::Padded;
use kernel::template::{Precision, Problem};
use serde_json::{Value, json};

use crate::fixtures::program::{self, Ran, command, repository, shared_cache};
use crate::object::hiprtc;
use crate::workbench::isa::llvm;

/// The program with hipRTC and LLVM's tools, where they are.
pub(super) fn run(args: &[&str]) -> Ran {
    Ran::new(args, with_tools(args).output().expect("started"))
}

pub(super) fn with_tools(args: &[&str]) -> Command {
    let mut command = command(shared_cache(), args);
    for (variable, fetched) in [("GPTOSS_JIT_HIPRTC", "target/hiprtc"), ("GPTOSS_JIT_LLVM", "target/llvm")] {
        let named = std::env::var_os(variable).map(Into::into);
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join(fetched);
        if let Some(folder) = named.or_else(|| fetched.join(".complete").exists().then_some(fetched)) {
            command.env(variable, folder);
        }
    }
    command
}

fn line(rows: u32, time_us: f64) -> String {
    json!({
        "key": rows.to_string(), "said": { "time": { "times_us": [time_us] } },
        "about": {
            "op": "rmsnorm", "dims": {}, "rows": rows, "step": "decode", "template": "rmsnorm/row",
            "params": { "block_size": 256, "vec": 4 }, "rounds": 5,
        },
    })
    .to_string()
}

#[test]
fn predictions_are_held_against_a_journal_and_drawn() {
    if llvm("llvm-mca").is_none() || hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (journal, svg) = (folder.path().join("journal.jsonl"), folder.path().join("plot.svg"));
    let rows = [4096, 64, 16_384];
    let lines: Vec<String> = rows.iter().map(|&rows| line(rows, 10.0 / f64::from(rows))).collect();
    std::fs::write(&journal, lines.join("\n")).expect("written");
    let (journal, svg) = (journal.to_str().expect("a name"), svg.to_str().expect("a name"));
    let ran = run(&["kernels", "predict", "--arch", "gfx1100", "--against", journal, "--svg", svg, "--json"]).ok();
    let report: Value = ran.json();
    let kernels = report["kernels"].as_array().expect("a list");
    let predicted = |rows: u32| {
        let one = kernels.iter().find(|one| one["rows"] == rows).expect("it is there");
        one["predicted_us"].as_f64().expect("a number")
    };
    // x in f32 and y in bf16, each once, at 95 % of 960 GB/s, and a launch of 2 us: less is not to be had. What waits
    // and what the last cache serves beside it was predicted to be 18 % more of many rows; of few rows it is the
    // memory's latency, half a microsecond, up to ten times in turn.
    for rows in rows {
        let least_us = (4.0 + 2.0) * 2880.0 * f64::from(rows) / 960e9 * 1e6;
        assert!(
            predicted(rows) > least_us / 0.95 + 2.0 && predicted(rows) < 1.5 * least_us + 2.0 + 5.0,
            "{rows}: {}",
            predicted(rows)
        );
    }
    assert!(predicted(64) < predicted(4096) && predicted(4096) < predicted(16_384));
    // The journal says that more rows take less time: the very opposite order.
    let op = &report["ops"][0];
    assert_eq!((&op["n"], &op["rank_correlation"], &op["choices"]), (&json!(3), &json!(-1.0), &json!(0)));
    let drawn = std::fs::read_to_string(svg).expect("drawn");
    assert_eq!(drawn.matches("<title>").count(), 6, "three measured, three predicted");
}

#[test]
fn tiles_that_are_not_full_are_counted_whole_and_blocks_without_a_tile_not_at_all() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::gpu("gfx1100").expect("known");
    let dims = [("hidden_size", 2880), ("intermediate_size", 2880), ("num_experts", 4), ("experts_per_token", 2)];
    let problem = Problem {
        dims: dims.map(|(name, value)| (name.to_owned(), value)).into(),
        constants: ["swiglu_limit", "swiglu_alpha", "swiglu_offset"].map(|name| (name.to_owned(), 1.0)).into(),
        flags: [("has_bias".to_owned(), true)].into(),
        dtypes: [("weight".to_owned(), Dtype::Mxfp4), ("bias".to_owned(), Dtype::Bf16)].into(),
        ..Problem::plain("moe_mlp1", Precision::Bf16)
    };
    let template = library.template("moe_mlp1/matrix", target.language()).expect("it is there");
    let params = ["tile_t", "tile_n", "tile_k"].map(|name| (name.to_owned(), 64)).into();
    let rendered = render(&library, template, &problem, &params, &target).expect("legal");
    // 40 tokens: experts have 0, 1, 64 and 15 rows: none, one, one and one tile of 64, for each of 90 tiles of weights.
    let scalars = [("n_tokens".to_owned(), 40)].into();
    let inputs = [("expert_begin".to_owned(), vec![0, 0, 1, 65, 80])].into();
    let padded = rendered.launch.padded(&scalars, &inputs).expect("a number");
    assert_eq!((padded.blocks, padded.flop), (Some(3 * 90), Some(2.0 * 3.0 * 64.0 * 5760.0 * 2880.0)));
    let launched: u32 = rendered.launch.grid(&scalars).expect("a number").iter().product();
    assert!(launched > 3 * 90, "{launched}: as many as any routing may need");
    // A template that says nothing of it has what its contract says.
    let template = library.template("moe_mlp1/dot4", target.language()).expect("it is there");
    let rendered = render(&library, template, &problem, &Default::default(), &target).expect("legal");
    assert_eq!(rendered.launch.padded(&scalars, &inputs).expect("nothing"), Padded::default());
}

#[test]
fn speed_says_a_time_beside_what_runs_today() {
    if llvm("llvm-mca").is_none() || hiprtc::compiler().is_none() {
        return;
    }
    // By its name, without what is fused with it.
    let row = ["--variant", "rmsnorm/row"];
    let ran = run(&[&["kernels", "check", "--arch", "gfx1100", "--speed", "--json"][..], &row].concat()).ok();
    let report = ran.json();
    let times = report["times"].as_array().expect("a list");
    let row = times.iter().find(|time| time["op"] == "rmsnorm" && time["variant"] == "row").expect("it is there");
    assert_eq!((&row["incumbent"], &row["rows"]), (&json!("row"), &json!(1)));
    assert_eq!(row["predicted_us"], row["incumbent_us"], "it is what runs today");
    assert!(row["predicted_us"].as_f64().is_some_and(|us| us > 3.0 && us < 7.0), "{row}");
    assert!(report["kernels"].as_array().is_some_and(|kernels| !kernels.is_empty()), "{report}");
}

#[test]
fn a_chip_of_which_nothing_is_known_has_no_prediction() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal.jsonl");
    std::fs::write(&journal, line(64, 2.0)).expect("written");
    let journal = journal.to_str().expect("a name");
    let said = run(&["kernels", "predict", "--arch", "gfx900", "--against", journal]).fails_with_hint(1);
    assert!(said.contains("nothing is known of the speed of gfx900"), "{said}");
    let said = run(&["kernels", "predict", "--arch", "gfx1100", "--against", journal, "--op", "linear"]).fails(2);
    assert!(said.contains("has no times of these ops"), "{said}");
}

#[test]
fn a_kernel_whose_loop_the_instruction_cache_does_not_hold_has_no_prediction() {
    if llvm("llvm-mca").is_none() || hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("gfx1100.toml");
    let built_in = std::fs::read_to_string(repository().join("tuning/gfx1100.toml")).expect("it is there");
    let product = "[target.product]";
    let facts = &built_in[..built_in.find("[provenance").expect("rows come behind what the chip is")];
    assert!(facts.contains(product), "{facts}");
    let tune = |cache_bytes: u64| {
        let (before, behind) = facts.split_once(product).expect("seen above");
        let line = behind.find('\n').expect("keys follow") + 1;
        let (head, keys) = behind.split_at(line);
        let text = format!("{before}{product}{head}instruction_cache_bytes = {cache_bytes}\n{keys}");
        std::fs::write(&table, text).expect("written");
        let tuning = folder.path().to_str().expect("a name");
        let one = ["--op", "rmsnorm", "--params", "block_size=256,vec=4", "--tokens", "1", "--dry-run"];
        run(&[&["tune", "--arch", "gfx1100", "--tuning", tuning][..], &one].concat())
    };
    let said = tune(64).fails(1);
    let bytes = said.split("its loop of ").nth(1).and_then(|rest| rest.split(' ').next()).expect("how long it is");
    let bytes: u64 = bytes.parse().expect("a number");
    assert!(bytes > 64 && said.contains("more than the instruction cache of 64 holds: no prediction"), "{said}");
    assert!(tune(bytes - 1).fails(1).contains("no prediction"));
    assert!(tune(bytes).ok().text().contains("rmsnorm/row"));
}

/// What Debian's LLVM 14 says of a chip that came later.
const OLD_MCA: &str = "#!/bin/sh\ncase \"$1\" in --version) echo '  Debian LLVM version 14.0.6'; exit 0;; esac\n\
     echo \"llvm-mca: error: unable to find instruction-level scheduling information for target triple\" >&2\nexit 1\n";

#[test]
fn tune_ends_without_an_llvm_that_knows_the_chip() {
    use std::os::unix::fs::PermissionsExt as _;
    if hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mca = folder.path().join("llvm-mca");
    std::fs::write(&mca, OLD_MCA).expect("written");
    std::fs::set_permissions(&mca, std::fs::Permissions::from_mode(0o755)).expect("executable");
    // comgr disassembles: this one is not started.
    let (objdump, started) = (folder.path().join("llvm-objdump"), folder.path().join("started"));
    std::fs::write(&objdump, format!("#!/bin/sh\necho >> {}\nexit 1\n", started.display())).expect("written");
    std::fs::set_permissions(&objdump, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for arch in ["gfx1100", "gfx942"] {
        let args = ["tune", "--arch", arch, "--op", "rmsnorm", "--tokens", "8", "--most", "2", "--dry-run"];
        let mut command = with_tools(&args);
        command.env("PATH", &path).env_remove("GPTOSS_JIT_LLVM").current_dir(folder.path());
        command.env("GPTOSS_JIT_CACHE", folder.path().join("cache"));
        let ran = Ran::new(&args, command.output().expect("started")).ok();
        assert_eq!(ran.stderr.matches("times are predicted by counting instructions").count(), 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("tests/fetch-llvm.sh"), "{}", ran.stderr);
        assert!(ran.text().contains("rmsnorm/row") && !started.exists(), "{}", ran.text());
    }
}

/// A kernel that is fast and stores zeros.
const CHEAT: &str = r#"{#
op = "linear"
summary = "stores zeros"
[requires]
dtypes = { weight = ["bf16"] }
[launch]
grid = ["ceil_div(out_features, 64)", "n_tokens"]
block_size = "64"
#}
{% include "lib/hip/vectors.hip.j2" %}

{{ signature }} {
  const u32 n = blockIdx.x * 64 + threadIdx.x;
  if (n < {{ out_features }}) y[(size_t)blockIdx.y * {{ out_features }} + n] = 0;
}
"#;

#[test]
fn what_is_fast_and_wrong_gets_no_row() {
    if hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let _ = program::file(folder.path(), "cheat/linear/cheat.hip.j2", CHEAT.as_bytes());
    let name = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    let (templates, journal) = (name("cheat"), name("journal.jsonl"));
    let tune = |tuning: &str, more: &[&str]| {
        let args = ["tune", "--arch", "gfx1100", "--op", "linear", "--variant", "cheat", "--tokens", "8", "--write"];
        let dims = ["--dims", "in_features=2880,out_features=5120", "--templates", &templates, "--journal", &journal];
        let ran = run(&[&args[..], &dims, &["--tuning", tuning], more].concat()).ok();
        let table = std::fs::read_to_string(Path::new(tuning).join("gfx1100.toml")).unwrap_or_default();
        (ran, table)
    };
    let (ran, table) = tune(&name("checked"), &[]);
    let wrong = ran.stderr.lines().find(|line| line.contains("linear/cheat is wrong in the simulator"));
    assert!(wrong.is_some_and(|wrong| wrong.contains(": `y`[") && wrong.contains("]: got 0, want ")), "{}", ran.stderr);
    assert!(!table.contains("linear/cheat") && !ran.text().contains("rows that are written"), "{table}{}", ran.text());
    let (ran, table) = tune(&name("unchecked"), &["--unchecked"]);
    assert!(table.contains("linear/cheat"), "{}", ran.stderr);
    assert!(ran.text().trim_end().lines().last().is_some_and(|line| line.contains("linear/cheat")), "{}", ran.text());
    // What is right wherever the simulator looks, and never compiled there where it is not.
    let (head, zero) = ("{{ signature }} {\n", "  if (n_tokens > 0) { y[0] = 0; return; }\n");
    let right = std::fs::read_to_string(repository().join("templates/linear/gemv.hip.j2")).expect("it is there");
    let hidden = right.replace(head, &format!("{head}#if defined(__AMDGCN__)\n{zero}#endif\n"));
    assert!(hidden.contains(zero));
    let _ = program::file(folder.path(), "cheat/linear/cheat.hip.j2", hidden.as_bytes());
    let (ran, table) = tune(&name("hidden"), &["--most", "1"]);
    let line = 1 + hidden.lines().position(|line| line == zero.trim_end()).expect("it is there");
    let unchecked = ran.stderr.lines().find(|line| line.contains("linear/cheat") && line.contains("was not checked"));
    let why = format!("the simulator does not compile line {line}, which a GPU's compiler sees");
    assert!(unchecked.is_some_and(|line| line.contains(&why)), "{}", ran.stderr);
    assert!(!table.contains("linear/cheat"), "{table}");
}
