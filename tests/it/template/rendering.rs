//! The template library from the outside: folders of templates in, rendered source or an error with its line out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gptoss_jit::dtype::Dtype;
use gptoss_jit::object::compile;
use gptoss_jit::target::{Language, Target};
use gptoss_jit::template::library::{Layer, Library};
use gptoss_jit::template::render::{RenderError, Rendered, render};
use gptoss_jit::template::{Params, Precision, Problem};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates")
}

/// The fixtures alone.
fn library() -> Library {
    Library::from_layers(vec![Layer::read(&fixtures()).expect("the fixtures are readable")])
}

/// The fixtures below a folder of these files.
fn library_under(files: &[(&str, &str)]) -> (tempfile::TempDir, Library) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("creates");
        fs::write(path, text).expect("writes");
    }
    let layers = [folder.path(), &fixtures()].map(|path| Layer::read(path).expect("readable"));
    let library = Library::from_layers(layers.into());
    (folder, library)
}

fn linear() -> Problem {
    Problem {
        ops: vec!["linear".into()],
        dims: BTreeMap::from([("in_features".into(), 48), ("out_features".into(), 33)]),
        constants: BTreeMap::new(),
        flags: BTreeMap::from([("has_bias".into(), true)]),
        dtypes: BTreeMap::from([("weight".into(), Dtype::Bf16)]),
        precision: Precision::Bf16,
        keeps: BTreeSet::new(),
    }
}

fn rmsnorm() -> Problem {
    Problem {
        ops: vec!["rmsnorm".into()],
        dims: BTreeMap::from([("row_size".into(), 48)]),
        constants: BTreeMap::from([("eps".into(), 1e-5)]),
        flags: BTreeMap::new(),
        dtypes: BTreeMap::new(),
        precision: Precision::F32,
        keeps: BTreeSet::new(),
    }
}

fn fused() -> Problem {
    let mut problem = linear();
    problem.ops.insert(0, "rmsnorm".into());
    problem.dims.extend(rmsnorm().dims);
    problem.constants.extend(rmsnorm().constants);
    problem
}

/// A host of fixed features, so that what is rendered does not depend on the machine.
fn host() -> Target {
    Target { features: ["avx2".to_owned()].into(), arch: "x86-64-v3".into(), ..Target::host() }
}

fn gpu(arch: &str) -> Target {
    Target::gpu(arch).expect(arch)
}

fn rendered(
    library: &Library,
    label: &str,
    problem: &Problem,
    params: &Params,
    target: &Target,
) -> Result<Rendered, RenderError> {
    render(library, library.template(label, target.language())?, problem, params, target)
}

fn scalars(n_tokens: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([("n_tokens".to_owned(), n_tokens)])
}

#[test]
fn the_fixtures_are_whole() {
    let library = library();
    assert!(library.broken().is_empty(), "{:?}", library.broken());
    assert_eq!(library.templates().len(), 3);
}

#[test]
fn a_host_kernel_renders_whole() {
    let kernel = rendered(&library(), "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    insta::assert_snapshot!(kernel.source);
    assert_eq!(kernel.abi(), "x:f32:read weight:bf16:read bias:bf16:read y:f32:write n_tokens:u32");
    assert_eq!(kernel.launch.grid(&scalars(5)), Ok([17, 1, 1]));
    assert_eq!(kernel.launch.scratch_bytes(&scalars(5)), Ok(20));
    assert_eq!(kernel.args[0].len_elements(&scalars(5)), Ok(240));
    assert_eq!(kernel.entry, "linear_dot");
}

#[test]
fn a_hip_kernel_renders_whole() {
    let kernel = rendered(&library(), "rmsnorm/wave", &rmsnorm(), &Params::new(), &gpu("gfx1100")).expect("renders");
    insta::assert_snapshot!(kernel.source);
    assert_eq!((kernel.launch.block_size(), kernel.launch.grid(&scalars(7))), (32, Ok([7, 1, 1])));
    assert_eq!((kernel.resources.max_spills, kernel.launch.lds_bytes()), (Some(0), 0));
}

#[test]
fn lds_that_a_launch_asks_for_is_in_the_spec() {
    let text = fs::read_to_string(fixtures().join("rmsnorm/wave.hip.j2")).expect("a fixture");
    let asks = text.replacen("[launch]", "[launch]\nlds_bytes = \"2 * 32768 + wave_size\"", 1);
    let (_folder, library) = library_under(&[("rmsnorm/wave.hip.j2", &asks)]);
    let kernel = rendered(&library, "rmsnorm/wave", &rmsnorm(), &Params::new(), &gpu("gfx1100")).expect("renders");
    assert_eq!((kernel.launch.lds_bytes(), kernel.spec().lds_bytes), (65_568, 65_568));
}

/// The error of the broken file of that name.
fn broken(files: &[(&str, &str)], name: &str) -> String {
    let (folder, library) = library_under(files);
    let broken = library.broken().iter().find(|broken| broken.name == name);
    let broken = broken.unwrap_or_else(|| panic!("{name} is not broken: {:?}", library.broken()));
    broken.error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

/// What is wrong with a text of a file of the fixtures, one part of it replaced.
fn edited(name: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(fixtures().join(name)).expect("a fixture");
    assert!(text.contains(from), "{name} has no `{from}`");
    broken(&[(name, &text.replacen(from, to, 1))], name)
}

#[test]
fn mistakes_in_front_matter_are_told_with_their_line() {
    let file = "linear/dot.c.j2";
    for (from, to, error) in [
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
    ] {
        let found = edited(file, from, to);
        assert!(found.starts_with(error), "{from} -> {to}\n  found    {found}\n  expected {error}");
    }
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
        let names: Vec<&str> = library.broken().iter().map(|broken| broken.name.as_str()).collect();
        assert_eq!(names, ["linear/dot.c.j2", "rmsnorm+linear/naive.c.j2"]);
        let found = library.broken()[0].error.to_string();
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
fn what_is_included_twice_is_there_once() {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let include = "{% include \"lib/prelude.c.j2\" %}\n";
    let twice = text.replace(include, &include.repeat(2));
    let (_folder, library) = library_under(&[("linear/dot.c.j2", &*twice)]);
    let once = rendered(&self::library(), "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    let twice = rendered(&library, "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    assert_eq!(once.source, twice.source);
}

#[test]
fn a_fact_is_known_to_expressions_and_to_the_body() {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let with = |facts: &str| text.replace("[launch]", &format!("[let]\n{facts}\n[launch]"));
    let text_of = |text: &str| text.replace("{{ signature }}", "// {{ twice }} {{ is_wide }}\n{{ signature }}");
    let facts = with("twice = \"2 * base\"\nbase = \"in_features + 1\"\nis_wide = \"twice > base\"");
    let (_folder, library) = library_under(&[("linear/dot.c.j2", &*text_of(&facts))]);
    let kernel = rendered(&library, "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    assert!(kernel.source.contains("// 98 true\n"), "{}", kernel.source);
    for (facts, error) in [
        ("a = \"b\"\nb = \"a + 1\"", "let: expected facts that end, found a circle of `a`, `b`"),
        ("tile_n = \"1\"", "let: expected a name that neither op.toml nor [params] declares, found `tile_n`"),
        ("in_features = \"1\"", "let: expected a name that neither"),
        ("lone = \"1\"", "the fact `lone` is declared and never used"),
        ("odd = \"n_tokens\"", "`n_tokens` is not declared"),
    ] {
        let found = broken(&[("linear/dot.c.j2", &*with(facts))], "linear/dot.c.j2");
        assert!(found.contains(error), "{facts}: {found}");
    }
}

#[test]
fn what_a_template_sets_is_known_to_what_it_includes() {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let text = text.replace("{% include", "{% set lanes = 2 * tile_n %}\n{% include");
    let files = [
        (
            "lib/prelude.c.j2",
            "{#\n[takes]\njinja = [\"lanes\"]\n#}\n{{ lanes }}\n{% macro twice(a) %}{{ 2 * a }}{% endmacro %}\n",
        ),
        ("linear/dot.c.j2", &*text),
    ];
    let (_folder, library) = library_under(&files);
    let error = rendered(&library, "linear/dot", &linear(), &Params::new(), &host());
    assert!(error.is_ok(), "{error:?}");
}

#[test]
fn mistakes_in_a_contract_are_told_with_their_line() {
    for (from, to, error) in [
        (
            "[\"f32\", \"bf16\"]",
            "[\"f32\", \"fp8\"]",
            "linear/op.toml:11: could not read the contract: unknown variant `fp8`",
        ),
        (
            "dtype = \"weight\"",
            "dtype = \"wieght\"",
            "linear/op.toml:19: dtype: expected a type or a name from [dtypes]: f32, bf16, f16, u32, i32, u8, mxfp4, weight, found `wieght`",
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
    ] {
        let found = edited("linear/op.toml", from, to);
        let line = |text: &str| text.split(' ').next().map(str::to_owned);
        assert!(found.starts_with(error), "{from} -> {to}\n  found    {found}\n  expected {error} {:?}", line(&found));
    }
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
fn a_users_file_shadows_and_a_new_name_joins() {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let mine = text.replace("[params", "priority = 3\n[params");
    let (folder, library) = library_under(&[("linear/dot.c.j2", &mine), ("linear/mine.c.j2", &text)]);
    let candidates = library.candidates(&linear(), &host()).expect("nothing is broken");
    let labels: Vec<String> = candidates.iter().map(|template| template.label()).collect();
    assert_eq!(labels, ["linear/dot", "linear/mine"]);
    assert_eq!(candidates[0].file.origin.to_string(), folder.path().display().to_string());
    assert_eq!(candidates[0].shadows.len(), 1);
}

#[test]
fn a_broken_file_never_gives_way_to_what_it_shadows() {
    let (_folder, library) = library_under(&[("linear/dot.c.j2", "{# op = 1 #}")]);
    let error = library.candidates(&linear(), &host()).expect_err("the broken file could be chosen");
    assert_eq!(error.to_string(), "the template `linear/dot.c.j2` is broken");
    // It is no obstacle to another op, nor to another compiler.
    assert!(library.candidates(&rmsnorm(), &host()).is_ok());
    assert!(library.candidates(&linear(), &gpu("gfx1100")).is_ok());
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
    let legal: Vec<Params> = library.templates()[0].legal_params(&narrow, &host()).collect();
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
    assert!(error.contains("does not fit 64 bits"), "{error}");
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
fn fused_ops_share_the_tensor_between_them() {
    let kernel = rendered(&library(), "rmsnorm+linear/naive", &fused(), &Params::new(), &host()).expect("renders");
    assert_eq!(
        kernel.abi(),
        "x:f32:read scale:f32:read n_tokens:u32 weight:bf16:read bias:bf16:read y:f32:write normed:f32:read_write"
    );
    assert_eq!((kernel.label.as_str(), kernel.entry.as_str()), ("rmsnorm+linear/naive", "rmsnorm_linear_naive"));
    // x may be the y of rmsnorm, which vanished; the y of linear is another tensor.
    assert!(kernel.args[0].may_alias.is_none());
    assert_eq!(kernel.workspace[0].len_elements(&scalars(2)), Ok(96));
    let mut apart = fused();
    apart.dims.insert("row_size".into(), 64);
    let error = rendered(&library(), "rmsnorm+linear/naive", &apart, &Params::new(), &host()).expect_err("64 and 48");
    let error = error.to_string();
    assert!(error.ends_with("`in_features`, which is `row_size` of the op before: expected 64, found 48"), "{error}");
}

/// The fused template of the fixtures, with one more line of front matter.
fn fused_with(line: &str) -> String {
    let text = fs::read_to_string(fixtures().join("rmsnorm+linear/naive.c.j2")).expect("a fixture");
    text.replacen("{#\n", &format!("{{#\n{line}\n"), 1)
}

#[test]
fn a_fused_template_may_keep_what_others_read() {
    let name = "rmsnorm+linear/keeping.c.j2";
    let (_folder, library) = library_under(&[(name, &fused_with("keeps = [\"rmsnorm.y\"]"))]);
    let kernel = rendered(&library, "rmsnorm+linear/keeping", &fused(), &Params::new(), &host()).expect("renders");
    assert!(kernel.abi().contains("y:f32:write rmsnorm_y:f32:write normed:f32:read_write"), "{}", kernel.abi());
    assert_eq!(kernel.args.last().expect("kept").len_elements(&scalars(2)), Ok(96));

    let needed = Problem { keeps: ["rmsnorm.y".to_owned()].into(), ..fused() };
    let candidates = library.candidates(&needed, &host()).expect("nothing is broken");
    assert_eq!(candidates.iter().map(|template| template.label()).collect::<Vec<_>>(), ["rmsnorm+linear/keeping"]);
    let error = rendered(&library, "rmsnorm+linear/naive", &needed, &Params::new(), &host()).expect_err("it is lost");
    assert!(error.to_string().ends_with("does not keep `rmsnorm.y`, which others read"), "{error}");

    let error = broken(&[(name, &fused_with("keeps = [\"linear.y\"]"))], name);
    assert_eq!(error, format!("{name}:2: keeps: expected a tensor between its ops: rmsnorm.y, found `linear.y`"));
}

#[test]
fn a_run_of_ops_may_have_tests_of_its_own() {
    let tests = "[[tests]]\ndims = { row_size = 8, in_features = 8, out_features = 5 }\nconstants = { eps = 1e-5 }\n\
                 flags = { has_bias = true }\nscalars = { n_tokens = [1, 9] }\n";
    let library = library_under(&[("rmsnorm+linear/tests.toml", tests)]).1;
    let template = library.template("rmsnorm+linear/naive", Language::C).expect("it is right");
    let [test] = template.signature.tests().try_into().expect("one test");
    assert_eq!((test.dims["out_features"], test.scalars["n_tokens"].values()), (5, &[1.0, 9.0][..]));

    let lacking = tests.replace("row_size = 8, ", "");
    let error = broken(&[("rmsnorm+linear/tests.toml", &lacking)], "rmsnorm+linear/naive.c.j2");
    assert_eq!(
        error,
        "rmsnorm+linear/tests.toml:1: a test's dims: expected {in_features, out_features, row_size}, found {in_features, out_features}"
    );
}

#[test]
fn ops_that_do_not_meet_cannot_be_fused() {
    let file = "linear+rmsnorm/no.c.j2";
    let library = library_under(&[(file, "{# op = [\"linear\", \"rmsnorm\"] #}")]).1;
    assert!(library.broken()[0].error.to_string().contains("front matter"), "the ops themselves do meet");
    let lone = "summary = ''\nargs = [{ name = 'n', dtype = 'u32' }]\n[numerics]\nf32 = { rtol = 0, atol = 0 }\nbf16 = { rtol = 0, atol = 0 }\n";
    let error = broken(&[("lone/op.toml", lone), ("linear+lone/no.c.j2", "{# #}")], "linear+lone/no.c.j2");
    assert_eq!(error, "lone/op.toml: could not fuse linear and lone: `lone` does not begin with a tensor");
}

#[test]
fn options_leave_nothing_to_the_compiler() {
    let options = |problem: Problem, label: &str, target: &Target| {
        let kernel = rendered(&library(), label, &problem, &Params::new(), target).expect("renders");
        compile::options(&kernel, target).join(" ")
    };
    let host_options = options(linear(), "linear/dot", &host());
    assert!(host_options.contains("-ffp-contract=fast -march=x86-64-v3"), "{host_options}");
    assert!(
        options(Problem { precision: Precision::F32, ..linear() }, "linear/dot", &host()).contains("-ffp-contract=off")
    );
    let gfx11 = options(rmsnorm(), "rmsnorm/wave", &gpu("gfx1100"));
    assert!(gfx11.contains("-mcumode -mno-wavefrontsize64") && gfx11.contains("--offload-arch=gfx1100"), "{gfx11}");
    assert!(!options(rmsnorm(), "rmsnorm/wave", &gpu("gfx942")).contains("wavefrontsize"));
}

#[test]
fn the_system_compiler_takes_rendered_source_and_options() {
    let library = library();
    for (label, problem) in [("linear/dot", linear()), ("rmsnorm+linear/naive", fused())] {
        let kernel = rendered(&library, label, &problem, &Params::new(), &Target::host()).expect("renders");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = folder.path().join("kernel.c");
        fs::write(&source, &kernel.source).expect("writes");
        let cc = std::process::Command::new("cc")
            .args(compile::options(&kernel, &Target::host()))
            .arg("-Werror")
            .arg("-o")
            .arg(folder.path().join("kernel.so"))
            .arg(&source)
            .output()
            .expect("a C compiler is part of a Rust toolchain's needs");
        assert!(cc.status.success(), "{label}: {}", String::from_utf8_lossy(&cc.stderr));
    }
}

#[test]
fn a_tuning_row_goes_first_and_a_wrong_one_is_passed_over() {
    use gptoss_jit::choice::{Why, choose};
    use gptoss_jit::tuning::TuningTables;
    use gptoss_jit::tuning::table::StepKind;
    let table = |params: &str| {
        let text = format!(
            "[provenance.hand]\nkind = 'hand'\ndate = '2026-11-20'\nmethod = 'a test'\n[[rows]]\nop = 'linear'\n\
             where = {{ in_features = 48, has_bias = true, weight = 'bf16', precision = 'bf16' }}\ntokens = '1-8'\n\
             use = 'linear/dot'\nparams = {params}\nprovenance = 'hand'\n"
        );
        TuningTables::from_texts(&[("host", &text)]).expect("a right table")
    };
    let library = library();
    let first = |tables: &TuningTables, n_tokens| {
        choose(&library, tables, &linear(), n_tokens, StepKind::Decode, &host()).expect("dot fits")
    };
    let followed = first(&table("{ tile_n = 4 }"), 8);
    assert_eq!((followed.choices.len(), followed.choices[0].params["tile_n"]), (1, 4));
    assert!(matches!(followed.choices[0].why, Why::Row(_)) && followed.warnings.is_empty());
    assert_eq!(first(&table("{ tile_n = 4 }"), 9).choices[0].why, Why::Priority(0));
    let refused = first(&table("{ tile_n = 5 }"), 8);
    assert_eq!(refused.choices[0].params["tile_n"], 2);
    assert_eq!(
        refused.warnings,
        ["host.toml:5: the row is passed over: `linear/dot`: tile_n = 5, expected one of: 1, 2, 4"]
    );
}

/// Runs the program on the fixtures; gives its exit code, stdout and stderr.
fn program(args: &[&str]) -> (Option<i32>, String, String) {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_gptoss-jit"))
        .arg("kernels")
        .args(args)
        .arg("--templates")
        .arg(fixtures())
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
