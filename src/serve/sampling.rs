//! The fields of a request that say how tokens are chosen, the same for all endpoints.

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::scheduler::{LogitChanges, Sampling};

/// What a request says of how tokens are chosen; what it does not say is `None`.
#[derive(Clone, Debug, Default)]
pub struct SamplingFields {
    /// 0 to 2; 1 if absent, which is OpenAI's advice for these models.
    pub temperature: Option<f32>,
    /// 0 to 1; 1 if absent.
    pub top_p: Option<f32>,
    /// Keep so many of the most probable tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Any 64 bits; random if absent.
    pub seed: Option<i64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Token ids as text, and -100 to 100.
    pub logit_bias: Option<Map<String, Value>>,
}

impl SamplingFields {
    /// How tokens are chosen. A request without a seed gets `random_seed`.
    ///
    /// # Errors
    /// `invalid_value` for what is out of range.
    pub fn sampling(&self, random_seed: u64) -> Result<Sampling, ApiError> {
        let temperature = in_range("temperature", self.temperature, 0.0, 2.0)?.unwrap_or(1.0);
        let top_p = in_range("top_p", self.top_p, 0.0, 1.0)?.unwrap_or(1.0);
        let min_p = in_range("min_p", self.min_p, 0.0, 1.0)?.unwrap_or(0.0);
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            k => u32::try_from(k)
                .map_err(|_| ApiError::invalid("top_k", format!("`top_k` is {k}, expected 0 or more")))?,
        };
        // The engine takes 0 for all tokens; here it is the smallest share there is, which the first one fills.
        let top_p = top_p.max(f32::MIN_POSITIVE);
        let seed = self.seed.map_or(random_seed, i64::cast_unsigned);
        Ok(Sampling { temperature, top_k, top_p, min_p, seed })
    }

    /// What is done to logits before that, less a mask.
    ///
    /// # Errors
    /// `invalid_value` for what is out of range or no token id.
    pub fn changes(&self, vocab_size: usize) -> Result<LogitChanges, ApiError> {
        let frequency_penalty = in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0);
        let presence_penalty = in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0);
        let one = |(id, bias): (&String, &Value)| one_bias(id, bias, vocab_size);
        let bias = self.logit_bias.iter().flatten().map(one).collect::<Result<_, _>>()?;
        Ok(LogitChanges { bias, frequency_penalty, presence_penalty, mask: None })
    }
}

fn one_bias(id: &str, bias: &Value, vocab_size: usize) -> Result<(u32, f32), ApiError> {
    let param = || format!("logit_bias.{id}");
    let known = id.parse::<u32>().ok().filter(|&id| (id as usize) < vocab_size);
    let known = known.ok_or_else(|| {
        ApiError::invalid(param(), format!("`{id}` in `logit_bias` is no token id: they are below {vocab_size}"))
    })?;
    let value = bias
        .as_f64()
        .filter(|value| (-100.0..=100.0).contains(value))
        .ok_or_else(|| ApiError::invalid(param(), format!("the bias of token {id} is {bias}, expected -100 to 100")))?;
    Ok((known, value as f32))
}

/// The value, if it is there and in the range.
pub fn in_range(param: &str, value: Option<f32>, low: f32, high: f32) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::invalid(param, format!("`{param}` is {value}, expected {low} to {high}")))
        }
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_openais_advice() {
        let sampling = SamplingFields::default().sampling(7).unwrap();
        assert_eq!(sampling, Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 });
    }

    #[test]
    fn no_share_at_all_still_holds_the_most_probable_token() {
        let fields = SamplingFields { top_p: Some(0.0), top_k: Some(-1), seed: Some(-1), ..SamplingFields::default() };
        let sampling = fields.sampling(7).unwrap();
        assert!(sampling.top_p > 0.0 && sampling.top_p < 1e-30);
        assert_eq!((sampling.top_k, sampling.seed), (0, u64::MAX));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let of = |fields: SamplingFields| {
            fields.sampling(1).map(|_| ()).and_then(|()| fields.changes(10).map(|_| ())).unwrap_err().param.unwrap()
        };
        let bias = |value: Value| value.as_object().cloned();
        let none = SamplingFields::default;
        assert_eq!(of(SamplingFields { temperature: Some(2.5), ..none() }), "temperature");
        assert_eq!(of(SamplingFields { top_p: Some(f32::NAN), ..none() }), "top_p");
        assert_eq!(of(SamplingFields { top_k: Some(-2), ..none() }), "top_k");
        assert_eq!(of(SamplingFields { presence_penalty: Some(-3.0), ..none() }), "presence_penalty");
        assert_eq!(of(SamplingFields { logit_bias: bias(json!({"10": 1})), ..none() }), "logit_bias.10");
        assert_eq!(of(SamplingFields { logit_bias: bias(json!({"9": 101})), ..none() }), "logit_bias.9");
        let fields = SamplingFields { logit_bias: bias(json!({"9": -100, "3": 0.5})), ..none() };
        assert_eq!(fields.changes(10).unwrap().bias, [(9, -100.0), (3, 0.5)]);
    }
}
