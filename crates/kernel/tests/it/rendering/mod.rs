//! The template library from the outside: folders of templates in, rendered source or an error with its line out.

mod early_launch;
mod fused;
mod mistakes;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use format::Dtype;
use kernel::object::compile;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::render::{RenderError, Rendered, render};
use kernel::template::{Params, Precision, Problem};

fn fixtures() -> PathBuf {
    ::fixtures::repository("tests/fixtures/templates")
}

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
    assert_eq!(library.templates().count(), 3);
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

#[test]
fn what_the_launch_says_of_blocks_is_in_the_head_of_the_kernel() {
    let text = fs::read_to_string(fixtures().join("rmsnorm/wave.hip.j2")).expect("a fixture");
    let head = |keys: &str| {
        let text = text.replacen("[launch]", &format!("[launch]\n{keys}"), 1);
        let (_folder, library) = library_under(&[("rmsnorm/wave.hip.j2", &text)]);
        let kernel = rendered(&library, "rmsnorm/wave", &rmsnorm(), &Params::new(), &gpu("gfx1100"));
        let kernel = kernel.map_err(|error| error.to_string())?;
        let line = kernel.source.lines().find(|line| line.contains("__global__")).expect("a kernel").to_owned();
        Ok::<_, String>((line, kernel.launch.grid(&scalars(7)).map_err(|error| error.to_string())))
    };
    let plain = "extern \"C\" __global__ __launch_bounds__(32)".to_owned();
    assert_eq!(head(""), Ok((plain.clone(), Ok([7, 1, 1]))));
    assert_eq!(head("cluster = \"row_size // 48\""), Ok((plain, Ok([7, 1, 1]))));
    let (line, grid) = head("cluster = \"2\"\nmin_blocks = \"wave_size // 8\"").expect("renders");
    assert_eq!(line, "extern \"C\" __cluster_dims__(2) __global__ __launch_bounds__(32, 4)");
    let error = grid.expect_err("an odd number");
    assert!(error.ends_with("could not evaluate `n_tokens`: 7 blocks are no whole clusters of 2"), "{error}");
    for (keys, error) in [
        ("cluster = \"row_size - 48\"", "could not evaluate `row_size - 48`: it is 0, expected at least 1"),
        ("cluster = \"row_size\"", "could not evaluate `row_size`: it is 48, expected at most 8"),
        ("min_blocks = \"row_size\"", "could not evaluate `row_size`: it is 48, expected at most 32"),
    ] {
        let found = head(keys).expect_err(keys);
        assert!(found.ends_with(error), "{found}");
    }
}

/// The error of the broken file of that name.
fn broken(files: &[(&str, &str)], name: &str) -> String {
    let (folder, library) = library_under(files);
    let broken = library.broken().into_iter().find(|broken| broken.name == name);
    let broken = broken.unwrap_or_else(|| panic!("{name} is not broken: {:?}", library.broken()));
    broken.error.to_string().replace(&format!("{}/", folder.path().display()), "")
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
        ("tile_n = \"1\"", "linear/dot.c.j2:14: `tile_n` is declared a second time, first in linear/dot.c.j2:5"),
        ("in_features = \"1\"", "let: expected a name that op.toml does not declare, found `in_features`"),
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
    // Which version of objects is made is not left to the compiler's age either.
    assert!(gfx11.contains("-mcode-object-version=5 "), "{gfx11}");
    assert!(options(rmsnorm(), "rmsnorm/wave", &gpu("gfx11-generic")).contains("-mcode-object-version=6 "));
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
    use kernel::choice::{Why, choose};
    use kernel::step::StepKind;
    use kernel::tuning::TuningTables;
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
