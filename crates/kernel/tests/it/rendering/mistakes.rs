//! Mistakes in templates, contracts and what is asked of them: each is told, where it is.

use std::collections::BTreeMap;
use std::fs;

use format::Dtype;
use kernel::template::{Params, Problem};

use super::{broken, fixtures, gpu, host, library, library_under, linear, rendered, rmsnorm, scalars};

/// What is wrong with a text of a file of the fixtures, one part of it replaced.
fn edited(name: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(fixtures().join(name)).expect("a fixture");
    assert!(text.contains(from), "{name} has no `{from}`");
    broken(&[(name, &text.replacen(from, to, 1))], name)
}

/// Each of these, put into a file of the fixtures, is told so.
fn are_told(name: &str, mistakes: &[(&str, &str, &str)]) {
    for (from, to, error) in mistakes {
        let found = edited(name, from, to);
        assert!(found.starts_with(error), "{from} -> {to}\n  found    {found}\n  expected {error}");
    }
}

#[test]
fn mistakes_in_front_matter_are_told_with_their_line() {
    let mistakes = [
        ("summary", "sumary", "linear/dot.c.j2:3: could not read the front matter: unknown field `sumary`"),
        ("doc     =", "docs    =", "linear/dot.c.j2:8: could not read the front matter: unknown field `docs`"),
        ("{#\n", "\n", "linear/dot.c.j2:1: no front matter"),
        ("\"linear\"", "\"linar\"", "linear/dot.c.j2:2: op: expected the folder's: linear, found linar"),
        (
            "default = 2",
            "default = 3",
            "linear/dot.c.j2:5: params.tile_n.default: expected one of its values: 1, 2, 4, found 3",
        ),
        (
            "ceil_div(out_features, tile_n)",
            "out_features / tile_n",
            "linear/dot.c.j2:14: could not evaluate `out_features / tile_n`: `/` gives a fraction",
        ),
        (
            "ceil_div(out_features, tile_n)",
            "ceil_div(out_feature, tile_n)",
            "linear/dot.c.j2:14: `out_feature` is not declared",
        ),
        ("tile_n <= out_features", "tile_n <= n_tokens", "linear/dot.c.j2:11: `n_tokens` is not declared"),
        ("tile_n <= out_features", "tile_n <=", "linear/dot.c.j2:11: could not evaluate `tile_n <=`"),
        ("scratch_bytes = ", "block_size = ", "linear/dot.c.j2:13: [launch]: expected no `block_size` on the host"),
        (
            "scratch_bytes = ",
            "lds_bytes = ",
            "linear/dot.c.j2:15: launch.lds_bytes: expected none on the host, found one",
        ),
        ("scratch_bytes = ", "early = ", "linear/dot.c.j2:15: launch.early: expected none on the host, found one"),
        (
            "[launch]",
            "[requires]\ndtypes = { weight = [\"u32\"] }\n[launch]",
            "linear/dot.c.j2:14: requires.dtypes.weight: expected f32 or bf16, found u32",
        ),
        (
            "[launch]",
            "[requires]\ndtypes = { bias = [\"f32\"] }\n[launch]",
            "linear/dot.c.j2:14: requires.dtypes: expected a name from [dtypes]",
        ),
        (
            "[launch]",
            "[resources]\nmax_spills = 1\n[launch]",
            "linear/dot.c.j2:13: [resources]: expected none on the host",
        ),
        (
            "[launch]",
            "[params.unused]\nvalues = [1]\ndefault = 1\ndoc = \"\"\n[launch]",
            "linear/dot.c.j2:13: the parameter `unused` is declared and never used",
        ),
    ];
    are_told("linear/dot.c.j2", &mistakes);
}

#[test]
fn mistakes_in_a_body_are_told_with_the_line_of_their_file() {
    let undeclared = edited("linear/dot.c.j2", "k < {{ in_features }}", "k < {{ in_feature }}");
    assert!(undeclared.starts_with("linear/dot.c.j2:25: `in_feature` is not declared"), "{undeclared}");
    let syntax = edited("linear/dot.c.j2", "{% endif %}", "");
    assert!(syntax.starts_with("linear/dot.c.j2:") && syntax.contains("syntax error"), "{syntax}");
    let missing = edited("linear/dot.c.j2", "lib/prelude.c.j2", "lib/prelude.j2");
    assert_eq!(missing, "linear/dot.c.j2:18: includes `lib/prelude.j2`, which is in none of the template folders");
    let dynamic = edited("linear/dot.c.j2", "include \"lib/prelude.c.j2\"", "include \"lib/\" ~ arch");
    assert!(
        dynamic.starts_with("linear/dot.c.j2:18: `include \"lib/\" ~ arch`: expected the file's name in quotes"),
        "{dynamic}"
    );
}

#[test]
fn an_undefined_name_in_an_include_is_told_with_the_include() {
    for (text, error) in [
        (
            "{#\n#}\ntypedef float f32;\n// {{ lanes }}\n",
            "lib/prelude.c.j2:4: `lanes` is used, and the file's header does not",
        ),
        (
            "{#\n[takes]\njinja = [\"lanes\"]\n#}\n// {{ lanes }}\n",
            "linear/dot.c.j2:18: includes `lib/prelude.c.j2`, which takes the Jinja name `lanes`: nothing before this line",
        ),
        (
            "{#\n[takes]\nc = [\"LANES\"]\n#}\ntypedef float row[LANES];\n",
            "linear/dot.c.j2:18: includes `lib/prelude.c.j2`, which takes the C name `LANES`: nothing before this line gives it",
        ),
        ("{#\n[takes]\njinja = [\"lanes\"]\n#}\nint x;\n", "linear/dot.c.j2:18: includes"),
    ] {
        let (folder, library) = library_under(&[("lib/prelude.c.j2", text)]);
        let broken = library.broken();
        let names: Vec<&str> = broken.iter().map(|broken| broken.name.as_str()).collect();
        assert_eq!(names, ["linear/dot.c.j2", "rmsnorm+linear/naive.c.j2"]);
        let found = broken[0].error.to_string();
        let found = found.replace(&format!("{}/", folder.path().display()), "");
        let found = found.replace(&format!("{}/", fixtures().display()), "");
        assert!(found.starts_with(error), "{found}");
    }
    for (text, error) in [
        ("typedef float f32;\n", "lib/prelude.c.j2:1: no front matter"),
        (
            "{#\n[gives]\nc = [\"f64\"]\n#}\ntypedef float f32;\n",
            "lib/prelude.c.j2:1: the header lists `f64`, which the file",
        ),
    ] {
        let found = broken(&[("lib/prelude.c.j2", text)], "lib/prelude.c.j2");
        assert!(found.starts_with(error), "{found}");
    }
}

#[test]
fn mistakes_in_a_contract_are_told_with_their_line() {
    let mistakes = [
        (
            "[\"f32\", \"bf16\"]",
            "[\"f32\", \"fp6\"]",
            "linear/op.toml:11: could not read the contract: unknown variant `fp6`",
        ),
        (
            "dtype = \"weight\"",
            "dtype = \"wieght\"",
            "linear/op.toml:19: dtype: expected a type or a name from [dtypes]: f32, bf16, f16, u32, i32, u8, int8, fp8, mxfp4, q8_0, q4_1, q4_0, q5_0, q5_1, iq4_nl, q4_k, q5_k, q6_k, q2_k, q3_k, iq4_xs, f8_e4m3, activation, weight, found `wieght`",
        ),
        ("\"in_features\"]", "\"in_feature\"]", "linear/op.toml:16: `in_feature` is not declared"),
        ("when  = \"has_bias\"", "when  = \"n_tokens > 1\"", "linear/op.toml:25: `n_tokens` is not declared"),
        (
            "access = \"write\"",
            "acess = \"write\"",
            "linear/op.toml:30: could not read the contract: unknown field `acess`",
        ),
        (
            "in_features  =",
            "wave_size    =",
            "linear/op.toml:4: dim: expected a name that the renderer does not define, found `wave_size`",
        ),
        ("has_bias = \"add", "in_features = \"add", "linear/op.toml:8: flag: expected a name of its own"),
        (
            "out_features = 33",
            "out_feature = 33",
            "linear/op.toml:39: a test's dims: expected {in_features, out_features}, found {in_features, out_feature}",
        ),
    ];
    are_told("linear/op.toml", &mistakes);
}

#[test]
fn files_that_would_be_ignored_are_errors() {
    let error = broken(&[("linear/dot.j2", "")], "linear/dot.j2");
    assert!(
        error.starts_with("linear/dot.j2: not a kernel, expected `op.toml` (of a run `tests.toml`), `<variant>.c.j2`"),
        "{error}"
    );
    let error = broken(&[("softmax/row.c.j2", "{# #}")], "softmax/row.c.j2");
    assert!(error.starts_with("the op `softmax` has no contract: `softmax/op.toml` is in none"), "{error}");
}

#[test]
fn parameters_are_checked_by_name() {
    let library = library();
    let refused = |params: &[(&str, u32)], problem: &Problem| {
        let params = params.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        rendered(&library, "linear/dot", problem, &params, &host()).expect_err("refused").to_string()
    };
    assert_eq!(refused(&[("tile", 2)], &linear()), "`linear/dot` has no parameter `tile`, expected one of: tile_n");
    assert_eq!(refused(&[("tile_n", 3)], &linear()), "`linear/dot`: tile_n = 3, expected one of: 1, 2, 4");
    let mut narrow = linear();
    narrow.dims.insert("out_features".into(), 1);
    assert_eq!(
        refused(&[], &narrow),
        "`linear/dot`: a block has at least one row: `tile_n <= out_features` does not hold for out_features = 1, tile_n = 2"
    );
    let legal: Vec<Params> = library.templates().next().expect("one").legal_params(&narrow, &host()).collect();
    assert_eq!(legal, [Params::from([("tile_n".into(), 1)])]);
}

#[test]
fn problems_are_checked_against_the_contract() {
    let library = library();
    let refused = |problem: Problem| {
        rendered(&library, "linear/dot", &problem, &Params::new(), &host()).expect_err("refused").to_string()
    };
    let mut problem = linear();
    problem.dims.remove("in_features");
    let error = refused(problem);
    assert!(error.ends_with("op.toml: dims: expected in_features, out_features, found out_features"), "{error}");
    let mut problem = linear();
    problem.dtypes.insert("weight".into(), Dtype::F16);
    assert!(refused(problem).ends_with("dtype `weight`: expected f32 or bf16, found f16"));
}

#[test]
fn launch_values_that_do_not_fit_are_refused() {
    let kernel = rendered(&library(), "rmsnorm/wave", &rmsnorm(), &Params::new(), &gpu("gfx942")).expect("renders");
    let error = kernel.launch.grid(&scalars(1 << 32)).expect_err("too many blocks").to_string();
    assert!(
        error.contains(
            "rmsnorm/wave.hip.j2:10: could not evaluate `n_tokens`: it is 4294967296, expected at most 4294967295"
        ),
        "{error}"
    );
    let error = kernel.launch.grid(&BTreeMap::new()).expect_err("no scalars").to_string();
    assert!(error.ends_with("could not evaluate `n_tokens`: `n_tokens` has no value here"), "{error}");
    let error = kernel.args[0].len_elements(&scalars(u64::MAX)).expect_err("overflows").to_string();
    assert!(error.contains("18446744073709551615 x 48 elements are too many"), "{error}");
}

#[test]
fn an_error_while_rendering_is_told_with_its_line() {
    let mut problem = rmsnorm();
    problem.dims.insert("row_size".into(), 49);
    let error = rendered(&library(), "rmsnorm/wave", &problem, &Params::new(), &gpu("gfx942")).expect_err("49 / 8");
    let error = error.to_string();
    assert!(
        error.contains(
            "rmsnorm/wave.hip.j2:17: could not render `rmsnorm/wave`: invalid operation: 8 does not divide 49"
        ),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_is_told_with_its_reason() {
    let library = library();
    assert!(library.candidates(&linear(), &gpu("gfx1100")).expect("nothing is broken").is_empty());
    let error = library.none_fits(&linear(), &gpu("gfx1100")).to_string();
    assert_eq!(
        error,
        "no template of `linear` fits gfx1100 at precision bf16\n  linear/dot is for C, the target takes HIP"
    );
}

#[test]
fn a_head_that_is_typed_by_hand_is_told_with_its_line() {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let line = 1 + text.lines().position(|line| line.contains("{{ signature }}")).expect("it has one");
    let expected = "the head of the kernel: expected `{{ signature }}`, which generates it from the contract, found";
    for (head, found) in [("static void kernel(const f32* x)", "a handwritten one"), ("", "none")] {
        let told = edited("linear/dot.c.j2", "{{ signature }}", head);
        let line = if head.is_empty() { told.split(':').nth(1).expect("a line") } else { &line.to_string() };
        assert_eq!(told.lines().next(), Some(&*format!("linear/dot.c.j2:{line}: {expected} {found}")));
    }
}
