//! Tokens that are forbidden whatever a grammar allows: all except a list, and bad words.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{GrammarError, Grammars};
use engine::scheduler::TokenMask;
use model::tokenizer::{Tokenizer, TokenizerError};

/// What may not come, besides what a grammar forbids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLimits {
    /// The ids of the vocabulary are below.
    pub vocab_size: usize,
    /// Only these may come, if there are any.
    pub allowed: Vec<u32>,
    /// The last token of each may not come after the others.
    pub bad: Vec<Vec<u32>>,
}

/// What the text of such a mask begins with: limits as JSON, and the grammar's text after a line end.
const MARK: &str = "limits ";

impl TokenLimits {
    /// Nothing is forbidden.
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.bad.is_empty()
    }

    /// Forbids a word: at a beginning, and after a blank.
    ///
    /// # Errors
    /// The tokenizer does not take it.
    pub fn forbid(&mut self, word: &str, tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
        let word = word.trim_start();
        for text in [word.to_owned(), format!(" {word}")] {
            let ids = tokenizer.encode(text.as_bytes())?;
            let is_known = ids.iter().all(|id| (*id as usize) < self.vocab_size);
            if !word.is_empty() && is_known && !self.bad.contains(&ids) {
                self.bad.push(ids);
            }
        }
        Ok(())
    }

    /// A mask of these and of a grammar's, if there is one.
    pub fn mask(self, of_grammar: Option<Box<dyn TokenMask>>) -> Box<dyn TokenMask> {
        let limits = serde_json::to_string(&self).expect("numbers alone");
        let grammar = of_grammar.as_ref().and_then(|mask| mask.text()).unwrap_or_default();
        let text = format!("{MARK}{limits}\n{grammar}").into();
        Box::new(LimitedMask { limits: Arc::new(self), text, of_grammar, came: Vec::new(), bits: Vec::new() })
    }

    /// The mask of a [`TokenMask::text`], made again.
    ///
    /// # Errors
    /// Its grammar needs `grammars`, which are not there; as [`Grammars::mask_of`].
    pub fn mask_of(text: String, grammars: Option<&Grammars>) -> Result<Box<dyn TokenMask>, GrammarError> {
        let of_grammar = |text: &str| match grammars {
            Some(grammars) => grammars.mask_of(text.to_owned()),
            None => Err(GrammarError::Compile { why: "the model has no chat format".to_owned() }),
        };
        let Some((limits, grammar)) = text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')) else {
            return of_grammar(&text);
        };
        let limits: Self =
            serde_json::from_str(limits).map_err(|why| GrammarError::Compile { why: why.to_string() })?;
        let grammar = (!grammar.is_empty()).then(|| of_grammar(grammar)).transpose()?;
        Ok(limits.mask(grammar))
    }
}

/// Limits on their way through one generation.
struct LimitedMask {
    limits: Arc<TokenLimits>,
    text: Arc<str>,
    of_grammar: Option<Box<dyn TokenMask>>,
    /// The last tokens, as many as the longest word has.
    came: Vec<u32>,
    bits: Vec<u32>,
}

impl TokenMask for LimitedMask {
    fn allowed(&mut self) -> Option<&[u32]> {
        let n_words = self.limits.vocab_size.div_ceil(32);
        let bits = &mut self.bits;
        bits.clear();
        if self.limits.allowed.is_empty() {
            bits.resize(n_words, !0);
        } else {
            bits.resize(n_words, 0);
            self.limits.allowed.iter().for_each(|id| bits[*id as usize / 32] |= 1 << (id % 32));
        }
        if let Some(of_grammar) = self.of_grammar.as_mut().and_then(|mask| mask.allowed()) {
            let others = of_grammar.iter().copied().chain(std::iter::repeat(0));
            bits.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
        }
        for bad in &self.limits.bad {
            if let Some((last, before)) = bad.split_last()
                && self.came.ends_with(before)
            {
                bits[*last as usize / 32] &= !(1 << (last % 32));
            }
        }
        Some(bits)
    }

    fn push(&mut self, token: u32) {
        let longest = self.limits.bad.iter().map(Vec::len).max().unwrap_or_default();
        self.came.push(token);
        let n_left_out = self.came.len().saturating_sub(longest);
        self.came.drain(..n_left_out);
        if let Some(of_grammar) = &mut self.of_grammar {
            of_grammar.push(token);
        }
    }

    fn ahead(&self) -> Box<dyn TokenMask> {
        Box::new(Self {
            limits: Arc::clone(&self.limits),
            text: Arc::clone(&self.text),
            of_grammar: self.of_grammar.as_ref().map(|mask| mask.ahead()),
            came: self.came.clone(),
            bits: Vec::new(),
        })
    }

    fn text(&self) -> Option<&str> {
        Some(&self.text)
    }
}

impl std::fmt::Debug for LimitedMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitedMask").field("of_grammar", &self.of_grammar).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(mask: &mut dyn TokenMask) -> Vec<u32> {
        let bits = mask.allowed().expect("some are forbidden");
        (0..40).filter(|id| bits[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
    }

    #[test]
    fn the_last_token_of_a_word_is_forbidden_behind_the_others() {
        let limits = TokenLimits { vocab_size: 40, allowed: vec![1, 2, 33], bad: vec![vec![33], vec![1, 2]] };
        let mut mask = limits.mask(None);
        assert_eq!(allowed(&mut *mask), [1, 2]);
        mask.push(1);
        let mut ahead = mask.ahead();
        assert_eq!(allowed(&mut *mask), [1]);
        ahead.push(2);
        assert_eq!(allowed(&mut *ahead), [1, 2]);
        let text = mask.text().expect("it has one").to_owned();
        let mut again = TokenLimits::mask_of(text, None).expect("of no grammar");
        assert_eq!(allowed(&mut *again), [1, 2]);
        again.push(1);
        assert_eq!(allowed(&mut *again), [1]);
        assert!(TokenLimits::mask_of("start: \"a\"".into(), None).is_err());
    }

    #[test]
    fn a_word_is_forbidden_behind_a_blank_too() {
        let tokenizer = Tokenizer::o200k_harmony();
        let mut limits = TokenLimits { vocab_size: tokenizer.vocab_size(), ..TokenLimits::default() };
        limits.forbid(" word", &tokenizer).expect("a text");
        limits.forbid("", &tokenizer).expect("a text");
        let spelled: Vec<Vec<u8>> = limits.bad.iter().map(|ids| tokenizer.decode_all(ids).expect("ids")).collect();
        assert_eq!(spelled, [b"word".to_vec(), b" word".to_vec()]);
    }
}
