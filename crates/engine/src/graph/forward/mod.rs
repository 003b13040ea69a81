//! The forward pass, from top to bottom: here is what every model begins and ends with; layers come from the family's
//! file (`models/*.toml`, [`statements`]).
//!
//! A step has rows: (slot, position, token) triples, of prompts and of generating sequences. Each row runs through all
//! layers; rows that need logits go on to the unembedding and the sampler. Each op's contract in
//! `templates/<op>/op.toml` states its formula.

mod sampling;
mod statements;
mod writing;

use std::collections::BTreeMap;

use crate::graph::kv_cache::KvLayout;
use crate::graph::{Graph, NodeBuilder, Role, Rows, TensorId};
use format::Dtype;
use hint::Hint;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::template::library_error::LibraryError;
use model::checkpoint::Checkpoint;
use model::checkpoint::tensors::EMBEDDING;
use model::config::ModelConfig;
use model::config::tensor_parallel::TpRank;
use model::family::{COS_SIN, FamilyError};

/// Tokens that come with their log-probabilities, beside the one that was taken, in the rows that ask for them.
pub(crate) const N_TOP: usize = 20;

/// What the forward pass depends on besides the model's dimensions.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    pub precision: Precision,
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
    /// Whether each device adds the rows that are its own to the next sum, and not the first one all of them. Then the
    /// order in which a row is summed depends on how many rows a step has.
    pub shares_stream: bool,
}

/// From one device's piece of shared memory to the next one's, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Of `parts.attn` and `parts.mlp`.
    pub parts: usize,
    /// Of `sums`: a share of a sum.
    pub sums: usize,
    pub summed: usize,
    /// Of `parts.logits`.
    pub(crate) logits: usize,
    /// Of `parts.candidate`.
    pub(crate) candidates: usize,
    pub arrived: usize,
}

impl Strides {
    fn part(self, name: &str) -> usize {
        if name == "logits" { self.logits } else { self.parts }
    }
}

/// How often devices that compute the model together meet in a step: for every sum in a layer, and for the logits.
pub(crate) fn n_meetings(config: &ModelConfig) -> usize {
    let dims = config.scope();
    let sums = |l| {
        let statements = config.family.forward.statements(&dims, l);
        statements.iter().filter(|statement| statement.is_summed(config.family)).count()
    };
    (0..config.num_hidden_layers).map(sums).sum::<usize>() + 1
}

/// Why a model has no forward pass.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A statement of the family's file does not fit the contract of its op.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// An op has no contract, or a broken one.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl Hint for ForwardError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Family(error) => error.hint(),
            Self::Library(error) => error.hint(),
        }
    }
}

/// The forward pass as a graph.
///
/// External tensors, filled by the engine: `token` (what [`ForwardOptions::takes_tokens`] makes of it: `take_token`'s
/// `from`), `slot`, `position` (max_rows, u32); `logit_row`, `temperature`, `top_k`, `top_p`, `coin` (a row for each
/// logit); `inv_freq` (head_dim / 2, f32), and `inv_freq.<rope>` of other ropes; `block_table.<g>`, `k_cache.<l>`,
/// `v_cache.<l>`, and of a cache with scales `k_scale.<l>`, `v_scale.<l>`. It leaves `logits` and `sampled`. For the
/// rows that ask for more there are those that `forward/sampling.rs` names. Where several devices compute the model:
/// `step` (how often they met), `arrived` (of each of them a u32 for each of them and of their sums), `sums` and
/// `summed` (shares of a sum, as `templates/all_reduce/op.toml` has them), and for `<sum>` attn and mlp `parts.<sum>`
/// (a part of max_rows for each of them) and `part.<sum>`, which is this one's, so too `logits` and `candidate` where
/// they share the vocabulary; all but the first have `zeros` (a part), where something is added to a sum.
///
/// # Errors
/// A statement of the family's file that does not fit its op.
pub fn forward(
    checkpoint: &Checkpoint,
    kv: &KvLayout,
    options: &ForwardOptions,
    library: &Library,
) -> Result<Graph, ForwardError> {
    let mut graph = Graph::new(options.precision);
    let rows = RowInputs::new(&mut graph, options);
    let config = &checkpoint.config;
    let n_meetings = n_meetings(config);
    let mut pass = Forward {
        graph: &mut graph,
        checkpoint,
        config,
        kv,
        options,
        library,
        rows,
        n_meetings,
        n_sums: 0,
        own_rows: BTreeMap::new(),
        part: String::new(),
    };

    let angles = pass.rope_angles();
    let mut x = pass.embedding();
    x = pass.first(x)?;
    for l in 0..config.num_hidden_layers {
        x = pass.layer(l, x, &angles)?;
    }
    pass.unembedding_and_sampling(x)?;
    Ok(graph)
}

/// What positions become, by the names that statements have for it.
type Angles = BTreeMap<&'static str, TensorId>;

/// What is called `name` of the first rope, and of the others by their names besides: as the engine fills it.
pub(crate) fn of_rope(name: &str, rope: &str) -> String {
    if rope == COS_SIN { name.to_owned() } else { format!("{name}.{rope}") }
}

/// What every layer needs at hand.
struct Forward<'a> {
    graph: &'a mut Graph,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    kv: &'a KvLayout,
    options: &'a ForwardOptions,
    library: &'a Library,
    rows: RowInputs,
    /// How often devices meet in a step.
    n_meetings: usize,
    n_sums: usize,
    /// Of a sum, what this device adds to the next one: its own rows.
    own_rows: BTreeMap<TensorId, TensorId>,
    /// What the last weights' names begin with: `attn`.
    part: String,
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
        let row = |name| graph.external(name, Dtype::U32, Role::Input, options.max_rows);
        let [given, slot, position] = ["token", "slot", "position"].map(row);
        let token = if options.takes_tokens { taken(graph, given, options.max_logit_rows) } else { given };
        Self { token, slot, position }
    }
}

/// The tokens themselves, where rows may name those that the step before samples.
fn taken(graph: &mut Graph, given: TensorId, max_logit_rows: usize) -> TensorId {
    let sampled = graph.external("sampled", Dtype::U32, Role::Kept, max_logit_rows);
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
    /// cos and sin of every row's position, (n_tokens, head_dim), by the names that statements have for them.
    fn rope_angles(&mut self) -> Angles {
        let mut angles = Angles::new();
        for rotation in self.config.rotations() {
            let n_pairs = rotation.inv_freq.len();
            let inv_freq = self.graph.external(&of_rope("inv_freq", rotation.name), Dtype::F32, Role::Kept, n_pairs);
            let cos_sin = self.graph.activation(of_rope(COS_SIN, rotation.name), Dtype::F32);
            self.graph
                .node(of_rope("rope_angles", rotation.name), "rope_angles")
                .dim("half_head_dim", n_pairs)
                .constant("concentration", rotation.concentration)
                .arg("inv_freq", inv_freq)
                .arg("position", self.rows.position)
                .arg("cos_sin", cos_sin);
            angles.insert(rotation.name, cos_sin);
        }
        angles
    }

    /// x = embedding[token]: the residual stream, (n_tokens, hidden_size).
    fn embedding(&mut self) -> TensorId {
        let dtype = self.checkpoint.tensor(EMBEDDING).dtype;
        let x = self.graph.activation("x".into(), Dtype::F32);
        self.graph
            .node("embedding", "embedding")
            .scalar("n_rows", self.config.vocab_size)
            .dim("hidden_size", self.config.hidden_size)
            .dtype("table", dtype)
            .weight("table", EMBEDDING, dtype)
            .arg("row", self.rows.token)
            .arg("y", x);
        x
    }

    /// What is added to a sum of all devices' parts: on each of them its own rows, or else on the first itself and
    /// elsewhere zeros.
    fn added_once(&mut self, x: TensorId) -> TensorId {
        if let Some(&own) = self.own_rows.get(&x) {
            return own;
        }
        if self.options.part.rank == 0 {
            return x;
        }
        let n_elements = self.options.max_rows * self.config.hidden_size;
        self.graph.external("zeros", Dtype::F32, Role::Kept, n_elements)
    }

    /// Where a node writes this device's part of the next sum, and which of the two places that is. Of two sums that
    /// follow each other, one is `attn` and one `mlp`: a device that is ahead writes none that another still reads.
    fn part_of_sum(&mut self) -> (TensorId, &'static str) {
        let sum = ["attn", "mlp"][self.n_sums % 2];
        (self.shared(&format!("part.{sum}"), Dtype::F32), sum)
    }

    /// The sum of all devices' parts.
    ///
    /// - `is_stream`: the residual stream, so that it is added to the next sum
    fn summed(&mut self, sum: &str, label: &str, is_stream: bool) -> TensorId {
        let y = self.graph.activation(format!("{label}.sum"), Dtype::F32);
        let is_last = self.n_sums + 2 == self.n_meetings; // the logits are met for too
        let has_own = is_stream && !is_last && self.options.shares_stream;
        let own = has_own.then(|| self.graph.activation(format!("{label}.own"), Dtype::F32));
        self.own_rows.extend(own.map(|own| (y, own)));
        let (number, hidden_size) = (self.n_sums, self.config.hidden_size);
        self.n_sums += 1;
        let label = format!("{label}.all_reduce");
        let Strides { sums: sums_stride, summed: summed_stride, .. } = self.options.strides;
        let (sums, summed) = (self.shared("sums", Dtype::F32), self.shared("summed", Dtype::U32));
        self.met(sum, number, label, "all_reduce")
            .dim("hidden_size", hidden_size)
            .flag("has_own", has_own)
            .args(own.map(|own| ("own", own)))
            .scalar("sums_stride", sums_stride)
            .scalar("summed_stride", summed_stride)
            .arg("sums", sums)
            .arg("summed", summed)
            .arg("y", y);
        y
    }

    /// A node at which all devices meet, and make something of their parts.
    fn met(&mut self, parts: &str, number: usize, label: String, op: &str) -> NodeBuilder<'_> {
        let TpRank { rank, size } = self.options.part;
        let stride = self.options.strides.part(parts);
        let parts = self.shared(&format!("parts.{parts}"), Dtype::F32);
        let n_meetings = self.n_meetings;
        let arrived = self.shared("arrived", Dtype::U32);
        let step = self.graph.external("step", Dtype::U32, Role::Input, 1);
        self.graph
            .node(label, op)
            .dim("ranks", size)
            .scalar("part_stride", stride)
            .scalar("arrived_stride", self.options.strides.arrived)
            .scalar("n_flags", n_meetings)
            .scalar("flag", number)
            .scalar("rank", rank)
            .arg("part", parts)
            .arg("arrived", arrived)
            .arg("step", step)
    }

    /// A tensor in memory that several devices see.
    fn shared(&mut self, name: &str, dtype: Dtype) -> TensorId {
        self.graph.external(name, dtype, Role::Shared, 0)
    }

    fn last_on_logit_rows(&mut self) {
        self.graph.nodes.last_mut().expect("just added").rows = Rows::Logits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::config::NamedShape;

    #[test]
    fn devices_meet_twice_in_a_layer_and_once_for_logits() {
        assert_eq!(n_meetings(&NamedShape::gpt_oss_20b().config_with(&[])), 24 * 2 + 1);
    }

    #[test]
    fn what_belongs_to_the_first_rope_has_no_suffix() {
        assert_eq!([COS_SIN, "local"].map(|rope| of_rope("inv_freq", rope)), ["inv_freq", "inv_freq.local"]);
    }
}
