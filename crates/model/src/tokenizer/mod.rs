//! Text to token ids and back.
//!
//! A [`Tokenizer`] is a `vocabulary` and a way of splitting text into pieces ([`split`], or [`pieces`] where it is
//! hardly split), each of which is merged on its own by byte-pair encoding (`merge`). The vocabulary is gpt-oss-amd's
//! `tokenizer.bin` (`seeds`), a
//! checkpoint's own ([`bpe`], which `json` reads from a `tokenizer.json`), or OpenAI's `o200k_harmony`, which is built
//! in (`o200k`). [`stream`] turns tokens that arrive one by one into text.

pub mod bpe;
mod gguf;
mod json;
pub mod limit;
mod merge;
mod o200k;
pub mod pieces;
mod seeds;
pub mod split;
pub mod stream;
mod vocabulary;

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::checkpoint::{Checkpoint, TokenizerSource};
use hint::Hint;
use system::git_lfs::{self, Pointer};

use bpe::BpeError;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use limit::Limit;
use pieces::{Pieces, Prefix};
use split::Split;
use stream::TextStream;
use vocabulary::Vocabulary;

/// Encodes and decodes. Cheap to clone: copies share the vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    way: Way,
    /// Whether characters are composed (Unicode's NFC) before text is split.
    composes: bool,
    /// The tokens that prompts begin with.
    begin: Arc<[u32]>,
}

/// What of a text is merged on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Words(Split),
    Pieces(Pieces),
}

impl From<Split> for Way {
    fn from(split: Split) -> Self {
        Self::Words(split)
    }
}

impl From<Pieces> for Way {
    fn from(pieces: Pieces) -> Self {
        Self::Pieces(pieces)
    }
}

/// Why text or ids could not be converted, or a tokenizer not be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("could not read tokenizer `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What is wrong with a file, with its name.
    #[error("could not use tokenizer `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: Box<TokenizerError>,
    },
    /// The file ends before something that it must hold.
    #[error("the file has {found} bytes and ends within {part}, which takes {expected} bytes from offset {offset}")]
    Truncated {
        /// `the header` or `record 17`.
        part: String,
        /// Where that part begins, in bytes.
        offset: usize,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes in the whole file.
        found: usize,
    },
    /// There are fewer tokens than the model has.
    #[error("the file holds {found} tokens, expected {expected}")]
    TooFewRecords {
        /// Tokens that the model has.
        expected: usize,
        /// Records in the file.
        found: usize,
    },
    /// The longest token's length makes no sense.
    #[error("the header's longest token has {found} bytes, expected 1 to {max}")]
    BadMaxLength {
        /// What the header says.
        found: i32,
        /// Largest sensible value.
        max: usize,
    },
    /// A token's length makes no sense.
    #[error("record {index} at offset {offset} is {found} bytes long, expected 1 to {max}, the header's longest token")]
    BadLength {
        /// Number of the record, which is the token's id.
        index: usize,
        /// Where the record begins, in bytes.
        offset: usize,
        /// The length that it states.
        found: i32,
        /// The header's longest token, in bytes.
        max: usize,
    },
    /// A score is not a number.
    #[error("record {index} at offset {offset} has the score {found}, expected a finite number")]
    BadScore {
        /// Number of the record, which is the token's id.
        index: usize,
        /// Where the record begins, in bytes.
        offset: usize,
        /// The score that it states.
        found: f32,
    },
    /// Git's pointer to it.
    #[error(transparent)]
    Pointer(#[from] Pointer),
    /// What is wrong with a BPE tokenizer: a `tokenizer.json`, or a GGUF file's.
    #[error(transparent)]
    Bpe(#[from] BpeError),
    /// A way of splitting was chosen that is not the tokenizer's own.
    #[error("this tokenizer splits text as `--split {own}` does, `--split {asked}` would give other ids")]
    OtherSplit { own: String, asked: String },
    /// The tokenizer can give ids that the model does not have.
    #[error("the tokenizer has {tokenizer} tokens, the model only {model}")]
    LargerThanModel {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// An id that is not in the vocabulary.
    #[error("{id} is no token id: the vocabulary has {vocab_size} tokens")]
    UnknownId {
        id: u32,
        /// Tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The text has more tokens than its [`Limit`].
    #[error("the text has more than {max_tokens} tokens")]
    TooManyTokens { max_tokens: usize },
    /// The tokens are not wanted any more: [`Limit::is_wanted`].
    #[error("the caller no longer waits for the tokens")]
    Abandoned,
    /// Words consist of characters, and these bytes are not characters.
    #[error("the text is not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// Bytes before the first that is wrong.
        offset: usize,
    },
}

impl Hint for TokenizerError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File { source, .. } => source.hint(),
            Self::Bpe(error) => error.hint(),
            Self::Pointer(pointer) => pointer.hint(),
            Self::Read { .. } | Self::TooManyTokens { .. } | Self::Abandoned => None,
            Self::Truncated { .. } | Self::TooFewRecords { .. } => {
                Some("the file is cut short, or belongs to a model with another vocabulary".into())
            }
            Self::BadMaxLength { .. } | Self::BadLength { .. } | Self::BadScore { .. } => {
                Some("is this a `tokenizer.bin` written by gpt-oss-amd's exporter, or a `tokenizer.json`?".into())
            }
            Self::LargerThanModel { .. } => Some("give the model's own tokenizer with `-z`".into()),
            Self::OtherSplit { .. } => Some("leave `--split` out".into()),
            Self::UnknownId { .. } => Some("were these ids made with another tokenizer? `-z` chooses one".into()),
            Self::NotUtf8 { .. } => {
                Some("convert the text to UTF-8, or use `--split seeds`, which takes any bytes".into())
            }
        }
    }
}

impl Tokenizer {
    fn new(vocabulary: impl Into<Arc<Vocabulary>>, way: impl Into<Way>) -> Self {
        Self { vocabulary: vocabulary.into(), way: way.into(), composes: false, begin: Arc::default() }
    }

    /// OpenAI's vocabulary for gpt-oss, split as OpenAI does. It is unpacked on first use in a process, which takes a
    /// noticeable fraction of a second.
    pub fn o200k_harmony() -> Self {
        Self::new(o200k::vocabulary(), Split::O200k)
    }

    /// The tokenizer that comes with a checkpoint; else o200k_harmony.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn of_checkpoint(checkpoint: &Checkpoint, split: Option<Split>) -> Result<Self, TokenizerError> {
        let vocab_size = Some(checkpoint.config.vocab_size);
        match &checkpoint.origin.tokenizer {
            Some(TokenizerSource::File(path)) => Self::from_file(path, vocab_size, split),
            Some(TokenizerSource::Gguf(gguf)) => Self::from_gguf(gguf, vocab_size, split),
            None => Self::o200k_harmony().split_as(split),
        }
    }

    /// Reads a `tokenizer.json` or a `tokenizer.bin`, whichever it is. The file stays mapped and must not be rewritten
    /// in place meanwhile. `vocab_size` is the number of the model's tokens: so many records are read of a
    /// `tokenizer.bin` (all of them if that is `None`), and a `tokenizer.json` may have fewer. Text is split as `split`
    /// says, else as the file does.
    ///
    /// # Errors
    /// The file cannot be read, or is not what it should be: [`TokenizerError::File`] says why.
    pub fn from_file(path: &Path, vocab_size: Option<usize>, split: Option<Split>) -> Result<Self, TokenizerError> {
        let bytes = mapped_file::map(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        // A `tokenizer.bin` begins with a length below 2^24, so that its fourth byte is zero; no JSON has such bytes.
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let is_json = first == Some(&b'{') && bytes.get(3) != Some(&0);
        let read = if is_json { Self::from_json } else { Self::from_bin };
        let whole = git_lfs::pointer(&bytes).map_or(Ok(()), |pointer| Err(pointer.into()));
        whole
            .and_then(|()| read(bytes, vocab_size, split))
            .map_err(|source| TokenizerError::File { path: path.to_owned(), source: Box::new(source) })
    }

    /// Reads a `tokenizer.json`, as [`Self::from_file`] does.
    ///
    /// # Errors
    /// [`TokenizerError::Bpe`].
    pub fn from_json(bytes: Bytes, vocab_size: Option<usize>, split: Option<Split>) -> Result<Self, TokenizerError> {
        let (spelled, way, composes) = json::read(&bytes, split)?;
        Ok(Self { composes, ..Self::from_spelled(spelled, vocab_size, way)? })
    }

    /// Reads a `tokenizer.bin`, as [`Self::from_file`] does.
    ///
    /// # Errors
    /// The bytes are not a `tokenizer.bin` with this many records.
    pub fn from_bin(bytes: Bytes, vocab_size: Option<usize>, split: Option<Split>) -> Result<Self, TokenizerError> {
        Ok(Self::new(seeds::read(bytes, vocab_size)?, split.unwrap_or(Split::Seeds)))
    }

    /// The same, split as was asked for.
    ///
    /// # Errors
    /// Of its own way, where it is another: [`TokenizerError::OtherSplit`].
    pub fn split_as(&self, asked: Option<Split>) -> Result<Self, TokenizerError> {
        match self.way {
            Way::Words(own) => Ok(self.with_split(Split::chosen(own, asked)?)),
            Way::Pieces(_) if asked.is_some() => Err(BpeError::NoWords.into()),
            Way::Pieces(_) => Ok(self.clone()),
        }
    }

    /// The same vocabulary with another way of splitting.
    pub fn with_split(&self, split: Split) -> Self {
        Self { way: split.into(), ..self.clone() }
    }

    /// The same, for texts that continue others: no blank is put before them.
    pub fn within_text(&self) -> Self {
        let way = match self.way {
            Way::Pieces(pieces) => Way::Pieces(Pieces { prefix: Prefix::Never, strips: false, ..pieces }),
            words => words,
        };
        Self { way, ..self.clone() }
    }

    /// The same, for a model whose prompts begin with these tokens, where they are texts.
    pub fn with_begin(self, begin: Vec<u32>) -> Self {
        Self { begin: begin.into(), ..self }
    }

    /// A text's ids after the tokens that prompts begin with, unless they are there already.
    pub fn begun(&self, ids: Vec<u32>) -> Vec<u32> {
        if ids.starts_with(&self.begin) { ids } else { [&self.begin, &ids[..]].concat() }
    }

    /// How many tokens of a prompt are those that prompts begin with.
    pub fn n_begun(&self, prompt: &[u32]) -> usize {
        if prompt.starts_with(&self.begin) { self.begin.len() } else { 0 }
    }

    /// Number of tokens, specials and reserved ones included.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Checks that every id this tokenizer gives is one that a model with `vocab_size` tokens takes.
    ///
    /// # Errors
    /// [`TokenizerError::LargerThanModel`].
    pub fn check_model(&self, vocab_size: usize) -> Result<(), TokenizerError> {
        if self.vocab_size() <= vocab_size {
            return Ok(());
        }
        Err(TokenizerError::LargerThanModel { tokenizer: self.vocab_size(), model: vocab_size })
    }

    /// The ids of a text. The names of special tokens in it are text like any other.
    ///
    /// The result has any length: gpt-oss-amd cuts it to the model's `initial_context_length`, which is the caller's
    /// to do if it wants the same. With [`Split::Seeds`] the text is any bytes, ends at the first NUL, and bytes that
    /// no token covers become id 0, all as in gpt-oss-amd. With the others, bytes that no token of a [`bpe`] vocabulary
    /// covers become its unknown token, if it has one, or are left out: those of a GGUF file when all else is merged,
    /// as llama.cpp does, those of a `tokenizer.json` before, as Hugging Face's `tokenizers` does.
    ///
    /// # Errors
    /// [`TokenizerError::NotUtf8`], but not with [`Split::Seeds`].
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        self.encode_within(text, &Limit::NONE, &mut ids)?;
        Ok(ids)
    }

    /// As [`Self::encode`], after ids that are there already, which count for the limit. It takes memory for the ids,
    /// and little else.
    ///
    /// # Errors
    /// As [`Self::encode`]; [`TokenizerError::TooManyTokens`], [`TokenizerError::Abandoned`].
    pub fn encode_within(&self, text: &[u8], limit: &Limit, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.encode_into(text, 0, limit, ids)
    }

    /// The ids of a whole prompt, in which tokens that were added and are not special are tokens, as in Hugging Face's
    /// `tokenizers` and in llama.cpp. Messages within a prompt are for [`Self::encode`], where no name is.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_prompt(&self, text: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        self.encode_prompt_within(text, &Limit::NONE)
    }

    /// As [`Self::encode_prompt`], as far as a limit lets it go.
    ///
    /// # Errors
    /// As [`Self::encode_within`].
    pub fn encode_prompt_within(&self, text: &[u8], limit: &Limit) -> Result<Vec<u32>, TokenizerError> {
        if self.vocabulary.has_added() {
            let is_added = |at, len| self.vocabulary.is_added(&text[at..at + len]);
            return self.encode_around(text, self.vocabulary.specials_in(text, is_added), limit);
        }
        let mut ids = Vec::new();
        self.encode_within(text, limit, &mut ids)?;
        Ok(ids)
    }

    /// As [`Self::encode`], but the names of special tokens become those tokens: for text that the caller trusts.
    ///
    /// # Errors
    /// As [`Self::encode`]; the offset is that in the whole text.
    pub fn encode_with_specials(&self, text: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with_specials_where(text, |_, _| true)
    }

    /// As [`Self::encode_with_specials`], as far as a limit lets it go.
    ///
    /// # Errors
    /// As [`Self::encode_with_specials`] and [`Self::encode_within`].
    pub fn encode_with_specials_within(&self, text: &[u8], limit: &Limit) -> Result<Vec<u32>, TokenizerError> {
        self.encode_around(text, self.vocabulary.specials_in(text, |_, _| true), limit)
    }

    /// As [`Self::encode_with_specials`], but only those become tokens of which `is_meant` says so; it is asked with
    /// the offset and the length of their names. The others are text, and words go across their ends.
    ///
    /// # Errors
    /// As [`Self::encode`]; the offset is that in the whole text.
    pub fn encode_with_specials_where(
        &self,
        text: &[u8],
        is_meant: impl FnMut(usize, usize) -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_around(text, self.vocabulary.specials_in(text, is_meant), &Limit::NONE)
    }

    /// Encodes what is between special tokens, of which the places, lengths and ids are given.
    fn encode_around(
        &self,
        text: &[u8],
        specials: impl IntoIterator<Item = (usize, usize, u32)>,
        limit: &Limit,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut from = 0;
        for (at, len, id) in specials {
            self.encode_into(&text[from..at], from, limit, &mut ids)?;
            ids.push(id);
            limit.check(ids.len())?;
            from = at + len;
        }
        self.encode_into(&text[from..], from, limit, &mut ids)?;
        Ok(ids)
    }

    /// Encodes a part of a text that begins at byte `offset` of the whole.
    fn encode_into(&self, text: &[u8], offset: usize, limit: &Limit, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let (vocabulary, check) = (&self.vocabulary, |n_tokens| limit.check(n_tokens));
        if self.way == Way::Words(Split::Seeds) {
            return split::seeds(text, |piece| merge::encode_piece(vocabulary, piece, ids, check));
        }
        let text =
            str::from_utf8(text).map_err(|error| TokenizerError::NotUtf8 { offset: offset + error.valid_up_to() })?;
        let is_composed = !self.composes || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        let text = if is_composed { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect::<String>()) };
        let merge = |word: &str| merge::encode_word(vocabulary, word, ids, check);
        match self.way {
            Way::Words(split) => split::words(split, &text, merge),
            Way::Pieces(pieces) => pieces.pieces(&text, offset == 0, merge),
        }
    }

    /// Bytes of the longest token: `n` tokens have at most `n` times as many.
    pub fn max_token_length(&self) -> usize {
        self.vocabulary.max_token_length()
    }

    /// The id of a special token, by its whole name: `<|start|>`.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.vocabulary.special(name.as_bytes())
    }

    /// The id of a token, special or not, by all of its bytes.
    pub fn named(&self, name: &str) -> Option<u32> {
        self.vocabulary.special(name.as_bytes()).or_else(|| self.vocabulary.id(name.as_bytes()))
    }

    /// Whether an id is a special token's, whose bytes are a name and no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// The bytes of a token: whole, even where gpt-oss-amd's program would stop printing at a NUL. A special token
    /// gives its name; `<0x0A>` in a `tokenizer.bin` gives the byte that it stands for. One token need not be
    /// whole characters: [`stream::TextStream`] puts them together.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.vocabulary.piece(id).ok_or(TokenizerError::UnknownId { id, vocab_size: self.vocab_size() })
    }

    /// The text of tokens from a text's beginning on, where some tokenizers put a blank. Tokens that go on after
    /// others are for [`Self::decode_all`].
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn text_of(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = self.decode_all(ids)?;
        if self.strips() && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        Ok(bytes)
    }

    /// What makes text of the tokens of a text, from its beginning on.
    pub fn text_stream(&self) -> TextStream {
        if self.strips() { TextStream::behind_blank() } else { TextStream::default() }
    }

    fn strips(&self) -> bool {
        matches!(self.way, Way::Pieces(Pieces { strips: true, .. }))
    }

    /// The bytes of several tokens, one after the other.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_all(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.decode(id)?);
        }
        Ok(bytes)
    }
}
