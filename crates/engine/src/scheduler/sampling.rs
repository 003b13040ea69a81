//! Sampling fields: their values and ranges, how they are sent, and when two are equal.
//!
//! All readers of requests use [`SamplingWishes::fields`]. A new field is added here, where the device takes it
//! (`extras`, `graph`), and as a flag in `src/run`.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::LogitChanges;

/// How the next token is chosen. In JSON for other processes of this program, floats are their bits, so that they
/// arrive unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy: the lowest id of the largest logit.
    #[serde(with = "bits")]
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most probable tokens up to this sum; 0 or less and 1 or more keep all.
    #[serde(with = "bits")]
    pub top_p: f32,
    /// Drop tokens whose probability is below this share of the most probable one's, at this temperature; 0 keeps all.
    #[serde(with = "bits")]
    pub min_p: f32,
    /// Start of the random sequence; 0 is taken as 1, since the generator would stay at 0.
    pub seed: u64,
}

impl Sampling {
    /// Takes the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 0.0, min_p: 0.0, seed: 1 };

    /// As OpenAI advises for its models (<https://github.com/openai/gpt-oss>, "Recommended Sampling Parameters").
    pub const ADVISED: Self = Self { temperature: 1.0, top_p: 1.0, ..Self::GREEDY };

    /// Everything that tokens depend on, as text: equal for settings with the same choices. Greedy settings omit what
    /// greedy choices ignore. Digests of recorded answers use it, so a new field must add to it only when it has an
    /// effect.
    pub fn identity(&self) -> String {
        let Self { temperature, top_k, top_p, min_p, seed } = *self;
        let drawn = if temperature > 0.0 { (top_k, top_p.to_bits(), min_p.to_bits(), seed) } else { (0, 0, 0, 0) };
        format!("{:x} {drawn:?}", temperature.to_bits())
    }
}

/// Sampling settings of a request, each as in [`Sampling`] unless noted; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct SamplingWishes {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    /// See [`Sampling`]; less than 0 keeps all too.
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    /// See [`Sampling`], whose bits these are; clients use -1 for none.
    pub seed: Option<i64>,
    /// See [`LogitChanges`].
    pub repetition_penalty: Option<f32>,
    /// See [`LogitChanges`].
    pub frequency_penalty: Option<f32>,
    /// See [`LogitChanges`].
    pub presence_penalty: Option<f32>,
}

/// A field of [`SamplingWishes`]: where it is, and what it may be.
#[derive(Debug)]
pub enum Wish<'a> {
    /// A number in a range.
    Number(&'a mut Option<f32>, RangeInclusive<f32>),
    /// A number of tokens, of 32 bits.
    Count(&'a mut Option<i64>),
    /// Any 64 bits.
    Bits(&'a mut Option<i64>),
}

impl SamplingWishes {
    /// What a share of probability may be.
    pub const SHARE: RangeInclusive<f32> = 0.0..=1.0;

    /// All fields by their names in requests.
    pub fn fields(&mut self) -> [(&'static str, Wish<'_>); 8] {
        let Self { temperature, top_p, top_k, min_p, seed, .. } = self;
        let Self { repetition_penalty, frequency_penalty, presence_penalty, .. } = self;
        [
            ("temperature", Wish::Number(temperature, 0.0..=2.0)),
            ("top_p", Wish::Number(top_p, Self::SHARE)),
            ("top_k", Wish::Count(top_k)),
            ("min_p", Wish::Number(min_p, Self::SHARE)),
            ("seed", Wish::Bits(seed)),
            ("repetition_penalty", Wish::Number(repetition_penalty, 0.01..=100.0)),
            ("frequency_penalty", Wish::Number(frequency_penalty, -2.0..=2.0)),
            ("presence_penalty", Wish::Number(presence_penalty, -2.0..=2.0)),
        ]
    }

    /// The requested seed, if any.
    pub fn named_seed(&self) -> Option<u64> {
        self.seed.filter(|seed| *seed != -1).map(i64::cast_unsigned)
    }

    /// These settings, completed by those of `usual`.
    pub fn sampling(&self, usual: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.map_or(usual.temperature, cold),
            top_k: self.top_k.map_or(usual.top_k, |k| u32::try_from(k).unwrap_or(0)),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            seed: self.named_seed().unwrap_or(usual.seed),
        }
    }

    /// The changes of logits, with these biases and without a mask.
    pub fn changes(&self, bias: Vec<(u32, f32)>) -> LogitChanges {
        LogitChanges {
            bias,
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            mask: None,
        }
    }
}

/// Greedy, if it is so cold that logits divided by it could pass the largest f32: a draw is then the most probable
/// token.
fn cold(temperature: f32) -> f32 {
    const COLDEST: f32 = 1e-30;
    if temperature > COLDEST { temperature } else { 0.0 }
}

/// A number as its bits.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
    pub(super) fn serialize<S: Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        u32::deserialize(deserializer).map(f32::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: Sampling = Sampling { temperature: 1.0, top_k: 3, top_p: 0.9, min_p: 0.1, seed: 7 };

    #[test]
    fn what_was_recorded_is_told_apart_as_ever() {
        // 0.9 is 0x3f666666, 0.1 is 0x3dcccccd.
        assert_eq!(DRAWN.identity(), "3f800000 (3, 1063675494, 1036831949, 7)");
        assert_eq!(Sampling { temperature: 0.0, ..DRAWN }.identity(), "0 (0, 0, 0, 0)");
    }

    #[test]
    fn what_is_not_wished_is_as_usual() {
        assert_eq!(SamplingWishes::default().sampling(DRAWN), DRAWN);
        let wishes = SamplingWishes { temperature: Some(1e-31), top_k: Some(-1), seed: Some(-2), ..Default::default() };
        assert_eq!(wishes.sampling(DRAWN), Sampling { temperature: 0.0, top_k: 0, seed: u64::MAX - 1, ..DRAWN });
        let random = SamplingWishes { seed: Some(-1), ..Default::default() };
        assert_eq!(random.sampling(DRAWN), DRAWN, "-1 asks for none in particular");
        let wishes = SamplingWishes { top_p: Some(0.5), min_p: Some(0.25), top_k: Some(9), ..Default::default() };
        assert_eq!(wishes.sampling(DRAWN), Sampling { top_p: 0.5, min_p: 0.25, top_k: 9, ..DRAWN });
    }

    #[test]
    fn fields_have_the_names_that_json_has() {
        for name in SamplingWishes::default().fields().map(|(name, _)| name) {
            let mut wishes: SamplingWishes = serde_json::from_str(&format!("{{\"{name}\": 1}}")).expect("a number");
            let said = wishes.fields().into_iter().filter(|(_, wish)| match wish {
                Wish::Number(value, _) => **value == Some(1.0),
                Wish::Count(value) | Wish::Bits(value) => **value == Some(1),
            });
            assert_eq!(said.map(|(name, _)| name).collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn numbers_go_as_their_bits() {
        let sampling = Sampling { temperature: f32::INFINITY, top_p: 0.1 + 0.2, min_p: 1e-45, ..DRAWN };
        let json = serde_json::to_string(&sampling).expect("numbers");
        assert_eq!(serde_json::from_str::<Sampling>(&json).expect("what went"), sampling);
    }

    /// 3.4e38 is the largest f32.
    #[test]
    fn what_is_too_cold_to_divide_by_is_greedy() {
        assert_eq!([0.0, 1e-38, 1e-30, 1.1e-30, 0.5].map(cold), [0.0, 0.0, 0.0, 1.1e-30, 0.5]);
    }
}
