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

/// Angles that transformers 5.23 computes of Llama 3.2's configuration, and of a linear factor of 4 in its place.
#[test]
fn angles_of_stretched_contexts_are_those_of_transformers() {
    let shape = NamedShape::all().iter().find(|shape| shape.name() == "llama-3.2-1b").unwrap();
    let check = |config: ModelConfig, expected: &[(usize, f32)]| {
        let rotation = config.rotations().remove(0);
        let found = rotation.inv_freq;
        assert_eq!((found.len(), rotation.concentration), (32, 1.0));
        for &(i, angle) in expected {
            assert!((found[i] - angle).abs() <= 1e-6 * angle, "{i}: {} and not {angle}", found[i]);
        }
    };
    let llama3 = [
        (0, 1.0),
        (1, 0.663_601_3),
        (14, 3.211_446e-3),
        (15, 1.290_548e-3),
        (16, 4.295_567e-4),
        (17, 9.708_286e-5),
        (18, 1.946_164e-5),
        (31, 9.418_306e-8),
    ];
    check(shape.config(None), &llama3);
    let linear = shape.config_with(&[("original_context_length", 0.0), ("rope_factor", 4.0)]);
    check(linear.clone(), &[(0, 0.25), (1, 0.165_900_3), (31, 7.534_645e-7)]);
    check(linear.with_rope_divisors(vec![2.0; 32]), &[(0, 0.125), (31, 3.767_323e-7)]);
}

fn check_angles(values: &[(&str, f64)], expected: &[(usize, f32)]) {
    let found = NamedShape::gpt_oss_20b().config_with(values).rotations().remove(0).inv_freq;
    for &(i, angle) in expected {
        assert!((found[i] - angle).abs() <= 1e-5 * angle, "{i}: {} and not {angle}", found[i]);
    }
}

/// YaRN's formula in f64: a context of 128 turns no pair 32 times, and pair 0 is the first that is slowed down.
#[test]
fn angles_of_a_context_below_201_are_mixed_from_the_first_pair_on() {
    let expected = [(0, 1.0), (1, 0.6065619), (4, 0.1174829), (8, 0.002152256), (31, 3.023511e-07)];
    check_angles(&[("initial_context_length", 128.0)], &expected);
}

/// The same: the last of four pairs is not slowed down whole, since the range ends behind it.
#[test]
fn the_last_pair_of_a_small_head_is_a_mix_where_the_context_is_long() {
    let expected = [(0, 1.0), (1, 0.05081327), (2, 0.002581989), (3, 4.102365e-05)];
    check_angles(&[("head_dim", 8.0), ("initial_context_length", 131_072.0)], &expected);
}

/// llama.cpp's rule: GGUF has no key for what Gemma 3 divides scores by.
#[test]
fn scores_of_gemma_3_in_gguf_are_over_the_size_of_a_head_but_for_the_largest() {
    let of = |n_layers: f64, is_gguf: f64| {
        let family = crate::family::named("gemma3").unwrap();
        let shape = NamedShape::all_of_family(family).next().unwrap();
        let values = [
            ("num_hidden_layers", n_layers),
            ("is_gguf", is_gguf),
            ("hidden_size", 5376.0),
            ("num_attention_heads", 32.0),
            ("num_key_value_heads", 16.0),
            ("head_dim", 128.0),
            ("query_pre_attn_scalar", 128.0),
        ];
        shape.config_with(&values).number("query_factor")
    };
    assert_eq!([of(62.0, 0.0), of(48.0, 1.0), of(62.0, 1.0)], [1.0, 1.0, (128.0_f64 / 168.0).sqrt() as f32]);
}

#[test]
fn configurations_are_equal_if_family_dimensions_and_numbers_are() {
    let of = |values: &[(&str, f64)]| NamedShape::gpt_oss_20b().config_with(values);
    assert_eq!(of(&[]), of(&[]));
    let llama = NamedShape::all().iter().find(|shape| shape.name() == "llama-3.2-1b").unwrap().config(None);
    for other in [of(&[("num_hidden_layers", 2.0)]), of(&[("rope_theta", 7.0)]), llama] {
        assert_ne!(of(&[]), other);
    }
    assert_ne!(of(&[]).with_rope_divisors(vec![2.0; 32]), of(&[]));
}

#[test]
fn as_many_as_there_are_is_not_too_many() {
    NamedShape::gpt_oss_20b().config_with(&[("experts_per_token", 32.0)]).check().unwrap();
}
