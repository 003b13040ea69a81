//! Prometheus metrics: vLLM's names after a prefix, for existing dashboards, a few names of our own, and the process's
//! figures from `/proc`.

mod process;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::backend::{Figures, ReplicaFigures};
use super::mailbox::{Ending, Times};
use super::request_log::CLIENT_LEFT;
use chat::chat_format::repairs;
use engine::scheduler::{Figures as EngineFigures, FinishReason};

/// One label of a closed set.
type Label = [(&'static str, &'static str); 1];

/// All counts. Copies share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Requests with a slot, without one, and the share of the KV cache that is held: set when they are looked at.
    running: Gauge,
    waiting: Gauge,
    /// Requests of batches that wait or have a slot.
    background: Gauge,
    kv_usage: Gauge<f64, std::sync::atomic::AtomicU64>,
    /// Whether there is a model: 1 for one of [`STATES`].
    state: Family<Label, Gauge>,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    prefix_queries: Counter,
    prefix_hits: Counter,
    preemptions: Counter,
    drafted: Counter,
    accepted: Counter,
    success: Family<Label, Counter>,
    rejections: Family<Label, Counter>,
    moved: Counter,
    cancelled: Family<Label, Counter>,
    responses: Family<Label, Counter>,
    /// What the parser put right in what the model wrote, by kind.
    pub(crate) repairs: Family<Label, Counter>,
    /// Time to compute a mask of allowed tokens, in seconds.
    pub(crate) grammar_mask: Histogram,
    /// Grammars that were compiled before.
    pub(crate) grammar_cache_hits: Counter,
    /// Requests of batches that were answered, by whether they came to an answer.
    pub(crate) batch_requests: Family<Label, Counter>,
    time_to_first_token: Histogram,
    inter_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt: Histogram,
    request_generation: Histogram,
    inference: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
    iteration_tokens: Histogram,
    chunk_tokens: Histogram,
    cache: Arc<OnceLock<KvCacheFacts>>,
}

/// What a KV cache is made of, that of all replicas together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCacheFacts {
    /// Tokens of a block.
    pub block_tokens: usize,
    pub n_blocks: usize,
    /// Element type of keys and values, of layers that see everything.
    pub dtype: String,
}

/// What a model can be.
const STATES: [&str; 3] = ["loaded", "unloaded", "loading"];

/// The statuses that have a label of their own.
const STATUSES: [(u16, &str); 12] = [
    (200, "200"),
    (400, "400"),
    (401, "401"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (413, "413"),
    (415, "415"),
    (429, "429"),
    (CLIENT_LEFT, "499"),
    (500, "500"),
    (503, "503"),
];

/// Upper ends of the buckets of times, in seconds.
const LATENCIES: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0];

/// Upper ends of the buckets of times between tokens and of masks, in seconds.
const SHORT_TIMES: [f64; 14] = [5e-6, 2e-5, 1e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];

fn latency() -> Histogram {
    Histogram::new(LATENCIES)
}

fn short() -> Histogram {
    Histogram::new(SHORT_TIMES)
}

/// 1 to 131,072 tokens.
fn tokens() -> Histogram {
    Histogram::new((0..18).map(|power| f64::from(1 << power)))
}

impl Default for Metrics {
    /// Nothing yet. What has labels is there from the beginning, since a rate misses the first of a count that begins
    /// with 1.
    fn default() -> Self {
        let metrics = Self::unlabelled();
        let begin = |family: &Family<Label, Counter>, name: &'static str, labels: &[&'static str]| {
            labels.iter().for_each(|&label| drop(family.get_or_create(&[(name, label)])));
        };
        begin(&metrics.success, "finished_reason", &["stop", "length", "error"]);
        begin(&metrics.rejections, "reason", &["overloaded", "closed", "invalid", "too_long"]);
        begin(&metrics.cancelled, "phase", &["waiting", "prefill", "decode"]);
        begin(&metrics.responses, "status", &STATUSES.map(|(_, label)| label));
        begin(&metrics.batch_requests, "outcome", &["completed", "failed"]);
        begin(&metrics.repairs, "kind", &repairs().collect::<Vec<_>>());
        metrics
    }
}

impl Metrics {
    fn unlabelled() -> Self {
        Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            background: Gauge::default(),
            kv_usage: Gauge::default(),
            state: Family::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            preemptions: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            success: Family::default(),
            rejections: Family::default(),
            moved: Counter::default(),
            cancelled: Family::default(),
            responses: Family::default(),
            repairs: Family::default(),
            grammar_mask: short(),
            grammar_cache_hits: Counter::default(),
            batch_requests: Family::default(),
            time_to_first_token: latency(),
            inter_token: short(),
            whole: latency(),
            queue: latency(),
            prefill: latency(),
            decode: latency(),
            request_prompt: tokens(),
            request_generation: tokens(),
            inference: latency(),
            params_n: Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0]),
            params_max_tokens: tokens(),
            iteration_tokens: tokens(),
            chunk_tokens: tokens(),
            cache: Arc::default(),
        }
    }

    /// What the model's cache is, once it is there; a script has none.
    pub fn cache_is(&self, facts: KvCacheFacts) {
        self.cache.get_or_init(|| facts);
    }

    /// All of it as OpenMetrics text; `state` is one of [`STATES`].
    pub fn text(
        &self,
        prefix: &str,
        model: &str,
        state: &'static str,
        figures: &Figures,
        replicas: &[ReplicaFigures],
    ) -> String {
        for known in STATES {
            self.state.get_or_create(&[("state", known)]).set((known == state).into());
        }
        self.running.set(i64::try_from(figures.running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(figures.waiting).unwrap_or(i64::MAX));
        self.background.set(i64::try_from(figures.background).unwrap_or(i64::MAX));
        self.kv_usage.set(figures.kv_usage);
        let mut text = String::new();
        let mut registry = self.registry(prefix, model);
        self.add_replicas(&mut Adding { registry: &mut registry, prefix }, replicas);
        process::add(&mut registry);
        encode(&mut text, &registry).expect("a string takes all");
        text
    }

    /// The same in Prometheus' own format, which older readers take: counters have their whole names, and no end is
    /// marked.
    pub(crate) fn plain(open_metrics: &str) -> String {
        let mut plain = String::with_capacity(open_metrics.len());
        let is_counter = |name: &str| open_metrics.contains(&format!("# TYPE {name} counter\n"));
        for line in open_metrics.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), rest) if is_counter(name) => {
                    plain += &format!("# {what} {name}_total {}", rest.unwrap_or_default());
                }
                _ => plain += line,
            }
            plain.push('\n');
        }
        plain
    }

    fn registry(&self, prefix: &str, model: &str) -> Registry {
        let model = (Cow::Borrowed("model_name"), Cow::Owned(model.to_owned()));
        let engine = (Cow::Borrowed("engine"), Cow::Borrowed("0")); // as vLLM counts them: dashboards group by it
        let mut registry = Registry::with_labels([model, engine].into_iter());
        let mut add = Adding { registry: &mut registry, prefix };
        add.one("num_requests_running", "Requests that have a slot", &self.running);
        add.one("num_requests_waiting", "Requests that wait for a slot", &self.waiting);
        add.one("num_batch_requests", "Requests of batches that wait or have a slot", &self.background);
        add.one("batch_requests", "Requests of batches that were answered, by outcome", &self.batch_requests);
        add.one("kv_cache_usage_perc", "Blocks of the KV cache that sequences hold, 1 is all", &self.kv_usage);
        self.add_cache(&mut add);
        add.one("model_state", "1 for the state of the model: loaded, unloaded or loading", &self.state);
        add.one("prompt_tokens", "Tokens of prompts that were read", &self.prompt_tokens);
        add.one("generation_tokens", "Tokens generated", &self.generation_tokens);
        add.one("prefix_cache_queries", "Tokens of prompts looked up in the prefix cache", &self.prefix_queries);
        add.one("prefix_cache_hits", "Tokens of prompts found in the prefix cache", &self.prefix_hits);
        add.one("num_preemptions", "Sequences that gave their slot back for lack of blocks", &self.preemptions);
        add.one("spec_decode_num_draft_tokens", "Tokens that steps had draft rows for", &self.drafted);
        add.one("spec_decode_num_accepted_tokens", "Drafted tokens that were right", &self.accepted);
        add.one("request_success", "Finished requests, by reason", &self.success);
        add.one("admission_rejections", "Requests that were refused, by reason", &self.rejections);
        add.one("cancelled", "Requests whose client left, by phase", &self.cancelled);
        add.one("http_responses", "Responses by status", &self.responses);
        add.one("harmony_repairs", "Repaired mistakes in model output, by kind", &self.repairs);
        add.one("grammar_mask_seconds", "Time to compute a mask", &self.grammar_mask);
        add.one("grammar_cache_hits", "Grammars that were compiled before", &self.grammar_cache_hits);
        add.one("time_to_first_token_seconds", "From the request to its first token", &self.time_to_first_token);
        add.one("inter_token_latency_seconds", "From a token to the next", &self.inter_token);
        add.one("e2e_request_latency_seconds", "From the request to its end", &self.whole);
        add.one("request_queue_time_seconds", "From the request to its slot", &self.queue);
        add.one("request_prefill_time_seconds", "From the slot to the first token", &self.prefill);
        add.one("request_decode_time_seconds", "From the first token to the last", &self.decode);
        add.one("request_inference_time_seconds", "From the slot to the last token", &self.inference);
        add.one("request_params_n", "Answers that a request asks for", &self.params_n);
        add.one("request_params_max_tokens", "Most tokens that an answer may have", &self.params_max_tokens);
        add.one("request_prompt_tokens", "Tokens of a prompt", &self.request_prompt);
        add.one("request_generation_tokens", "Tokens of an answer", &self.request_generation);
        add.one("iteration_tokens_total", "Tokens that a step gave", &self.iteration_tokens);
        add.one("stream_tokens_per_chunk", "Tokens that a reader took at once", &self.chunk_tokens);
        registry
    }

    /// Labels that tell the shape of the cache: readers take its capacity from them.
    fn add_cache(&self, add: &mut Adding<'_>) {
        let Some(KvCacheFacts { block_tokens, n_blocks, dtype }) = self.cache.get() else { return };
        let family = Family::<[(&'static str, String); 4], Gauge>::default();
        let labels = [
            ("block_size", block_tokens.to_string()),
            ("num_gpu_blocks", n_blocks.to_string()),
            ("cache_dtype", dtype.clone()),
            ("enable_prefix_caching", "True".to_owned()),
        ];
        family.get_or_create(&labels).set(1);
        add.one("cache_config_info", "Layout of the KV cache", &family);
    }

    /// What is known of each replica, by its number.
    fn add_replicas(&self, add: &mut Adding<'_>, replicas: &[ReplicaFigures]) {
        type Label = [(&'static str, String); 1];
        let label = |i: usize| [("replica", i.to_string())];
        let gauge = |figure: fn(&ReplicaFigures) -> usize| {
            let family = Family::<Label, Gauge>::default();
            for (i, replica) in replicas.iter().enumerate() {
                family.get_or_create(&label(i)).set(i64::try_from(figure(replica)).unwrap_or(i64::MAX));
            }
            family
        };
        if replicas.is_empty() {
            return;
        }
        let restarts = Family::<Label, Counter>::default();
        for (i, replica) in replicas.iter().enumerate() {
            restarts.get_or_create(&label(i)).inc_by(replica.restarts);
        }
        add.one("replica_up", "1 if the replica takes requests", &gauge(|of| of.is_up.into()));
        add.one("replica_requests_running", "Requests that have a slot of the replica", &gauge(|of| of.running));
        add.one("replica_requests_waiting", "Requests that wait at the replica", &gauge(|of| of.waiting));
        add.one("replica_restarts", "Restarts of the replica", &restarts);
        add.one("requests_moved", "Requests that moved to another replica because theirs ended", &self.moved);
    }

    /// A request went on at another replica.
    pub(super) fn moved(&self) {
        self.moved.inc();
    }

    /// A request got its slot.
    pub(super) fn admitted(&self, times: &Times, n_prompt: usize, cached_tokens: usize) {
        if !times.is_background {
            self.queue.observe(since(times.submitted, times.admitted));
        }
        self.prompt_tokens.inc_by(n_prompt as u64);
        self.prefix_queries.inc_by(n_prompt as u64);
        self.prefix_hits.inc_by(cached_tokens as u64);
    }

    /// A token came; the one before it came at `before`.
    pub(super) fn token(&self, times: &Times, before: Option<Instant>) {
        self.generation_tokens.inc();
        match before {
            _ if times.is_background => {}
            Some(before) => self.inter_token.observe(since(before, times.last_token)),
            None => self.time_to_first_token.observe(since(times.submitted, times.first_token)),
        }
    }

    pub(super) fn ended(&self, times: &Times, n_prompt: usize, ending: &Ending) {
        let reason = match ending {
            Ending::Finished(FinishReason::Stop) => "stop",
            Ending::Finished(FinishReason::Length) => "length",
            Ending::Finished(FinishReason::Cancelled) | Ending::Failed(_) => "error",
        };
        self.success.get_or_create(&[("finished_reason", reason)]).inc();
        self.request_prompt.observe(n_prompt as f64);
        self.request_generation.observe(times.n_tokens as f64);
        if times.is_background {
            return;
        }
        self.whole.observe(times.submitted.elapsed().as_secs_f64());
        if let Some(admitted) = times.admitted {
            self.inference.observe(since(admitted, times.last_token));
        }
        if let (Some(admitted), Some(first)) = (times.admitted, times.first_token) {
            self.prefill.observe(since(admitted, Some(first)));
            self.decode.observe(since(first, times.last_token));
        }
    }

    /// A request asks for this many answers, of this many tokens at most.
    pub(super) fn asked(&self, n: usize, max_tokens: usize) {
        self.params_n.observe(n as f64);
        self.params_max_tokens.observe(max_tokens as f64);
    }

    pub(super) fn rejected(&self, reason: &'static str) {
        self.rejections.get_or_create(&[("reason", reason)]).inc();
    }

    pub(super) fn cancelled(&self, phase: &'static str) {
        self.cancelled.get_or_create(&[("phase", phase)]).inc();
    }

    /// Labels are of a closed set, whatever handlers answer.
    pub(super) fn responded(&self, status: u16) {
        let label = STATUSES.iter().find(|(known, _)| *known == status).map_or("other", |(_, label)| label);
        self.responses.get_or_create(&[("status", label)]).inc();
    }

    /// A step gave so many tokens.
    pub(super) fn step(&self, n_tokens: usize) {
        self.iteration_tokens.observe(n_tokens as f64);
    }

    /// A reader took so many tokens at once.
    pub(super) fn chunk(&self, n_tokens: usize) {
        if n_tokens > 0 {
            self.chunk_tokens.observe(n_tokens as f64);
        }
    }

    /// What an engine did since it had the figures that were counted.
    pub(super) fn engine_did(&self, counted: &mut EngineFigures, figures: EngineFigures) {
        let counted = std::mem::replace(counted, figures);
        self.preemptions.inc_by(figures.preemptions - counted.preemptions);
        self.drafted.inc_by(figures.drafted_tokens - counted.drafted_tokens);
        self.accepted.inc_by(figures.accepted_tokens - counted.accepted_tokens);
    }
}

fn since(from: Instant, to: Option<Instant>) -> f64 {
    to.map_or(Duration::ZERO, |to| to.saturating_duration_since(from)).as_secs_f64()
}

struct Adding<'a> {
    registry: &'a mut Registry,
    prefix: &'a str,
}

impl Adding<'_> {
    fn one(&mut self, name: &str, help: &str, metric: &(impl prometheus_client::registry::Metric + Clone)) {
        self.registry.register(format!("{}{name}", self.prefix), help, metric.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_vllms_behind_a_prefix() {
        let metrics = Metrics::default();
        metrics.rejected("overloaded");
        metrics.responded(200);
        metrics.responded(418);
        let figures = Figures { running: 3, waiting: 2, background: 7, kv_usage: 0.25 };
        metrics.cache_is(KvCacheFacts { block_tokens: 64, n_blocks: 10, dtype: "bf16".into() });
        let text = metrics.text("vllm:", "m", "unloaded", &figures, &[]);
        for line in [
            "vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"64\",num_gpu_blocks=\"10\",\
             cache_dtype=\"bf16\",enable_prefix_caching=\"True\"} 1",
            "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 3",
            "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 2",
            "vllm:num_batch_requests{model_name=\"m\",engine=\"0\"} 7",
            "vllm:batch_requests_total{model_name=\"m\",engine=\"0\",outcome=\"failed\"} 0",
            "vllm:model_state{model_name=\"m\",engine=\"0\",state=\"unloaded\"} 1",
            "vllm:model_state{model_name=\"m\",engine=\"0\",state=\"loaded\"} 0",
            "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.25",
            "vllm:admission_rejections_total{model_name=\"m\",engine=\"0\",reason=\"overloaded\"} 1",
            "vllm:admission_rejections_total{model_name=\"m\",engine=\"0\",reason=\"too_long\"} 0",
            "vllm:http_responses_total{model_name=\"m\",engine=\"0\",status=\"200\"} 1",
            "vllm:http_responses_total{model_name=\"m\",engine=\"0\",status=\"other\"} 1",
            "vllm:http_responses_total{model_name=\"m\",engine=\"0\",status=\"499\"} 0",
            "vllm:harmony_repairs_total{model_name=\"m\",engine=\"0\",kind=\"missing_start\"} 0",
            "vllm:iteration_tokens_total_count{model_name=\"m\",engine=\"0\"} 0",
            "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let plain = Metrics::plain(&text);
        assert!(text.ends_with("# EOF\n") && !plain.contains("EOF"));
        for line in [
            "# TYPE vllm:generation_tokens_total counter",
            "# TYPE vllm:num_requests_running gauge",
            "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"} 0",
            "# TYPE process_cpu_seconds_total counter",
        ] {
            assert!(plain.lines().any(|found| found == line), "{line}\n{plain}");
        }
    }
}
