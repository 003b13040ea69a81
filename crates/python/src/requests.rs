//! The requests of all Python threads: one thread runs a step for all, and each takes its own results.

use std::collections::HashMap;

use crate::error::Error;
use chat::chat_format::{AnswerEvent, AnswerParser, Purpose};
use engine::Engine;
use engine::scheduler::{Event, FinishReason, Request, RequestId};
use model::tokenizer::Tokenizer;
use model::tokenizer::stream::TextStream;

/// A token or none, text, whose text it is, and why the request ended, if it did.
pub(crate) type Told = (Option<u32>, String, &'static str, Option<&'static str>);

/// How a request's tokens become text.
pub(crate) enum Reading {
    Text(TextStream),
    Chat(Box<dyn AnswerParser>),
}

/// A request that has not ended, or whose end was not taken.
struct Asked {
    id: RequestId,
    /// Tokens of no text that end it.
    stop: Vec<u32>,
    reading: Reading,
    /// What the text that comes is for.
    purpose: &'static str,
    told: Vec<Told>,
}

/// An engine, and what it was asked.
pub(crate) struct Requests {
    engine: Engine,
    asked: HashMap<usize, Asked>,
    by_id: HashMap<RequestId, usize>,
    n_submitted: usize,
}

impl Requests {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, asked: HashMap::new(), by_id: HashMap::new(), n_submitted: 0 }
    }

    /// Queues a request. Its number is not used again.
    ///
    /// # Errors
    /// [`Error::Engine`]: its prompt is empty or too long, or has ids that the model does not know.
    pub(crate) fn submit(&mut self, request: Request, reading: Reading) -> Result<usize, Error> {
        let stop = request.stop.clone();
        let id = self.engine.submit(request)?;
        let number = self.n_submitted;
        self.n_submitted += 1;
        self.by_id.insert(id, number);
        self.asked.insert(number, Asked { id, stop, reading, purpose: "answer", told: Vec::new() });
        Ok(number)
    }

    /// What became of a request; where there is nothing, one step is run.
    ///
    /// # Errors
    /// [`Error::NoRequest`]; a step that fails, with which all requests are lost.
    pub(crate) fn take(&mut self, tokenizer: &Tokenizer, number: usize) -> Result<Vec<Told>, Error> {
        let Some(asked) = self.asked.get(&number) else { return Err(Error::NoRequest { request: number }) };
        if asked.told.is_empty()
            && let Err(error) = self.step(tokenizer)
        {
            self.engine.abort();
            self.asked.clear();
            self.by_id.clear();
            return Err(error);
        }
        let told = self.asked.get_mut(&number).map(|asked| std::mem::take(&mut asked.told)).unwrap_or_default();
        if told.iter().any(|(.., reason)| reason.is_some()) {
            self.forget(number);
        }
        Ok(told)
    }

    fn step(&mut self, tokenizer: &Tokenizer) -> Result<(), Error> {
        for event in self.engine.step()? {
            let (Event::Token { request, .. } | Event::Finished { request, .. }) = event else { continue };
            let Some(asked) = self.by_id.get(&request).and_then(|number| self.asked.get_mut(number)) else { continue };
            match event {
                Event::Token { token, .. } => asked.read(tokenizer, token)?,
                Event::Finished { reason, .. } => asked.finish(reason),
                Event::Admitted { .. } | Event::PromptToken { .. } => {}
            }
        }
        Ok(())
    }

    pub(crate) fn cancel(&mut self, number: usize) {
        if let Some(asked) = self.asked.get(&number) {
            self.engine.cancel(asked.id);
            self.forget(number);
        }
    }

    fn forget(&mut self, number: usize) {
        if let Some(asked) = self.asked.remove(&number) {
            self.by_id.remove(&asked.id);
        }
    }

    /// The logits after each token.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Engine`].
    pub(crate) fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        // The end of a cancelled request is told by a step that computes nothing.
        while self.asked.is_empty() && !self.engine.is_idle() {
            self.engine.step()?;
        }
        if !self.engine.is_idle() {
            return Err(Error::Busy { n: self.asked.len() });
        }
        Ok(self.engine.teacher_force(ids, None)?)
    }
}

impl Asked {
    fn read(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<(), Error> {
        match &mut self.reading {
            Reading::Text(_) if self.stop.contains(&token) => {
                self.told.push((Some(token), String::new(), self.purpose, None));
            }
            Reading::Text(text) => {
                let piece = text.push(tokenizer.decode(token)?);
                self.told.push((Some(token), piece, self.purpose, None));
            }
            Reading::Chat(parser) => {
                let events = parser.push(token);
                self.hear(Some(token), events);
            }
        }
        Ok(())
    }

    fn finish(&mut self, reason: FinishReason) {
        let reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        };
        match &mut self.reading {
            Reading::Text(text) => {
                let rest = text.finish();
                self.told.push((None, rest, self.purpose, Some(reason)));
            }
            Reading::Chat(parser) => {
                let events = parser.finish();
                self.hear(None, events);
                self.told.push((None, String::new(), self.purpose, Some(reason)));
            }
        }
    }

    /// What a token of a chat said: one thing for each purpose, the token with the first.
    fn hear(&mut self, token: Option<u32>, events: Vec<AnswerEvent>) {
        let (begin, mut token) = (self.told.len(), token);
        for event in events {
            match event {
                AnswerEvent::Started { purpose, .. } => {
                    self.purpose = match purpose {
                        Purpose::Reasoning => "reasoning",
                        Purpose::Commentary => "commentary",
                        Purpose::Answer | Purpose::Untold => "answer",
                    };
                }
                AnswerEvent::Text(text) => match self.told[begin..].last_mut() {
                    Some((_, said, purpose, _)) if *purpose == self.purpose => said.push_str(&text),
                    _ => self.told.push((token.take(), text, self.purpose, None)),
                },
                AnswerEvent::Ended { .. } => {}
            }
        }
        if token.is_some() {
            self.told.push((token, String::new(), self.purpose, None));
        }
    }
}
