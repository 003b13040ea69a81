//! `POST /v1/completions`: texts and ids go on as the model has it, without a chat format.

mod choice;
mod prompt;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::future::Either;
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::choice::{Choice, ChoiceOptions, Piece};
use self::prompt::{Prompt, Prompts};
use super::Server;
use super::body::{self, FromBody, Json};
use super::error::ApiError;
use super::request_log::Record;
use super::sampling::SamplingFields;
use super::sse::{self, Event};
use super::stop_text::{StopText, Stops};
use engine::scheduler::{PromptLogprobs, Request};

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/completions", post(complete))
}

/// Answers to one request, prompts times `n`.
const MAX_CHOICES: usize = 1024;

/// Most alternatives of a token.
const MAX_LOGPROBS: usize = 5;

#[derive(Deserialize)]
struct Fields {
    model: Option<String>,
    prompt: Option<Prompts>,
    max_tokens: Option<usize>,
    n: Option<usize>,
    best_of: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
    stop: Option<Stops>,
    logprobs: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logit_bias: Option<Map<String, Value>>,
    ignore_eos: Option<bool>,
    min_tokens: Option<usize>,
    parse_special: Option<bool>,
    skip_special_tokens: Option<bool>,
    return_token_ids: Option<bool>,
    #[serde(skip)]
    sampling: SamplingFields,
}

impl FromBody for Fields {
    /// There may be several.
    const IS_ONE_PROMPT: bool = false;
    const NUMBER_BYTES: usize = 2 * size_of::<u32>(); // in a list that may be half empty

    /// In two readings: flattened into one, all that is unknown would be kept until its end.
    fn from_bytes(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields: Self = body::parse(bytes)?;
        fields.sampling = SamplingFields { wishes: body::parse(bytes)?, logit_bias: fields.logit_bias.take() };
        Ok(fields)
    }
}

/// What a stream tells besides text.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl Fields {
    fn refuse_what_is_not_done(&self) -> Result<(), ApiError> {
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix", "`suffix`: this model does not fill in the middle"));
        }
        if self.best_of.is_some_and(|best_of| best_of != self.n.unwrap_or(1)) {
            return Err(ApiError::unsupported("best_of", "`best_of` other than `n`: nothing is ranked here"));
        }
        if self.min_tokens.is_some_and(|n| n > 0) {
            return Err(ApiError::unsupported(
                "min_tokens",
                "`min_tokens`: `ignore_eos` fixes the length of an answer",
            ));
        }
        match self.logprobs {
            Some(n) if n > MAX_LOGPROBS => {
                Err(ApiError::invalid("logprobs", format!("`logprobs` is {n}, expected 0 to {MAX_LOGPROBS}")))
            }
            _ => Ok(()),
        }
    }

    /// How many answers each of so many prompts gets.
    fn n_for(&self, n_prompts: usize) -> Result<usize, ApiError> {
        let n = self.n.unwrap_or(1);
        if !(1..=128).contains(&n) {
            return Err(ApiError::invalid("n", format!("`n` is {n}, expected 1 to 128")));
        }
        if n * n_prompts > MAX_CHOICES {
            let message = format!("{n_prompts} prompts with {n} answers each: {MAX_CHOICES} answers are the most");
            return Err(ApiError::invalid("prompt", message));
        }
        Ok(n)
    }
}

async fn complete(State(server): State<Arc<Server>>, Json(mut fields): Json<Fields>) -> Result<Response, ApiError> {
    let model = server.check_model(fields.model.as_deref())?;
    fields.refuse_what_is_not_done()?;
    let Prompts(prompts) = fields.prompt.take().ok_or_else(|| ApiError::missing("prompt"))?;
    let n = fields.n_for(prompts.len())?;
    server.check_answers(n * prompts.len(), if prompts.len() > 1 { "prompt" } else { "n" })?;
    let mut choices = Vec::new();
    let mut prompt_tokens = 0;
    for prompt in prompts {
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => {
                let ids = server.encode(text, fields.parse_special.unwrap_or(false), "prompt").await?;
                server.tokenizer.begun(ids)
            }
        };
        prompt_tokens += ids.len();
        for i in 0..n {
            choices.push(choice(&server, &fields, choices.len(), i as u64, &ids)?);
        }
    }
    Record::drop_body();
    let head = sse::Head::new(&json!({
        "id": server.ids.next("cmpl-"),
        "object": "text_completion",
        "created": super::now(),
        "model": model,
        "system_fingerprint": server.backend.model().fingerprint,
    }));
    let usage = Usage { prompt_tokens, ..Usage::default() };
    if fields.stream.unwrap_or(false) {
        let options = fields.stream_options.unwrap_or_default();
        Ok(sse::response(CompletionResponse { server, head, usage, options }.events(choices)))
    } else {
        CompletionResponse { server, head, usage, options: StreamOptions::default() }.whole(choices).await
    }
}

/// Queues answer number `index`, the `i`-th to its prompt.
fn choice(server: &Server, fields: &Fields, index: usize, i: u64, ids: &[u32]) -> Result<Choice, ApiError> {
    let mut sampling = fields.sampling.sampling(server.ids.seed())?;
    if fields.sampling.wishes.seed.is_some() {
        sampling.seed = sampling.seed.wrapping_add(i);
    }
    let told = ChoiceOptions {
        stop_ids: if fields.ignore_eos.unwrap_or(false) { Vec::new() } else { server.ends.clone() },
        skips_specials: fields.skip_special_tokens.unwrap_or(false),
        n_logprobs: fields.logprobs,
        ids: fields.return_token_ids.unwrap_or(false),
    };
    let stop_text = StopText::new(fields.stop.clone().unwrap_or_default().0)?;
    let max_tokens = fields.max_tokens.unwrap_or(DEFAULT_TOKENS);
    let mut request = Request::new(ids.to_vec(), max_tokens, told.stop_ids.clone(), sampling);
    request.changes = fields.sampling.changes(server.backend.model().vocab_size)?;
    request.n_logprobs = fields.logprobs;
    let echo = fields.echo.unwrap_or(false);
    request.prompt_logprobs = fields.logprobs.filter(|_| echo).map(|n_top| PromptLogprobs { n_top, n_told: 0 });
    let mut generation = server.submit(request, "prompt")?;
    if !fields.stream.unwrap_or(false) && stop_text.is_empty() {
        generation = generation.seldom();
    }
    let prompt = (echo || told.ids).then(|| ids.to_vec());
    Ok(Choice::new(index, prompt, echo, told, stop_text, generation))
}

const DEFAULT_TOKENS: usize = 16;

/// What stands behind the head of an answer or a chunk.
#[derive(Serialize)]
struct Rest<'a> {
    choices: &'a [Piece],
    /// None leaves it out, `Some(None)` is `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageJson>>,
}

#[derive(Serialize)]
struct UsageJson {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: UsageDetails,
}

#[derive(Serialize)]
struct UsageDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
}

impl Usage {
    fn add(&mut self, piece: &Piece) {
        self.completion_tokens += piece.n_tokens;
        self.cached_tokens += piece.cached_tokens;
    }

    fn json(&self) -> UsageJson {
        let Self { prompt_tokens, completion_tokens, cached_tokens } = *self;
        let total_tokens = prompt_tokens + completion_tokens;
        let prompt_tokens_details = UsageDetails { cached_tokens };
        UsageJson { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }
}

/// Everything but the texts.
struct CompletionResponse {
    server: Arc<Server>,
    head: sse::Head,
    usage: Usage,
    options: StreamOptions,
}

impl CompletionResponse {
    /// All of it in one object: the pieces that a stream would have, joined.
    async fn whole(mut self, choices: Vec<Choice>) -> Result<Response, ApiError> {
        let mut whole = Vec::with_capacity(choices.len());
        for mut choice in choices {
            let mut joined = Piece::new(choice.index());
            while joined.finish_reason.is_none() {
                joined.join(choice.next(&self.server.tokenizer).await?);
            }
            self.usage.add(&joined);
            whole.push(joined);
        }
        let text = self.head.with(&Rest { choices: &whole, usage: Some(Some(self.usage.json())) });
        Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
    }

    /// One event for every piece, the choices mixed as they come.
    fn events(self, choices: Vec<Choice>) -> impl Stream<Item = Event> + Send + 'static {
        let tokenizer = self.server.tokenizer.clone();
        let mut pieces = choices.into_iter().map(|choice| Box::pin(choice.pieces(tokenizer.clone())));
        let pieces = match (pieces.next(), pieces.len()) {
            // The most usual, without what it takes to wait for many.
            (Some(only), 0) => Either::Left(only),
            (first, _) => Either::Right(stream::select_all(first.into_iter().chain(pieces))),
        };
        stream::unfold(Box::new((self, pieces, Next::Piece)), |mut state| async move {
            let (answer, pieces, next) = &mut *state;
            let event = match next {
                Next::Piece => match pieces.next().await {
                    Some(Ok(piece)) => answer.chunk(piece),
                    Some(Err(error)) => {
                        *next = Next::Nothing;
                        Event::data(&error.body().to_string())
                    }
                    None if answer.options.include_usage.unwrap_or(false) => {
                        *next = Next::Done;
                        answer.usage_chunk()
                    }
                    None => {
                        *next = Next::Nothing;
                        Event::data("[DONE]")
                    }
                },
                Next::Done => {
                    *next = Next::Nothing;
                    Event::data("[DONE]")
                }
                Next::Nothing => return None,
            };
            Some((event, state))
        })
    }

    fn chunk(&mut self, piece: Piece) -> Event {
        self.usage.add(&piece);
        let usage = match self.options {
            StreamOptions { continuous_usage_stats: Some(true), .. } => Some(Some(self.usage.json())),
            StreamOptions { include_usage: Some(true), .. } => Some(None),
            _ => None,
        };
        self.head.event(&Rest { choices: &[piece], usage })
    }

    fn usage_chunk(&self) -> Event {
        self.head.event(&Rest { choices: &[], usage: Some(Some(self.usage.json())) })
    }
}

/// What a stream tells next.
enum Next {
    Piece,
    Done,
    Nothing,
}
