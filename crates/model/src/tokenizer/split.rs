//! How text is cut into pieces before merging: no token reaches across a cut.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

use super::TokenizerError;

/// How text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Split {
    /// As gpt-oss-amd: only at runs of digits
    Seeds,
    /// As OpenAI's o200k: into words, numbers, punctuation and white space
    O200k,
    /// As GPT-2
    Gpt2,
    /// As GPT-2, with single digits: SmolLM, StarCoder, Command R
    Smollm,
    /// As Llama 3 and GLM-4
    Llama3,
    /// As Qwen 2, 2.5 and 3
    Qwen2,
    /// As Mistral's tekken
    Tekken,
}

/// A way of splitting into words.
struct Words {
    split: Split,
    /// Whether a digit, of whatever script, is a piece, before the pattern cuts what is between digits.
    digits_are_alone: bool,
    /// As files have it. It ends as [`WHITE_SPACE`] does.
    pattern: &'static str,
    /// The names that llama.cpp has for it, and whether a word that is a token is then that token, whatever its parts
    /// merge to.
    llama_cpp: &'static [(&'static str, bool)],
}

/// How all patterns end.
const WHITE_SPACE: &str = r"\s+(?!\S)|\s+";

/// GPT-2's pattern, which is also part of others.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const WORDS: [Words; 6] = [
    Words {
        split: Split::O200k,
        digits_are_alone: false,
        pattern: concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        llama_cpp: &[("gpt-4o", false), ("llama4", false)],
    },
    Words {
        split: Split::Gpt2,
        digits_are_alone: false,
        pattern: GPT2,
        llama_cpp: &[("gpt-2", false), ("olmo", false), ("phi-2", false)],
    },
    Words {
        split: Split::Smollm,
        digits_are_alone: true,
        pattern: GPT2,
        llama_cpp: &[("smollm", false), ("starcoder", false), ("refact", false), ("command-r", false)],
    },
    Words {
        split: Split::Llama3,
        digits_are_alone: false,
        pattern: concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        llama_cpp: &[("llama-bpe", true), ("llama3", true), ("llama-v3", true), ("glm4", true), ("chatglm-bpe", false)],
    },
    Words {
        split: Split::Qwen2,
        digits_are_alone: false,
        pattern: concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        llama_cpp: &[("qwen2", false), ("deepseek-r1-qwen", false)],
    },
    Words {
        split: Split::Tekken,
        digits_are_alone: false,
        pattern: concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        llama_cpp: &[("tekken", true)],
    },
];

impl Split {
    /// The way for a file that says its own, or none that is known, where a way was asked for. Another gives other ids;
    /// o200k's vocabulary has the seeds' besides, which gpt-oss-amd uses with it.
    ///
    /// # Errors
    /// [`TokenizerError::OtherSplit`].
    pub(crate) fn chosen(own: Self, asked: Option<Self>) -> Result<Self, TokenizerError> {
        match asked {
            None => Ok(own),
            Some(asked) if asked == own || (own, asked) == (Self::O200k, Self::Seeds) => Ok(asked),
            Some(asked) => Err(TokenizerError::OtherSplit { own: own.name(), asked: asked.name() }),
        }
    }

    /// What `--split` calls it.
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The way that llama.cpp has this name for (`tokenizer.ggml.pre` in a GGUF file), and whether a word that is a
    /// token is then that token, whatever its parts merge to.
    pub fn of_llama_cpp(name: &str) -> Option<(Self, bool)> {
        WORDS.iter().find_map(|words| {
            let (_, ignores_merges) = words.llama_cpp.iter().find(|(known, _)| *known == name)?;
            Some((words.split, *ignores_merges))
        })
    }

    /// The names of [`Self::of_llama_cpp`].
    pub(crate) fn llama_cpp_names() -> impl Iterator<Item = &'static str> {
        WORDS.iter().flat_map(|words| words.llama_cpp).map(|(name, _)| *name)
    }

    /// The way of this regular expression, and of digits that are pieces before or not. Some files have line ends in it
    /// and not escapes.
    pub(super) fn of_pattern(pattern: &str, digits_are_alone: bool) -> Option<Self> {
        let escaped = pattern.replace('\r', r"\r").replace('\n', r"\n");
        let found =
            WORDS.iter().find(|words| words.pattern == escaped && words.digits_are_alone == digits_are_alone)?;
        Some(found.split)
    }
}

/// gpt-oss-amd's pieces: the bytes up to the first NUL, cut into runs of ASCII digits and of anything else, and the
/// runs of digits into threes from the left. Ends with the first error of `piece`.
pub(super) fn seeds<E>(text: &[u8], mut piece: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let mut runs = text[..end].chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    runs.try_for_each(|run| if run[0].is_ascii_digit() { run.chunks(3).try_for_each(&mut piece) } else { piece(run) })
}

/// The words of a text, of a way that has some. Together they are the whole text. Ends with the first error of `piece`.
///
/// # Panics
/// With [`Split::Seeds`].
pub(super) fn words<E>(split: Split, text: &str, mut piece: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    static COMPILED: [OnceLock<Pattern>; WORDS.len()] = [const { OnceLock::new() }; WORDS.len()];
    let at = WORDS.iter().position(|words| words.split == split).expect("a way with words");
    let pattern = COMPILED[at].get_or_init(|| Pattern::new(WORDS[at].pattern));
    if !WORDS[at].digits_are_alone {
        return pattern.words(text, piece);
    }
    let mut from = 0;
    for (at, digit) in text.match_indices(char::is_numeric) {
        pattern.words(&text[from..at], &mut piece)?;
        piece(digit)?;
        from = at + digit.len();
    }
    pattern.words(&text[from..], piece)
}

/// A pattern without its look-ahead, which needs an engine that backtracks and that gives up on some texts. Without it
/// the pattern is regular; what the look-ahead does is done here: white space before a word leaves its last character
/// to that word.
struct Pattern {
    regex: Regex,
    /// Whether white space up to a line end is a piece of its own, which leaves nothing to the word after it.
    line_ends: bool,
}

impl Pattern {
    fn new(pattern: &str) -> Self {
        let without_look_ahead = pattern.strip_suffix(WHITE_SPACE).expect("all patterns end alike").to_owned() + r"\s+";
        let mut builder = RegexBuilder::new(&without_look_ahead);
        let regex = builder.dfa_size_limit(DFA_BYTES).build().expect("the pattern is well formed");
        Self { regex, line_ends: pattern.contains(r"|\s*[\r\n]+|") }
    }

    fn words<E>(&self, text: &str, mut piece: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut from = 0;
        while from < text.len() {
            // Every character begins some match, so matches follow each other without gaps.
            let found = self.regex.find_at(text, from).expect("the pattern matches every character");
            let mut end = found.end();
            let word = &text[from..end];
            let last = word.chars().next_back().expect("a match is not empty");
            let is_line_end = self.line_ends && matches!(last, '\r' | '\n');
            let is_space = last.is_whitespace() && !is_line_end && word.chars().all(char::is_whitespace);
            if is_space && end < text.len() && word.len() > last.len_utf8() {
                end -= last.len_utf8();
            }
            piece(&text[from..end])?;
            from = end;
        }
        Ok(())
    }
}

/// Most memory of a pattern's automaton, of which a thread makes what its texts need. Texts of many scripts need more
/// states than the usual 2 MiB hold, and when these are full all texts are searched a hundred times slower.
const DFA_BYTES: usize = 16 << 20;

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

    fn pieces(split: Split, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let push = |piece: &str| {
            pieces.push(piece.to_owned());
            Ok::<_, Infallible>(())
        };
        words(split, text, push).unwrap();
        pieces
    }

    fn o200k_pieces(text: &str) -> Vec<String> {
        pieces(Split::O200k, text)
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

    #[test]
    fn gpt2_leaves_the_last_white_space_to_what_follows_whatever_it_is() {
        assert_eq!(pieces(Split::Gpt2, "a\n\nb  c"), ["a", "\n", "\n", "b", " ", " c"]);
        assert_eq!(pieces(Split::Gpt2, "we'll  pay 1234½ €!\n "), ["we", "'ll", " ", " pay", " 1234½", " €!", "\n "]);
    }

    #[test]
    fn digits_alone_end_what_is_before_them() {
        assert_eq!(pieces(Split::Smollm, "a  12 b½"), ["a", "  ", "1", "2", " b", "½"]);
        assert_eq!(pieces(Split::Smollm, "Ⅷ٣ \n7"), ["Ⅷ", "٣", " \n", "7"]);
        assert_eq!(pieces(Split::Smollm, "7"), ["7"]);
        assert_eq!(pieces(Split::Smollm, ""), [""; 0]);
    }

    #[test]
    fn the_names_of_llama_cpp_are_of_one_way_each() {
        let names: Vec<&str> = Split::llama_cpp_names().collect();
        assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
        assert_eq!(Split::of_llama_cpp("smollm"), Some((Split::Smollm, false)));
        assert_eq!(Split::of_llama_cpp("glm4"), Some((Split::Llama3, true)));
        assert_eq!(Split::of_llama_cpp("default"), None);
    }
}
