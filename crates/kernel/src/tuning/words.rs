//! The words that a row's `where` may have: names of element types, and of precisions.

use super::table::{Fact, Facts};
use format::Dtype;
use hint::meant;

/// What a problem's precision may be.
pub const PRECISIONS: [&str; 2] = ["f32", "bf16"];

/// That each word is one, whatever op the row is for.
///
/// # Errors
/// The first unknown word, with a suggestion.
pub(super) fn check(facts: &Facts) -> Result<(), String> {
    for (name, fact) in facts {
        let Fact::Text(word) = fact else { continue };
        let is_precision = name == "precision";
        let known: Vec<&str> = match is_precision {
            true => PRECISIONS.to_vec(),
            false => Dtype::ALL.map(Dtype::name).to_vec(),
        };
        if !known.contains(&word.as_str()) {
            let what = if is_precision { "precision" } else { "element type" };
            let known = match meant(word, known.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("expected one of: {}", known.join(", ")),
            };
            return Err(format!("`where`: {name} = \"{word}\": no {what} has this name; {known}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_none_is_told_with_what_may_be_meant() {
        let check = |name: &str, fact: Fact| check(&Facts::from([(name.to_owned(), fact)]));
        for (name, word) in [("precision", "f32"), ("precision", "bf16"), ("weight", "bf16"), ("weight", "q8_0")] {
            assert_eq!(check(name, Fact::Text(word.into())), Ok(()), "{name} {word}");
        }
        assert_eq!(check("in_features", Fact::Number(1)), Ok(()));
        let said = |name: &str, word: &str| check(name, Fact::Text(word.into())).expect_err(word);
        let meant = said("weight", "bf61");
        assert_eq!(meant, "`where`: weight = \"bf61\": no element type has this name; did you mean `bf16`?");
        assert!(said("weight", "q9_0").ends_with("; did you mean `q8_0`?"), "{}", said("weight", "q9_0"));
        assert!(said("precision", "q8_0").ends_with("no precision has this name; expected one of: f32, bf16"));
        assert!(said("in_features", "2880").contains("; expected one of: f32, bf16, "));
    }
}
