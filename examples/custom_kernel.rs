//! A kernel of one's own: written to a folder, found there, held against the reference.
//!
//! ```text
//! cargo run --release --example custom_kernel
//! ```

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::fs;

use gpu::host::HostDriver;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::Library;
use workbench::check::{Checker, Runner, Selection};

/// y[t, c] = x[t, c] * rsqrt(mean(x[t, :]^2) + eps) * scale[c], a block for each token.
const RMSNORM: &str = r#"{#
op      = "rmsnorm"
summary = "two loops in double precision"

[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/activation.c.j2" %}

{{ signature }} {
  const size_t n = {{ hidden_size }}, row = (size_t)block_x * n;
  double squares = 0.0;
  for (size_t c = 0; c < n; ++c) squares += (double)x[row + c] * x[row + c];
  const double factor = 1.0 / __builtin_sqrt(squares / n + {{ eps | f32 }});
  for (size_t c = 0; c < n; ++c) y[row + c] = activation_from_f32(x[row + c] * factor * f32_from_{{ scale }}(scale[c]));
}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    // Kernels are compiled in processes of this program's own.
    if let Some(done) = engine::worker() {
        return Ok(done?);
    }
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("rmsnorm"))?;
    fs::write(folder.path().join("rmsnorm/mine.c.j2"), RMSNORM)?;

    let library = Library::load(&[folder.path().to_owned()])?;
    let (target, store, driver) = (Target::host(), Store::from_env()?, HostDriver::new(0)?);
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let selection = Selection { op: vec!["rmsnorm".into()], variant: vec!["mine".into()], ..Selection::default() };
    for checked in checker.check(&selection, &mut |_| {}) {
        let verdict = if checked.is_right() { "right" } else { "wrong" };
        println!("{}/{} {}: {} cases, {verdict}", checked.op, checked.variant, checked.precision, checked.n_cases);
        checked.failures.iter().for_each(|wrong| println!("  {wrong}"));
    }
    Ok(())
}
