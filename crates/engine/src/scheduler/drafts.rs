//! Speculation: drafts of the next tokens, from earlier text.
//!
//! If the last three tokens of a sequence, or else the last two, occurred before, the tokens that followed them are
//! expected to follow again. A step can have rows for the expected tokens beside the sequence's own row. If the token
//! that a row gives is the token of the next row, the next row's token counts too. It is the token that a separate
//! step would have given, as far as a row does not depend on its neighbours. So drafts change the number of steps, not
//! the tokens.
//!
//! Expected tokens are compared with actual ones even without rows for them, so a text that does not repeat costs only
//! this comparison.

use std::collections::HashMap;

use kernel::target::Target;
use kernel::template::Precision;

/// How tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOptions {
    /// Draft rows of a sequence in a step, at most.
    pub max_rows: usize,
    /// While more sequences than this run, none drafts: their rows fill the steps anyway.
    pub max_sequences: usize,
    /// A draft gets a row if it is right with at least this probability, by how often this sequence's were so far.
    pub min_probability: f32,
}

impl DraftOptions {
    /// So cautious that few drafts are wrong: a wrong one costs time on every device.
    pub const USUAL: Self = Self { max_rows: 8, max_sequences: 4, min_probability: 0.6 };

    /// [`Self::USUAL`] where drafts gain time and change nothing: on cores, and on a GPU in bf16. One H100,
    /// gpt-oss-20b: a text that repeats went from 574 to 1,445 tok/s, four at a time from 1,153 to 1,456, others
    /// stayed. In f32, whose rows share no matrix unit, four texts went from 1,610 to 848 tok/s (four layers).
    pub fn usual_on(target: &Target, precision: Precision) -> Option<Self> {
        (!target.is_gpu() || precision == Precision::Bf16).then_some(Self::USUAL)
    }

    /// Draft rows of a step of this many sequences, at most.
    pub(crate) fn most_rows(&self, n_slots: usize) -> usize {
        self.max_rows * self.max_sequences.min(n_slots)
    }
}

/// How much of what is known of a sequence's drafts the last one makes up.
const NEWEST: f32 = 1.0 / 8.0;

/// A sequence's earlier tokens, and the tokens that they predict.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// The place of the token that followed these three last.
    after_three: HashMap<[u32; 3], usize>,
    after_two: HashMap<[u32; 2], usize>,
    n_seen: usize,
    /// The place of the token that is expected to come next again.
    expected: Option<usize>,
    /// The probability that an expected token comes, by recent results.
    probability: f32,
}

impl Drafts {
    /// Records the tokens that came since the last call. Those of the prompt, the first `n_prompt`, say nothing about
    /// how often drafts are right.
    pub(crate) fn follow(&mut self, tokens: &[u32], n_prompt: usize) {
        for place in self.n_seen..tokens.len() {
            if let Some(expected) = self.expected.filter(|_| place >= n_prompt) {
                let is_right = tokens[expected] == tokens[place];
                self.probability += (f32::from(u8::from(is_right)) - self.probability) * NEWEST;
                self.expected = is_right.then_some(expected + 1);
            }
            let before = &tokens[..place];
            before.last_chunk().map(|three| self.after_three.insert(*three, place));
            before.last_chunk().map(|two| self.after_two.insert(*two, place));
            if self.expected.is_none() && place + 1 >= n_prompt {
                self.expected = self.find(&tokens[..=place]);
            }
        }
        self.n_seen = tokens.len();
    }

    /// The place of what followed the end of these tokens last.
    fn find(&self, tokens: &[u32]) -> Option<usize> {
        let after_three = tokens.last_chunk().and_then(|three| self.after_three.get(three));
        after_three.or_else(|| tokens.last_chunk().and_then(|two| self.after_two.get(two))).copied()
    }

    /// What may come after these tokens, which were all told: at most `most`, and each with at least that probability.
    pub(crate) fn draft(&self, tokens: &[u32], most: usize, min_probability: f32) -> Vec<u32> {
        let Some(expected) = self.expected else { return Vec::new() };
        let mut drafts: Vec<u32> = Vec::new();
        let mut probability = self.probability;
        while drafts.len() < most && probability >= min_probability {
            // Behind the end of what is known is what was drafted: a text may repeat what is shorter than a draft.
            let place = expected + drafts.len();
            let token = tokens.get(place).or_else(|| drafts.get(place - tokens.len()));
            drafts.extend(token.copied());
            probability *= self.probability;
        }
        drafts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drafts after these tokens, all of which are an answer.
    fn drafts(tokens: &[u32], most: usize, min_probability: f32) -> Vec<u32> {
        let mut drafts = Drafts::default();
        drafts.follow(tokens, 0);
        drafts.draft(tokens, most, min_probability)
    }

    #[test]
    fn what_followed_the_last_three_tokens_is_expected_else_what_followed_two() {
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 9, 2, 3, 6, 0, 1, 2, 3], 3, 0.0), [4, 5, 9]);
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 9, 2, 3, 6, 0, 8, 2, 3], 3, 0.0), [6, 0, 8], "the latest place of two");
        assert!(drafts(&[1, 2, 3, 4, 5, 3], 3, 0.0).is_empty() && drafts(&[], 3, 0.0).is_empty());
    }

    #[test]
    fn what_is_expected_goes_on_while_it_is_right() {
        // Behind 1 2 3 4 the draft goes on with what followed it first, though 3 4 was followed by another since.
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 0, 3, 4, 6, 1, 2, 3, 4], 2, 0.0), [5, 0]);
        // So it does though all three of 2 3 4 were followed by another since.
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 0, 2, 3, 4, 6, 1, 2, 3, 4], 2, 0.0), [5, 0]);
    }

    #[test]
    fn a_text_may_repeat_what_is_shorter_than_a_draft() {
        assert_eq!(drafts(&[7, 1, 2, 1, 2, 1], 5, 0.0), [2, 1, 2, 1, 2]);
    }

    #[test]
    fn drafts_are_as_long_as_they_are_probably_right() {
        let repeating: Vec<u32> = (0..100).map(|i| i % 10).collect();
        assert_eq!(drafts(&repeating, 8, 0.6), [0, 1, 2, 3, 4, 5, 6, 7]);
        let lengths: Vec<usize> = (0..40).map(|n| drafts(&repeating[..n], 8, 0.6).len()).collect();
        assert_eq!(lengths[..19], [0; 19], "the first ones are watched");
        assert!(lengths.is_sorted() && lengths[39] == 8, "{lengths:?}");
        // Pairs come again, and each is followed by something new.
        let new: Vec<u32> = (0..300).map(|i| if i % 3 == 2 { 100 + i } else { i % 3 }).collect();
        assert_eq!((0..300).map(|n| drafts(&new[..n], 8, 0.6).len()).max(), Some(0));
    }

    #[test]
    fn a_prompt_lets_expect_and_says_nothing_of_how_probable_that_is() {
        let prompt: Vec<u32> = (0..100).map(|i| i % 10).collect();
        let mut of_prompt = Drafts::default();
        of_prompt.follow(&prompt, 100);
        assert_eq!((of_prompt.draft(&prompt, 3, 0.0), of_prompt.draft(&prompt, 3, 0.01)), (vec![0, 1, 2], vec![]));
        // Token by token it knows the same.
        let mut by_token = Drafts::default();
        (0..=150).for_each(|n| by_token.follow(&[&prompt[..], &prompt[..50]].concat()[..n], 100));
        let all = [&prompt[..], &prompt[..50]].concat();
        of_prompt.follow(&all, 100);
        assert_eq!(by_token.draft(&all, 8, 0.9), of_prompt.draft(&all, 8, 0.9));
        assert!(!by_token.draft(&all, 8, 0.9).is_empty());
    }
}
