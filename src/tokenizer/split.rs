//! How text is cut into pieces before merging: no token reaches across a cut.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// How text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Split {
    /// As gpt-oss-amd: only around runs of digits
    Seeds,
    /// As OpenAI's o200k: into words, numbers, punctuation and white space
    O200k,
}

/// gpt-oss-amd's pieces: the bytes up to the first NUL, cut into runs of ASCII digits and of anything else, and the
/// runs of digits into threes from the left. Ends with the first error of `piece`.
pub(super) fn seeds<E>(text: &[u8], mut piece: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let mut runs = text[..end].chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    runs.try_for_each(|run| if run[0].is_ascii_digit() { run.chunks(3).try_for_each(&mut piece) } else { piece(run) })
}

/// o200k's pieces. Together they are the whole text.
///
/// The original pattern ends in `\s+(?!\S)|\s+`, and its look-ahead needs an engine that backtracks and that gives up
/// on some texts. Without it the pattern is regular; what the look-ahead does is done here: white space before a word
/// leaves its last character to that word. Ends with the first error of `piece`.
pub(super) fn o200k<E>(text: &str, mut piece: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    static PATTERN: OnceLock<Regex> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut pattern = RegexBuilder::new(O200K_PATTERN);
        pattern.dfa_size_limit(DFA_BYTES).build().expect("the pattern is well formed")
    });
    let mut from = 0;
    while from < text.len() {
        // Every character begins some match, so matches follow each other without gaps.
        let found = pattern.find_at(text, from).expect("the pattern matches every character");
        let mut end = found.end();
        let word = &text[from..end];
        let last = word.chars().next_back().expect("a match is not empty");
        let is_space = last.is_whitespace() && !matches!(last, '\r' | '\n') && word.chars().all(char::is_whitespace);
        if is_space && end < text.len() && word.len() > last.len_utf8() {
            end -= last.len_utf8();
        }
        piece(&text[from..end])?;
        from = end;
    }
    Ok(())
}

/// Most memory of the pattern's automaton, of which a thread makes what its texts need. Texts of many scripts need more
/// states than the usual 2 MiB hold, and when these are full all texts are searched a hundred times slower.
const DFA_BYTES: usize = 16 << 20;

/// Whether this is the regular expression that files give for o200k's pieces. Some have line ends in it and not
/// escapes.
pub(super) fn is_o200k(pattern: &str) -> bool {
    let escaped = pattern.replace('\r', r"\r").replace('\n', r"\n");
    escaped.strip_suffix(r"\s+(?!\S)|\s+").is_some_and(|rest| O200K_PATTERN.strip_suffix(r"\s+") == Some(rest))
}

/// The pattern of o200k, with its last two alternatives made one.
const O200K_PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"|\s*[\r\n]+",
    r"|\s+",
);

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn seeds_pieces(text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let push = |piece: &[u8]| {
            pieces.push(String::from_utf8(piece.to_vec()).unwrap());
            Ok::<_, Infallible>(())
        };
        seeds(text.as_bytes(), push).unwrap();
        pieces
    }

    fn o200k_pieces(text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let push = |piece: &str| {
            pieces.push(piece.to_owned());
            Ok::<_, Infallible>(())
        };
        o200k(text, push).unwrap();
        pieces
    }

    #[test]
    fn seeds_cut_digits_into_threes_and_nothing_else() {
        assert_eq!(seeds_pieces("In 2024, 12345 x"), ["In ", "202", "4", ", ", "123", "45", " x"]);
        assert_eq!(seeds_pieces("7"), ["7"]);
        assert_eq!(seeds_pieces("a1\0b2"), ["a", "1"]);
        assert_eq!(seeds_pieces(""), [""; 0]);
    }

    #[test]
    fn o200k_leaves_the_last_space_to_the_word() {
        assert_eq!(o200k_pieces("a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(o200k_pieces("a \n  b"), ["a", " \n", " ", " b"]);
        assert_eq!(o200k_pieces("I'll  CamelCase!!\n12345"), ["I'll", " ", " Camel", "Case", "!!\n", "123", "45"]);
    }

    #[test]
    fn o200k_takes_texts_on_which_backtracking_gives_up() {
        let spaces = " ".repeat(3_000_000) + "x";
        assert_eq!(o200k_pieces(&spaces).len(), 2);
    }
}
