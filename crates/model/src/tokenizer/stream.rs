//! Makes text from bytes that arrive in pieces, which need not end at a character.

/// Puts characters together. Whatever the cuts, the text is that of [`String::from_utf8_lossy`] on the whole.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
    /// Whether a blank is left out that comes next.
    drops_blank: bool,
}

impl TextStream {
    /// One that leaves out a blank that the text begins with.
    pub fn behind_blank() -> Self {
        Self { drops_blank: true, ..Self::default() }
    }

    /// Takes more bytes and gives the characters that are whole by now. Bytes that cannot become a character
    /// give U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut bytes = bytes;
        if let Some((first, rest)) = bytes.split_first().filter(|_| std::mem::take(&mut self.drops_blank)) {
            bytes = if *first == b' ' { rest } else { bytes };
        }
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(str::from_utf8(valid).expect("that far it is valid"));
                    rest = bad;
                    let Some(bad_len) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[bad_len..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the text: what is left of a character that never came whole gives U+FFFD. The stream is empty then.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes in which whole, broken and invalid characters are all common.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            "[aé日🎈]{0,3}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..3),
            Just(vec![0xe2, 0x9b]),
            Just(vec![0xf0, 0x9f, 0x8e]),
            Just(vec![0xed, 0xa0, 0x80]),
        ];
        prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_cuts_give_the_text_of_the_whole(bytes in bytes(), cuts in prop::collection::vec(0usize..4, 0..60)) {
            let mut stream = TextStream::default();
            let (mut text, mut rest) = (String::new(), bytes.as_slice());
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                text += &stream.push(head);
                rest = tail;
            }
            text += &stream.push(rest);
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_character_is_held_back_until_it_is_whole() {
        let mut stream = TextStream::default();
        let given: Vec<String> = "🎈".bytes().map(|byte| stream.push(&[byte])).collect();
        assert_eq!(given, ["", "", "", "🎈"]);
        assert_eq!(stream.push(b"a\xe2\x9b"), "a");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn one_blank_is_left_out_at_a_beginning() {
        let read = |pieces: &[&str]| {
            let mut stream = TextStream::behind_blank();
            let text: String = pieces.iter().map(|piece| stream.push(piece.as_bytes())).collect();
            text + &stream.finish()
        };
        assert_eq!(read(&["", " ", " a"]), " a");
        assert_eq!(read(&[" Hi", " there"]), "Hi there");
        assert_eq!(read(&["é", " a"]), "é a");
    }
}
