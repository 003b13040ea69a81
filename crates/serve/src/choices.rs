//! The answers of a request, made side by side.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::Server;
use super::answer::{Answer, AnswerDelta, Finish};
use super::error::ApiError;
use super::history::Scope;
use super::mailbox::{Chunk, Ending, Generation};
use engine::scheduler::FinishReason;

/// A step of one of the answers.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) index: usize,
    /// What was added to it.
    pub(crate) steps: Vec<AnswerDelta>,
    pub(crate) finish: Option<Finish>,
}

/// Adds a step to those that are sent together: text after text is one step.
fn add(steps: &mut Vec<AnswerDelta>, step: AnswerDelta) {
    match (steps.last_mut(), step) {
        (Some(AnswerDelta::Text { text, drawn }), AnswerDelta::Text { text: more, drawn: more_drawn }) => {
            text.push_str(&more);
            drawn.extend(more_drawn);
        }
        (_, step) => steps.push(step),
    }
}

/// Tokens that an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) n_prompt: usize,
    /// Of the prompt, those that were computed before.
    pub(crate) n_cached: usize,
    pub(crate) n_answer: usize,
    /// Of these, those of reasoning.
    pub(crate) n_reasoning: usize,
}

/// The answers of a request. Dropping them ends their generation.
pub(crate) struct Choices {
    server: Arc<Server>,
    scope: Scope,
    n_prompt: usize,
    n_cached: Option<usize>,
    choices: Vec<ChoiceStream>,
}

struct ChoiceStream {
    /// None once it is over.
    generation: Option<Generation>,
    answer: Answer,
}

impl Choices {
    /// Generations and what is to become of them.
    pub(crate) fn new(server: Arc<Server>, scope: Scope, n_prompt: usize, choices: Vec<(Generation, Answer)>) -> Self {
        let choice = |(generation, answer)| ChoiceStream { generation: Some(generation), answer };
        let choices = choices.into_iter().map(choice).collect();
        Self { server, scope, n_prompt, n_cached: None, choices }
    }

    pub(crate) fn count(&self) -> usize {
        self.choices.len()
    }

    pub(crate) fn answer(&self, index: usize) -> &Answer {
        &self.choices[index].answer
    }

    /// What was taken so far.
    pub(crate) fn usage(&self) -> Usage {
        let sum = |count: fn(&Answer) -> usize| self.choices.iter().map(|choice| count(&choice.answer)).sum();
        Usage {
            n_prompt: self.n_prompt,
            n_cached: self.n_cached.unwrap_or(0),
            n_answer: sum(Answer::n_tokens),
            n_reasoning: sum(Answer::n_reasoning_tokens),
        }
    }

    /// Waits for news; none are left once all answers are over.
    ///
    /// # Errors
    /// A generation failed: nothing comes after it.
    pub(crate) async fn next(&mut self) -> Option<Result<News, ApiError>> {
        let (index, chunk) = self.next_chunk().await?;
        if index == 0 {
            self.n_cached = self.n_cached.or(chunk.cached_tokens);
        }
        let choice = &mut self.choices[index];
        let mut steps = Vec::new();
        let mut logprobs = chunk.logprobs.into_iter();
        for token in chunk.tokens {
            let pushed = choice.answer.push(token, logprobs.next().flatten());
            pushed.into_iter().for_each(|step| add(&mut steps, step));
        }
        let reason = match chunk.ending {
            Some(Ending::Failed(failed)) if !choice.answer.is_over() => {
                self.choices.clear();
                return Some(Err(failed.into()));
            }
            Some(Ending::Finished(reason)) => reason,
            _ if choice.answer.is_over() => FinishReason::Stop,
            _ => return Some(Ok(News { index, steps, finish: None })),
        };
        steps.extend(choice.answer.finish(reason));
        if let Some(generation) = choice.generation.take() {
            generation.stop();
        }
        let answer = &choice.answer;
        self.server.history.keep(self.scope, &Arc::new(answer.turn().clone()));
        for (repair, n) in answer.repairs() {
            self.server.metrics.repairs.get_or_create(&[("kind", repair)]).inc_by(n as u64);
        }
        Some(Ok(News { index, steps, finish: Some(answer.finish_reason()) }))
    }

    /// The next chunk of any generation, and whose it is.
    async fn next_chunk(&mut self) -> Option<(usize, Chunk)> {
        type Waiting<'a> = (usize, Pin<Box<dyn Future<Output = Chunk> + Send + 'a>>);
        let mut waiting: Vec<Waiting> = Vec::new();
        for (index, choice) in self.choices.iter_mut().enumerate() {
            if let Some(generation) = &mut choice.generation {
                waiting.push((index, Box::pin(generation.next())));
            }
        }
        if waiting.is_empty() {
            return None;
        }
        let first = poll_fn(|context| {
            for (index, chunk) in &mut waiting {
                if let Poll::Ready(chunk) = chunk.as_mut().poll(context) {
                    return Poll::Ready((*index, chunk));
                }
            }
            Poll::Pending
        });
        Some(first.await)
    }
}
