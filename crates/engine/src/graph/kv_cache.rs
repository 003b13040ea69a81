//! Where the keys and values of a position are.
//!
//! A layer's cache consists of blocks of [`KvLayout::block_tokens`] positions; a table per slot lists the slot's
//! blocks. Layers with the same window share a table and form a [`KvGroup`]:
//!
//! - all positions visible: the slots share one pool of blocks, handed out as sequences grow and taken back when they
//!   end
//! - a sliding window: every slot owns a ring of blocks, long enough for the window and one step's rows. Behind the
//!   rings lie snapshots of rings, if any are wanted: what the next token of a prefix sees of such layers
//!
//! The scheduler decides which slot holds which block.
//!
//! Layers with full attention may keep positions in eight bits, with a scale for each position and head. Window layers
//! keep the precision's type.
//!
//! `templates/rope_kv/op.toml` states the layout of a block.

use format::Dtype;
use kernel::template::Precision;
use model::config::{LayerState, ModelConfig};

/// Positions in one block: four vectors of 16 lanes, so that an attention kernel works on whole vectors.
pub const BLOCK_TOKENS: usize = 64;

/// Element types of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvDtypes {
    /// Of the layers that see everything.
    pub all: Dtype,
    /// Of those with a window.
    pub window: Dtype,
}

impl KvDtypes {
    /// One type for all layers, unless it has scales: those with a window then have the activations' type.
    pub fn new(dtype: Dtype, precision: Precision) -> Self {
        let window = if dtype.largest_of_row().is_some() { precision.activation() } else { dtype };
        Self { all: dtype, window }
    }

    /// Of a layer with this window; `None` is all.
    pub fn of_window(self, window: Option<usize>) -> Dtype {
        if window.is_some() { self.window } else { self.all }
    }

    /// Bytes of `n_positions` keys and values, scales included, in a layer with this window.
    pub fn len_bytes(self, window: Option<usize>, n_positions: usize, config: &ModelConfig) -> usize {
        let tensors = cache_tensors(self.of_window(window), n_positions, kv_heads(config));
        tensors.iter().map(|&(_, dtype, n)| dtype.len_bytes(n)).sum()
    }
}

/// What so many positions of a layer have: the arguments of its ops, their types and their elements.
fn cache_tensors(dtype: Dtype, n_positions: usize, [heads, width]: [usize; 2]) -> Vec<(&'static str, Dtype, usize)> {
    let n_rows = n_positions * heads;
    let n_elements = n_rows * width;
    let mut tensors = vec![("k_cache", dtype, n_elements), ("v_cache", dtype, n_elements)];
    if dtype.largest_of_row().is_some() {
        tensors.extend([("k_scale", Dtype::F32, n_rows), ("v_scale", Dtype::F32, n_rows)]);
    }
    tensors
}

/// Heads of keys, and the width of one.
fn kv_heads(config: &ModelConfig) -> [usize; 2] {
    ["num_key_value_heads", "head_dim"].map(|name| config.get(name).unwrap_or(0))
}

/// A tensor of a layer's cache.
pub(crate) struct CacheTensor {
    /// The argument of ops that it is.
    pub(crate) arg: &'static str,
    /// What the graph calls it.
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Elements of one block.
    pub(crate) block_elements: usize,
}

/// Shape of the cache of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayout {
    /// Positions in one block.
    pub block_tokens: usize,
    /// Sequences at a time.
    pub n_slots: usize,
    /// Rings whose contents can be kept, besides those of the slots.
    pub(crate) n_snapshots: usize,
    /// Longest sequence, in tokens.
    pub capacity_tokens: usize,
    /// Element types of keys and values.
    pub dtypes: KvDtypes,
    /// Blocks are laid out for matrix units rather than for vectors.
    pub(crate) matrix_layout: bool,
    groups: Vec<KvGroup>,
    /// Of each layer that keeps positions.
    group_of_layer: Vec<Option<usize>>,
    windows: Vec<Option<usize>>,
    kv_heads: [usize; 2],
}

/// The layers that keep the same positions.
#[derive(Clone, Debug, PartialEq)]
pub struct KvGroup {
    /// Positions visible; `None` is all that a sequence can have.
    pub window: Option<usize>,
    /// Blocks that a slot's positions go round in.
    pub(crate) table_blocks: usize,
    /// Blocks of a layer's cache: the pool's, or those of all rings and then of all snapshots.
    pub n_blocks: usize,
    /// Layers that share it.
    pub n_layers: usize,
    /// Bytes of one block of all these layers: keys, values and their scales.
    pub block_bytes: usize,
}

impl KvGroup {
    /// Blocks that hold what a token sees before it, if it is the first of a block; 0 where all is in the pool.
    pub(crate) fn snapshot_blocks(&self) -> usize {
        self.window.map_or(0, |window| (window - 1).div_ceil(BLOCK_TOKENS))
    }

    /// Bytes of all its blocks.
    pub fn len_bytes(&self) -> usize {
        self.n_blocks * self.block_bytes
    }
}

/// What a cache is sized for.
#[derive(Clone, Copy, Debug)]
pub struct KvRequest {
    /// Sequences at a time.
    pub n_slots: usize,
    /// Rings whose contents can be kept, besides those of the slots.
    pub n_snapshots: usize,
    /// Sequences of full length that the pool has blocks for besides those of the slots, as far as the budget goes:
    /// they hold what is kept for prompts that begin alike.
    pub n_kept: usize,
    /// Longest sequence, in tokens.
    pub capacity_tokens: usize,
    /// Most rows of one step.
    pub max_rows: usize,
    /// Element types of keys and values.
    pub dtypes: KvDtypes,
    /// Blocks are laid out for matrix units rather than for vectors.
    pub matrix_layout: bool,
    /// Window of the layers that see everything, gpt-oss's odd ones (the seeds' `--odd_win`); `None` is all.
    pub odd_window: Option<usize>,
    /// Memory that keys and values may take, in bytes.
    pub budget_bytes: usize,
}

/// The cache does not fit its budget.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not fit the KV cache: one sequence of {capacity_tokens} tokens takes {} bytes beside the {window_bytes} of \
     all windows, the budget is {budget_bytes}",
    needed_bytes - window_bytes
)]
pub struct KvTooLarge {
    /// Longest sequence asked for, in tokens.
    pub(crate) capacity_tokens: usize,
    /// What one such sequence and all windows take.
    pub needed_bytes: usize,
    /// Of these, what the rings of all slots and the snapshots of rings take, however long sequences are.
    pub(crate) window_bytes: usize,
    pub(crate) budget_bytes: usize,
}

impl hint::Hint for KvTooLarge {
    fn hint(&self) -> Option<String> {
        Some("shorten sequences with `-n`, take fewer at a time with `-b`, or raise `--kv-memory`".into())
    }
}

impl KvLayout {
    /// Sizes the cache: rings for all slots, and as many shared blocks as all slots and what is kept besides could use
    /// or the budget allows.
    ///
    /// # Errors
    /// [`KvTooLarge`] when the budget does not hold one sequence of full length.
    pub fn new(config: &ModelConfig, request: &KvRequest) -> Result<Self, KvTooLarge> {
        let full_blocks = request.capacity_tokens.div_ceil(BLOCK_TOKENS);
        let mut groups: Vec<KvGroup> = Vec::new();
        let has_end = |window: &usize| u32::try_from(*window).is_ok(); // positions are 32 bits wide
        let states: Vec<Option<Option<usize>>> = (0..config.num_hidden_layers)
            .map(|l| config.layer_state(l))
            .map(|state| {
                let LayerState::Positions { window } = state?;
                Some(window.or(request.odd_window).filter(has_end))
            })
            .collect();
        let group_of_layer: Vec<Option<usize>> = states
            .iter()
            .map(|state| {
                let window = (*state)?.filter(|&w| w < request.capacity_tokens);
                let index = groups.iter().position(|group| group.window == window).unwrap_or_else(|| {
                    let table_blocks =
                        window.map_or(full_blocks, |w| ring_blocks(w, request.max_rows).min(full_blocks));
                    let n_kept = if window.is_none() { request.n_kept } else { 0 };
                    let n_blocks = (request.n_slots + n_kept).saturating_mul(table_blocks);
                    let mut group = KvGroup { window, table_blocks, n_blocks, n_layers: 0, block_bytes: 0 };
                    group.n_blocks += request.n_snapshots * group.snapshot_blocks();
                    groups.push(group);
                    groups.len() - 1
                });
                groups[index].n_layers += 1;
                // Kernels have the model's window as a literal, and the type goes by it: how long sequences may be is
                // to change neither.
                groups[index].block_bytes += request.dtypes.len_bytes((*state)?, BLOCK_TOKENS, config);
                Some(index)
            })
            .collect();
        let mut layout = Self {
            block_tokens: BLOCK_TOKENS,
            n_slots: request.n_slots,
            n_snapshots: request.n_snapshots,
            capacity_tokens: request.capacity_tokens,
            dtypes: request.dtypes,
            matrix_layout: request.matrix_layout,
            groups,
            group_of_layer,
            windows: states.into_iter().map(Option::flatten).collect(),
            kv_heads: kv_heads(config),
        };
        layout.fit(request.budget_bytes)?;
        Ok(layout)
    }

    /// Shrinks the shared pool to the budget.
    fn fit(&mut self, budget_bytes: usize) -> Result<(), KvTooLarge> {
        let ring_bytes: usize = self.groups.iter().filter(|g| g.window.is_some()).map(KvGroup::len_bytes).sum();
        if let Some(pool) = self.groups.iter_mut().find(|group| group.window.is_none()) {
            let affordable = budget_bytes.saturating_sub(ring_bytes) / pool.block_bytes;
            if affordable < pool.table_blocks {
                let needed_bytes = ring_bytes + pool.table_blocks * pool.block_bytes;
                let (capacity_tokens, window_bytes) = (self.capacity_tokens, ring_bytes);
                return Err(KvTooLarge { capacity_tokens, needed_bytes, window_bytes, budget_bytes });
            }
            pool.n_blocks = pool.n_blocks.min(affordable).min(u32::MAX as usize);
        } else if ring_bytes > budget_bytes {
            let (capacity_tokens, window_bytes) = (self.capacity_tokens, ring_bytes);
            return Err(KvTooLarge { capacity_tokens, needed_bytes: window_bytes, window_bytes, budget_bytes });
        }
        Ok(())
    }

    /// The groups; a layer's is [`Self::group_of_layer`].
    pub fn groups(&self) -> &[KvGroup] {
        &self.groups
    }

    /// Whether layer `l` keeps positions.
    pub(crate) fn has_positions(&self, l: usize) -> bool {
        self.group_of_layer[l].is_some()
    }

    /// Which group layer `l` belongs to.
    ///
    /// # Panics
    /// It keeps no positions.
    pub(crate) fn group_index(&self, l: usize) -> usize {
        self.group_of_layer[l].expect("the layer keeps positions")
    }

    /// The group that layer `l` belongs to.
    pub fn group_of_layer(&self, l: usize) -> &KvGroup {
        &self.groups[self.group_index(l)]
    }

    /// Positions that layer `l` sees; `None` is all. The model's, whether or not a sequence can be longer: kernels have
    /// it as a literal, and how long sequences may be is to compile nothing.
    pub(crate) fn window_of_layer(&self, l: usize) -> Option<usize> {
        self.windows[l]
    }

    /// What layer `l` keeps its positions in.
    pub(crate) fn tensors(&self, l: usize) -> impl Iterator<Item = CacheTensor> {
        let dtype = self.dtypes.of_window(self.windows[l]);
        cache_tensors(dtype, self.block_tokens, self.kv_heads).into_iter().map(move |(arg, dtype, block_elements)| {
            CacheTensor { arg, name: format!("{arg}.{l}"), dtype, block_elements }
        })
    }

    /// What the layers of a group keep their positions in.
    pub(crate) fn tensors_of_group(&self, group: usize) -> impl Iterator<Item = CacheTensor> {
        let is_of_it = move |l: &usize| self.group_of_layer[*l] == Some(group);
        (0..self.group_of_layer.len()).filter(is_of_it).flat_map(|l| self.tensors(l))
    }

    /// Whether any layer keeps its positions in this type.
    pub fn has_dtype(&self, dtype: Dtype) -> bool {
        let states = self.group_of_layer.iter().zip(&self.windows);
        states.filter(|(group, _)| group.is_some()).any(|(_, window)| self.dtypes.of_window(*window) == dtype)
    }

    /// Bytes of the snapshots.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        self.groups.iter().map(|group| self.n_snapshots * group.snapshot_blocks() * group.block_bytes).sum()
    }

    /// Bytes of the whole cache.
    pub fn total_bytes(&self) -> usize {
        self.groups.iter().map(KvGroup::len_bytes).sum()
    }
}

/// Blocks of a ring that holds `window` positions up to and including the first of `max_rows` new ones, wherever they
/// begin in a block.
pub fn ring_blocks(window: usize, max_rows: usize) -> usize {
    (window + max_rows - 2) / BLOCK_TOKENS + 2
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use model::config::NamedShape;

    fn config() -> ModelConfig {
        NamedShape::gpt_oss_20b().config_with(&[
            ("num_hidden_layers", 4.0),
            ("head_dim", 32.0),
            ("num_attention_heads", 4.0),
            ("num_key_value_heads", 2.0),
            ("max_seq_len", 1024.0),
        ])
    }

    fn request() -> KvRequest {
        KvRequest {
            n_slots: 3,
            n_snapshots: 0,
            n_kept: 0,
            capacity_tokens: 1000,
            max_rows: 100,
            dtypes: KvDtypes::new(Dtype::Bf16, Precision::Bf16),
            matrix_layout: false,
            odd_window: None,
            budget_bytes: usize::MAX,
        }
    }

    /// A cache for a layer with a window, if it is not 0, and one that sees everything: for this many slots, rows of a
    /// step, tokens of a sequence, blocks of the pool.
    pub(crate) fn windowed_layout(sizes: [usize; 4], window: usize, n_snapshots: usize) -> KvLayout {
        let [n_slots, max_rows, capacity_tokens, pool_blocks] = sizes;
        let config = config().with("num_hidden_layers", 2).with("sliding_window", window);
        let request = KvRequest {
            n_slots,
            n_snapshots,
            n_kept: 0,
            capacity_tokens,
            max_rows,
            dtypes: KvDtypes::new(Dtype::F32, Precision::F32),
            matrix_layout: false,
            odd_window: None,
            budget_bytes: usize::MAX,
        };
        let all = KvLayout::new(&config, &request).unwrap();
        let of_pool = |group: &&KvGroup| group.window.is_none();
        let pool = all.groups().iter().find(of_pool).unwrap();
        let pool_bytes = |n_blocks: usize| n_blocks * pool.block_bytes;
        let budget_bytes = all.total_bytes() - pool_bytes(pool.n_blocks) + pool_bytes(pool_blocks);
        KvLayout::new(&config, &KvRequest { budget_bytes, ..request }).unwrap()
    }

    #[test]
    fn even_layers_are_rings_and_odd_layers_share_a_pool() {
        let layout = KvLayout::new(&config(), &request()).unwrap();
        let (ring, pool) = (layout.group_of_layer(0), layout.group_of_layer(1));
        assert_eq!((ring.window, ring.n_layers, pool.window, pool.n_layers), (Some(128), 2, None, 2));
        assert_eq!((pool.table_blocks, pool.n_blocks), (16, 48));
        // bf16 keys and values: 2 tensors, 64 positions, 2 heads of 32, 2 bytes.
        assert_eq!(layout.total_bytes(), (2 * ring.n_blocks + 2 * 48) * (2 * 64 * 2 * 32 * 2));
    }

    #[test]
    fn a_ring_never_overwrites_a_position_that_a_row_of_the_same_step_sees() {
        for (window, max_rows) in [(1, 1), (7, 1), (7, 3), (64, 64), (65, 2), (128, 100), (128, 512)] {
            let n_blocks = ring_blocks(window, max_rows);
            for first in 0..3 * BLOCK_TOKENS * n_blocks {
                let oldest = (first + 1_usize).saturating_sub(window) / BLOCK_TOKENS;
                let newest = (first + max_rows - 1) / BLOCK_TOKENS;
                assert!(newest - oldest < n_blocks, "window {window}, {max_rows} rows from {first}");
            }
        }
    }

    #[test]
    fn a_cache_has_the_types_of_its_layers_and_no_others() {
        let layout = KvLayout::new(&config(), &request()).unwrap();
        assert_eq!([Dtype::Bf16, Dtype::F32, Dtype::Int8].map(|dtype| layout.has_dtype(dtype)), [true, false, false]);
    }

    #[test]
    fn a_cache_that_is_too_large_names_the_flag_that_gives_it_more() {
        let error = KvLayout::new(&config(), &KvRequest { budget_bytes: 0, ..request() }).unwrap_err();
        assert!(hint::Hint::hint(&error).is_some_and(|hint| hint.contains("`--kv-memory`")));
    }

    /// Blocks of 64 positions: 638 positions and one more begin anywhere in a block, and are in 11 at most.
    #[test]
    fn a_ring_has_no_more_blocks_than_its_positions_can_be_in() {
        assert_eq!([(1, 1), (128, 1), (64, 64), (128, 512)].map(|(window, n)| ring_blocks(window, n)), [2, 3, 3, 11]);
    }

    /// Of a model whose layers all have a window.
    pub(crate) fn rings_alone() -> KvLayout {
        KvLayout::new(&config().with("num_hidden_layers", 1), &request()).unwrap()
    }

    #[test]
    fn layers_that_see_everything_have_eight_bits_and_scales_and_rings_do_not() {
        let layout = |dtype, precision, capacity_tokens| {
            let dtypes = KvDtypes::new(dtype, precision);
            KvLayout::new(&config(), &KvRequest { dtypes, capacity_tokens, ..request() }).unwrap()
        };
        for (dtype, precision, ring) in
            [(Dtype::Int8, Precision::Bf16, Dtype::Bf16), (Dtype::Fp8, Precision::F32, Dtype::F32)]
        {
            let of_layer = |layout: &KvLayout, l| layout.tensors(l).map(|one| one.dtype).collect::<Vec<_>>();
            let long = layout(dtype, precision, 1000);
            assert_eq!(of_layer(&long, 0), [ring; 2]);
            assert_eq!(of_layer(&long, 1), [dtype, dtype, Dtype::F32, Dtype::F32]);
            // A position of a layer: keys and values of 2 heads, 32 elements each, and their scales.
            let of_position = |layout: &KvLayout, l| layout.group_of_layer(l).block_bytes / (2 * 64);
            let ring_bytes = 2 * 2 * 32 * ring.len_bytes(1);
            assert_eq!([of_position(&long, 0), of_position(&long, 1)], [ring_bytes, 2 * 2 * (32 + 4)]);
            // Where a window is as long as any sequence, its layers share the blocks and keep their type.
            let short = layout(dtype, precision, 100);
            assert_eq!((of_layer(&short, 0), short.groups().len()), (vec![ring; 2], 1));
            assert_eq!(of_position(&short, 0), ring_bytes + 2 * 2 * (32 + 4));
            assert!(short.has_dtype(dtype) && short.has_dtype(ring));
        }
    }

    #[test]
    fn snapshots_lie_behind_the_rings_and_take_from_the_pool() {
        let without = KvLayout::new(&config(), &request()).unwrap();
        let budget_bytes = without.total_bytes();
        let with = KvLayout::new(&config(), &KvRequest { n_snapshots: 5, budget_bytes, ..request() }).unwrap();
        // 127 positions before the first of a block are in two blocks.
        assert_eq!(with.group_of_layer(0).n_blocks, without.group_of_layer(0).n_blocks + 5 * 2);
        assert_eq!(with.group_of_layer(1).n_blocks, 48 - 5 * 2);
        assert_eq!((with.snapshot_bytes(), with.total_bytes()), (5 * 2 * 2 * (2 * 64 * 2 * 32 * 2), budget_bytes));
    }

    #[test]
    fn a_budget_shrinks_the_pool_but_not_below_one_sequence() {
        let whole = KvLayout::new(&config(), &request()).unwrap();
        let block = 2 * 64 * 2 * 32 * 2 * 2;
        let smaller = KvRequest { budget_bytes: whole.total_bytes() - 20 * block, ..request() };
        assert_eq!(KvLayout::new(&config(), &smaller).unwrap().group_of_layer(1).n_blocks, 28);
        let none = KvRequest { budget_bytes: whole.total_bytes() - 33 * block, ..request() };
        let error = KvLayout::new(&config(), &none).unwrap_err();
        assert_eq!(error.needed_bytes - error.budget_bytes, block);
        // More slots need more for windows, and no more for a sequence.
        let more = KvLayout::new(&config(), &KvRequest { n_slots: 6, budget_bytes: 0, ..request() }).unwrap_err();
        let of_sequence = |error: &KvTooLarge| error.needed_bytes - error.window_bytes;
        assert_eq!((of_sequence(&more), more.window_bytes), (of_sequence(&error), 2 * error.window_bytes));
    }

    #[test]
    fn a_pool_has_room_for_sequences_that_are_kept_as_far_as_the_budget_goes() {
        let without = KvLayout::new(&config(), &request()).unwrap();
        let keeping = KvRequest { n_kept: 7, ..request() };
        assert_eq!(KvLayout::new(&config(), &keeping).unwrap().group_of_layer(1).n_blocks, (3 + 7) * 16);
        let block = 2 * 64 * 2 * 32 * 2 * 2;
        let little = KvRequest { budget_bytes: without.total_bytes() + 5 * block, ..keeping };
        let layout = KvLayout::new(&config(), &little).unwrap();
        assert_eq!((layout.group_of_layer(1).n_blocks, layout.group_of_layer(1).table_blocks), (48 + 5, 16));
        assert_eq!(layout.group_of_layer(0), without.group_of_layer(0), "windows have their snapshots");
    }

    #[test]
    fn a_window_as_long_as_any_sequence_needs_no_ring() {
        let layout = KvLayout::new(&config(), &KvRequest { capacity_tokens: 100, ..request() }).unwrap();
        assert_eq!(layout.groups().len(), 1);
        assert_eq!(layout.groups()[0].window, None);
        assert_eq!([layout.window_of_layer(0), layout.window_of_layer(1)], [Some(128), None]);
    }
}
