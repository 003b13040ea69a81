//! `run -m getp -v FILE`: compares the generated ids with a file of expected ones.

use std::path::Path;

use anyhow::Context;

use crate::output::Output;
use crate::text_input;

/// Some requests gave other tokens than expected.
#[derive(Debug, thiserror::Error)]
#[error("{n_different} of {n_requests} requests differ from `{expected}`")]
pub(super) struct Mismatch {
    n_different: usize,
    n_requests: usize,
    expected: String,
}

/// How one request compares.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    Match,
    Length { expected: usize, generated: usize },
    Token { position: usize, expected: u32, generated: u32 },
}

/// Ids that are expected, a line for each request.
pub(super) struct Expected {
    ids: Vec<Vec<u32>>,
    path: String,
}

impl Expected {
    /// Reads a file of expected ids: before anything is computed, which may take hours.
    ///
    /// # Errors
    /// It cannot be read, or holds something else than ids.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let could_not = || format!("could not read expected ids `{}`", path.display());
        let text = String::from_utf8(text_input::from_file(path, "expected ids")?).with_context(could_not)?;
        Ok(Self { ids: parse(&text).with_context(could_not)?, path: path.display().to_string() })
    }

    /// Compares line by line and says how each request does.
    ///
    /// # Errors
    /// [`Mismatch`].
    pub(super) fn compare(self, generated: &[Vec<u32>], output: &Output) -> anyhow::Result<()> {
        let n_requests = self.ids.len().max(generated.len());
        let mut n_different = 0;
        for i in 0..n_requests {
            let empty = Vec::new();
            let (expected, generated) = (self.ids.get(i).unwrap_or(&empty), generated.get(i).unwrap_or(&empty));
            let comparison = compare_ids(expected, generated);
            if !(expected.is_empty() && generated.is_empty()) {
                output.note(&describe(i + 1, generated.len(), &comparison));
            }
            n_different += usize::from(comparison != Comparison::Match);
        }
        output.note(&format!("verified: {} of {n_requests} requests match", n_requests - n_different));
        match n_different {
            0 => Ok(()),
            _ => Err(Mismatch { n_different, n_requests, expected: self.path }.into()),
        }
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    let line = |(i, line): (usize, &str)| {
        let id = |word: &str| word.parse::<u32>().with_context(|| format!("line {}: `{word}` is no token id", i + 1));
        line.split_whitespace().map(id).collect()
    };
    text.lines().enumerate().map(line).collect()
}

fn compare_ids(expected: &[u32], generated: &[u32]) -> Comparison {
    let different = expected.iter().zip(generated).position(|(a, b)| a != b);
    match different {
        Some(position) => Comparison::Token { position, expected: expected[position], generated: generated[position] },
        None if expected.len() != generated.len() => {
            Comparison::Length { expected: expected.len(), generated: generated.len() }
        }
        None => Comparison::Match,
    }
}

/// In the words of gpt-oss-amd, so that scripts that search for them find them.
fn describe(request: usize, n_tokens: usize, comparison: &Comparison) -> String {
    match comparison {
        Comparison::Match => format!("✅ Request #{request}: Match ({n_tokens} tokens)"),
        Comparison::Length { expected, generated } => {
            format!("⚠️ Request #{request}: Length mismatch (GT: {expected} tokens, Generated: {generated} tokens)")
        }
        Comparison::Token { position, expected, generated } => {
            format!(
                "❌ Request {request}: Token mismatch at position {position} (GT: {expected}, Generated: {generated})"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told() {
        assert_eq!(compare_ids(&[1, 2, 3], &[1, 2, 3]), Comparison::Match);
        assert_eq!(compare_ids(&[1, 2], &[1, 2, 3]), Comparison::Length { expected: 2, generated: 3 });
        assert_eq!(compare_ids(&[1, 2, 3], &[1, 9]), Comparison::Token { position: 1, expected: 2, generated: 9 });
    }

    #[test]
    fn an_expected_file_with_words_in_it_is_refused_by_line() {
        assert_eq!(parse("1 2\n\n3\n").unwrap(), [vec![1, 2], vec![], vec![3]]);
        assert_eq!(parse("1 2\n3 x\n").unwrap_err().to_string(), "line 2: `x` is no token id");
    }
}
