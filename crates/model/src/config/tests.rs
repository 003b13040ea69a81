//! What dimensions make a model, and the published ones.

use super::*;

#[test]
fn the_published_models_are_models() {
    for shape in NamedShape::all() {
        shape.config(None).check().unwrap();
    }
    let names: Vec<&str> = NamedShape::all_of_family(NamedShape::gpt_oss_20b().family).map(NamedShape::name).collect();
    assert_eq!(names, ["gpt-oss-20b", "gpt-oss-120b"]);
    assert_eq!(NamedShape::gpt_oss_20b().config(Some(2)).num_hidden_layers, 2);
}

#[test]
fn dimensions_that_do_not_fit_each_other_are_told() {
    let said = |values: &[(&str, f64)]| NamedShape::gpt_oss_20b().config_with(values).check().unwrap_err().to_string();
    assert_eq!(said(&[("experts_per_token", 33.0)]), "`experts_per_token` is 33, more than `num_experts`, which is 32");
    assert_eq!(
        said(&[("num_attention_heads", 7.0)]),
        "`num_attention_heads` is 7, not a multiple of `num_key_value_heads`, which is 8"
    );
    assert_eq!(said(&[("head_dim", 63.0)]), "`head_dim` is 63, not a multiple of 2");
    assert_eq!(said(&[("vocab_size", 0.0)]), "`vocab_size` is 0, expected 1 to 16777216");
}
