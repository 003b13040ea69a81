//! Unsupported quantisation methods that are recognised, so that the error names the method instead of a missing
//! tensor.

use hint::Hint;

/// A way of quantising, and what tells it.
struct Method {
    name: &'static str,
    /// `quantization_config.quant_method` in a `config.json`, where that tells.
    config: Option<&'static str>,
    /// How names of tensors end that other files do not have.
    suffixes: &'static [&'static str],
}

static METHODS: [Method; 4] = [
    Method { name: "GPTQ", config: Some("gptq"), suffixes: &[".g_idx"] },
    Method { name: "AWQ", config: Some("awq"), suffixes: &[".qzeros"] }, // GPTQ's files have these, too
    Method { name: "bitsandbytes", config: Some("bitsandbytes"), suffixes: &[".absmax", ".SCB"] },
    Method { name: "compressed-tensors to few bits", config: None, suffixes: &[".weight_packed"] },
];

/// Weights of a method that is not read.
#[derive(Debug, thiserror::Error)]
#[error("could not read weights that {method} quantised, as {evidence} shows")]
pub struct ForeignQuantization {
    method: &'static str,
    evidence: String,
}

impl Hint for ForeignQuantization {
    fn hint(&self) -> Option<String> {
        Some(
            "use the model's BF16 or F16 files, which `--quantize` converts to 8 bits, or its GGUF file in one of llama.cpp's types"
                .into(),
        )
    }
}

/// Refuses a method by its name in a `config.json`.
///
/// # Errors
/// It is one of those.
pub(super) fn check_method(found: &str) -> Result<(), ForeignQuantization> {
    match METHODS.iter().find(|method| method.config == Some(found)) {
        None => Ok(()),
        Some(method) => {
            let evidence = format!("`quantization_config.quant_method` \"{found}\"");
            Err(ForeignQuantization { method: method.name, evidence })
        }
    }
}

/// Refuses a method by the names of tensors.
///
/// # Errors
/// There is a name that only its files have.
pub(super) fn check_names<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<(), ForeignQuantization> {
    for Method { name: method, suffixes, .. } in &METHODS {
        let is_its = |name: &&str| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if let Some(name) = names.clone().find(is_its) {
            return Err(ForeignQuantization { method, evidence: format!("a tensor `{name}`") });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_told_by_what_only_they_have() {
        let of = |names: &[&str]| check_names(names.iter().copied()).map_err(|error| error.method);
        let layer = |name: &str| format!("model.layers.0.self_attn.q_proj.{name}");
        let (awq, g_idx, absmax) = (["qweight", "qzeros", "scales"].map(layer), layer("g_idx"), layer("weight.absmax"));
        let awq = awq.each_ref().map(String::as_str);
        assert_eq!(of(&awq), Err("AWQ"));
        assert_eq!(of(&[&awq[..], &[&g_idx]].concat()), Err("GPTQ"));
        assert_eq!(of(&["model.norm.weight", &absmax]), Err("bitsandbytes"));
        assert_eq!(of(&["model.norm.weight", "lm_head.weight"]), Ok(()));
        for method in ["awq", "gptq", "bitsandbytes"] {
            assert!(check_method(method).is_err());
        }
        assert!(check_method("mxfp4").is_ok());
    }
}
