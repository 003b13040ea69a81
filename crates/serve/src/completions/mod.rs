//! `POST /v1/completions`: the model continues texts and ids, without a chat format.

mod choice;

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::future::Either;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::{Map, json};

use self::choice::{Choice, ChoiceOptions, Piece};
use super::Server;
use super::ask::Ask;
use super::body::{Json, PromptBody};
use super::error::ApiError;
use super::field::{Field, refuse};
use super::form::TextFormat;
use super::prompt;
use super::prompts::{Prompt, Prompts};
use super::request_log::Record;
use super::sse::{self, Event};
use super::tools::Tools;
use chat::grammar::Thoughts;
use chat::request_fields::{Place, RequestField};
use engine::scheduler::{PromptLogprobs, Request, TokenMask};

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/completions", post(complete))
}

/// Answers to one request, prompts times `n`.
const MAX_CHOICES: usize = 1024;

/// Most alternatives of a token.
const MAX_LOGPROBS: i64 = 5;

#[derive(Debug)]
pub(crate) struct CompletionRequest {
    /// What it has in common with others.
    ask: Ask,
    n: usize,
    /// The answer begins with the prompt.
    echo: bool,
    /// How many alternatives of each token.
    n_logprobs: Option<usize>,
    options: StreamOptions,
    parse_special: bool,
    skips_specials: bool,
    ids: bool,
}

/// What a stream tells besides text.
#[derive(Clone, Copy, Debug, Default)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
}

impl CompletionRequest {
    /// Reads a body, less its prompts.
    pub(crate) fn read(body: &Field) -> Result<Self, ApiError> {
        refuse(body, Place::Completions)?;
        let format = TextFormat::of_request(body, body.get("response_format"))?;
        let ask = Ask::read(body, Tools::default(), format)?;
        let flag = |field: Option<Field>| field.map_or(Ok(false), |field| field.flag());
        let count = |name, range: RangeInclusive<i64>| {
            let count = body.get(name).map(|field| field.integer(range)).transpose()?;
            Ok::<_, ApiError>(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
        };
        let n = count("n", 1..=128)?.unwrap_or(1);
        if let Some(best_of) = body.get("best_of").filter(|best_of| best_of.value().as_u64() != Some(n as u64)) {
            let asks = RequestField::find("best_of", Place::Completions).is_some_and(|row| row.asks(best_of.value()));
            if asks || n > 1 {
                return Err(ApiError::unsupported_value("best_of", "`best_of` must equal `n`: answers are not ranked"));
            }
        }
        let options = body.get("stream_options");
        let option = |name| flag(options.as_ref().and_then(|options| options.get(name)));
        Ok(Self {
            n,
            echo: flag(body.get("echo"))?,
            n_logprobs: count("logprobs", 0..=MAX_LOGPROBS)?,
            options: StreamOptions {
                include_usage: option("include_usage")?,
                continuous_usage_stats: option("continuous_usage_stats")?,
            },
            parse_special: flag(body.get("parse_special"))?,
            skips_specials: flag(body.get("skip_special_tokens"))?,
            ids: flag(body.get("return_token_ids"))?,
            // What is told of thoughts and to chat templates means nothing here.
            ask: Ask {
                max_tokens: Some(count("max_tokens", 0..=i64::MAX)?.unwrap_or(DEFAULT_TOKENS)),
                effort: None,
                names_effort: false,
                template_words: Map::new(),
                ..ask
            },
        })
    }
}

async fn complete(State(server): State<Arc<Server>>, Json(body): Json<PromptBody>) -> Result<Response, ApiError> {
    let request = CompletionRequest::read(&Field::body(&body.rest)?)?;
    let model = server.check_model(request.ask.model.as_deref())?;
    let Prompts(prompts) = body.prompt.ok_or_else(|| ApiError::missing("prompt"))?;
    drop(body.rest);
    let n = request.n;
    if n * prompts.len() > MAX_CHOICES {
        let message =
            format!("{} prompts with {n} answers each; at most {MAX_CHOICES} answers are possible", prompts.len());
        return Err(ApiError::invalid("prompt", message));
    }
    server.check_answers(n * prompts.len(), if prompts.len() > 1 { "prompt" } else { "n" })?;
    let limits = prompt::limits(&server, &request.ask)?;
    server.metrics.asked(n, request.ask.max_tokens.unwrap_or(DEFAULT_TOKENS));
    let mut masks = Vec::new();
    if request.ask.needs_grammar() {
        masks = prompt::masks(&server, &request.ask, Thoughts::None, n * prompts.len()).await?;
    }
    let mut choices = Vec::new();
    let mut prompt_tokens = 0;
    for prompt in prompts {
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => {
                let ids = server.encode(text, request.parse_special, "prompt").await?;
                server.tokenizer.begun(ids)
            }
        };
        prompt_tokens += ids.len();
        for i in 0..n {
            let mask = prompt::limited(masks.pop().flatten(), &limits);
            choices.push(choice(&server, &request, choices.len(), i as u64, &ids, mask)?);
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
    if request.ask.stream {
        Ok(sse::response(CompletionResponse { server, head, usage, options: request.options }.events(choices)))
    } else {
        CompletionResponse { server, head, usage, options: StreamOptions::default() }.whole(choices).await
    }
}

/// Queues answer number `index`, the `i`-th to its prompt.
fn choice(
    server: &Server,
    asked: &CompletionRequest,
    index: usize,
    i: u64,
    ids: &[u32],
    mask: Option<Box<dyn TokenMask>>,
) -> Result<Choice, ApiError> {
    let ask = &asked.ask;
    let mut sampling = ask.sampling.sampling(server.ids.seed())?;
    if ask.sampling.wishes.named_seed().is_some() {
        sampling.seed = sampling.seed.wrapping_add(i);
    }
    // Behind the end of a form there is nothing.
    let mut stop_ids = match (&ask.format, ask.goes_on()) {
        (_, true) => Vec::new(),
        (TextFormat::Text, false) => server.ends.clone(),
        _ => server.chat_stop_ids(),
    };
    stop_ids.extend(&ask.stop_token_ids);
    let told =
        ChoiceOptions { stop_ids, skips_specials: asked.skips_specials, n_logprobs: asked.n_logprobs, ids: asked.ids };
    let max_tokens = ask.max_tokens.unwrap_or(DEFAULT_TOKENS);
    let mut request = Request::new(ids.to_vec(), max_tokens, told.stop_ids.clone(), sampling);
    request.changes = ask.sampling.changes(server.backend.model().vocab_size)?;
    request.changes.mask = mask;
    request.cache_salt = prompt::salt(ask);
    request.n_logprobs = asked.n_logprobs;
    request.prompt_logprobs = asked.n_logprobs.filter(|_| asked.echo).map(|n_top| PromptLogprobs { n_top, n_told: 0 });
    let mut generation = server.submit(request, "prompt")?;
    if ask.is_seldom() {
        generation = generation.seldom();
    }
    let prompt = (asked.echo || told.ids).then(|| ids.to_vec());
    Ok(Choice::new(index, prompt, asked.echo, told, ask.stop.clone(), generation))
}

const DEFAULT_TOKENS: usize = 16;

/// What follows the head of an answer or a chunk.
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
                    None if answer.options.include_usage => {
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
            StreamOptions { continuous_usage_stats: true, .. } => Some(Some(self.usage.json())),
            StreamOptions { include_usage: true, .. } => Some(None),
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
