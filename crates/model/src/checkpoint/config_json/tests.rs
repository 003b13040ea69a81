//! Dimensions out of a `config.json`, and what is refused.

use serde_json::json;

use super::*;

/// What openai/gpt-oss-20b has, as transformers 4 wrote it, without what no reader looks at.
fn transformers_4() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "attention_bias": true, "experts_per_token": 4, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "quantization_config": { "modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4" },
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": { "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false },
        "tie_word_embeddings": false, "vocab_size": 201088,
    })
}

fn transformers_5() -> Value {
    let mut config = transformers_4();
    let object = config.as_object_mut().unwrap();
    for key in ["experts_per_token", "initial_context_length", "rope_theta", "swiglu_limit"] {
        object.remove(key);
    }
    let mut rope = object.remove("rope_scaling").unwrap();
    rope["rope_theta"] = 150_000.0.into();
    object.insert("rope_parameters".into(), rope);
    config
}

fn openai() -> Value {
    json!({
        "num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4, "vocab_size": 201088,
        "hidden_size": 2880, "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128, "initial_context_length": 4096,
        "rope_theta": 150000, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32,
    })
}

fn read_json(config: &Value) -> Result<ModelConfig, ConfigFileError> {
    read(config.to_string().as_bytes())
}

#[test]
fn all_three_spellings_are_the_same_model() {
    let want = crate::checkpoint::tensors::tests::gpt_oss_20b().with("max_seq_len", 131_072);
    for config in [transformers_4(), transformers_5(), openai()] {
        assert_eq!(read_json(&config).unwrap(), want);
    }
}

#[test]
fn what_would_be_computed_otherwise_is_refused_with_the_key() {
    for (pointer, value, message) in [
        ("/model_type", json!("mamba"), "`model_type` is \"mamba\", expected \"gemma3_text\" or \"glm\""),
        ("/rms_norm_eps", json!(1e-6), "`rms_norm_eps` is 1e-6, expected 0.00001"),
        ("/num_experts_per_tok", json!(5), "`experts_per_token` is 4, expected 5, as in `num_experts_per_tok`"),
        ("/rope_scaling/truncate", json!(true), "`rope_scaling.truncate` is true, expected false"),
        ("/rope_scaling/truncate", json!(null), "`rope_scaling.truncate` is missing"),
        ("/rope_scaling/beta_fast", json!(16), "`rope_scaling.beta_fast` is 16.0, expected 32"),
        ("/rope_scaling/rope_type", json!("linear"), "`rope_scaling.rope_type` is \"linear\", expected \"yarn\" or"),
        ("/rope_scaling/factor", json!("32"), "`rope_scaling.factor` is \"32\", expected a number"),
        ("/head_dim", json!(null), "`head_dim` is missing"),
        ("/head_dim", json!(64.5), "`head_dim` is 64.5, expected a whole number"),
        ("/hidden_size", json!(-1), "`hidden_size` is -1, expected 1 to"),
        ("/hidden_size", json!(u64::MAX), "`hidden_size` is 18446744073709551615, expected a whole number"),
        ("/quantization_config/quant_method", json!("quark"), "`quantization_config.quant_method` is \"quark\""),
        ("/quantization_config/quant_method", json!("awq"), "could not read weights that AWQ quantised"),
        ("/rope_theta", json!(0.5), "`rope_theta` is 0.5"),
    ] {
        let mut config = transformers_4();
        *config.pointer_mut(pointer).unwrap() = value;
        let error = read_json(&config).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    let mut config = transformers_4();
    config["layer_types"] = json!(vec!["full_attention"; 24]);
    assert!(read_json(&config).unwrap_err().to_string().starts_with("`layer_types` is [\"full_attention\""));
    config["layer_types"] = json!(["sliding_attention", "full_attention"].repeat(12));
    read_json(&config).unwrap();
}

#[test]
fn files_that_are_no_config_are_refused() {
    for (bytes, message) in [
        (&b"{"[..], "the file is not JSON"),
        (b"[1]", "the file is not JSON"),
        (b"{\"a\": \"\xff\"}", "the file is not JSON"),
        (&b"{\"a\":".repeat(100_000), "the file is not JSON"),
        (&b" ".repeat(2 << 20), "the file has 2097152 bytes"),
        (b"{}", "`rope_theta` is missing"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

fn dense(model_type: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 72, "vocab_size": 101,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn layers_have_the_windows_that_transformers_gives_them() {
    let windows = |model_type: &str, more: Value| -> Vec<Option<usize>> {
        let config = read_json(&dense(model_type, more)).unwrap();
        (0..4).map(|l| config.window(l)).collect()
    };
    let qwen2 = |uses: bool| json!({"use_sliding_window": uses, "sliding_window": 7, "max_window_layers": 3});
    assert_eq!(windows("qwen2", qwen2(false)), [None; 4]);
    assert_eq!(windows("qwen2", qwen2(true)), [None, None, None, Some(7)]);
    assert_eq!(windows("qwen2", json!({"sliding_window": 7})), [None; 4]);
    assert_eq!(windows("mistral", json!({"sliding_window": 5})), [Some(5); 4]);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [None; 4]);
    assert_eq!(windows("mistral", json!({})), [Some(4096); 4]);
    // Where layers are named, they must be those.
    let mut other = dense("qwen2", qwen2(true));
    other["layer_types"] = json!(vec!["sliding_attention"; 4]);
    assert!(read_json(&other).unwrap_err().to_string().starts_with("`layer_types` is"));
}

#[test]
fn layers_without_experts_are_those_that_a_file_names_or_leaves_out() {
    let of = |more: Value| {
        let mut config = dense("qwen3_moe", json!({"moe_intermediate_size": 20, "num_experts": 5}));
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config["num_experts_per_tok"] = json!(2);
        read_json(&config)
    };
    let dense = |more: Value| -> Vec<usize> {
        let config = of(more).unwrap();
        let groups = crate::checkpoint::tensors::groups(&config);
        let of = |name: &str| groups.iter().find(|group| group.tensor.name == name).map(|group| group.layers.clone());
        let (dense, sparse) = (of("mlp.down.weight").unwrap_or_default(), of("mlp.mlp2_weight").unwrap_or_default());
        assert!((0..4).all(|l| dense.contains(&l) != sparse.contains(&l)), "{dense:?} {sparse:?}");
        dense
    };
    assert_eq!(dense(json!({})), [0; 0]);
    assert_eq!(dense(json!({"mlp_only_layers": [0, 3]})), [0, 3]);
    assert_eq!(dense(json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]})), [0, 2, 3]);
    let norm = |more: Value| of(more).unwrap().dim("norm_topk_prob");
    assert_eq!((norm(json!({})), norm(json!({"norm_topk_prob": true}))), (0, 1));
    for (more, message) in [
        (json!({"mlp_only_layers": [0, -1]}), "`mlp_only_layers` is [0,-1], expected a list of"),
        (json!({"mlp_only_layers": 3}), "`mlp_only_layers` is 3, expected a list of"),
        (json!({"use_sliding_window": true}), "`use_sliding_window` is true, expected false"),
        (json!({"num_local_experts": 6}), "`num_local_experts` is 6, expected 5, as in `num_experts`"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "`rope_scaling.rope_type` is \"yarn\""),
    ] {
        let error = of(more).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn scaled_positions_are_computed_or_refused_by_their_name() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 64});
    let old = read_json(&dense("llama", json!({"rope_scaling": llama3}))).unwrap();
    let mut new = llama3.clone();
    new["rope_theta"] = 10_000.0.into();
    assert_eq!(read_json(&dense("llama", json!({"rope_parameters": new}))).unwrap(), old);
    assert_eq!((old.number("rope_factor"), old.dim("original_context_length")), (8.0, 64));
    assert_eq!(read_json(&dense("llama", json!({"rope_scaling": null}))).unwrap().number("rope_factor"), 1.0);
    let refused = |model_type, key: &str, value: Value| {
        let mut scaling = llama3.clone();
        scaling[key] = value;
        read_json(&dense(model_type, json!({"rope_scaling": scaling}))).unwrap_err().to_string()
    };
    for (key, value, message) in [
        ("rope_type", json!("dynamic"), "`rope_scaling.rope_type` is \"dynamic\", expected \"default\", \"linear\" or"),
        ("factor", json!(0), "`rope_factor` is 0, expected a finite number above 0"),
        ("high_freq_factor", json!(1), "`rope_scaling.high_freq_factor` is 1.0, expected more than 1"),
        ("low_freq_factor", json!(null), "`rope_scaling.low_freq_factor` is missing"),
    ] {
        let error = refused("llama", key, value);
        assert!(error.starts_with(message), "{error}");
    }
    assert!(refused("qwen2", "factor", json!(8)).contains("expected \"default\""));
}

fn glm4(more: Value) -> Result<ModelConfig, ConfigFileError> {
    let mut config = dense("glm4", more.clone());
    for key in ["rms_norm_eps", "num_key_value_heads", "rope_theta"] {
        if more.get(key).is_none() {
            config.as_object_mut().unwrap().remove(key);
        }
    }
    read_json(&config)
}

#[test]
fn glm_has_the_defaults_of_its_class_and_rotates_half_of_a_head() {
    let config = glm4(json!({})).unwrap();
    let dims =
        ["head_dim", "num_key_value_heads", "attention_bias", "tie_word_embeddings"].map(|name| config.dim(name));
    assert_eq!(dims, [128, 2, 1, 0]);
    assert_eq!((config.number("rms_norm_eps"), config.number("rope_theta")), (1.5625e-7, 10_000.0));
    let old = glm4(json!({"head_dim": 16, "partial_rotary_factor": 0.5, "rope_theta": 1e5})).unwrap();
    let new = json!({"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e5});
    assert_eq!(glm4(json!({"head_dim": 16, "rope_parameters": new})).unwrap(), old);
    // Of 16 values 8 rotate, as four pairs; what is behind them is turned by nothing.
    let angles = [1.0, 1e5_f32.powf(-0.25), 1e5_f32.powf(-0.5), 1e5_f32.powf(-0.75), 0.0, 0.0, 0.0, 0.0];
    let found = old.rotations().remove(0).inv_freq;
    let off = found.iter().zip(angles).map(|(found, angle)| (found - angle).abs());
    assert!(found.len() == 8 && off.fold(0.0, f32::max) < 1e-7, "{found:?}");
    for (more, message) in [
        (json!({"partial_rotary_factor": 1.0}), "`partial_rotary_factor` is 1.0, expected 0.5"),
        (json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}), "`rope_parameters.rope_type` is \"yarn\""),
        (json!({"head_dim": 14}), "`head_dim` is 14, not a multiple of 4"),
    ] {
        assert!(glm4(more.clone()).unwrap_err().to_string().starts_with(message), "{more}");
    }
}

fn gemma3(more: Value) -> Result<ModelConfig, ConfigFileError> {
    let mut config = dense("gemma3_text", more.clone());
    for key in ["hidden_act", "rms_norm_eps", "rope_theta"] {
        if more.get(key).is_none() {
            config.as_object_mut().unwrap().remove(key);
        }
    }
    read_json(&config)
}

#[test]
fn layers_of_gemma_have_two_ropes_in_either_spelling() {
    let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6});
    let near = json!({"rope_type": "default", "rope_theta": 2e4});
    let new = gemma3(json!({"rope_parameters": {"full_attention": full, "sliding_attention": near}})).unwrap();
    let scaling = json!({"rope_type": "linear", "factor": 8.0});
    let old = json!({"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": scaling});
    assert_eq!(gemma3(old).unwrap(), new);
    let numbers = ["rope_theta", "rope_factor", "near_rope_theta"].map(|name| new.number(name));
    assert_eq!(numbers, [2e6, 8.0, 2e4]);
    // Of four layers none sees all, and only one rope is used.
    let ropes = |config: &ModelConfig| -> Vec<(&str, f32)> {
        config.rotations().into_iter().map(|rotation| (rotation.name, rotation.inv_freq[0])).collect()
    };
    assert_eq!(ropes(&new), [("near", 1.0)]);
    assert_eq!(ropes(&new.with("sliding_window_pattern", 2)), [("cos_sin", 0.125), ("near", 1.0)]);

    let config = gemma3(json!({})).unwrap();
    let dims = ["head_dim", "sliding_window", "query_pre_attn_scalar", "tie_word_embeddings"];
    assert_eq!(dims.map(|name| config.dim(name)), [256, 4096, 256, 1]);
    let numbers = ["rope_theta", "rope_factor", "near_rope_theta", "rms_norm_eps", "query_factor"];
    assert_eq!(numbers.map(|name| config.number(name)), [1e6, 1.0, 1e4, 1e-6, 1.0]);
    assert_eq!(config.number("embedding_scale"), 48_f32.sqrt());
    // The largest one's scores are over another number than the size of its heads.
    let config = gemma3(json!({"head_dim": 128, "query_pre_attn_scalar": 168})).unwrap();
    assert_eq!(config.number("query_factor"), (128.0_f64 / 168.0).sqrt() as f32);
    for (more, message) in [
        (json!({"final_logit_softcapping": 30.0}), "`final_logit_softcapping` is 30.0, expected 0"),
        (json!({"hidden_activation": "gelu"}), "`hidden_activation` is \"gelu\", expected \"gelu_pytorch_tanh\""),
        (json!({"use_bidirectional_attention": true}), "`use_bidirectional_attention` is true, expected false"),
        (json!({"layer_types": vec!["full_attention"; 4]}), "`layer_types` is [\"full_attention\""),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
            "`rope_scaling.rope_type` is \"llama3\", expected \"default\" or \"linear\"",
        ),
        (
            json!({"rope_parameters": {"full_attention": near, "sliding_attention": full}}),
            "`rope_parameters.sliding_attention.rope_type` is \"linear\", expected \"default\"",
        ),
    ] {
        let error = gemma3(more).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let error = |len: usize| read(&vec![b' '; len]).unwrap_err();
    assert!(matches!(error(MAX_BYTES), ConfigFileError::Json(_)));
    assert!(matches!(error(MAX_BYTES + 1), ConfigFileError::TooLong { found } if found == MAX_BYTES + 1));
}
