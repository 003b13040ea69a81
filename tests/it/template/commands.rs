//! `kernels ls` and `kernels show`.

use fixtures::repository;

/// Runs the program on the fixtures; gives its exit code, stdout and stderr.
fn program(args: &[&str]) -> (Option<i32>, String, String) {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_gptoss-jit"))
        .arg("kernels")
        .args(args)
        .arg("--templates")
        .arg(repository("tests/fixtures/templates"))
        .env_remove("GPTOSS_JIT_TEMPLATES")
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .output()
        .expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn kernels_ls_tells_what_fits_and_why_not() {
    let (code, table, _) = program(&["ls", "--arch", "gfx1100", "--why", "--op", "linear"]);
    assert_eq!(code, Some(0));
    let dot = table.lines().find(|line| line.starts_with("linear ") && line.contains(" dot ")).expect("a line");
    assert!(dot.ends_with("no: is for C, the target takes HIP"), "{dot}");
    assert!(!table.lines().any(|line| line.starts_with("rmsnorm ")), "rmsnorm alone does not cover linear: {table}");
    let (_, json, _) = program(&["ls", "--json", "--arch", "gfx1100", "--op", "rmsnorm"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let rows = json["templates"].as_array().expect("an array");
    let wave = rows.iter().find(|row| row["variant"] == "wave").expect("listed");
    assert_eq!((json["schema"].as_u64(), wave["fits"].as_bool()), (Some(1), Some(true)));
}

#[test]
fn kernels_show_prints_what_the_compiler_gets() {
    let (code, source, _) =
        program(&["show", "linear/dot", "--arch", "x86-64-v3", "--with", "weight=bf16", "--with", "out_features=7"]);
    assert_eq!(code, Some(0));
    assert!(source.contains("const bf16* restrict weight,  // (7, 48) bf16"), "{source}");
    let (_, numbered, _) = program(&["show", "linear/dot", "--line-numbers"]);
    assert!(numbered.starts_with("    1  // linear/dot"), "{numbered}");
    for (args, code, why) in [
        (&["show", "rmsnorm/wave"][..], 2, "is for a GPU: add --arch"),
        (&["show", "linear/dit"], 1, "there is no template `linear/dit`"),
        (&["show", "linear/dot", "--set", "tile_n=3"], 1, "tile_n = 3, expected one of: 1, 2, 4"),
        (&["show", "linear/dot", "--set", "tile_n=many"], 1, "tile_n=many: expected a whole number"),
        (&["show", "linear/dot", "--with", "width=3"], 2, "--with width: expected one of: in_features"),
        (&["show", "rmsnorm/wave", "--arch", "gfx9999"], 1, "nothing is known about the arch `gfx9999`"),
    ] {
        let (found, _, stderr) = program(args);
        assert!(found == Some(code) && stderr.contains(why), "{args:?}: {found:?} {stderr}");
    }
}
