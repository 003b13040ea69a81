//! Text for SentencePiece (Llama 2, Mistral, Gemma): it is not cut into words, blanks are ordinary characters of
//! tokens, and one more blank may be put before the text.

use std::borrow::Cow;

/// The character that stands for a blank in tokens. In text it is one, too.
pub(super) const BLANK: char = '\u{2581}';

/// Where a blank is put that a text does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    #[default]
    Never,
    /// Before a text, if it does not begin with a special token.
    First,
    /// Before a text, and after every special token.
    Each,
}

/// How texts are merged as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pub prefix: Prefix,
    /// Whether text that begins with a blank is left as it is.
    pub only_where_none_is: bool,
    /// Whether no token but its beginning has a blank.
    pub splits: bool,
    /// Whether the blank that a text begins with is none of its own, and is left out when it is put together.
    pub strips: bool,
}

impl Pieces {
    /// What of a text is merged on its own. `is_first` says that the whole text begins with it. Ends with the first
    /// error of `piece`.
    pub(super) fn pieces<E>(
        self,
        text: &str,
        is_first: bool,
        mut piece: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        if text.is_empty() {
            return Ok(());
        }
        let is_due = match self.prefix {
            Prefix::Never => false,
            Prefix::First => is_first,
            Prefix::Each => true,
        };
        let has_blank = text.starts_with([' ', BLANK]);
        let mut text = if text.contains(BLANK) { Cow::Owned(text.replace(BLANK, " ")) } else { Cow::Borrowed(text) };
        if is_due && !(has_blank && self.only_where_none_is) {
            text.to_mut().insert(0, ' ');
        }
        if !self.splits {
            return piece(&text);
        }
        let mut from = 0;
        for (at, _) in text.match_indices(' ').filter(|(at, _)| *at > 0) {
            piece(&text[from..at])?;
            from = at;
        }
        piece(&text[from..])
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn pieces(of: Pieces, text: &str, is_first: bool) -> Vec<String> {
        let mut pieces = Vec::new();
        let push = |piece: &str| {
            pieces.push(piece.to_owned());
            Ok::<_, Infallible>(())
        };
        of.pieces(text, is_first, push).unwrap();
        pieces
    }

    #[test]
    fn a_blank_is_put_where_it_is_due() {
        let with = |prefix, only_where_none_is| Pieces { prefix, only_where_none_is, ..Pieces::default() };
        assert_eq!(pieces(with(Prefix::Never, false), "a b", true), ["a b"]);
        assert_eq!(pieces(with(Prefix::First, false), "a", true), [" a"]);
        assert_eq!(pieces(with(Prefix::First, false), "a", false), ["a"]);
        assert_eq!(pieces(with(Prefix::Each, false), " a", false), ["  a"]);
        assert_eq!(pieces(with(Prefix::Each, true), " a", false), [" a"]);
        assert_eq!(pieces(with(Prefix::Each, true), "\u{2581}a", false), [" a"]);
        assert_eq!(pieces(with(Prefix::Each, false), "", true), [""; 0]);
    }

    #[test]
    fn each_blank_begins_a_piece_where_pieces_are_split() {
        let split = Pieces { splits: true, ..Pieces::default() };
        assert_eq!(pieces(split, " a  bc d ", true), [" a", " ", " bc", " d", " "]);
        assert_eq!(pieces(split, "a", true), ["a"]);
    }
}
