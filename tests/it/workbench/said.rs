//! What is said where a table, a template or a row is not used as its author thinks, and that a search ends in time
//! whatever its tools do.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::predict;
use crate::fixtures::program::{Ran, argument, file, repository, run};
use crate::fixtures::skipped;
use crate::object::hiprtc;

const HAND: &str = "provenance.hand = { kind = \"hand\", date = DATE, method = \"a test\" }\n";
const ROW: &str = "[[rows]]\nop = \"attention\"\nuse = \"attention/flash\"\nprovenance = \"hand\"\n";

/// One kernel of rmsnorm for gfx1100, at one row: there it only runs as a part of longer runs.
const ONE: [&str; 9] =
    ["tune", "--arch", "gfx1100", "--op", "rmsnorm", "--params", "block_size=256,vec=4", "--tokens", "1"];

#[test]
fn a_hip_kernel_without_an_arch_is_told_alone_and_with_the_simulator_that_runs_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(repository().join("templates/embedding/row.hip.j2")).expect("it is there");
    let _ = file(folder.path(), "embedding/own.hip.j2", text.as_bytes());
    let templates = argument(folder.path());
    let check = |more: &[&str]| run(&[&["kernels", "check", "--templates", &templates], more].concat()).fails(2);
    for names in
        [&["--op", "embedding", "--variant", "own"][..], &["--variant", "own"], &["--variant", "embedding/own"]]
    {
        let said = check(names);
        assert!(said.contains(": embedding/own is in HIP; `--arch sim:gfx1100` runs it in the simulator"), "{said}");
    }
    let said = check(&["--op", "linear", "--variant", "own"]);
    assert!(said.contains("`linear` has no variant `own`: `gptoss-jit kernels ls --op linear --why`"), "{said}");
    assert!(check(&["--op", "embedding", "--variant", "owm"]).contains("did you mean `own`?"));
}

#[test]
fn tables_of_no_chip_and_what_toml_means_otherwise_are_told_in_our_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let tuning = argument(folder.path());
    let args = ["kernels", "plan", "--arch", "gfx1100", "--op", "attention", "--tokens", "1", "--tuning", &tuning];
    let plan = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        let ran = run(&[&args[..], &["--json"]].concat());
        fs::remove_file(path).expect("removed");
        ran
    };
    let dated = |date: &str| HAND.replace("DATE", date) + ROW;
    let ran = plan("gfx110.toml", &dated("\"2026-11-26\"")).ok();
    let said = "nothing reads `gfx110.toml`: no chip has this name; did you mean `gfx1100.toml`?";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
    let ran = plan("gfx1100.tml", &dated("\"2026-11-26\"")).ok();
    let said =
        format!("nothing reads `{tuning}/gfx1100.tml`: tables are called `<arch>.toml`; did you mean `gfx1100.toml`?");
    assert_eq!(ran.stderr.matches(&said).count(), 1, "{}", ran.stderr);
    let path = folder.path().join("gfx110.toml");
    fs::write(&path, dated("\"2026-11-26\"")).expect("written");
    let ran = run(&["tune", "lint", "--tuning", &tuning]).ok();
    fs::remove_file(path).expect("removed");
    assert!(
        ran.text().lines().any(|line| line.starts_with("unread ") && line.contains("gfx110.toml")),
        "{}",
        ran.text()
    );
    // A date of TOML is a date.
    let ran = plan("gfx1100.toml", &dated("2026-11-26")).ok();
    let row = &ran.json()["launches"][0]["row"];
    let places = (&row["place"], &row["provenance"]["date"]);
    assert_eq!(places, (&format!("{tuning}/gfx1100.toml:2").into(), &"2026-11-26".into()), "{}", ran.stderr);
    assert!(!ran.stderr.contains("nothing reads"), "{}", ran.stderr);
    for (text, said) in [
        (dated("26"), "`date`: expected a date like \"2026-11-26\", found 26"),
        (dated("\"2031-13-45\""), "`date`: expected a date like \"2026-11-26\", found \"2031-13-45\""),
        (
            dated("2026-11-26") + "where = { precision = \"bf61\" }\n",
            "no precision has this name; did you mean `bf16`?",
        ),
        (dated("2026-11-26") + "where = { x = \"q9_0\" }\n", "no element type has this name; did you mean `q8_0`?"),
        (dated("2026-11-26").replace("[[rows]]", "[rows]"), "`[rows]`: each row begins with `[[rows]]`"),
    ] {
        let stderr = plan("gfx1100.toml", &text).fails_with_hint(1);
        assert!(stderr.contains(&format!("{tuning}/gfx1100.toml:")) && stderr.contains(said), "{said}: {stderr}");
    }
}

/// Rows that no plan ever follows: `apart` of one op, an instruction that the chip lacks, parameters that a constraint
/// refuses, a type that the template does not take, a size that no model has, and a template that is none.
#[test]
fn rows_that_decide_nothing_are_findings_and_warnings_with_their_reasons() {
    let folder = tempfile::tempdir().expect("a folder");
    let tuning = argument(folder.path());
    let bf16 = "precision = \"bf16\"";
    let rows = [
        ("apart", "", "", "`apart` is for runs of ops, and `linear` is a single one"),
        ("linear/wgmma", bf16, "", "`linear/wgmma` requires arch sm_90*, the target is gfx1100"),
        ("linear/gemv", "precision = \"bf16\", weight = \"bf16\"", "vec = 32", "a load is 16 bytes at most"),
        ("linear/gemv", "weight = \"bf16\", in_features = 12345", "", ": none has `in_features = 12345`"),
        ("linear/appart", "has_bias = true, precision = \"bf16\"", "", "there is no template `linear/appart`"),
        ("linear/matrix", "has_bias = true, weight = \"bf16\"", "", ""),
    ];
    let row = |(i, (name, wants, params, _)): (usize, &(&str, &str, &str, &str))| {
        format!(
            "[[rows]]\nop = \"linear\"\nuse = \"{name}\"\nwhere = {{ {wants} }}\nparams = {{ {params} }}\n\
             tokens = \"{}\"\nprovenance = \"hand\"\n",
            7 + i
        )
    };
    let table = HAND.replace("DATE", "2026-11-26") + &rows.iter().enumerate().map(row).collect::<String>();
    fs::write(folder.path().join("gfx1100.toml"), table).expect("written");
    let lint = run(&["tune", "lint", "--arch", "gfx1100", "--tuning", &tuning]);
    assert!(lint.code == 1 && lint.stderr.contains("tuning rows that cannot be used: 4"), "{}", lint.stderr);
    assert!(!lint.stderr.contains("warning"), "a finding is told once: {}", lint.stderr);
    let args = ["kernels", "plan", "--shape", "gpt-oss-20b", "--arch", "gfx1100", "--op", "linear", "--tokens", "7"];
    let plan = run(&[&args[..], &["--why", "--tuning", &tuning]].concat()).ok();
    for (i, (name, .., why)) in rows.iter().enumerate() {
        let place = format!("{tuning}/gfx1100.toml:{}", 2 + 7 * i);
        let names_it = |line: &&str| line.split(' ').any(|word| word.trim_end_matches(':') == place);
        let is_told = |text: &str| text.lines().any(|line| names_it(&line) && line.contains(why));
        let found: Vec<&str> = lint.text().lines().filter(names_it).collect();
        if why.is_empty() {
            let is_useless = found.iter().any(|line| !line.starts_with("gap"));
            assert!(!is_useless && !is_told(&plan.stderr), "{name}: {found:?} {}", plan.stderr);
            continue;
        }
        assert!(is_told(lint.text()), "{name}: {}", lint.text());
        assert_eq!(plan.stderr.lines().filter(names_it).count(), 1, "{name}: {}", plan.stderr);
        assert!(is_told(&plan.stderr), "{name}: {}", plan.stderr);
    }
    let passed_over = format!("  passed over {tuning}/gfx1100.toml:2: the row is passed over: `apart` is for runs");
    assert!(plan.text().contains(&passed_over), "{}", plan.text());
}

#[test]
fn files_that_no_template_can_be_are_told_once_with_what_is_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let templates = argument(folder.path());
    let text = fs::read(repository().join("templates/embedding/row.hip.j2")).expect("it is there");
    for name in ["embedding/own.hip.j", "embeding/own.hip.j2", "own.hip.j2", "embedding/README.md", "lib/own.hip.j2"] {
        let _ = file(folder.path(), name, if name.starts_with("lib") { b"// nothing\n" } else { &text });
    }
    let ran = run(&["kernels", "ls", "--op", "embedding", "--templates", &templates]).ok();
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("nothing reads `")).collect();
    let expected = [
        ("embedding/own.hip.j", "did you mean `own.hip.j2`?"),
        ("embeding/own.hip.j2", "there is no op `embeding`; did you mean `embedding`?"),
        ("own.hip.j2", "a template is in the folder of its op, as in `rmsnorm/own.hip.j2`"),
    ];
    assert_eq!(said.len(), expected.len(), "{}", ran.stderr);
    for (name, why) in expected {
        let place = format!("`{templates}/{name}`");
        assert!(said.iter().any(|line| line.contains(&place) && line.contains(why)), "{name}: {}", ran.stderr);
    }
}

/// A copy whose default parameters no test allows, and that may be wrong.
const LOOSE: &str = r#"{#
op      = "embedding"
summary = "a copy"

[requires]
precision = ["f32"]
when      = ["hidden_size == 45", "table == 'f32'"]

[params.unroll]
values  = [1, 2]
default = 2
doc     = "elements at a time"

[constraints]
"whole steps" = "hidden_size % unroll == 0"

[numerics]
f32 = { rtol = 0.5, atol = 0.0 }

[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/types.c.j2" %}

{{ signature }} {
  const u32 t = block_x, C = {{ hidden_size }};
  for (u32 c = 0; c < C; c += {{ unroll }}) y[(size_t)t * C + c] = table[(size_t)row[t] * C + c];
}
"#;

#[test]
fn defaults_that_do_not_run_and_looser_tolerances_are_told_of_what_is_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let templates = argument(folder.path());
    let check = |text: &str| {
        let _ = file(folder.path(), "embedding/loose.c.j2", text.as_bytes());
        run(&["kernels", "check", "--templates", &templates, "--op", "embedding", "--variant", "loose"])
    };
    let ran = check(LOOSE).ok();
    let status = ran.text().lines().nth(1).expect("a row");
    let said = "the default parameters are passed over: `embedding/loose`: whole steps: `hidden_size % unroll == 0` does \
                not hold for hidden_size = 45, unroll = 2; ran with unroll 1";
    assert!(status.contains(said), "{status}");
    assert!(status.contains("its tolerance is looser than the op's: rtol 0.5, not 0"), "{status}");
    // What only some shapes refuse is told too.
    let wider = LOOSE.replace("hidden_size == 45", "hidden_size < 1000").replace("c += {{ unroll }}", "++c");
    let ran = check(&wider).ok();
    let said = "passed over at 1 of 2 shapes: `embedding/loose`: whole steps: `hidden_size % unroll == 0` does not hold for \
                hidden_size = 45, unroll = 2; ran there with unroll 1";
    let status = ran.text().lines().nth(1).expect("a row");
    assert!(status.contains(said), "{status}");
    let kept = LOOSE.replace("default = 2", "default = 1").replace("rtol = 0.5", "rtol = 0.0");
    let ran = check(&kept).ok();
    assert!(ran.text().lines().nth(1).expect("a row").ends_with(" ok"), "{}", ran.text());
    // One that no problem can change is a mistake of the file.
    let ran = check(&LOOSE.replace("hidden_size % unroll == 0", "unroll < 2"));
    let said =
        "constraints.whole steps: expected a constraint that the defaults of the parameters satisfy, found unroll = 2";
    assert!(ran.code == 1 && ran.text().contains("loose.c.j2:15: ") && ran.text().contains(said), "{}", ran.text());
}

#[test]
fn an_op_that_nobody_covers_is_no_empty_list() {
    let said = run(&["kernels", "ls", "--op", "linaer"]).fails(2);
    assert!(said.contains("no template covers an op `linaer`: did you mean `linear`?"), "{said}");
}

#[test]
fn help_explains_every_column_of_a_plan() {
    let ran = run(&["kernels", "plan", "--arch", "gfx1100", "--op", "sample", "--tokens", "1"]).ok();
    let help = run(&["kernels", "plan", "--help"]).ok();
    let (_, columns) = help.text().split_once("\nColumns:\n").expect("they are there");
    let header: Vec<&str> = ran.text().lines().next().expect("a header").split("  ").map(str::trim).collect();
    let told = |name: &str| columns.lines().any(|line| line.starts_with(&format!("  {name}  ")));
    // Parameters are those of the template.
    for name in header.into_iter().filter(|name| !["", "parameters"].contains(name)) {
        assert!(told(name), "{name}: {columns}");
    }
    assert!(ran.text().contains(" 1-8 logits ") && columns.contains("`logits`"), "{}", ran.text());
}

#[test]
fn a_row_of_an_op_that_only_runs_fused_is_told_when_it_is_written() {
    if hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (journal, tuning) = (argument(&folder.path().join("journal")), argument(folder.path()));
    let ran = predict::run(&[&ONE[..], &["--write", "--tuning", &tuning, "--journal", &journal]].concat()).ok();
    assert!(
        ran.stderr.contains("1 of 1 are of ops that only fused kernels compute at these token counts: no step asks"),
        "{}",
        ran.stderr
    );
    let table = fs::read_to_string(folder.path().join("gfx1100.toml")).expect("written");
    assert!(table.contains("use        = \"rmsnorm/row\""), "{table}");
    let said = "warning: no step of the forward pass asks for the row of `rmsnorm` at 1 tokens: ";
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with(said)).collect();
    assert!(told.len() == 1 && told[0].contains("kernels plan --arch gfx1100 --op rmsnorm"), "{}", ran.stderr);
}

/// An `llvm-mca` that knows every chip and never comes to an end with a kernel.
const WAITS: &str = "#!/bin/sh\nlines=$(wc -l)\n[ \"$lines\" -le 3 ] || exec sleep 100000\n\
     echo '{\"CodeRegions\":[{\"SummaryView\":{\"TotalCycles\":1,\"BlockRThroughput\":1}}]}'\n";

#[test]
fn a_search_whose_tool_never_answers_ends_when_its_time_is_over() {
    if hiprtc::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mca = PathBuf::from(file(folder.path(), "bin/llvm-mca", WAITS.as_bytes()));
    fs::set_permissions(&mca, fs::Permissions::from_mode(0o755)).expect("executable");
    let journal = argument(&folder.path().join("journal"));
    let args = [&ONE[..], &["--within", "2s", "--write", "--tuning", &argument(folder.path()), "--journal", &journal]];
    let args = args.concat();
    let mut command = predict::with_tools(&args);
    command.env("GPTOSS_JIT_LLVM", folder.path());
    let ran = Ran::new(&args, command.output().expect("started")).ok();
    assert!(ran.stderr.contains("1 of 1 were not done in time"), "{}", ran.stderr);
    assert!(!folder.path().join("gfx1100.toml").exists(), "nothing is known");
    assert_eq!(fs::read_to_string(&journal).unwrap_or_default(), "", "what was stopped says nothing");
}

/// What `prepare` says without Debian's packages: these are stood in for.
const PREPARED: &str = "
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import emulated_gpu
emulated_gpu.fetch = lambda folder, *rest: Path(folder)
emulated_gpu.tools = lambda: (Path('clang'), Path('headers'))
emulated_gpu.driver = emulated_gpu.learnt = lambda *arguments: Path('of tests')
emulated_gpu.program = lambda *arguments: ['program']
print(emulated_gpu.prepare('gfx1100', '6.4', Path('program'))[1]['CACHEDB'])
";

#[test]
fn the_emulated_gpu_has_a_cache_of_its_own_whatever_the_users_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ = file(folder.path(), "tinygrad/test/mockgpu/amd/emu.py", b"");
    let at = |name: &str| folder.path().join(name);
    let mut python = Command::new("python3");
    python.args(["-B", "-c", PREPARED]).arg(repository().join("tests/emulated-gpu"));
    python.env("TINYGRAD", at("tinygrad")).env("EMULATED_GPU_TARGET", at("target"));
    python.env("CACHEDB", at("users/cache.db")).env("XDG_CACHE_HOME", at("users"));
    let output = match python.output() {
        Err(_) => return skipped("there is no python3"),
        Ok(output) => output,
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Path::new(said.trim()).starts_with(at("target")), "{said}");
}
