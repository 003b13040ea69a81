//! The sampling fields of a request, the same for all endpoints.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::field::Field;
use engine::scheduler::{LogitChanges, Sampling, SamplingWishes, Wish};

/// What a request says of how tokens are chosen; what it does not say is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingFields {
    /// All that is a number, in range or not.
    pub(crate) wishes: SamplingWishes,
    /// Token ids as text, and -100 to 100.
    pub(crate) logit_bias: Option<Map<String, Value>>,
}

impl SamplingFields {
    /// Reads what has a type of its own, under the names that the APIs share.
    ///
    /// # Errors
    /// A value of another type.
    pub(crate) fn read(body: &Field) -> Result<Self, ApiError> {
        let mut wishes = SamplingWishes::default();
        for (name, wish) in wishes.fields() {
            let Some(field) = body.get(name) else { continue };
            match wish {
                Wish::Number(value, _) => *value = Some(field.number(f64::MIN..=f64::MAX)? as f32),
                Wish::Count(value) => *value = Some(field.integer(i64::MIN..=i64::MAX)?),
                Wish::Bits(value) => {
                    // A number of 64 bits with a sign, or without one.
                    let unsigned = field.value().as_u64().map(u64::cast_signed);
                    *value = Some(unsigned.map_or_else(|| field.integer(i64::MIN..=i64::MAX), Ok)?);
                }
            }
        }
        let bias = body.get("logit_bias").map(|bias| bias.object().map(|bias| bias.value().as_object().cloned()));
        Ok(Self { wishes, logit_bias: bias.transpose()?.flatten() })
    }

    /// How tokens are chosen: as OpenAI advises, where a request does not say. One without a seed gets `random_seed`.
    ///
    /// # Errors
    /// `invalid_value` for what is out of range.
    pub(crate) fn sampling(&self, random_seed: u64) -> Result<Sampling, ApiError> {
        let mut wishes = self.wishes;
        for (name, wish) in wishes.fields() {
            match wish {
                Wish::Number(Some(value), range) if !range.contains(value) => {
                    let (low, high) = (range.start(), range.end());
                    return Err(ApiError::invalid(name, format!("`{name}` is {value}, expected {low} to {high}")));
                }
                // -1 is what some clients say for all.
                Wish::Count(Some(k)) if *k != -1 && u32::try_from(*k).is_err() => {
                    return Err(ApiError::invalid(name, format!("`{name}` is {k}, expected 0 or more")));
                }
                _ => {}
            }
        }
        // The engine takes 0 for all tokens; here it is the smallest share there is, which the first one fills.
        wishes.top_p = wishes.top_p.map(|top_p| top_p.max(f32::MIN_POSITIVE));
        Ok(wishes.sampling(Sampling { seed: random_seed, ..Sampling::ADVISED }))
    }

    /// What is done to logits before that, less a mask.
    ///
    /// # Errors
    /// `invalid_value` for what is out of range or no token id.
    pub(crate) fn changes(&self, vocab_size: usize) -> Result<LogitChanges, ApiError> {
        let one = |(id, bias): (&String, &Value)| one_bias(id, bias, vocab_size);
        let bias = self.logit_bias.iter().flatten().map(one).collect::<Result<_, _>>()?;
        Ok(self.wishes.changes(bias))
    }
}

fn one_bias(id: &str, bias: &Value, vocab_size: usize) -> Result<(u32, f32), ApiError> {
    let param = || format!("logit_bias.{id}");
    let known = id.parse::<u32>().ok().filter(|&id| (id as usize) < vocab_size);
    let known = known.ok_or_else(|| {
        ApiError::invalid(param(), format!("`{id}` in `logit_bias` is not a token id; these are below {vocab_size}"))
    })?;
    let value = bias
        .as_f64()
        .filter(|value| (-100.0..=100.0).contains(value))
        .ok_or_else(|| ApiError::invalid(param(), format!("the bias of token {id} is {bias}, expected -100 to 100")))?;
    Ok((known, value as f32))
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
        let wishes = SamplingWishes { top_p: Some(0.0), top_k: Some(-1), seed: Some(-2), ..SamplingWishes::default() };
        let sampling = SamplingFields { wishes, logit_bias: None }.sampling(7).unwrap();
        assert!(sampling.top_p > 0.0 && sampling.top_p < 1e-30);
        assert_eq!((sampling.top_k, sampling.seed), (0, u64::MAX - 1));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let of = |fields: SamplingFields| {
            fields.sampling(1).map(|_| ()).and_then(|()| fields.changes(10).map(|_| ())).unwrap_err()
        };
        let text = |wishes| of(SamplingFields { wishes, logit_bias: None }).body()["error"]["message"].clone();
        let none = SamplingWishes::default;
        assert_eq!(text(SamplingWishes { temperature: Some(2.5), ..none() }), "`temperature` is 2.5, expected 0 to 2");
        assert_eq!(text(SamplingWishes { top_p: Some(f32::NAN), ..none() }), "`top_p` is NaN, expected 0 to 1");
        assert_eq!(text(SamplingWishes { min_p: Some(-0.5), ..none() }), "`min_p` is -0.5, expected 0 to 1");
        assert_eq!(text(SamplingWishes { top_k: Some(-2), ..none() }), "`top_k` is -2, expected 0 or more");
        assert_eq!(
            text(SamplingWishes { presence_penalty: Some(-3.0), ..none() }),
            "`presence_penalty` is -3, expected -2 to 2"
        );
        let bias = |value: Value| SamplingFields { wishes: none(), logit_bias: value.as_object().cloned() };
        let param = |fields| of(fields).param.unwrap();
        assert_eq!(param(bias(json!({"10": 1}))), "logit_bias.10");
        assert_eq!(param(bias(json!({"9": 101}))), "logit_bias.9");
        assert_eq!(
            param(SamplingFields { wishes: SamplingWishes { top_k: Some(-2), ..none() }, logit_bias: None }),
            "top_k"
        );
        assert_eq!(bias(json!({"9": -100, "3": 0.5})).changes(10).unwrap().bias, [(9, -100.0), (3, 0.5)]);
    }
}
