//! One answer: tokens to pieces of text.

use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::mailbox::{Ending, Generation};
use crate::stop_text::StopText;
use engine::scheduler::{FinishReason, LogitRowLogprobs};
use model::tokenizer::Tokenizer;
use model::tokenizer::stream::TextStream;

/// Which parts of an answer are sent.
#[derive(Clone, Debug)]
pub(super) struct ChoiceOptions {
    /// Tokens that end it and are no text.
    pub(crate) stop_ids: Vec<u32>,
    /// Whether names of special tokens are left out of the text.
    pub(crate) skips_specials: bool,
    /// How many alternatives of each token.
    pub(crate) n_logprobs: Option<usize>,
    /// Whether ids are sent beside the text.
    pub(crate) ids: bool,
}

/// One answer that is being generated.
pub(super) struct Choice {
    index: usize,
    told: ChoiceOptions,
    stop_text: StopText,
    stream: TextStream,
    /// Characters so far, including the prompt's if it is sent.
    n_characters: usize,
    /// Those that were told.
    n_told: usize,
    /// Tokens of text that is held back, since a stop could begin there.
    held: Logprobs,
    /// The prompt, if it is to be told and was not yet: as text, as ids, or as both.
    prompt: Option<Vec<u32>>,
    /// How probable its tokens are, from the second one on, as far as that came.
    prompt_logprobs: Vec<LogitRowLogprobs>,
    echo: bool,
    cached_told: bool,
    /// Ended as soon as a stop was found.
    generation: Option<Generation>,
}

/// A part of an answer, as an element of `choices`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Piece {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip)]
    pub n_tokens: usize,
    #[serde(skip)]
    pub(crate) cached_tokens: usize,
}

/// Lists side by side, an element for each token.
#[derive(Debug, Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Choice {
    pub(crate) fn new(
        index: usize,
        prompt: Option<Vec<u32>>,
        echo: bool,
        told: ChoiceOptions,
        stop_text: StopText,
        generation: Generation,
    ) -> Self {
        Self {
            index,
            told,
            stop_text,
            stream: TextStream::default(),
            n_characters: 0,
            n_told: 0,
            held: Logprobs::default(),
            prompt,
            prompt_logprobs: Vec::new(),
            echo,
            cached_told: false,
            generation: Some(generation),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Waits for more of it.
    ///
    /// # Errors
    /// If the generation failed.
    pub(crate) async fn next(&mut self, tokenizer: &Tokenizer) -> Result<Piece, ApiError> {
        let generation = self.generation.as_mut().expect("nobody asks after the end");
        let mut piece = Piece::new(self.index);
        let chunk = generation.next().await;
        // Not before there is something to say: a piece that says nothing is left out, and this with it.
        let says_something = !chunk.tokens.is_empty() || chunk.ending.is_some();
        if let (false, true, Some(cached_tokens)) = (self.cached_told, says_something, chunk.cached_tokens) {
            self.cached_told = true;
            piece.cached_tokens = cached_tokens;
        }
        self.prompt_logprobs.extend(chunk.prompt_logprobs);
        // All log-probabilities of the prompt are there when something else is.
        if says_something || !self.echo || self.told.n_logprobs.is_none() {
            self.begin(&mut piece, tokenizer);
        }
        for (token, logprobs) in chunk.tokens.into_iter().zip(chunk.logprobs) {
            self.take(token, logprobs.as_deref(), tokenizer, &mut piece);
            if self.stop_text.is_over() {
                piece.finish_reason = Some("stop");
                if let Some(generation) = self.generation.take() {
                    generation.stop();
                }
                return Ok(piece);
            }
        }
        match chunk.ending {
            None => {}
            Some(Ending::Failed(failed)) => return Err(failed.into()),
            Some(Ending::Finished(reason)) => {
                let rest = self.stream.finish();
                piece.text += &self.stop_text.push(&rest);
                piece.text += &self.stop_text.finish();
                self.tell_held(usize::MAX, &mut piece);
                piece.finish_reason = Some(match reason {
                    FinishReason::Stop => "stop",
                    // One that is cancelled has no reader, and tells nobody.
                    FinishReason::Length | FinishReason::Cancelled => "length",
                });
                self.generation = None;
            }
        }
        Ok(piece)
    }

    /// All of it, as it comes. What adds nothing is left out.
    pub(crate) fn pieces(self, tokenizer: Tokenizer) -> impl Stream<Item = Result<Piece, ApiError>> + Send + 'static {
        // Boxed, since it is moved for every piece.
        stream::unfold(Box::new((self, tokenizer)), |mut state| async move {
            let (choice, tokenizer) = &mut *state;
            choice.generation.as_ref()?;
            loop {
                match choice.next(tokenizer).await {
                    Ok(piece) if piece.says_nothing() => {}
                    Ok(piece) => return Some((Ok(piece), state)),
                    Err(error) => {
                        choice.generation = None;
                        return Some((Err(error), state));
                    }
                }
            }
        })
    }

    /// The part that is sent once, with the first piece.
    fn begin(&mut self, piece: &mut Piece, tokenizer: &Tokenizer) {
        let Some(prompt) = self.prompt.take() else { return };
        if self.echo {
            let mut stream = tokenizer.text_stream();
            let mut logprobs = std::mem::take(&mut self.prompt_logprobs).into_iter();
            let n_begun = tokenizer.n_begun(&prompt);
            for (i, &token) in prompt.iter().enumerate() {
                let bytes = if i < n_begun { &[] } else { text_of(token, tokenizer) };
                if let Some(n) = self.told.n_logprobs {
                    let row = if i == 0 { None } else { logprobs.next() };
                    let lists = piece.logprobs.get_or_insert_default();
                    lists.push(token, row.as_ref(), n, self.n_characters, tokenizer);
                }
                let text = stream.push(bytes);
                self.n_characters += text.chars().count();
                piece.text += &text;
            }
            let rest = stream.finish();
            self.n_characters += rest.chars().count();
            piece.text += &rest;
            self.n_told = self.n_characters;
        }
        if self.told.ids {
            piece.prompt_token_ids = Some(prompt);
        }
    }

    fn take(&mut self, token: u32, logprobs: Option<&LogitRowLogprobs>, tokenizer: &Tokenizer, piece: &mut Piece) {
        piece.n_tokens += 1;
        if self.told.ids {
            piece.token_ids.get_or_insert_default().push(token);
        }
        let bytes = text_of(token, tokenizer);
        let is_silent = self.told.stop_ids.contains(&token) || self.told.skips_specials && is_special(bytes, tokenizer);
        let text = if is_silent { String::new() } else { self.stream.push(bytes) };
        if let Some(n) = self.told.n_logprobs {
            self.held.push(token, logprobs, n, self.n_characters, tokenizer);
        }
        self.n_characters += text.chars().count();
        let text = self.stop_text.push(&text);
        self.n_told += text.chars().count();
        piece.text += &text;
        // A token without a text of its own goes with what was told before it, but not after a stop.
        let is_whole = self.n_told == self.n_characters && !self.stop_text.is_over();
        self.tell_held(if is_whole { usize::MAX } else { self.n_told }, piece);
    }

    /// Tells the log-probabilities of tokens that begin before so many characters; after a stop there are none.
    fn tell_held(&mut self, end: usize, piece: &mut Piece) {
        let n = self.held.text_offset.iter().take_while(|offset| **offset < end).count();
        if n > 0 {
            piece.logprobs.get_or_insert_default().extend(self.held.take(n));
        }
    }
}

impl Logprobs {
    fn take(&mut self, n: usize) -> Self {
        Self {
            tokens: self.tokens.drain(..n).collect(),
            token_logprobs: self.token_logprobs.drain(..n).collect(),
            top_logprobs: self.top_logprobs.drain(..n).collect(),
            text_offset: self.text_offset.drain(..n).collect(),
        }
    }

    fn extend(&mut self, next: Self) {
        self.tokens.extend(next.tokens);
        self.token_logprobs.extend(next.token_logprobs);
        self.top_logprobs.extend(next.top_logprobs);
        self.text_offset.extend(next.text_offset);
    }

    /// Adds a token that is at `offset` characters of the text, with `n` others; nothing is known of a prompt's first.
    fn push(&mut self, token: u32, row: Option<&LogitRowLogprobs>, n: usize, offset: usize, tokenizer: &Tokenizer) {
        self.tokens.push(spelled(text_of(token, tokenizer)));
        self.token_logprobs.push(row.map_or(Value::Null, |row| number(row.chosen)));
        self.top_logprobs.push(row.map_or(Value::Null, |row| top(token, row, n, tokenizer)));
        self.text_offset.push(offset);
    }
}

/// A model may have rows that its tokenizer has no text for.
fn text_of(token: u32, tokenizer: &Tokenizer) -> &[u8] {
    tokenizer.decode(token).unwrap_or("\u{fffd}".as_bytes())
}

fn is_special(bytes: &[u8], tokenizer: &Tokenizer) -> bool {
    str::from_utf8(bytes).is_ok_and(|name| tokenizer.special(name).is_some())
}

/// The token's text; its bytes, if these are not whole characters, as OpenAI writes them.
fn spelled(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// JSON has no infinity: what cannot come is as improbable as in vLLM's answers.
fn number(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

/// The best `n` and the token itself, by their texts. Of several with the same text the most probable is sent.
fn top(token: u32, row: &LogitRowLogprobs, n: usize, tokenizer: &Tokenizer) -> Value {
    let mut all = Map::new();
    let best = row.top.iter().take(n).map(|one| (one.token, one.logprob));
    for (id, logprob) in best.chain([(token, row.chosen)]) {
        all.entry(spelled(text_of(id, tokenizer))).or_insert_with(|| number(logprob));
    }
    Value::Object(all)
}

impl Piece {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, ..Self::default() }
    }

    fn says_nothing(&self) -> bool {
        self.text.is_empty() && self.n_tokens == 0 && self.finish_reason.is_none()
    }

    /// Appends the next piece.
    pub(crate) fn join(&mut self, next: Self) {
        self.text += &next.text;
        if let Some(next) = next.logprobs {
            self.logprobs.get_or_insert_default().extend(next);
        }
        if let Some(ids) = next.token_ids {
            self.token_ids.get_or_insert_default().extend(ids);
        }
        self.prompt_token_ids = self.prompt_token_ids.take().or(next.prompt_token_ids);
        self.finish_reason = next.finish_reason;
        self.n_tokens += next.n_tokens;
        self.cached_tokens += next.cached_tokens;
    }
}
