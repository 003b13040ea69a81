//! Stop strings: text that could begin one is held back; a found one and everything after it is not sent.

use super::error::ApiError;

/// Most stop strings of a request.
const MAX_STOPS: usize = 16;

/// Looks for stop strings in a text that comes in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopText {
    stops: Vec<String>,
    /// Not told yet: it could be the beginning of a stop.
    held: String,
    /// The stop that was found.
    found: Option<String>,
}

impl StopText {
    /// Looks for these, which stand in the field `param`; an empty string is none.
    ///
    /// # Errors
    /// `invalid_value`, if there are too many.
    pub(crate) fn new(stops: Vec<String>, param: &str) -> Result<Self, ApiError> {
        if stops.len() > MAX_STOPS {
            let message = format!("`{param}` has {} strings, at most {MAX_STOPS} are allowed", stops.len());
            return Err(ApiError::invalid(param, message));
        }
        Ok(Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Self::default() })
    }

    /// Whether it looks for nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes more text and gives what of it, and of what was held back, is to be told.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.is_over() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        // By characters, so that it does not matter how the text is cut: the stop that is whole first counts.
        for character in text.chars() {
            self.held.push(character);
            let ends = self.stops.iter().filter(|stop| self.held.ends_with(stop.as_str()));
            if let Some(stop) = ends.max_by_key(|stop| stop.len()).cloned() {
                self.held.truncate(self.held.len() - stop.len());
                self.found = Some(stop);
                return std::mem::take(&mut self.held);
            }
        }
        let from = self.held.char_indices().map(|(i, _)| i).find(|&i| self.could_begin(&self.held[i..]));
        let rest = self.held.split_off(from.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop was found: the rest is not told.
    pub(crate) fn is_over(&self) -> bool {
        self.found.is_some()
    }

    /// The stop that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Ends the text: what was held back began no stop.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn could_begin(&self, text: &str) -> bool {
        self.stops.iter().any(|stop| stop.starts_with(text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stop_is_found_across_pieces_and_not_told() {
        let mut stop = StopText::new(vec!["END".into(), "".into()], "stop").unwrap();
        let told: Vec<String> = ["a E", "N", "x E", "ND b", "c"].iter().map(|text| stop.push(text)).collect();
        assert_eq!(told, ["a ", "", "ENx ", "", ""]);
        assert!(stop.is_over());
        assert_eq!(stop.finish(), "");
        assert_eq!(StopText::new(vec![String::new(); 17], "stop").unwrap_err().param.unwrap(), "stop");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn pieces_give_what_the_whole_gives(
            stops in prop::collection::vec("[ab日]{1,3}", 0..3),
            pieces in prop::collection::vec("[ab日]{0,4}", 0..8),
        ) {
            let whole = pieces.concat();
            let ends = whole.char_indices().map(|(i, c)| i + c.len_utf8());
            let cut = |end: usize| {
                let found = stops.iter().filter(|stop| whole[..end].ends_with(stop.as_str())).map(String::len).max();
                found.map(|len| end - len)
            };
            let end = ends.into_iter().find_map(cut);
            let mut stop = StopText::new(stops.clone(), "stop").unwrap();
            let mut told: String = pieces.iter().map(|piece| stop.push(piece)).collect();
            prop_assert_eq!(stop.is_over(), end.is_some());
            told += &stop.finish();
            prop_assert_eq!(told.as_str(), &whole[..end.unwrap_or(whole.len())]);
        }
    }
}
