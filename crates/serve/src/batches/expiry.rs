//! When files expire: `expires_after` of an upload, `output_expires_after` of a batch.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field::Field;

/// An hour to 30 days, as OpenAI has it.
const SECONDS: RangeInclusive<i64> = 3600..=2_592_000;

/// Reads the seconds after which a file expires: `{"anchor": "created_at", "seconds": N}`.
pub(super) fn of_field(field: &Field) -> Result<u64, ApiError> {
    field.object()?.need("anchor")?.one_of(&[("created_at", ())])?;
    Ok(field.need("seconds")?.integer(SECONDS)?.unsigned_abs())
}

/// The same from the fields of a form: `expires_after[anchor]` and `expires_after[seconds]`.
#[derive(Debug, Default)]
pub(super) struct ExpiryForm(Map<String, Value>);

impl ExpiryForm {
    /// Takes a field of the form; false if it is another field.
    pub(super) fn take(&mut self, name: &str, text: &str) -> bool {
        let value = match name {
            "expires_after[anchor]" => ("anchor", Value::from(text)),
            "expires_after[seconds]" => ("seconds", text.parse::<i64>().map_or_else(|_| text.into(), Value::from)),
            _ => return false,
        };
        self.0.insert(value.0.to_owned(), value.1);
        true
    }

    /// Seconds after which the file expires, if the form has them.
    pub(super) fn read(self) -> Result<Option<u64>, ApiError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let body = Value::Object(Map::from_iter([("expires_after".to_owned(), Value::Object(self.0))]));
        of_field(&Field::body(&body)?.need("expires_after")?).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_says_when_its_file_goes() {
        let read = |fields: &[(&str, &str)]| {
            let mut form = ExpiryForm::default();
            for (name, text) in fields {
                assert!(form.take(&format!("expires_after[{name}]"), text), "{name}");
            }
            form.read().map_err(|error| error.param.expect("a field"))
        };
        let anchor = ("anchor", "created_at");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("seconds", "3600"), anchor]), Ok(Some(3600)));
        for (fields, param) in [
            (&[anchor][..], "seconds"),
            (&[("seconds", "3600")], "anchor"),
            (&[anchor, ("seconds", "3599")], "seconds"),
            (&[anchor, ("seconds", "2592001")], "seconds"),
            (&[anchor, ("seconds", "soon")], "seconds"),
            (&[("anchor", "last_active_at"), ("seconds", "3600")], "anchor"),
        ] {
            assert_eq!(read(fields), Err(format!("expires_after.{param}")), "{fields:?}");
        }
        assert!(!ExpiryForm::default().take("expires_after", "3600"));
    }
}
