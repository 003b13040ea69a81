//! Grammars: which tokens may come next, so that headers, calls and JSON are valid.
//!
//! One grammar covers a whole generation, headers included: masks on the content alone would forbid reasoning, or not
//! know where content begins. The chat format decides its layout ([`Layout`]); [`written`] has its parts. [`Grammars`]
//! compiles grammars with `llguidance` over the tokenizer's `vocabulary`, once for all equal requests, and gives each
//! request a [`TokenMask`].

mod limits;
mod mask;
mod pattern;
mod schema;
pub(crate) mod trial;
mod vocabulary;
pub(crate) mod written;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{TextInput, Tool};
use engine::scheduler::TokenMask;
use hint::Hint;
use model::tokenizer::Tokenizer;
use system::bounded_process::STACK_BYTES;

pub use limits::TokenLimits;
use mask::GrammarMask;

/// What a generation must be like.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The tools that the model may call, if the choice lets it.
    pub tools: Vec<Tool>,
    /// Whether it may, or must.
    pub choice: ToolChoice,
    /// The form of the answer; any text if None.
    pub format: Option<AnswerFormat>,
    pub thoughts: Thoughts,
}

/// Whether the model thinks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// No reasoning: the prompt ends inside the answer, or the model must answer at once.
    None,
    May,
    /// The prompt has begun them.
    Begun,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    Auto,
    Required,
    /// The one with this name is.
    Named(String),
}

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerFormat {
    JsonObject,
    /// JSON that is valid by a schema.
    Schema(Value),
    /// A text of a grammar or a regular expression.
    Text(TextInput),
}

/// How a chat format lays out the grammar of a generation.
pub trait Layout: std::fmt::Debug + Send + Sync {
    /// The grammar of a generation, over tokens.
    ///
    /// # Errors
    /// What is wanted contradicts itself, or is beyond the format.
    fn grammar(&self, wanted: &Wanted) -> Result<String, GrammarError>;

    /// The token that ends an answer, which is what a generation is left where a grammar fails.
    ///
    /// # Errors
    /// [`GrammarError::NoEnd`].
    fn end_of_answer(&self) -> Result<u32, GrammarError>;

    /// Where most generations go first. None need go there.
    fn usual_beginning(&self) -> Vec<u32>;
}

/// Why a request cannot be held to its tools or its schema.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// A tool's schema is invalid, or uses what cannot be enforced.
    #[error("the parameters of the tool `{name}` cannot be enforced: {why}")]
    Tool {
        name: String,
        /// The problem of the schema.
        why: String,
    },
    /// The grammar of a tool's text is none.
    #[error("the grammar of the tool `{name}` cannot be enforced: {why}")]
    Text {
        name: String,
        /// What is wrong with the grammar.
        why: String,
    },
    /// The answer's schema is invalid, or uses what cannot be enforced.
    #[error("the response format cannot be enforced: {why}")]
    Format {
        /// The problem of the schema.
        why: String,
    },
    /// A name that no header can carry.
    #[error("`{name}` cannot be the name of a tool")]
    ToolName { name: String },
    /// A tool must be called, and it is not there.
    #[error("the tool `{name}` must be called, and there is no such tool")]
    NoSuchTool { name: String },
    /// A tool must be called, and there is none.
    #[error("a tool must be called, and there is none")]
    NoTools,
    /// A tool must be called where the answer has begun.
    #[error("a tool must be called, but the prompt already begins the answer")]
    NoRoomForCalls,
    /// The format has no calls.
    #[error("calls of tools cannot be enforced: the model's chat format has no form for them")]
    NoCalls,
    /// No token ends an answer.
    #[error("nothing can be enforced: the vocabulary has no token that ends an answer")]
    NoEnd,
    /// Schemas and grammars of tools and of the answer are too long together.
    #[error(
        "the grammar has {found} bytes, with the schemas of all tools and of the answer; at most {MAX_TEXT_BYTES} are compiled"
    )]
    TooLong {
        /// In bytes.
        found: usize,
    },
    /// Compiling it takes too much memory, time or stack.
    #[error("the grammar of the schemas and tools is too complex: {why}")]
    TooComplex {
        /// The exceeded limit.
        why: String,
    },
    /// It could not be tried what it takes: the fault is this machine's.
    #[error("the grammar of the schemas and tools could not be tried: {why}")]
    NotTried { why: String },
    /// The tokenizer, or all schemas together, are more than the engine takes.
    #[error("the grammar could not be compiled: {why}")]
    Compile { why: String },
}

impl Hint for GrammarError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Tool { .. } => {
                Some("change the schema, or leave out `strict`: then any JSON object is accepted".into())
            }
            Self::Text { .. } => Some("change the grammar, or accept any text: a format of type `text`".into()),
            Self::Format { .. } => Some("change it, or ask for `json_object`".into()),
            Self::ToolName { .. } => {
                Some("names have 1 to 256 bytes, without white space and `<`, `{`, `[` and `\"`".into())
            }
            Self::NoRoomForCalls => Some("allow reasoning, or do not require a call".into()),
            Self::TooLong { .. } => {
                Some("shorten the schemas and grammars; tools without `strict` need no grammar".into())
            }
            Self::TooComplex { .. } => Some("simplify the schema, its patterns or the grammar".into()),
            Self::NoSuchTool { .. }
            | Self::NoTools
            | Self::NoCalls
            | Self::NoEnd
            | Self::NotTried { .. }
            | Self::Compile { .. } => None,
        }
    }
}

/// How often grammars were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrammarCounts {
    /// Requests whose grammar was compiled before.
    pub hits: u64,
    /// Grammars that were compiled.
    pub compiled: u64,
}

/// Compiles grammars for one tokenizer and chat format, and keeps some.
pub struct Grammars {
    tokenizer: Tokenizer,
    layout: Arc<dyn Layout>,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// What tries grammars before they are compiled here.
    trial: Option<PathBuf>,
    /// The most recently used first.
    compiled: Mutex<VecDeque<Compiled>>,
    hits: AtomicU64,
    n_compiled: AtomicU64,
}

/// A grammar that no token was given to.
struct Compiled {
    digest: [u8; 32],
    matcher: Matcher,
    text: Arc<str>,
    /// As the trial measured it, or else [`BYTES_PER_BYTE`] for each byte of `text`.
    memory_bytes: u64,
}

/// Grammars that are kept: a server has a handful of clients' tool sets.
const MAX_COMPILED: usize = 64;

/// The longest grammar, in bytes of its text: compiled, it takes a hundred times as many, and 0.25 us for each. The
/// schemas of 200 strict tools are some 200 KB.
const MAX_TEXT_BYTES: usize = 512 << 10;

/// Memory of all grammars that are kept.
const MAX_COMPILED_BYTES: u64 = 256 << 20;

/// Compiled bytes per byte of a grammar, unless measured.
const BYTES_PER_BYTE: u64 = 100;

impl Grammars {
    /// Cheap: nothing is made before it is needed.
    pub fn new(tokenizer: Tokenizer, layout: Arc<dyn Layout>) -> Self {
        let (factory, compiled) = (OnceLock::new(), Mutex::default());
        let (hits, n_compiled) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { tokenizer, layout, factory, trial: None, compiled, hits, n_compiled }
    }

    /// Grammars that a process of `program` tries first: what takes too much is refused ([`trial`]).
    pub fn tried_by(self, program: PathBuf) -> Self {
        Self { trial: Some(program), ..self }
    }

    /// Whether the mask that is wanted is of a grammar that is compiled already.
    pub fn is_compiled(&self, wanted: &Wanted) -> bool {
        self.layout.grammar(wanted).is_ok_and(|text| {
            let digest: [u8; 32] = Sha256::digest(&text).into();
            let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            compiled.iter().any(|grammar| grammar.digest == digest)
        })
    }

    /// Makes what the first grammar needs, which takes seconds for a large vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Compile`].
    pub fn warm(&self) -> Result<(), GrammarError> {
        self.factory().map(drop)
    }

    /// A mask for one generation. Its first use may take milliseconds, most take microseconds.
    ///
    /// # Errors
    /// What is wanted contradicts itself, or has schemas that cannot be enforced: [`GrammarError`].
    pub fn mask(&self, wanted: &Wanted) -> Result<Box<dyn TokenMask>, GrammarError> {
        let text = self.layout.grammar(wanted)?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(GrammarError::TooLong { found: text.len() });
        }
        let is_somebodys =
            wanted.format.is_some() || wanted.tools.iter().any(|tool| tool.strict || tool.text.is_some());
        let compile = |text: &str| {
            let tried =
                self.trial.as_ref().filter(|_| is_somebodys).map(|program| trial::run(program, text, &self.tokenizer));
            let memory_bytes = tried.transpose()?.map(|tried| tried.memory_bytes);
            self.check_texts(wanted)?;
            let compiled = self.compile(text).map_err(|why| self.blame(wanted, why))?;
            Ok((compiled, memory_bytes))
        };
        self.mask_by(text, compile)
    }

    /// The same mask again, elsewhere: of its [`TokenMask::text`].
    ///
    /// # Errors
    /// [`GrammarError::Compile`], [`GrammarError::NoEnd`].
    pub fn mask_of(&self, text: String) -> Result<Box<dyn TokenMask>, GrammarError> {
        let compile = |text: &str| Ok((self.compile(text).map_err(|why| GrammarError::Compile { why })?, None));
        self.mask_by(text, compile)
    }

    fn mask_by(
        &self,
        text: String,
        compile: impl FnOnce(&str) -> Result<(Matcher, Option<u64>), GrammarError> + Send,
    ) -> Result<Box<dyn TokenMask>, GrammarError> {
        let end_of_answer = self.layout.end_of_answer()?;
        let digest = Sha256::digest(&text).into();
        let (matcher, text) = match self.kept(digest) {
            Some(kept) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                kept
            }
            None => {
                self.n_compiled.fetch_add(1, Ordering::Relaxed);
                let (matcher, memory_bytes) = on_large_stack(|| compile(&text))?;
                let memory_bytes = memory_bytes.unwrap_or(text.len() as u64 * BYTES_PER_BYTE);
                let text: Arc<str> = Arc::from(text);
                self.keep(Compiled { digest, matcher: matcher.deep_clone(), text: Arc::clone(&text), memory_bytes });
                (matcher, text)
            }
        };
        Ok(Box::new(GrammarMask::new(matcher, self.tokenizer.vocab_size(), end_of_answer, text)))
    }

    /// How often grammars were asked for so far.
    pub fn counts(&self) -> GrammarCounts {
        let [hits, compiled] = [&self.hits, &self.n_compiled].map(|count| count.load(Ordering::Relaxed));
        GrammarCounts { hits, compiled }
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        let factory = self.factory.get_or_init(|| vocabulary::factory(&self.tokenizer).map_err(|why| said(&why)));
        factory.as_ref().map_err(|why| GrammarError::Compile { why: why.clone() })
    }

    /// A grammar of the cache. Copies share nothing, so that they do not wait for each other.
    fn kept(&self, digest: [u8; 32]) -> Option<(Matcher, Arc<str>)> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let place = compiled.iter().position(|grammar| grammar.digest == digest)?;
        let grammar = compiled.remove(place)?;
        let kept = (grammar.matcher.deep_clone(), Arc::clone(&grammar.text));
        compiled.push_front(grammar);
        Some(kept)
    }

    fn keep(&self, grammar: Compiled) {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.push_front(grammar);
        compiled.truncate(MAX_COMPILED);
        let mut n_bytes = 0;
        compiled.retain(|grammar| {
            n_bytes += grammar.memory_bytes;
            n_bytes <= MAX_COMPILED_BYTES
        });
    }

    fn compile(&self, grammar: &str) -> Result<Matcher, String> {
        let mut matcher = self.parse(grammar)?;
        if matcher.compute_mask().is_err() {
            return Err(first_line(&matcher.get_error().unwrap_or_default()));
        }
        self.scout(matcher.clone());
        Ok(matcher)
    }

    fn parse(&self, grammar: &str) -> Result<Matcher, String> {
        parse(self.factory().map_err(|error| error.to_string())?, grammar)
    }

    /// Whether what others wrote is a grammar where it stands alone: with a brace too many it would end what it is put
    /// into, and write rules of its own beside those of the format.
    fn check_texts(&self, wanted: &Wanted) -> Result<(), GrammarError> {
        for tool in wanted.tools.iter().filter(|_| wanted.choice != ToolChoice::None) {
            if let Some(grammar) = tool.text.as_ref().and_then(written::text_of_its_own) {
                let wrong = |why| GrammarError::Text { name: tool.name.clone(), why };
                self.parse(&grammar).map_err(wrong)?;
            }
        }
        if let Some(AnswerFormat::Text(text)) = &wanted.format
            && let Some(grammar) = written::text_of_its_own(text)
        {
            self.parse(&grammar).map_err(|why| GrammarError::Format { why })?;
        }
        Ok(())
    }

    /// Goes where most generations do, so that the lexer's states there, the dearest of all, are made once for a
    /// grammar: a matcher shares them with its clones, and what is copied of it has them.
    fn scout(&self, mut matcher: Matcher) {
        for id in self.layout.usual_beginning() {
            if matcher.compute_mask().is_err() || matcher.consume_token(id).is_err() {
                return;
            }
        }
        drop(matcher.compute_mask());
    }

    /// Whose schema it is that does not compile: each is tried alone.
    fn blame(&self, wanted: &Wanted, why: String) -> GrammarError {
        let end = match self.layout.end_of_answer() {
            Ok(end) => end,
            Err(error) => return error,
        };
        let alone = |schema: &Value| self.compile(&written::schema_alone(schema, end)).err();
        let of_schema = |schema: &Value| schema::blame(schema, &alone);
        let texts = wanted.tools.iter().filter(|_| wanted.choice != ToolChoice::None);
        for (tool, text) in texts.filter_map(|tool| Some((tool, tool.text.as_ref()?))) {
            if let Err(why) = self.compile(&written::text_alone(text, end)) {
                return GrammarError::Text { name: tool.name.clone(), why };
            }
        }
        let strict = wanted.tools.iter().filter(|tool| tool.strict && wanted.choice != ToolChoice::None);
        for tool in strict {
            if let Some(why) = tool.parameters.as_ref().and_then(of_schema) {
                return GrammarError::Tool { name: tool.name.clone(), why };
            }
        }
        let of_format = match &wanted.format {
            Some(AnswerFormat::Schema(schema)) => of_schema(schema),
            Some(AnswerFormat::Text(text)) => self.compile(&written::text_alone(text, end)).err(),
            Some(AnswerFormat::JsonObject) | None => None,
        };
        if let Some(why) = of_format {
            return GrammarError::Format { why };
        }
        GrammarError::Compile { why }
    }
}

fn parse(factory: &ParserFactory, grammar: &str) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned())));
    match matcher.get_error() {
        Some(why) => Err(first_line(&why)),
        None => Ok(matcher),
    }
}

/// Does something that goes as deep as a grammar does, on a thread that has as much stack for it as the process that
/// tried it.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let worker = worker.map_err(|error| GrammarError::NotTried { why: error.to_string() })?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}

fn said(error: &impl std::fmt::Display) -> String {
    first_line(&error.to_string())
}

/// What an error says, without the grammar that it quotes.
fn first_line(text: &str) -> String {
    let words = text.split("failed to compile JSON schema: ").last().unwrap_or(text);
    words.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
