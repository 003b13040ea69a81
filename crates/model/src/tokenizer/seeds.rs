//! gpt-oss-amd's `tokenizer.bin`: the longest token's length, then one record per token, little-endian.
//!
//! A record is a score (f32), a length (i32) and that many bytes. A score of -1e30 marks a special token; other scores
//! are unused, because ids give the merge order. The file does not say how many records it has.

use bytes::Bytes;

use super::TokenizerError;
use super::vocabulary::{ByteNames, Token, TokenKind, Vocabulary};

/// Scores down from here mark special tokens.
const SPECIAL_SCORE: f32 = -1e29;

/// No vocabulary has a token as long as this; a header that says so belongs to another kind of file.
const MAX_TOKEN_LENGTH: usize = 1 << 16;

/// Reads the first `vocab_size` records, or all that there are.
pub(super) fn read(bytes: Bytes, vocab_size: Option<usize>) -> Result<Vocabulary, TokenizerError> {
    let mut reader = Reader { bytes, offset: 0 };
    let found = reader.word(|| "the header".into())?;
    let found = i32::from_le_bytes(found);
    let max_length = usize::try_from(found)
        .ok()
        .filter(|length| (1..=MAX_TOKEN_LENGTH).contains(length))
        .ok_or(TokenizerError::BadMaxLength { found, max: MAX_TOKEN_LENGTH })?;
    let mut tokens = Vec::new();
    while vocab_size.is_none_or(|n| tokens.len() < n) && !reader.is_at_end() {
        tokens.push(record(&mut reader, tokens.len(), max_length)?);
    }
    let expected = vocab_size.unwrap_or(1);
    if tokens.len() < expected {
        return Err(TokenizerError::TooFewRecords { expected, found: tokens.len() });
    }
    Ok(Vocabulary::new(tokens, max_length, ByteNames::Decoded))
}

fn record(reader: &mut Reader, index: usize, max: usize) -> Result<Token, TokenizerError> {
    let offset = reader.offset;
    let part = || format!("record {index}");
    let score = f32::from_le_bytes(reader.word(part)?);
    let found = i32::from_le_bytes(reader.word(part)?);
    if !score.is_finite() {
        return Err(TokenizerError::BadScore { index, offset, found: score });
    }
    let length = usize::try_from(found).ok().filter(|length| (1..=max).contains(length));
    let length = length.ok_or(TokenizerError::BadLength { index, offset, found, max })?;
    let kind = if score <= SPECIAL_SCORE { TokenKind::Special } else { TokenKind::Ordinary };
    Ok(Token { bytes: reader.take(length, part)?, kind })
}

struct Reader {
    bytes: Bytes,
    offset: usize,
}

impl Reader {
    fn is_at_end(&self) -> bool {
        self.offset == self.bytes.len()
    }

    fn take(&mut self, len: usize, part: impl Fn() -> String) -> Result<Bytes, TokenizerError> {
        let offset = self.offset;
        if len > self.bytes.len() - offset {
            return Err(TokenizerError::Truncated { part: part(), offset, expected: len, found: self.bytes.len() });
        }
        self.offset += len;
        Ok(self.bytes.slice(offset..offset + len))
    }

    fn word(&mut self, part: impl Fn() -> String) -> Result<[u8; 4], TokenizerError> {
        let bytes = self.take(4, part)?;
        Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}
