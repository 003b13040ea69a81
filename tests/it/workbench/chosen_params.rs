//! GPU templates at the parameters that tuning tables choose, where these take other ways through the text than the
//! defaults do: rows of a block, groups of waves, panels, tiles that are split.

use std::collections::BTreeSet;
use std::sync::Arc;

use kernel::tuning::TuningTables;
use workbench::check::Selection;

use super::gpu_kernels::{all_right, check_as};

/// Each template is run on one chip, and takes one half of the types and precisions there; `linear/gemv`, of which
/// tables choose most, has a test of its own.
fn right_as_chosen(arch: &str, half: usize, labels: &[&str]) {
    let how = Selection {
        tables: Some(Arc::new(TuningTables::load(&[]).expect("right"))),
        first_shape: true,
        common_types: true,
        is_thin: true,
        half: Some(half),
        ..Selection::default()
    };
    let checked = check_as(&how, arch, |template| labels.contains(&template.label().as_str()));
    all_right(arch, &checked);
    let found: BTreeSet<String> = checked.iter().map(|one| format!("{}/{}", one.op, one.variant)).collect();
    assert_eq!(found, labels.iter().map(|label| (*label).to_owned()).collect(), "{arch}");
}

#[test]
fn attention_is_right_at_the_parameters_that_tables_choose() {
    right_as_chosen("gfx1100", 0, &["attention/decode", "attention/decode_matrix"]);
    right_as_chosen("gfx90a", 1, &["attention/flash"]);
}

#[test]
fn experts_are_right_at_the_parameters_that_tables_choose() {
    right_as_chosen("gfx1100", 0, &["moe_mlp1/matrix", "moe_mlp2/dot4"]);
    right_as_chosen("gfx90a", 1, &["moe_mlp1/dot4", "moe_mlp2/matrix"]);
}

#[test]
fn runs_of_ops_are_right_at_the_parameters_that_tables_choose() {
    right_as_chosen("gfx1100", 0, &["rmsnorm+linear/gemv"]);
    right_as_chosen("gfx90a", 1, &["rmsnorm+linear+moe_route+moe_sort/gemv"]);
}
