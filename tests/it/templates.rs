//! The template library from the outside: folders of templates in, rendered source or an error with its line out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gptoss_jit::dtype::Dtype;
use gptoss_jit::kernel::library::{Layer, Library};
use gptoss_jit::kernel::render::{RenderError, Rendered, render};
use gptoss_jit::kernel::{Params, Precision, Problem};
use gptoss_jit::target::{Backend, Target};

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
    render(library, library.template(label, target.backend)?, problem, params, target)
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
    assert_eq!(kernel.resources.max_spills, Some(0));
}
