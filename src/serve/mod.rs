//! `serve`: OpenAI's API over HTTP. Here are its flags, its model, and its life: it binds before it loads, prints its
//! address when it can answer, and drains before it ends.

pub(crate) mod config;
mod ending;
mod keys;
mod life;
mod loading;
mod model;
mod replica;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::http::HeaderValue;
use serde_json::json;

use self::life::Life;
use self::model::Served;
use super::output::Output;
use super::usage::UsageError;
use crate::args::chat_template::ChatTemplateArgs;
use crate::args::tokenizer::TokenizerArgs;
use crate::args::{DeviceArgs, KvArgs, ModelArgs, Speculate};
use chat::grammar::Grammars;
use engine::device::Device;
use kernel::object::cache::parse_size;
use serve::batches::Batches;
use serve::batches::store::BatchLimits;
use serve::body::BodyRoom;
use serve::history::History;
use serve::hosts::{Allowed, Hosts};
use serve::ids::Ids;
use serve::keys::Keys;
use serve::long_work::LongWork;
use serve::mailbox::{Pace, Timeouts};
use serve::metrics::Metrics;
use serve::responses::store::Store;
use serve::seal::Seal;
use serve::{Chat, Date, Options, Server, router};
use system::bounded_process::this_program;
use system::units::parse_duration;

/// Serve a model over HTTP, with OpenAI's and Anthropic's APIs
#[derive(clap::Args, Debug)]
#[command(args_override_self = true)] // the last of two counts: replicas get the words of the one that starts them, and more
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// A TOML file of flags, such as `port = 8000` and `model-name = ["a", "b"]`; the command line overrides it
    #[arg(long = "config", value_name = "FILE")]
    _config: Option<PathBuf>,

    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    host: String,

    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    port: u16,

    /// A name of the model in requests; repeatable [default: the model's own]
    #[arg(long, value_name = "NAME", value_parser = name_of_model)]
    model_name: Vec<String>,

    /// Accept any model name in requests
    #[arg(long)]
    any_model: bool,

    /// Sequences at a time; others wait [default: as many as memory holds, at most 256; 8 on processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,

    /// Run N copies of the model, one per GPU from `--device` on, each in its own process, which is restarted if it
    /// ends. A request goes where its prompt's beginning was computed before, else to the least busy copy; `-b` is per
    /// copy [default: 1]
    #[arg(short = 'g', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,

    /// This process is a copy of `-g`
    #[arg(long, hide = true)]
    replica: bool,

    /// Longest sequence, prompt and answer, in tokens [default: as long as the model and memory allow]
    #[arg(short = 'n', long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,

    /// A key that requests must have; repeatable
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,

    /// A file of such keys, one per line; `#` starts a comment line. Limits may follow a key: `running=4` (requests at
    /// a time) and `per-minute=60`
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Host names to accept besides `localhost`, loopback addresses and `--host`, such as chat.example.com;
    /// `.example.com` includes subdomains, `*` is all; separate several by commas [default: none on a loopback address,
    /// else all]
    #[arg(long, value_name = "HOST", value_delimiter = ',', value_parser = Allowed::read)]
    allowed_hosts: Vec<Allowed>,

    /// An origin whose web pages may send requests, such as https://chat.example.com; `*` is all; repeatable
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors_origin: Vec<HeaderValue>,

    /// Requests that may wait for a slot; more are refused with `Retry-After`
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_queue: usize,

    /// Prompt tokens that may wait for a slot
    #[arg(long, default_value_t = 1_000_000, value_name = "TOKENS")]
    max_queued_tokens: usize,

    /// Longest wait of a request for a slot, in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration)]
    queue_timeout: Option<Duration>,

    /// Longest duration of a request, in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration)]
    request_timeout: Option<Duration>,

    /// Shortest time between two token events of a stream, in milliseconds; faster tokens share an event [default: 0;
    /// on processors 1 per running request]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=60_000))]
    stream_interval: Option<u32>,

    /// Time for running requests to finish at shutdown, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = parse_duration)]
    drain: Duration,

    /// Free the device's memory after so long without requests, such as 10m; the next request loads the model again and
    /// waits for it [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    unload_after: Option<Duration>,

    /// Keep the prefix cache in this folder over restarts
    #[arg(long, value_name = "DIR")]
    prefix_cache_dir: Option<PathBuf>,

    /// Most bytes in that folder, such as 500MB or 20GiB; the least recently used files are removed
    #[arg(long, default_value = "4GiB", value_name = "SIZE", value_parser = parse_size)]
    prefix_cache_size: u64,

    /// Enable OpenAI's batch API, with its files in this folder; batch requests use only capacity that no other request
    /// wants [default: disabled]
    #[arg(long, value_name = "DIR")]
    batch_dir: Option<PathBuf>,

    /// Largest file of batch requests
    #[arg(long, default_value = "200MB", value_name = "SIZE", value_parser = parse_size)]
    batch_file_size: u64,

    /// Most requests of a batch
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    batch_requests: usize,

    /// Largest size of all files and batches in that folder together; more is refused
    #[arg(long, default_value = "100GB", value_name = "SIZE", value_parser = parse_size)]
    batch_dir_size: u64,

    /// The date in system messages, such as 2026-01-31; `none` omits it [default: today, in UTC]
    #[arg(long, value_name = "DATE", value_parser = date)]
    date: Option<Date>,

    /// Prefix of metric names; `vllm:` gives the names of vLLM's dashboards
    #[arg(long, default_value = "gptoss_", value_name = "PREFIX", value_parser = prefix)]
    metrics_prefix: String,

    /// Answer from a script instead of a model: a file with a JSON object per line, such as {"text": "Hello<|return|>"}
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// Also log prompts and answers
    #[arg(long)]
    log_content: bool,

    #[command(flatten)]
    chat_template: ChatTemplateArgs,
    #[command(flatten)]
    tokenizer: TokenizerArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: KvArgs,
}

/// From one event of a stream to the next where the cores that send it compute, too: for each request that runs.
/// All of them together have 1,000 events a second then. Each takes 7 to 32 us, by the machine, half of it sending.
const INTERVAL_EACH: Duration = Duration::from_millis(1);

fn date(text: &str) -> Result<Date, String> {
    match text {
        "none" => Ok(Date::Omitted),
        _ if is_date(text) => Ok(Date::Fixed(text.to_owned())),
        _ => Err("expected a date such as 2026-01-31, or `none`".into()),
    }
}

/// Whether a text is a day of the calendar.
fn is_date(text: &str) -> bool {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u32>().ok()
    };
    let marks = text.len() == 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
    let (Some(year), Some(month), Some(day)) = (number(0, 4), number(5, 7), number(8, 10)) else { return false };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    marks && (1..=days).contains(&day)
}

/// An origin as browsers send it: a scheme and a host, and nothing after.
fn origin(text: &str) -> Result<HeaderValue, String> {
    let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
        let is_scheme =
            !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        is_scheme && !host.is_empty() && !host.contains(['/', '?', '#', ' ', '@'])
    });
    if !is_origin && text != "*" {
        return Err(
            "expected a scheme and a host, without a slash at the end, such as https://chat.example.com, or `*`".into(),
        );
    }
    text.parse().map_err(|_| "expected visible ASCII characters".to_owned())
}

/// An IPv6 address may stand in brackets, as in a URL.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// What requests may name.
fn name_of_model(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("expected a name".into()) } else { Ok(text.to_owned()) }
}

/// What names of metrics may begin with.
fn prefix(text: &str) -> Result<String, String> {
    let is_of_name =
        |(i, byte): (usize, u8)| byte.is_ascii_alphabetic() || b"_:".contains(&byte) || i > 0 && byte.is_ascii_digit();
    if text.bytes().enumerate().all(is_of_name) {
        return Ok(text.to_owned());
    }
    Err("expected letters, digits, `_` and `:`, and no digit first, as names of metrics have them".into())
}

/// Snapshots that the prefix cache keeps: of gpt-oss-20b, 3 MiB each.
const SNAPSHOTS: u32 = 128;

pub(crate) fn run(mut args: Args, output: &Output) -> anyhow::Result<()> {
    let start = Instant::now();
    // Each snapshot is of another conversation, at most.
    args.cache.n_kept = *args.cache.snapshots.get_or_insert(SNAPSHOTS);
    args.cache.speculate.get_or_insert(Speculate::Auto);
    if args.replica {
        return replica::work(&args, output);
    }
    if args.replay.is_some() && args.ranks.unwrap_or(1) > 1 {
        return Err(UsageError("a script needs no device: `--replay` does not go with `-g`".into()).into());
    }
    loading::check(&args)?;
    let limits = BatchLimits {
        max_file_bytes: args.batch_file_size,
        max_requests: args.batch_requests,
        max_bytes: args.batch_dir_size,
    };
    let batches = args.batch_dir.as_deref().map(|folder| Batches::open(folder, limits)).transpose()?;
    let keys = keys::read(&args.api_key, args.api_key_file.as_deref(), std::env::var_os(keys::VARIABLE))?;
    let tcp = args.bind()?;
    let address = tcp.local_addr().context("could not read the listener's address")?;
    if keys.is_empty() && !address.ip().is_loopback() {
        output.warning(&format!("anyone who reaches {address} can use it: there is no `--api-key`"));
    }
    let life = Life::begin(tcp, args.n_workers())?;
    let metrics = Metrics::default();
    let served = life.within(|| Served::load(&args, metrics.clone(), output))?;
    let Served { backend, failing, shares_cores, tokenizer, ends, chat, own_name, sizes, device } = served;
    let model_names = if args.model_name.is_empty() { vec![own_name.clone()] } else { args.model_name.clone() };
    let chat = chat.map(|format| {
        let grammars = Arc::new(Grammars::new(tokenizer.clone(), format.clone()).tried_by(this_program()));
        // What all grammars need takes seconds for a large vocabulary: let it be there before the first request.
        std::thread::spawn({
            let grammars = Arc::clone(&grammars);
            move || grammars.warm()
        });
        Chat { format, grammars }
    });
    if let Err(error) = &chat {
        output.warning(&format!("chats are refused, only completions are answered: {error}"));
    }
    let server = Arc::new(Server {
        chat,
        backend,
        tokenizer,
        ends,
        options: args.options(keys, address, model_names, shares_cores),
        metrics,
        ids: Ids::default(),
        history: History::default(),
        responses: Store::default(),
        batches: batches.unwrap_or_default(),
        seal: Seal::default(),
        long_work: LongWork::default(),
        body_room: BodyRoom::default(),
        open: Arc::new(()),
    });
    output.note(&format!(
        "serving {} on http://{address} after {:.2} s: {sizes}, on {device}",
        server.options.model_names.join(", "),
        start.elapsed().as_secs_f64(),
    ));
    life.within(|| Batches::resume(&server));
    let life = life.open(router(server.clone()));
    // Whoever waits for the address waits for a server that answers.
    let url = format!("http://{address}");
    let told = if output.is_json() {
        output.json(&json!({ "schema": 1, "url": url, "device": device }))
    } else {
        output.line(&url)
    };
    if let Err(error) = told {
        output.warning(&format!("could not write the address to stdout: {error}"));
    }
    life.run(&server, failing.as_deref(), args.drain, output)
}

impl Args {
    fn bind(&self) -> anyhow::Result<TcpListener> {
        let name = format!("{}:{}", self.host, self.port);
        let found = (without_brackets(&self.host), self.port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = found.with_context(|| format!("could not find the address {name}"))?.collect();
        let tcp = TcpListener::bind(&addresses[..]).with_context(|| format!("could not listen on {name}"))?;
        tcp.set_nonblocking(true).context("could not make the listener non-blocking")?;
        Ok(tcp)
    }

    /// Threads that serve. On a processor they are few, so that they do not take the cores that compute.
    fn n_workers(&self) -> usize {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        (n_cores / 2).clamp(1, if matches!(self.device.device, Device::Gpu { .. }) { 8 } else { 2 })
    }

    fn options(&self, keys: Keys, address: SocketAddr, model_names: Vec<String>, shares_cores: bool) -> Options {
        let pace = match self.stream_interval {
            Some(ms) => Pace { interval: Duration::from_millis(ms.into()), ..Pace::default() },
            None if shares_cores => Pace { interval_each: INTERVAL_EACH, ..Pace::default() },
            None => Pace::default(),
        };
        Options {
            model_names,
            any_model: self.any_model,
            date: self.date.clone().unwrap_or_default(),
            keys,
            hosts: Hosts::for_address(address.ip(), &self.host, &self.allowed_hosts),
            timeouts: Timeouts { queue: self.queue_timeout, request: self.request_timeout },
            pace,
            cors_origins: self.cors_origin.clone(),
            metrics_prefix: self.metrics_prefix.clone(),
            log_content: self.log_content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_dates() {
        assert_eq!(date("none"), Ok(Date::Omitted));
        assert_eq!(date("2026-01-31"), Ok(Date::Fixed("2026-01-31".into())));
        assert!(date("2024-02-29").is_ok());
        for text in ["today", "2026-1-31", "2026/01/31", "2026-01-3é", "2026-13-45", "2026-02-29", "2026-00-10"] {
            assert!(date(text).is_err(), "{text}");
        }
    }

    #[test]
    fn origins_and_prefixes_are_what_browsers_and_prometheus_take() {
        assert!(
            ["*", "https://chat.example.com", "http://localhost:3000", "http://[::1]:80"]
                .iter()
                .all(|text| origin(text).is_ok())
        );
        for text in ["localhost:3000", "http://localhost:3000/", "https://", "http://a b", ""] {
            assert!(origin(text).is_err(), "{text}");
        }
        assert!(["", "vllm:", "gptoss_2"].iter().all(|text| prefix(text).is_ok()));
        assert!(["a b", "2a", "a-b", "é"].iter().all(|text| prefix(text).is_err()));
    }

    #[test]
    fn names_are_not_blank_and_addresses_may_have_brackets() {
        assert!(name_of_model("m").is_ok() && ["", " ", "\t"].iter().all(|text| name_of_model(text).is_err()));
        for (host, want) in [("[::1]", "::1"), ("::1", "::1"), ("localhost", "localhost"), ("[::1", "[::1")] {
            assert_eq!(without_brackets(host), want);
        }
    }
}
