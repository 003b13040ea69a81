//! Every GPU template, executed by the simulator and compared with the reference: on every test shape of its contract
//! in waves of 32 and on every matrix unit, on the first one in waves of 64.

use std::path::{Path, PathBuf};

use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::Template;
use kernel::template::library::{Layer, Library};
use kernel::tuning::TuningTables;
use std::fs;
use std::sync::Arc;
use workbench::check::{Checked, Checker, Runner, Selection};

use gpu::sim::SimDriver;

use crate::fixtures::program::shared_cache;
use crate::object::hiprtc;

/// A chip without a matrix unit: what fits it is the same text for all chips of its wave size.
const PLAIN: &str = "gfx1030";

/// Runs the templates that `wanted` picks of those that fit the arch, half of the cases. Of two precisions, any two of
/// rows, types and precision meet, but not all three, for which none has code of its own: the first shape, which fills
/// no tile, has each type at each precision, others have it at one of them, at all rows. Of a matrix unit's templates,
/// which have one precision, two chips of RDNA have a half each, and two of CDNA: at a shape half of the types, at all
/// rows. Others of one precision have a type at every other shape; where an op has one template at each precision, the
/// other one has it at the rest. A template's combinations of types at its first shape are all run: on the two chips
/// of its unit, or in the two sizes of waves. Tensors that lie in others' and used workspace, which no kernel asks the
/// number of rows about, are tried at the fewest and the most rows; and, as none asks its types or parameters about
/// them either, with all of these at the first shape, with the first of these at the others.
/// All at once, by hand: `kernels check --arch sim:gfx1100`.
fn check(arch: &str, wanted: impl Fn(&Template) -> bool) -> Vec<Checked> {
    let half = Some(usize::from(["gfx1201", "gfx90a"].contains(&arch)));
    check_as(&Selection { half, is_thin: true, ..Selection::default() }, arch, wanted)
}

/// The same, as thoroughly as `how` says.
pub(super) fn check_as(how: &Selection, arch: &str, wanted: impl Fn(&Template) -> bool) -> Vec<Checked> {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::gpu(arch).expect(arch).simulated();
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), compilers);
    let driver = SimDriver::new(arch, target.wave_size, 0)
        .expect("threads")
        .with_lds([target.lds_bytes, target.lds_bytes_at_launch()]);
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let everything = Selection::default();
    let picked = checker.selected(&everything).filter(|template| wanted(template));
    let selections = picked.map(|template| Selection {
        op: vec![template.ops.join("+")],
        variant: vec![template.variant.clone()],
        op_alone: true,
        ..how.clone()
    });
    selections.collect::<Vec<_>>().iter().flat_map(|selection| checker.check(selection, &mut |_| {})).collect()
}

pub(super) fn all_right(arch: &str, checked: &[Checked]) {
    let wrong = checked.iter().flat_map(|checked| {
        let name = format!("{arch}: {}/{} {}", checked.op, checked.variant, checked.precision);
        checked.failures.iter().map(move |failure| format!("{name}: {failure}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!checked.is_empty() && checked.iter().all(|checked| checked.ran && checked.n_cases > 0), "{arch}");
    let unknown: Vec<_> = checked.iter().filter_map(|checked| checked.unknown.as_ref()).collect();
    assert!(unknown.is_empty(), "{arch}: {unknown:?}");
}

fn is_of_experts(template: &Template) -> bool {
    template.ops.iter().any(|op| op.starts_with("moe_"))
}

/// The templates that `wanted` picks are right on gfx1100, and those of these ops are among them.
fn right_in_waves_of_32(wanted: impl Fn(&Template) -> bool, expected: &[&str]) {
    let checked = check("gfx1100", wanted);
    all_right("gfx1100", &checked);
    let ops: std::collections::BTreeSet<&str> = checked.iter().map(|checked| checked.op.as_str()).collect();
    for op in expected {
        assert!(ops.contains(op), "{op} has no GPU template");
    }
}

#[test]
fn templates_are_right_in_waves_of_32() {
    let ops = [
        "embedding",
        "multiply",
        "narrow",
        "concat",
        "rmsnorm",
        "norm_and_add",
        "head_norm",
        "silu_and_mul",
        "gelu_and_mul",
        "linear",
        "rope_angles",
        "rope_kv",
        "attention",
        "sample",
        "all_reduce",
    ];
    right_in_waves_of_32(|template| !is_of_experts(template), &ops);
}

/// The same, beside it, so that no test is alone for long in the end.
#[test]
fn templates_of_experts_are_right_in_waves_of_32() {
    right_in_waves_of_32(is_of_experts, &["moe_route", "moe_sort", "moe_mlp1", "moe_mlp2"]);
}

/// What a wave's size changes shows on one shape; what a matrix unit does is another text, and is run on all of them.
/// Of the experts' without one only the common types are run: a decoder is the same text in the dense products, which
/// have all of them here.
#[test]
fn templates_are_right_in_waves_of_64() {
    let plain = Target::gpu(PLAIN).expect(PLAIN);
    let is_plain = |template: &Template| template.fits_target(&plain).is_ok();
    let first = Selection { first_shape: true, half: Some(1), is_thin: true, ..Selection::default() };
    let dense = check_as(&first, "gfx90a", |template| is_plain(template) && !is_of_experts(template));
    all_right("gfx90a", &dense);
    let common = Selection { common_types: true, ..first };
    all_right("gfx90a", &check_as(&common, "gfx90a", |template| is_plain(template) && is_of_experts(template)));
    all_right("gfx90a", &check("gfx90a", |template| !is_plain(template)));
}

#[test]
fn templates_are_right_on_every_matrix_unit() {
    let plain = Target::gpu(PLAIN).expect(PLAIN);
    for arch in ["gfx1201", "gfx950"] {
        let checked = check(arch, |template| template.fits_target(&plain).is_err());
        all_right(arch, &checked);
        assert!(checked.len() >= 4, "{arch}: linear, attention and both products of the experts");
    }
}

/// What one chip leaves out, the other has to run.
#[test]
fn chips_that_share_cases_take_the_same_templates() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let taken = |arch: &str| {
        let target = Target::gpu(arch).expect(arch).simulated();
        let fitting = library.templates().filter(|template| template.fits_target(&target).is_ok());
        fitting.map(|template| template.label()).collect::<std::collections::BTreeSet<_>>()
    };
    let plain = taken(PLAIN);
    assert!(plain.len() > 20);
    for arch in ["gfx1100", "gfx90a"] {
        assert!(plain.is_subset(&taken(arch)), "{arch}: each has a half of these, in waves of its own size");
    }
    for [one, other] in [["gfx1100", "gfx1201"], ["gfx90a", "gfx950"]] {
        assert_eq!(taken(one), taken(other), "{one}, {other}");
    }
}

/// Rows of the tables have a wave take several tokens, which no default does: what is past the last one shows at the
/// first shape, whose numbers of rows no number of tokens divides.
#[test]
fn products_are_right_at_the_parameters_that_tables_choose() {
    let tables = Some(Arc::new(TuningTables::load(&[]).expect("right")));
    for (half, arch) in [(0, "gfx1100"), (1, "gfx90a")] {
        let how = Selection {
            tables: tables.clone(),
            first_shape: true,
            common_types: true,
            is_thin: true,
            half: Some(half),
            ..Selection::default()
        };
        let checked = check_as(&how, arch, |template| template.label() == "linear/gemv");
        all_right(arch, &checked);
    }
}

/// Tiles that a shape does not fill, fills, and more than fills, at all parameters that Hopper's table can choose. The
/// two that have the second product's text in common have half of these at each shape, and the other half at the next:
/// of template, parameters and shape any two meet.
#[test]
fn hoppers_templates_are_right_around_their_tiles() {
    let tables = Some(Arc::new(TuningTables::load(&[]).expect("right")));
    let halves = [("moe_mlp1/rows", None), ("moe_mlp2+rmsnorm/rows", Some(0)), ("moe_mlp2/rows", Some(1))];
    for (name, half) in halves {
        let how = Selection { tables: tables.clone(), own_tests: true, is_thin: true, half, ..Selection::default() };
        let checked = check_as(&how, "sm_90", |template| template.label() == name);
        all_right("sm_90", &checked);
        assert_eq!(checked.len(), 1, "{name}");
    }
    let (library, hopper) = (Library::from_layers(vec![Layer::built_in()]), Target::gpu("sm_90").expect("known"));
    let of_experts = library.templates().filter(|template| is_of_experts(template));
    let with_tiles = of_experts.filter(|one| !one.tests.is_empty() && one.fits_target(&hopper).is_ok());
    let mut names: Vec<String> = with_tiles.map(|template| template.label()).collect();
    names.sort();
    assert_eq!(names, halves.map(|(name, _)| name));
}

/// A gate and its up in one lane, panels that a group of waves copies: nothing else has either.
#[test]
fn a_gate_and_its_up_are_multiplied_where_they_are_summed() {
    let first = Selection { first_shape: true, is_thin: true, ..Selection::default() };
    let checked = check_as(&first, "sm_90", |template| template.label() == "linear+silu_and_mul/wgmma");
    all_right("sm_90", &checked);
}

/// Blocks that take several tiles, of which tensor maps bring panels: their order and ends are nobody else's.
#[test]
fn tiles_that_blocks_take_in_turn_are_right_around_their_ends() {
    let own = Selection { own_tests: true, is_thin: true, ..Selection::default() };
    let checked = check_as(&own, "sm_90", |template| template.label() == "linear/wgmma_tensor");
    all_right("sm_90", &checked);
}

/// Numbers of `N` bytes each in a file.
fn numbers<const N: usize>(path: &Path) -> Vec<[u8; N]> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len() % N, 0, "{}", path.display());
    bytes.chunks_exact(N).map(|chunk| chunk.try_into().expect("whole")).collect()
}

/// The folders that hold a case.
fn cases_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("listed").flatten().map(|entry| entry.path());
    let below = entries.filter(|path| path.is_dir()).flat_map(|path| cases_below(&path));
    let own = folder.join("case.json").exists().then(|| folder.to_owned());
    own.into_iter().chain(below).collect()
}

#[test]
fn exported_cases_hold_what_it_takes_to_run_and_to_judge_them() {
    if hiprtc::compiler().is_none() {
        return;
    }
    let (library, target) = (Library::from_layers(vec![Layer::built_in()]), Target::gpu("gfx1100").expect("known"));
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), hiprtc::options());
    let checker = Checker { library: &library, target: &target, store: &store, runner: None, compute_unit: None };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let common = Selection { is_thin: true, common_types: true, ..Selection::default() };
    let selection = Selection { op: vec!["embedding".into()], ..common };
    let n_cases = checker.export(&selection, folder.path()).expect("written");
    let mut n_f32 = 0;
    for case in cases_below(folder.path()) {
        let read = |name: &str| fs::read(case.join(name)).expect(name);
        assert_eq!(read("object")[..4], *b"\x7fELF");
        let case_json: serde_json::Value = serde_json::from_slice(&read("case.json")).expect("JSON");
        let arg = |name: &str| {
            let args = case_json["args"].as_array().expect("a list");
            args.iter().find(|arg| arg["name"] == name).unwrap_or_else(|| panic!("{name}: {case_json}")).clone()
        };
        let file = |name: &str, which: &str| case.join(arg(name)[which].as_str().expect(which));
        if case_json["dtypes"]["table"] != "f32" {
            continue;
        }
        // An embedding is rows of the table: what should come out is copied from what goes in, by hand.
        let table: Vec<f32> = numbers(&file("table", "file")).into_iter().map(f32::from_le_bytes).collect();
        let rows: Vec<u32> = numbers(&file("row", "file")).into_iter().map(u32::from_le_bytes).collect();
        let want: Vec<f64> = numbers(&file("y", "want")).into_iter().map(f64::from_le_bytes).collect();
        let width = want.len() / rows.len();
        assert_eq!(arg("n_tokens")["value"], rows.len() as f64);
        let copied =
            rows.iter().flat_map(|&row| &table[row as usize * width..][..width]).map(|&value| f64::from(value));
        assert_eq!(copied.collect::<Vec<f64>>(), want);
        n_f32 += 1;
    }
    assert_eq!((n_cases, n_f32), (8, 2), "four dtypes at two precisions");
}
