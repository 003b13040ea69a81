//! The gpt-oss forward pass, from top to bottom.
//!
//! A step has rows: (slot, position, token) triples, prompts and single tokens mixed. Each row runs through all
//! layers; those that want logits go on to the unembedding and the sampler. Formulas: OpenAI's
//! `gpt_oss/torch/model.py`; each op's contract in `templates/<op>/op.toml` states its own.

mod sampling;

use crate::checkpoint::tensor_parallel::TpRank;
use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::graph::kv_cache::KvLayout;
use crate::graph::{Graph, NodeBuilder, Rows, TensorId};
use crate::template::Precision;

/// Added to the mean square in every norm: OpenAI's `RMSNorm(eps=1e-05)`.
pub const NORM_EPS: f32 = 1e-5;

/// Tokens that come with their log-probabilities, beside the one that was taken, in the rows that ask for them.
pub const N_TOP: usize = 20;

/// What the forward pass depends on besides the model's dimensions.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// How exactly sums are done.
    pub precision: Precision,
    /// Element type of the checkpoint's tensors but the experts' matrices.
    pub weight_dtype: Dtype,
    /// Element type of the experts' matrices.
    pub expert_dtype: Dtype,
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that give logits.
    pub max_logit_rows: usize,
    /// Whether rows may say that they take a token which the step before samples: steps can then be put together before
    /// those tokens are known.
    pub takes_tokens: bool,
    /// Which part of the model it is: its dimensions are that part's.
    pub part: TpRank,
    /// How memory is laid out that several devices share.
    pub strides: Strides,
}

/// From one device's piece of shared memory to the next one's, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Of `parts.attn` and `parts.mlp`.
    pub sums: usize,
    /// Of `parts.logits`.
    pub logits: usize,
    /// Of `parts.candidate`.
    pub candidates: usize,
    /// Of `arrived`.
    pub arrived: usize,
}

impl Strides {
    fn part(self, name: &str) -> usize {
        if name == "logits" { self.logits } else { self.sums }
    }
}

/// How often devices that compute the model together meet in a step: in a layer twice, and for the logits.
pub fn n_meetings(config: &ModelConfig) -> usize {
    2 * config.num_hidden_layers + 1
}

/// The forward pass as a graph.
///
/// External tensors, filled by the engine: `token` (what [`ForwardOptions::takes_tokens`] makes of it: `take_token`'s
/// `from`), `slot`, `position` (max_rows, u32); `logit_row`, `temperature`, `top_k`, `top_p`, `coin` (a row for each
/// logit); `inv_freq` (head_dim / 2, f32); `block_table.<g>`, `k_cache.<l>`, `v_cache.<l>`. It leaves `logits` and
/// `sampled`. For the rows that ask for it besides: `changed_row`, `bias_begin`, `bias_end`, `mask_row`, `min_p` (a row
/// for each), `bias_id`, `bias` (as many as a vocabulary has), `mask` (a row for each logit, a bit for each id), which
/// change `logits` and `top_k`; `logprob_row`, which leaves `logprob` and `top_token`. Where several devices compute
/// the model: `step` (how often they met), `arrived` (of each of them a u32 for each of them and of their sums), and
/// for `<sum>` attn and mlp `parts.<sum>` (a part of max_rows for each of them) and `part.<sum>`, which is this one's,
/// so too `logits` and `candidate` where they share the vocabulary; all but the first have `zeros` (a part).
pub fn forward(config: &ModelConfig, kv: &KvLayout, options: &ForwardOptions) -> Graph {
    let mut graph = Graph::new(options.precision);
    let mut pass = Forward { rows: RowInputs::new(&mut graph, options), graph: &mut graph, config, kv, options };

    let cos_sin = pass.rope_angles();
    let mut x = pass.embedding();
    for l in 0..config.num_hidden_layers {
        x = pass.attention_block(l, x, cos_sin);
        x = pass.mlp_block(l, x);
    }
    pass.unembedding_and_sampling(x);
    graph
}

/// What every layer needs at hand.
struct Forward<'a> {
    graph: &'a mut Graph,
    config: &'a ModelConfig,
    kv: &'a KvLayout,
    options: &'a ForwardOptions,
    rows: RowInputs,
}

/// The triples of a step.
#[derive(Clone, Copy)]
struct RowInputs {
    token: TensorId,
    slot: TensorId,
    position: TensorId,
}

impl RowInputs {
    fn new(graph: &mut Graph, options: &ForwardOptions) -> Self {
        let [given, slot, position] = ["token", "slot", "position"].map(|name| graph.external(name, Dtype::U32));
        let token = if options.takes_tokens { taken(graph, given, options.max_logit_rows) } else { given };
        Self { token, slot, position }
    }
}

/// The tokens themselves, where rows may name those that the step before samples.
fn taken(graph: &mut Graph, given: TensorId, max_logit_rows: usize) -> TensorId {
    let sampled = graph.external("sampled", Dtype::U32);
    let token = graph.activation("token.taken".into(), Dtype::U32);
    graph
        .node("take_token", "take_token")
        .scalar("n_sampled", max_logit_rows)
        .arg("from", given)
        .arg("sampled", sampled)
        .arg("token", token);
    token
}

impl Forward<'_> {
    /// cos and sin of every row's position, used by all layers: (n_tokens, head_dim).
    fn rope_angles(&mut self) -> TensorId {
        let inv_freq = self.graph.external("inv_freq", Dtype::F32);
        let cos_sin = self.graph.activation("cos_sin".into(), Dtype::F32);
        self.graph
            .node("rope_angles", "rope_angles")
            .dim("half_head_dim", self.config.head_dim / 2)
            .constant("concentration", self.config.rope_concentration())
            .arg("inv_freq", inv_freq)
            .arg("position", self.rows.position)
            .arg("cos_sin", cos_sin);
        cos_sin
    }

    /// x = embedding[token]: the residual stream, (n_tokens, hidden_size).
    fn embedding(&mut self) -> TensorId {
        let table = self.weight("embedding.weight");
        let x = self.graph.activation("x".into(), Dtype::F32);
        self.graph
            .node("embedding", "embedding")
            .dim("n_rows", self.config.vocab_size)
            .dim("hidden_size", self.config.hidden_size)
            .dtype("table", self.options.weight_dtype)
            .arg("table", table)
            .arg("row", self.rows.token)
            .arg("y", x);
        x
    }

    /// x + out(attention(rope(qkv(norm(x)))))
    fn attention_block(&mut self, l: usize, x: TensorId, cos_sin: TensorId) -> TensorId {
        let block = format!("block.{l}.attn");
        let normed = self.rmsnorm(&format!("{block}.norm"), x);
        let qkv = self.linear(&format!("{block}.qkv"), normed, self.config.hidden_size, self.config.qkv_size(), None);
        self.rope_kv(l, qkv, cos_sin);
        let mixed = self.attention(l, qkv);
        let (name, once) = (format!("{block}.out"), self.added_once(x));
        let y = self.summand("attn", format!("{name}.y"));
        let (in_features, out_features) = (self.config.attention_size(), self.config.hidden_size);
        self.linear_into(y, &name, mixed, in_features, out_features, Some(once));
        self.summed("attn", 2 * l, &name, y)
    }

    /// Rotates q and k, and stores k and v in the cache.
    fn rope_kv(&mut self, l: usize, qkv: TensorId, cos_sin: TensorId) {
        let (table, k_cache, v_cache) = self.cache(l);
        let group = self.kv.group_of_layer(l);
        self.graph
            .node(format!("block.{l}.attn.rope_kv"), "rope_kv")
            .dim("num_attention_heads", self.config.num_attention_heads)
            .dim("num_key_value_heads", self.config.num_key_value_heads)
            .dim("half_head_dim", self.config.head_dim / 2)
            .dim("block_tokens", self.kv.block_tokens)
            .flag("matrix_layout", self.kv.matrix_layout)
            .scalar("n_slots", self.kv.n_slots)
            .scalar("table_blocks", group.table_blocks)
            .scalar("n_blocks", group.n_blocks)
            .dtype("kv", self.kv.dtype)
            .arg("qkv", qkv)
            .arg("cos_sin", cos_sin)
            .arg("slot", self.rows.slot)
            .arg("position", self.rows.position)
            .arg("block_table", table)
            .arg("k_cache", k_cache)
            .arg("v_cache", v_cache);
    }

    /// softmax(q k / sqrt(head_dim), sink) v over the layer's window.
    fn attention(&mut self, l: usize, qkv: TensorId) -> TensorId {
        let (table, k_cache, v_cache) = self.cache(l);
        let group = self.kv.group_of_layer(l);
        let sinks = self.weight(&format!("block.{l}.attn.sinks"));
        let y = self.graph.activation(format!("block.{l}.attn.mixed"), self.handed());
        self.graph
            .node(format!("block.{l}.attn"), "attention")
            .dim("num_attention_heads", self.config.num_attention_heads)
            .dim("num_key_value_heads", self.config.num_key_value_heads)
            .dim("half_head_dim", self.config.head_dim / 2)
            .dim("window", self.kv.window_of_layer(l).unwrap_or(0))
            .dim("block_tokens", self.kv.block_tokens)
            .flag("has_sinks", true)
            .flag("matrix_layout", self.kv.matrix_layout)
            .scalar("n_slots", self.kv.n_slots)
            .scalar("table_blocks", group.table_blocks)
            .scalar("n_blocks", group.n_blocks)
            .dtype("kv", self.kv.dtype)
            .dtype("sinks", self.options.weight_dtype)
            .arg("qkv", qkv)
            .arg("slot", self.rows.slot)
            .arg("position", self.rows.position)
            .arg("block_table", table)
            .arg("k_cache", k_cache)
            .arg("v_cache", v_cache)
            .arg("sinks", sinks)
            .arg("y", y);
        y
    }

    /// x + sum over the chosen experts of p_e * mlp_e(norm(x))
    fn mlp_block(&mut self, l: usize, x: TensorId) -> TensorId {
        let block = format!("block.{l}.mlp");
        let normed = self.rmsnorm(&format!("{block}.norm"), x);
        let logit =
            self.linear(&format!("{block}.gate"), normed, self.config.hidden_size, self.config.num_experts, None);
        let routing = self.route(&block, logit);
        let activated = self.mlp1(&block, normed, &routing);
        let once = self.added_once(x);
        let y = self.mlp2(&block, activated, &routing, once);
        self.summed("mlp", 2 * l + 1, &format!("{block}.mlp2"), y)
    }

    /// What is added to a sum of all devices' parts: on the first of them itself, elsewhere zeros.
    fn added_once(&mut self, x: TensorId) -> TensorId {
        if self.options.part.rank == 0 { x } else { self.graph.external("zeros", Dtype::F32) }
    }

    /// What a node writes that is a sum, or this device's part of one.
    fn summand(&mut self, sum: &str, name: String) -> TensorId {
        match self.options.part.size {
            1 => self.graph.activation(name, Dtype::F32),
            _ => self.graph.external(&format!("part.{sum}"), Dtype::F32),
        }
    }

    /// The sum of all devices' parts. Of two that follow each other, one is `attn` and one `mlp`: a device that is
    /// ahead writes none that another still reads.
    fn summed(&mut self, sum: &str, number: usize, label: &str, part: TensorId) -> TensorId {
        if self.options.part.size == 1 {
            return part;
        }
        let y = self.graph.activation(format!("{label}.sum"), Dtype::F32);
        let hidden_size = self.config.hidden_size;
        let label = format!("{label}.all_reduce");
        self.met(sum, number, label, "all_reduce").dim("hidden_size", hidden_size).arg("y", y);
        y
    }

    /// A node at which all devices meet, and make something of their parts.
    fn met(&mut self, parts: &str, number: usize, label: String, op: &str) -> NodeBuilder<'_> {
        let TpRank { rank, size } = self.options.part;
        let stride = self.options.strides.part(parts);
        let parts = self.graph.external(&format!("parts.{parts}"), Dtype::F32);
        let [arrived, step] = ["arrived", "step"].map(|name| self.graph.external(name, Dtype::U32));
        self.graph
            .node(label, op)
            .dim("ranks", size)
            .scalar("part_stride", stride)
            .scalar("arrived_stride", self.options.strides.arrived)
            .scalar("n_flags", n_meetings(self.config))
            .scalar("flag", number)
            .scalar("rank", rank)
            .arg("part", parts)
            .arg("arrived", arrived)
            .arg("step", step)
    }

    /// The chosen experts of every row, their weights, and the rows of every expert.
    fn route(&mut self, block: &str, logit: TensorId) -> Routing {
        let mut output = |name: &str, dtype| self.graph.activation(format!("{block}.{name}"), dtype);
        let expert = output("expert", Dtype::U32);
        let routing = Routing {
            weight: output("route_weight", Dtype::F32),
            expert_begin: output("expert_begin", Dtype::U32),
            assignment: output("assignment", Dtype::U32),
            active_expert: output("active_expert", Dtype::U32),
        };
        self.graph
            .node(format!("{block}.route"), "moe_route")
            .dim("num_experts", self.config.num_experts)
            .dim("experts_per_token", self.config.experts_per_token)
            .arg("logit", logit)
            .arg("expert", expert)
            .arg("route_weight", routing.weight);
        self.graph
            .node(format!("{block}.sort"), "moe_sort")
            .dim("num_experts", self.config.num_experts)
            .dim("experts_per_token", self.config.experts_per_token)
            .arg("expert", expert)
            .arg("expert_begin", routing.expert_begin)
            .arg("assignment", routing.assignment)
            .arg("active_expert", routing.active_expert);
        routing
    }

    /// swiglu(mlp1[e] x + bias[e]) for every assignment.
    fn mlp1(&mut self, block: &str, x: TensorId, routing: &Routing) -> TensorId {
        let y = self.graph.activation(format!("{block}.activated"), self.handed());
        let swiglu_limit = self.config.swiglu_limit;
        self.experts(&format!("{block}.mlp1"), "moe_mlp1", x, routing)
            .constant("swiglu_limit", swiglu_limit)
            .arg("y", y);
        y
    }

    /// residual + the weighted sum over a row's experts of mlp2[e] x + bias[e].
    fn mlp2(&mut self, block: &str, x: TensorId, routing: &Routing, residual: TensorId) -> TensorId {
        let y = self.summand("mlp", format!("{block}.x"));
        self.experts(&format!("{block}.mlp2"), "moe_mlp2", x, routing)
            .arg("route_weight", routing.weight)
            .arg("residual", residual)
            .arg("y", y);
        y
    }

    /// One of the two projections of all experts, with its weights and what says which rows are whose.
    fn experts(&mut self, label: &str, op: &str, x: TensorId, routing: &Routing) -> NodeBuilder<'_> {
        let weight = self.graph.weight(format!("{label}_weight"), self.options.expert_dtype);
        let scale = self.block_scale(&format!("{label}_scale"));
        let bias = self.weight(&format!("{label}_bias"));
        self.graph
            .node(label, op)
            .dim("hidden_size", self.config.hidden_size)
            .dim("intermediate_size", self.config.intermediate_size)
            .dim("num_experts", self.config.num_experts)
            .dim("experts_per_token", self.config.experts_per_token)
            .dtype("weight", self.options.expert_dtype)
            .dtype("bias", self.options.weight_dtype)
            .arg("x", x)
            .arg("weight", weight)
            .args(scale.map(|scale| ("scale", scale)))
            .arg("bias", bias)
            .arg("expert_begin", routing.expert_begin)
            .arg("assignment", routing.assignment)
            .arg("active_expert", routing.active_expert)
    }

    /// x * rsqrt(mean(x^2) + eps) * scale
    fn rmsnorm(&mut self, name: &str, x: TensorId) -> TensorId {
        let scale = self.weight(&format!("{name}.scale"));
        let y = self.graph.activation(format!("{name}.y"), self.handed());
        self.graph
            .node(name, "rmsnorm")
            .dim("hidden_size", self.config.hidden_size)
            .constant("eps", NORM_EPS)
            .dtype("scale", self.options.weight_dtype)
            .arg("x", x)
            .arg("scale", scale)
            .arg("y", y);
        y
    }

    /// weight x + bias (+ residual)
    fn linear(
        &mut self,
        name: &str,
        x: TensorId,
        in_features: usize,
        out_features: usize,
        residual: Option<TensorId>,
    ) -> TensorId {
        let y = self.graph.activation(format!("{name}.y"), Dtype::F32);
        self.linear_into(y, name, x, in_features, out_features, residual);
        y
    }

    /// y = weight x + bias (+ residual)
    fn linear_into(
        &mut self,
        y: TensorId,
        name: &str,
        x: TensorId,
        in_features: usize,
        out_features: usize,
        residual: Option<TensorId>,
    ) {
        let (weight, bias) = (self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")));
        let node = self
            .graph
            .node(name, "linear")
            .dim("in_features", in_features)
            .dim("out_features", out_features)
            .flag("has_bias", true)
            .flag("has_residual", residual.is_some())
            .dtype("weight", self.options.weight_dtype)
            .arg("x", x)
            .arg("weight", weight)
            .arg("bias", bias)
            .arg("y", y);
        if let Some(residual) = residual {
            node.arg("residual", residual);
        }
    }

    /// The type of what contracts call `activation`: all that a matrix is multiplied by.
    fn handed(&self) -> Dtype {
        self.options.precision.activation()
    }

    fn weight(&mut self, name: &str) -> TensorId {
        self.graph.weight(name.to_string(), self.options.weight_dtype)
    }

    /// The factors of the experts' blocks, where their numbers have some.
    fn block_scale(&mut self, name: &str) -> Option<TensorId> {
        self.options.expert_dtype.block_len().map(|_| self.graph.weight(name.to_string(), Dtype::U8))
    }

    /// Block table, keys and values of a layer.
    fn cache(&mut self, l: usize) -> (TensorId, TensorId, TensorId) {
        let table = self.graph.external(&format!("block_table.{}", self.kv.group_index(l)), Dtype::U32);
        let k_cache = self.graph.external(&format!("k_cache.{l}"), self.kv.dtype);
        let v_cache = self.graph.external(&format!("v_cache.{l}"), self.kv.dtype);
        (table, k_cache, v_cache)
    }

    fn last_on_logit_rows(&mut self) {
        self.graph.nodes.last_mut().expect("just added").rows = Rows::Logits;
    }
}

/// Where the rows of a step go, as the MoE kernels read it.
struct Routing {
    weight: TensorId,
    expert_begin: TensorId,
    assignment: TensorId,
    active_expert: TensorId,
}
