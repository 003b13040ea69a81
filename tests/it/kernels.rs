//! Every built-in template against its reference, and what a wrong kernel cannot hide.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu::host::HostDriver;
use gptoss_jit::dtype::Dtype;
use gptoss_jit::kernel::cache::{Cache, Limits};
use gptoss_jit::kernel::check::{Checked, Checker, Difference, Selection, Wrong};
use gptoss_jit::kernel::compile::CompilerOptions;
use gptoss_jit::kernel::library::{Layer, Library};
use gptoss_jit::kernel::store::Store;
use gptoss_jit::kernel::template::Template;
use gptoss_jit::kernel::{Params, Precision, Problem};
use gptoss_jit::reference::{self, Case, Tensor, Tensors};
use gptoss_jit::target::Target;

/// Kernels stay compiled between runs of the tests.
fn store() -> Store {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    Store::new(Cache::open(&root, Limits::default()), CompilerOptions::new(worker))
}

fn built_in() -> Library {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let broken: Vec<String> = library.broken().iter().map(|broken| broken.error.to_string()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    library
}

fn failures(checked: &[Checked]) -> String {
    checked.iter().flat_map(|one| one.failures.iter().map(move |failure| format!("{} {} {}: {failure}\n", one.op, one.variant, one.precision))).collect()
}

#[test]
fn every_built_in_host_template_agrees_with_its_reference() {
    let (library, store, driver) = (built_in(), store(), HostDriver::new(2).unwrap());
    let target = &Target::host();
    let checker = Checker { library: &library, target, store: &store, driver: Some(&driver) };
    let checked = checker.check(&Selection::default(), &mut |one| eprintln!("{one:?}"));
    assert!(failures(&checked).is_empty(), "{}", failures(&checked));
    for contract in library.contracts() {
        for precision in [Precision::F32, Precision::Bf16] {
            let is_checked = |one: &Checked| one.op == contract.op && one.precision == precision && one.n_cases > 0;
            assert!(checked.iter().any(is_checked), "no template of `{}` was run at {precision}", contract.op);
        }
    }
}
