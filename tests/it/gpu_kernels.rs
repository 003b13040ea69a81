//! Every GPU template on every test shape of its contract, executed by the simulator and compared with the reference: in
//! waves of 32 and of 64, on every matrix unit.

use std::path::Path;

use gptoss_jit::kernel::cache::{Cache, Limits};
use gptoss_jit::kernel::check::{Checked, Checker, Runner, Selection};
use gptoss_jit::kernel::compile::CompilerOptions;
use gptoss_jit::kernel::library::{Layer, Library};
use gptoss_jit::kernel::store::Store;
use gptoss_jit::kernel::template::Template;
use gptoss_jit::target::Target;
use gpu::sim::SimDriver;

use crate::program::shared_cache;

/// A chip without a matrix unit: what fits it is the same text for all chips of its wave size.
const PLAIN: &str = "gfx1030";

/// Runs the templates that `wanted` picks of those that fit the arch.
fn check(arch: &str, wanted: impl Fn(&Template) -> bool) -> Vec<Checked> {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::gpu(arch).expect(arch).simulated();
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    let store = Store::new(Cache::open(shared_cache(), Limits::default()), compilers);
    let driver = SimDriver::new(arch, target.wave_size, 0).expect("threads");
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let everything = Selection::default();
    let picked = checker.selected(&everything).filter(|template| wanted(template));
    let selections = picked.map(|template| Selection {
        op: Some(template.ops.join("+")),
        variant: Some(template.variant.clone()),
        all_params: false,
    });
    selections.collect::<Vec<_>>().iter().flat_map(|selection| checker.check(selection, &mut |_| {})).collect()
}

fn all_right(arch: &str, checked: &[Checked]) {
    let wrong = checked.iter().flat_map(|checked| {
        let name = format!("{arch}: {}/{} {}", checked.op, checked.variant, checked.precision);
        checked.failures.iter().map(move |failure| format!("{name}: {failure}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!checked.is_empty() && checked.iter().all(|checked| checked.ran && checked.n_cases > 0), "{arch}");
}

#[test]
fn templates_are_right_in_waves_of_32() {
    let checked = check("gfx1100", |_| true);
    all_right("gfx1100", &checked);
    let ops: std::collections::BTreeSet<&str> = checked.iter().map(|checked| checked.op.as_str()).collect();
    for op in ["embedding", "rmsnorm", "linear", "rope_angles", "rope_kv", "attention", "sample"] {
        assert!(ops.contains(op), "{op} has no GPU template");
    }
    for op in ["moe_route", "moe_sort", "moe_mlp1", "moe_mlp2"] {
        assert!(ops.contains(op), "{op} has no GPU template");
    }
}

#[test]
fn templates_are_right_in_waves_of_64() {
    all_right("gfx90a", &check("gfx90a", |_| true));
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
