//! A server in this process whose model says what a test wrote down, and a client for it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt as _;
use chat::chat_format::specials::Specials;
use chat::grammar::Grammars;
use engine::scheduler::{FinishReason, LogitRowLogprobs, Request, TokenLogprob, TokenMask};
use model::tokenizer::Tokenizer;
use serde_json::Value;
use serve::backend::{Backend, Figures, Health, ModelFacts, Refused};
use serve::batches::Batches;
use serve::batches::store::BatchLimits;
use serve::intake::{Intake, IntakeLimits};
use serve::keys::Keys;
use serve::mailbox::{Ending, Failed, Generation};
use serve::metrics::Metrics;
use serve::{Chat, Date, Options, Server, router};

use fixtures::chats::harmony;

/// Longest sequence of the model, in tokens.
pub const CONTEXT_TOKENS: usize = 4000;

/// What the model is to write, and how that goes.
#[derive(Clone, Debug, Default)]
pub struct ScriptedAnswer {
    pub ids: Vec<u32>,
    /// The engine fails after the last id.
    pub fails: bool,
    /// Asks the mask of each.
    pub is_checked: bool,
    /// The generation does not end after the last id.
    pub hangs: bool,
    /// Gets its slot only when [`Scripted::go_on`] is called.
    pub is_late: bool,
}

fn end(fails: bool, reason: FinishReason) -> Ending {
    if fails { Ending::Failed(Failed::Engine("the script says so".into())) } else { Ending::Finished(reason) }
}

fn n_allowed(mut mask: Box<dyn TokenMask>, ids: &[u32]) -> usize {
    let mut is_allowed = |&id: &u32| {
        let word = |words: &[u32]| words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        let is_allowed = mask.allowed().is_none_or(word);
        mask.push(id);
        is_allowed
    };
    ids.iter().take_while(|id| is_allowed(id)).count()
}

/// What a request came to.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub seed: u64,
    /// With a mask, how many of the tokens it allows; the model says all of them in any case.
    pub n_allowed: Option<usize>,
    pub is_background: bool,
}

struct Script {
    intake: Arc<Intake>,
    facts: ModelFacts,
    said: Mutex<VecDeque<ScriptedAnswer>>,
    asked: Mutex<Vec<SeenRequest>>,
    /// What begins those that are late.
    late: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Backend for Script {
    fn submit(&self, mut request: Request) -> Result<Generation, Refused> {
        let mailbox = self.intake.take(&mut request)?;
        let said = self.said.lock().unwrap().pop_front().expect("the test wrote down what to say");
        self.asked.lock().unwrap().push(SeenRequest {
            prompt: request.prompt.clone(),
            max_new_tokens: request.max_new_tokens,
            seed: request.sampling.seed,
            is_background: request.is_background,
            n_allowed: request.changes.mask.take().filter(|_| said.is_checked).map(|mask| n_allowed(mask, &said.ids)),
        });
        let now = Instant::now();
        let generation = Generation::new(mailbox.clone(), || {});
        let n_cached = request.prompt.len() / if said.is_late { 4 } else { 2 };
        let admitted = mailbox.clone();
        let mut ids = said.ids.into_iter().take(request.max_new_tokens).enumerate();
        let n_at_once = ids.len() / 2;
        let mut tell = move |n: usize| {
            for (i, token) in ids.by_ref().take(n) {
                let top =
                    |k: usize| (0..k).map(|i| TokenLogprob { token: token + i as u32, logprob: logprob(i) }).collect();
                let logprobs = |k: usize| Box::new(LogitRowLogprobs { chosen: logprob(i), top: top(k) });
                mailbox.token(now, token, request.n_logprobs.map(logprobs));
                if request.stop.contains(&token) {
                    mailbox.end(end(said.fails, FinishReason::Stop));
                    return;
                }
            }
            if n == usize::MAX && !said.hangs {
                mailbox.end(end(said.fails, FinishReason::Length));
            }
        };
        // The first half at a time, the others as it happens: what is told is the same.
        let begin = move || {
            admitted.admitted(now, n_cached);
            tell(n_at_once);
            thread::spawn(move || tell(usize::MAX));
        };
        if said.is_late {
            self.late.lock().unwrap().push(Box::new(begin));
        } else {
            begin();
        }
        Ok(generation)
    }

    fn model(&self) -> &ModelFacts {
        &self.facts
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    fn health(&self) -> Health {
        Health::Ok
    }

    fn drain(&self) {}

    fn end_all(&self) {}
}

/// One for all tests: what all grammars of a vocabulary need takes seconds.
fn grammars(tokenizer: &Tokenizer) -> Arc<Grammars> {
    static GRAMMARS: OnceLock<Arc<Grammars>> = OnceLock::new();
    Arc::clone(GRAMMARS.get_or_init(|| Arc::new(Grammars::new(tokenizer.clone(), harmony(tokenizer)))))
}

/// Of the token at this place: no two are alike.
pub fn logprob(i: usize) -> f32 {
    -0.25 * (i as f32 + 1.0)
}

/// The server, with one connection to it.
pub struct Scripted {
    script: Arc<Script>,
    pub tokenizer: Tokenizer,
    address: SocketAddr,
    connection: Mutex<Option<BufReader<TcpStream>>>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Clone, Debug)]
pub struct Answered {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Scripted {
    pub fn new() -> Self {
        Self::with_keys(&[])
    }

    pub fn with_keys(keys: &[&str]) -> Self {
        Self::with(keys, Tokenizer::o200k_harmony(), Batches::default())
    }

    /// With a folder for files and batches, which go on.
    pub fn with_batches(keys: &[&str], folder: &Path, limits: BatchLimits) -> Self {
        let batches = Batches::open(folder, limits).expect("a folder of nobody else");
        Self::with(keys, Tokenizer::o200k_harmony(), batches)
    }

    /// With a model whose texts begin with a token.
    pub fn with_begin(name: &str) -> Self {
        let tokenizer = Tokenizer::o200k_harmony();
        let begin = tokenizer.special(name).expect("a special token");
        Self::with(&[], tokenizer.with_begin(vec![begin]), Batches::default())
    }

    fn with(keys: &[&str], tokenizer: Tokenizer, batches: Batches) -> Self {
        let vocab_size = tokenizer.vocab_size();
        let limits = IntakeLimits {
            n_slots: 8,
            max_queue: 8,
            max_queued_tokens: 1 << 20,
            context_tokens: CONTEXT_TOKENS,
            vocab_size,
        };
        let metrics = Metrics::default();
        let facts = limits.facts("fp_0".into(), 1_760_000_000);
        let intake = Intake::new(limits, metrics.clone());
        let script =
            Arc::new(Script { intake, facts, said: Mutex::default(), asked: Mutex::default(), late: Mutex::default() });
        let options = Options {
            model_names: vec!["gpt-oss-20b".into()],
            date: Date::Fixed("2025-06-28".into()),
            keys: Keys::new(keys),
            ..Options::default()
        };
        let server = Server {
            backend: script.clone(),
            chat: Ok(Chat { format: harmony(&tokenizer), grammars: grammars(&tokenizer) }),
            ends: Specials::of_names(&tokenizer).ends,
            tokenizer: tokenizer.clone(),
            options,
            metrics,
            ids: Default::default(),
            history: Default::default(),
            responses: Default::default(),
            batches,
            seal: Default::default(),
            long_work: Default::default(),
            body_room: Default::default(),
            open: Arc::new(()),
        };
        let server = Arc::new(server);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let served = server.clone();
        runtime.block_on(async { Batches::resume(&server) });
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("in a runtime");
            // As `serve` does: else what it sends second waits 40 ms for an acknowledgement.
            let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("a socket"));
            axum::serve(listener, router(served)).await.expect("serves");
        });
        Self { script, tokenizer, address, connection: Mutex::default(), _runtime: runtime }
    }

    /// The ids of a text in which names of special tokens are those tokens.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8")
    }

    /// The text of ids, special tokens spelled.
    pub fn text(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.tokenizer.decode_all(ids).expect("ids")).into_owned()
    }

    /// What the model says next.
    pub fn say(&self, text: &str) {
        self.say_ids(self.ids(text));
    }

    pub fn say_ids(&self, ids: Vec<u32>) {
        self.script.said.lock().unwrap().push_back(ScriptedAnswer { ids, ..ScriptedAnswer::default() });
    }

    /// Says it, and asks the mask whether it may.
    pub fn say_checked(&self, text: &str) {
        let said = ScriptedAnswer { ids: self.ids(text), is_checked: true, ..ScriptedAnswer::default() };
        self.script.said.lock().unwrap().push_back(said);
    }

    pub fn say_and_fail(&self, text: &str) {
        let said = ScriptedAnswer { ids: self.ids(text), fails: true, ..ScriptedAnswer::default() };
        self.script.said.lock().unwrap().push_back(said);
    }

    /// Says nothing, and comes to no end.
    pub fn hang(&self) {
        self.script.said.lock().unwrap().push_back(ScriptedAnswer { hangs: true, ..ScriptedAnswer::default() });
    }

    /// Says it once [`Self::go_on`] is called; of its prompt a quarter was computed before, and not a half.
    pub fn say_late(&self, text: &str) {
        let said = ScriptedAnswer { ids: self.ids(text), is_late: true, ..ScriptedAnswer::default() };
        self.script.said.lock().unwrap().push_back(said);
    }

    /// Begins the answers that are late.
    pub fn go_on(&self) {
        let late = std::mem::take(&mut *self.script.late.lock().unwrap());
        late.into_iter().for_each(|begin| begin());
    }

    /// What the last request came to.
    pub fn asked(&self) -> SeenRequest {
        self.script.asked.lock().unwrap().last().expect("something was asked").clone()
    }

    pub fn n_asked(&self) -> usize {
        self.script.asked.lock().unwrap().len()
    }

    /// A JSON body to a path, with a key if one is given, and the JSON that comes back.
    pub fn post_as(&self, key: &str, path: &str, body: &Value) -> (u16, Value) {
        self.json("POST", key, path, &body.to_string())
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_as("any", path, body)
    }

    pub fn json(&self, method: &str, key: &str, path: &str, body: &str) -> (u16, Value) {
        let answer = self.ask(method, key, path, body);
        let json = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {answer:?}"));
        (answer.status, json)
    }

    /// The events of a stream: their types, which chat does not have, and their data.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<(String, String)> {
        self.stream_watched(path, body, &mut |_| ())
    }

    /// The same; `watch` sees what came so far, after each piece.
    pub fn stream_watched(&self, path: &str, body: &Value, watch: &mut dyn FnMut(&str)) -> Vec<(String, String)> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let answer = self.ask_watched(("POST", path), "any", JSON, &body.to_string(), watch);
        assert_eq!((answer.status, answer.content_type.as_str()), (200, "text/event-stream"), "{answer:?}");
        assert!(answer.body.is_empty() || answer.body.ends_with("\n\n"), "{:?}", answer.body);
        let event = |block: &str| {
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
            (field("event: "), field("data: "))
        };
        answer.body.split_terminator("\n\n").filter(|block| !block.starts_with(':')).map(event).collect()
    }

    pub fn ask(&self, method: &str, key: &str, path: &str, body: &str) -> Answered {
        self.ask_with(method, key, path, JSON, body)
    }

    /// The same with other lines of the head.
    pub fn ask_with(&self, method: &str, key: &str, path: &str, head: &str, body: &str) -> Answered {
        self.ask_watched((method, path), key, head, body, &mut |_| ())
    }

    fn ask_watched(
        &self,
        (method, path): (&str, &str),
        key: &str,
        head: &str,
        body: &str,
        watch: &mut dyn FnMut(&str),
    ) -> Answered {
        let mut kept = self.connection.lock().unwrap();
        let mut connection = kept.take().unwrap_or_else(|| {
            let stream = TcpStream::connect(self.address).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
            stream.set_nodelay(true).expect("a socket");
            BufReader::new(stream)
        });
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n\
             {head}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes()).expect("it reads");
        let answer = read_answer(&mut connection, watch);
        *kept = Some(connection);
        answer
    }
}

const JSON: &str = "Content-Type: application/json";

fn read_line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).expect("it answers");
    line.trim_end().to_owned()
}

fn read_answer(connection: &mut BufReader<TcpStream>, watch: &mut dyn FnMut(&str)) -> Answered {
    let status = read_line(connection).split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let (mut content_type, mut length) = (String::new(), None);
    loop {
        let line = read_line(connection).to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-type", value)) => content_type = value.to_owned(),
            Some(("content-length", value)) => length = value.parse::<usize>().ok(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = Vec::new();
    let mut read = |connection: &mut BufReader<TcpStream>, length: usize| {
        let begin = body.len();
        body.resize(begin + length, 0);
        connection.read_exact(&mut body[begin..]).expect("all of it comes");
        watch(std::str::from_utf8(&body).expect("UTF-8"));
    };
    match length {
        Some(length) => read(connection, length),
        None => loop {
            let length = usize::from_str_radix(&read_line(connection), 16).expect("a chunk's length");
            read(connection, length);
            read_line(connection);
            if length == 0 {
                break;
            }
        },
    }
    Answered { status, content_type, body: String::from_utf8(body).expect("UTF-8") }
}
