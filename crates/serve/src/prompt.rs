//! Makes generations from a request of a chat API.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::Server;
use super::answer::{Answer, Making};
use super::ask::Ask;
use super::choices::Choices;
use super::conversation::{self, ConversationItem};
use super::error::ApiError;
use super::form::TextFormat;
use super::keys::Caller;
use super::long_work::LONG_TEXT_BYTES;
use super::request_log::Record;
use chat::chat_format::{ChatFormatError, Conversation, Prompt, Untaken};
use chat::grammar::{AnswerFormat, GrammarError, Thoughts, TokenLimits, ToolChoice, Wanted};
use chat::{ResponseFormat, Tool};
use engine::scheduler::{Request, TokenMask};
use hint::{Hint, chain};
use model::tokenizer::limit::Limit;

/// Whether a conversation, or the request that it came with, takes a while to become a prompt.
pub(crate) fn is_long<'a>(entries: impl IntoIterator<Item = &'a ConversationItem>) -> bool {
    let body_bytes = Record::current().map_or(0, |record| record.body_bytes());
    body_bytes.max(entries.into_iter().map(ConversationItem::size_bytes).sum()) > LONG_TEXT_BYTES
}

/// A request and its prompt, made from its `parts`. `param` is the field with its conversation.
///
/// # Errors
/// As [`build`].
pub(crate) async fn of<R: Send + 'static>(
    server: &Arc<Server>,
    caller: Caller,
    request: R,
    parts: fn(&R) -> (&Ask, &[ConversationItem]),
    param: &'static str,
) -> Result<(R, Prompt), ApiError> {
    let (shared, is_long) = (Arc::clone(server), is_long(parts(&request).1));
    let work = move |is_wanted: &dyn Fn() -> bool| {
        let (ask, entries) = parts(&request);
        let entries: Vec<&ConversationItem> = entries.iter().collect();
        let prompt = build(&shared, caller, ask, &entries, param, is_wanted)?;
        Ok((request, prompt))
    };
    server.long_work.run(is_long, work).await?
}

/// The prompt of a conversation. `param` is the field with it. Rendering stops as soon as the prompt has more tokens
/// than the context, or its client has left.
///
/// # Errors
/// A result without a call, or more tokens than the context has.
pub(crate) fn build(
    server: &Server,
    caller: Caller,
    ask: &Ask,
    entries: &[&ConversationItem],
    param: &str,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Prompt, ApiError> {
    let format = match &ask.format {
        TextFormat::Schema { name, description, schema, is_told: true, .. } => {
            Some(ResponseFormat { name: name.clone(), description: description.clone(), schema: schema.clone() })
        }
        _ => None,
    };
    let chat_format = &server.chat()?.format;
    let may_call = ask.tools.choice != ToolChoice::None;
    if may_call && !chat_format.reads_calls() && !ask.tools.offered.is_empty() {
        let why = "tool calls cannot be told from text in this model's answers; `tool_choice: \"none\"` leaves them in the text";
        return Err(ApiError::unsupported_value("tools", why));
    }
    let turns = conversation::turns(entries, &server.history, caller.0)?;
    let conversation = Conversation {
        current_date: server.current_date(),
        thinking: ask.thinking(),
        tools: &ask.tools.offered,
        may_call,
        format,
        turns: &turns,
        goes_on: ask.goes_on_with_last,
        words: ask.template_words.clone(),
    };
    let context_tokens = server.backend.model().context_tokens;
    let limit = Limit { max_tokens: context_tokens, is_wanted };
    let prompt = chat_format.prompt(&conversation, &limit).map_err(|error| told(&error, param))?;
    if prompt.ids.len() > context_tokens {
        return Err(ApiError::context_length(param, prompt.ids.len(), context_tokens));
    }
    Ok(prompt)
}

/// The client's error for a conversation without a valid prompt.
fn told(error: &ChatFormatError, param: &str) -> ApiError {
    if let Some(error) = error.tokenizer() {
        return super::told(error, param);
    }
    match error {
        ChatFormatError::NotTaken { what: Untaken::Tools } => ApiError::unsupported_value("tools", error.to_string()),
        ChatFormatError::NotTaken { what: Untaken::Effort } => {
            ApiError::unsupported_value("reasoning_effort", error.to_string())
        }
        ChatFormatError::NotTaken { what: Untaken::BegunAnswer } => {
            ApiError::unsupported_value("continue_final_message", error.to_string())
        }
        ChatFormatError::NotTaken { what: Untaken::Calls } => ApiError::unsupported_value(param, error.to_string()),
        error if error.is_machines() => {
            tracing::warn!("{}", chain(error));
            ApiError::internal("the chat template could not be run; the log says why")
        }
        error => ApiError::invalid(param, error.to_string()),
    }
}

/// Queues `n` answers to a prompt: they differ in their seeds.
///
/// # Errors
/// The client's error, before any head is sent.
pub(crate) async fn start(
    server: &Arc<Server>,
    caller: Caller,
    ask: &Ask,
    prompt: Prompt,
    n: usize,
    param: &str,
) -> Result<Choices, ApiError> {
    server.check_answers(n, "n")?;
    let facts = server.backend.model();
    let sampling = ask.sampling.sampling(server.ids.seed())?;
    let (tokenizer, tools, stop) = (server.tokenizer.clone(), ask.tools.clone(), ask.stop.clone());
    let own_stops = server.chat_stop_ids();
    let is_own = |id: &u32| own_stops.contains(id);
    let stop_ids: Vec<u32> = ask.stop_token_ids.iter().copied().filter(|id| !is_own(id)).collect();
    let mut stop_of_request = if ask.goes_on() { Vec::new() } else { own_stops };
    stop_of_request.extend(&ask.stop_token_ids);
    let making = Arc::new(Making { tokenizer, tools, stop, one_call: ask.one_call, stop_ids });
    let chat_format = &server.chat()?.format;
    let limits = limits(server, ask)?;
    server.metrics.asked(n, ask.max_tokens.unwrap_or(facts.context_tokens));
    if ask.goes_on_with_last && ask.format != TextFormat::Text {
        let why = "a form of the answer cannot be combined with a continued answer";
        return Err(ApiError::unsupported_value("continue_final_message", why));
    }
    let mut masks = masks(server, ask, prompt.begun.thoughts(), n).await?;
    let mut choices = Vec::with_capacity(n);
    for i in 0..n {
        let mut sampling = sampling;
        sampling.seed = sampling.seed.wrapping_add(i as u64);
        let max_new_tokens = ask.max_tokens.unwrap_or(facts.context_tokens);
        let mut request = Request::new(prompt.ids.clone(), max_new_tokens, stop_of_request.clone(), sampling);
        request.changes = ask.sampling.changes(facts.vocab_size)?;
        request.changes.mask = limited(masks.pop().flatten(), &limits);
        request.cache_salt = salt(ask);
        request.n_logprobs = ask.n_logprobs;
        let parser = chat_format.answer(prompt.begun.clone(), ask.goes_on());
        let answer = Answer::new(parser, Arc::clone(&making), server.ids.next("call_"));
        let generation = server.submit(request, param)?;
        choices.push((if ask.is_seldom() { generation.seldom() } else { generation }, answer));
    }
    Record::drop_body();
    Ok(Choices::new(Arc::clone(server), caller.0, prompt.ids.len(), choices))
}

/// What may not come whatever the form.
///
/// # Errors
/// An unknown id, or a word that the tokenizer does not take.
pub(crate) fn limits(server: &Server, ask: &Ask) -> Result<TokenLimits, ApiError> {
    let vocab_size = server.backend.model().vocab_size;
    let is_none = |id: &&u32| **id as usize >= vocab_size;
    for (name, ids) in [("allowed_token_ids", &ask.allowed_token_ids), ("stop_token_ids", &ask.stop_token_ids)] {
        if let Some(id) = ids.iter().find(is_none) {
            let message = format!("`{id}` in `{name}` is not a token id; these are below {vocab_size}");
            return Err(ApiError::invalid(name, message));
        }
    }
    let mut limits = TokenLimits { vocab_size, allowed: ask.allowed_token_ids.clone(), bad: Vec::new() };
    for word in &ask.bad_words {
        limits.forbid(word, &server.tokenizer).map_err(|error| super::told(&error, "bad_words"))?;
    }
    Ok(limits)
}

/// A mask, and what may not come besides.
pub(crate) fn limited(mask: Option<Box<dyn TokenMask>>, limits: &TokenLimits) -> Option<Box<dyn TokenMask>> {
    if limits.is_empty() { mask } else { Some(limits.clone().mask(mask)) }
}

/// The number of a request's salt, 0 without one.
pub(crate) fn salt(ask: &Ask) -> u64 {
    let digest = |salt: &String| Sha256::digest(salt.as_bytes()).first_chunk().copied().map_or(0, u64::from_le_bytes);
    ask.cache_salt.as_ref().map_or(0, digest)
}

/// A mask for each answer: headers are those of the format, calls those of tools that may be called, and JSON is what
/// was asked for. None if `ignore_eos` lets the model write on and no form is asked for.
pub(crate) async fn masks(
    server: &Arc<Server>,
    ask: &Ask,
    thoughts: Thoughts,
    n: usize,
) -> Result<Vec<Option<Box<dyn TokenMask>>>, ApiError> {
    let chat = server.chat()?;
    if ask.goes_on() || !ask.needs_grammar() && !chat.format.has_headers() {
        return Ok((0..n).map(|_| None).collect());
    }
    let format = match &ask.format {
        TextFormat::Text => None,
        TextFormat::JsonObject => Some(AnswerFormat::JsonObject),
        TextFormat::Schema { schema, .. } => Some(AnswerFormat::Schema(schema.clone())),
        TextFormat::Written { text, .. } => Some(AnswerFormat::Text(text.clone())),
    };
    let (tools, choice) = (ask.tools.enforced(), ask.tools.choice.clone());
    let is_bound = ask.is_bound();
    let mut wanted = Wanted { tools, choice, format, thoughts };
    for n_left in (0..MAX_TRIES).rev() {
        match of_wanted(server, &wanted, is_bound, n).await? {
            Ok(masks) => return Ok(masks.into_iter().map(|mask| Some(timed(server, mask))).collect()),
            // Nobody insists on some of the schemas.
            Err(error) if loosen(&mut wanted, &ask.tools.callable(), &error, n_left > 1) => {
                tracing::debug!("a schema is not enforced: {error}");
            }
            Err(error) if is_bound => return Err(refusal(ask, &error)),
            Err(error) => {
                tracing::warn!("headers are not masked: {error}");
                return Ok((0..n).map(|_| None).collect());
            }
        }
    }
    Err(ApiError::internal("the schemas of tools could not be tried"))
}

/// Grammars that are tried: after each but the last two the schema that kept it from being made is given up, after the
/// last but one all are that may be.
const MAX_TRIES: usize = 6;

/// Gives up what a client does not insist on and what keeps a grammar from being made; whether that is anything.
/// `insisted` are the tools as the client has them. With `one_by_one` a schema that the error names goes alone.
fn loosen(wanted: &mut Wanted, insisted: &[Tool], error: &GrammarError, one_by_one: bool) -> bool {
    let own = |tool: &Tool| insisted.iter().any(|own| own.name == tool.name && own.strict);
    let mut loose = wanted.tools.iter_mut().filter(|tool| tool.strict && !own(tool));
    match error {
        GrammarError::Tool { name, .. } if one_by_one => {
            loose.find(|tool| tool.name == *name).map(|tool| tool.strict = false).is_some()
        }
        _ => loose.map(|tool| tool.strict = false).count() > 0,
    }
}

/// Masks of what is wanted, or why there are none.
async fn of_wanted(
    server: &Arc<Server>,
    wanted: &Wanted,
    is_bound: bool,
    n: usize,
) -> Result<Result<Vec<Box<dyn TokenMask>>, GrammarError>, ApiError> {
    let chat = server.chat()?;
    let wanted = Arc::new(wanted.clone());
    let grammars = Arc::clone(&chat.grammars);
    let is_compiled = {
        let (grammars, wanted) = (Arc::clone(&grammars), Arc::clone(&wanted));
        move || grammars.is_compiled(&wanted)
    };
    let compile = move || (0..n).map(|_| grammars.mask(&wanted)).collect::<Result<Vec<_>, _>>();
    // A grammar is tried and compiled in its turn; schemas may be long even to look at.
    let at_once = {
        let compile = compile.clone();
        move || (!is_bound || is_compiled()).then(compile)
    };
    let masks = tokio::task::spawn_blocking(at_once).await.map_err(|error| ApiError::internal(error.to_string()))?;
    let masks = match masks {
        Some(masks) => masks,
        None => server.long_work.run(true, move |_| compile()).await?,
    };
    server.metrics.grammar_cache_hits.inner().store(chat.grammars.counts().hits, Ordering::Relaxed);
    Ok(masks)
}

/// A mask whose time is measured.
pub(super) struct Timed<F> {
    mask: Box<dyn TokenMask>,
    took: F,
}

fn timed(server: &Server, mask: Box<dyn TokenMask>) -> Box<dyn TokenMask> {
    let seconds = server.metrics.grammar_mask.clone();
    Timed::boxed(mask, move |took| seconds.observe(took.as_secs_f64()))
}

impl<F: Fn(Duration) + Send + Clone + 'static> Timed<F> {
    /// Tells `took` of each.
    pub(crate) fn boxed(mask: Box<dyn TokenMask>, took: F) -> Box<dyn TokenMask> {
        Box::new(Self { mask, took })
    }
}

impl<F> fmt::Debug for Timed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").field("mask", &self.mask).finish_non_exhaustive()
    }
}

impl<F: Fn(Duration) + Send + Clone + 'static> TokenMask for Timed<F> {
    fn allowed(&mut self) -> Option<&[u32]> {
        let begin = Instant::now();
        let allowed = self.mask.allowed();
        (self.took)(begin.elapsed());
        allowed
    }

    fn push(&mut self, token: u32) {
        self.mask.push(token);
    }

    fn ahead(&self) -> Box<dyn TokenMask> {
        Self::boxed(self.mask.ahead(), self.took.clone())
    }

    fn text(&self) -> Option<&str> {
        self.mask.text()
    }
}

fn refusal(ask: &Ask, error: &GrammarError) -> ApiError {
    if let GrammarError::NotTried { .. } = error {
        tracing::warn!("{error}");
        return ApiError::internal("the schemas and tools could not be tried; the log says why");
    }
    let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
    let told = ApiError::bad_request("invalid_json_schema", format!("{error}{hint}"));
    let place = match (error, &ask.format) {
        (GrammarError::Tool { name, .. } | GrammarError::Text { name, .. }, _) => ask.tools.place(name),
        (GrammarError::Format { .. }, TextFormat::Schema { place, .. } | TextFormat::Written { place, .. }) => {
            Some(place.as_str())
        }
        _ => None,
    };
    match place {
        Some(place) => told.with_param(place),
        None => told,
    }
}
