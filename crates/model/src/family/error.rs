//! Errors of a family's file.

use data::Place;
use expression::ExpressionError;
use hint::Hint;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    #[error("could not read the family's file `{path}`: {message}")]
    Read { path: String, message: String },
    /// It is no TOML, has an unknown key or lacks one.
    #[error("{place}: could not read the family: {message}")]
    Toml {
        place: Place,
        /// The TOML parser's message.
        message: String,
    },
    /// Something is not as it must be.
    #[error("{place}: {item}: expected {expected}, found {found}")]
    Declaration { place: Place, item: String, expected: String, found: String },
    /// An invalid expression.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
}

impl FamilyError {
    /// Something at `place` is not as it must be.
    pub fn at(place: &Place, item: &str, expected: &str, found: &str) -> Self {
        let (place, item) = (place.clone(), format!("`{item}`"));
        Self::Declaration { place, item, expected: expected.to_owned(), found: found.to_owned() }
    }
}

impl Hint for FamilyError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { .. } => "may you read this file?".into(),
            Self::Toml { .. } | Self::Declaration { .. } => {
                "`models/README.md` describes the format, `models/gpt-oss.toml` is an example".into()
            }
            Self::Expression(_) => {
                "expressions are integer formulas of the model's dimensions, such as `2 * head_dim`".into()
            }
        })
    }
}
