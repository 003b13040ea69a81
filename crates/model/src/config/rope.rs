//! How positions become angles: the numbers that `[rope]` in the family's file names.

use std::f32::consts::TAU;

use super::ModelConfig;
use crate::family::{Rope, RopeScaling};

impl ModelConfig {
    /// The same model with angles divided, pair by pair, as a file has it that holds no more than that of its scaling.
    ///
    /// - `divisors`: above 0, a pair each: [`Self::rope_dim`] / 2
    pub(crate) fn with_rope_divisors(self, divisors: Vec<f32>) -> Self {
        Self { rope_divisors: divisors, ..self }
    }

    /// What positions are turned by in some layer, in the order of the family's file.
    pub fn rotations(&self) -> Vec<Rotation> {
        let of = |rope: &'static Rope| Rotation {
            name: &rope.name,
            concentration: self.concentration(rope),
            inv_freq: self.inv_freq(rope),
        };
        let used = self.family.forward.ropes(&self.scope(), self.num_hidden_layers);
        self.family.ropes.iter().filter(|rope| used.contains(rope.name.as_str())).map(of).collect()
    }

    /// Values of a head, which are turned or not.
    pub fn head_width(&self) -> usize {
        self.get("head_dim").unwrap_or_else(|| self.turned(&self.family.ropes[0]))
    }

    /// Of the first, the values of a head that rotate.
    pub(crate) fn rope_dim(&self) -> usize {
        self.turned(&self.family.ropes[0])
    }

    /// The values of a head that rotate.
    fn turned(&self, rope: &Rope) -> usize {
        let turned = rope.dim.whole_u32(&self.scope());
        turned.expect("the family was checked") as usize
    }

    /// YaRN's factor (OpenAI's `RotaryEmbedding._compute_concentration_and_inv_freq`).
    fn concentration(&self, rope: &Rope) -> f32 {
        match &rope.scaling {
            RopeScaling::Yarn { factor, .. } if self.number(factor) > 1.0 => 0.1 * self.number(factor).ln() + 1.0,
            _ => 1.0,
        }
    }

    fn inv_freq(&self, rope: &Rope) -> Vec<f32> {
        let rotating = Turned { d: self.turned(rope), theta: self.number(&rope.theta) };
        let mut angles = match &rope.scaling {
            RopeScaling::Yarn { factor, original } if self.number(factor) > 1.0 => {
                rotating.yarn(self.number(factor), self.dim(original))
            }
            RopeScaling::Linear { factor } => {
                let factor = self.number(factor);
                rotating.plain().into_iter().map(|angle| angle / factor).collect()
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let [factor, low, high] = [factor, low, high].map(|name| self.number(name));
                // Of a pair's angle, what is kept whole: nothing below `low` turns, all from `high` on.
                let kept = |angle: f32| {
                    let turns = self.dim(original) as f32 * angle / TAU;
                    ((turns - low) / (high - low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0)
                };
                let slowed = |angle: f32| (1.0 - kept(angle)) * angle / factor + kept(angle) * angle;
                rotating.plain().into_iter().map(slowed).collect()
            }
            RopeScaling::None | RopeScaling::Yarn { .. } => rotating.plain(),
        };
        if rope.divisors.is_some() {
            angles.iter_mut().zip(&self.rope_divisors).for_each(|(angle, divisor)| *angle /= divisor);
        }
        angles.resize(self.head_width() / 2, 0.0); // what does not rotate is turned by nothing
        angles
    }
}

/// What positions are turned by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// What statements of the family's file call its cosines and sines.
    pub name: &'static str,
    /// The factor on both: YaRN's `0.1 ln(factor) + 1`, or 1 without scaling.
    pub concentration: f32,
    /// The angle that position 1 turns pair i by, [`ModelConfig::head_width`] / 2 of them: of d values that rotate
    /// `theta^(-2i / d)`, less where the context is stretched; 0 of those after them.
    pub inv_freq: Vec<f32>,
}

/// The values of a head that rotate.
struct Turned {
    d: usize,
    theta: f32,
}

impl Turned {
    /// The inverse of the angle that position 1 turns pair i by, where nothing stretches the context.
    fn freq(&self, i: usize) -> f32 {
        self.theta.powf((2 * i) as f32 / self.d as f32)
    }

    fn plain(&self) -> Vec<f32> {
        (0..self.d / 2).map(|i| 1.0 / self.freq(i)).collect()
    }

    /// A mix of plain angles and of these divided by the scaling factor. OpenAI's too; all in f32, in its order.
    fn yarn(&self, factor: f32, initial_context_length: usize) -> Vec<f32> {
        let Self { d, theta } = *self;
        let half = d / 2;
        // The pair that turns `rotations` times within the initial context.
        let pair = |rotations: f64| {
            let turns = f64::from(initial_context_length as f32) / (rotations * 2.0 * std::f64::consts::PI);
            half as f32 * (turns as f32).ln() / theta.ln()
        };
        const BETA: f64 = 32.0;
        const ALPHA: f64 = 1.0;
        // OpenAI's program refuses a range that leaves [0, d / 2 - 1]; Hugging Face's clamps it, and so do we.
        let low = pair(BETA).max(0.0);
        let high = pair(ALPHA).min(d as f32 - 1.0).max(low + 0.001);
        let mix = |i: usize| {
            let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            let (interpolation, extrapolation) = (1.0 / (factor * self.freq(i)), 1.0 / self.freq(i));
            let mask = 1.0 - ramp;
            interpolation * (1.0 - mask) + extrapolation * mask
        };
        (0..half).map(mix).collect()
    }
}
