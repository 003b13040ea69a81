//! Reference of `attention`, and where positions are in the cache.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, named, only, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

/// Where heads are in a row of qkv and positions are in the cache.
pub(super) struct Layout {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) half: usize,
    pub(crate) head_dim: usize,
    block_tokens: usize,
    table_blocks: usize,
    pub(crate) n_slots: usize,
    n_blocks: usize,
    /// Rows of keys run along d and rows of values along positions, not the other way round.
    matrix_layout: bool,
}

impl Layout {
    pub(crate) fn from_case(case: &Case) -> Result<Self, ReferenceError> {
        let half = case.dim("half_head_dim")?;
        let layout = Self {
            n_heads: case.dim("num_attention_heads")?,
            n_kv_heads: case.dim("num_key_value_heads")?,
            half,
            head_dim: 2 * half,
            block_tokens: case.dim("block_tokens")?,
            table_blocks: case.scalar("table_blocks")?,
            n_slots: case.scalar("n_slots")?,
            n_blocks: case.scalar("n_blocks")?,
            matrix_layout: case.flag("matrix_layout")?,
        };
        if layout.n_blocks < layout.n_slots * layout.table_blocks {
            let why = format!("{} blocks for {} slots of {}", layout.n_blocks, layout.n_slots, layout.table_blocks);
            return Err(ReferenceError::Contradiction { why });
        }
        Ok(layout)
    }

    /// Elements of a row of qkv.
    pub(crate) fn qkv_size(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Positions of a slot that the cache holds at once.
    pub(crate) fn capacity(&self) -> usize {
        self.block_tokens * self.table_blocks
    }

    /// Elements of k_cache, and of v_cache.
    pub(crate) fn cache_size(&self) -> usize {
        self.n_blocks * self.n_kv_heads * self.head_dim * self.block_tokens
    }

    /// Where positions that attention is tested at end: without a window where the slot's blocks do.
    pub(crate) fn end(&self, window: usize) -> usize {
        if window == 0 { self.capacity() } else { 3 * self.capacity() }
    }

    pub(crate) fn block(&self, table: &Tensor, slot: usize, p: usize) -> usize {
        table.index(slot * self.table_blocks + p / self.block_tokens % self.table_blocks)
    }

    /// k_cache: (n_blocks, n_kv_heads, head_dim, block_tokens), for matrix units (…, block_tokens, head_dim)
    pub(crate) fn k(&self, block: usize, g: usize, d: usize, p: usize) -> usize {
        self.place(block, g, d, p, self.matrix_layout)
    }

    /// v_cache: (n_blocks, n_kv_heads, block_tokens, head_dim), for matrix units (…, head_dim, block_tokens)
    pub(crate) fn v(&self, block: usize, g: usize, d: usize, p: usize) -> usize {
        self.place(block, g, d, p, !self.matrix_layout)
    }

    /// Where the scale of a head's elements at one position is, in caches that have scales.
    pub(crate) fn scale(&self, block: usize, g: usize, p: usize) -> usize {
        (block * self.n_kv_heads + g) * self.block_tokens + p % self.block_tokens
    }

    /// Elements of k_scale, and of v_scale.
    pub(crate) fn n_scales(&self) -> usize {
        self.n_blocks * self.n_kv_heads * self.block_tokens
    }

    pub(crate) fn place(&self, block: usize, g: usize, d: usize, p: usize, d_is_innermost: bool) -> usize {
        let (p, head) = (p % self.block_tokens, (block * self.n_kv_heads + g) * self.block_tokens * self.head_dim);
        head + if d_is_innermost { p * self.head_dim + d } else { d * self.block_tokens + p }
    }

    /// Every slot's blocks: no block is in two places.
    pub(crate) fn block_table(&self, random: &mut Random) -> Tensor {
        let mut blocks: Vec<usize> = (0..self.n_blocks).collect();
        random.shuffle(&mut blocks);
        Tensor::whole(blocks.into_iter().take(self.n_slots * self.table_blocks))
    }
}

/// Rows as a step has them while it takes in a prompt: consecutive rows of one slot, whose first position `start` says,
/// given their count, and single rows of the other slots before and after them.
pub(super) fn chunk(
    layout: &Layout,
    n_tokens: usize,
    start: impl Fn(usize, &mut Random) -> usize,
    random: &mut Random,
) -> Vec<(usize, usize)> {
    let mut slots: Vec<usize> = (0..layout.n_slots).collect();
    random.shuffle(&mut slots);
    let others = &slots[1..layout.n_slots.min(n_tokens)];
    let len = n_tokens - others.len();
    let start = start(len, random);
    let mut rows: Vec<(usize, usize)> = others.iter().map(|&slot| (slot, random.below(layout.capacity()))).collect();
    let behind = rows.split_off(rows.len() / 2);
    rows.extend((start..start + len).map(|p| (slots[0], p)));
    rows.extend(behind);
    rows
}

pub(super) fn attention_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (layout, window, n_tokens) = (Layout::from_case(case)?, case.dim("window")?, case.n_tokens()?);
    let kv = case.dtype("kv")?;
    let end = layout.end(window);
    let rows: Vec<(usize, usize)> = if case.wants("chunk") {
        chunk(&layout, n_tokens, |len, random| 1 + random.below(end.saturating_sub(len).max(1)), random)
    } else if case.wants("decode") {
        last_positions(&layout, n_tokens, end)?
    } else if case.wants("end") {
        (end.saturating_sub(n_tokens)..end).map(|p| (0, p)).collect()
    } else if case.wants("prompt") {
        chunk(&layout, n_tokens, |_, _| 0, random)
    } else {
        (0..n_tokens).map(|t| (random.below(layout.n_slots), a_position(&layout, window, t, random))).collect()
    };
    if let Some((_, position)) = rows.iter().find(|row| row.1 >= end) {
        let why = format!("position {position} in {} blocks of {}", layout.table_blocks, layout.block_tokens);
        return Err(ReferenceError::Contradiction { why });
    }
    let table = layout.block_table(random);
    let sight = Sight { window, n_positions: n_positions(case, &layout, rows.iter().copied()) };
    let [k_cache, v_cache] = match case.inputs.as_deref() {
        Some("decode" | "end") => [(); 2].map(|()| tame_cache(&layout, kv, random)),
        _ => caches(&layout, &sight, &rows, &table, kv, random),
    };
    let mut inputs = named([
        ("qkv", random.normals(Dtype::F32, n_tokens * layout.qkv_size(), 2.0)),
        ("slot", Tensor::whole(rows.iter().map(|row| row.0))),
        ("position", Tensor::whole(rows.iter().map(|row| row.1))),
        ("block_table", table),
    ]);
    for (which, (cache, scales)) in [("k", k_cache), ("v", v_cache)] {
        inputs.insert(format!("{which}_cache"), cache);
        inputs.extend(scales.map(|scales| (format!("{which}_scale"), scales)));
    }
    if case.flag("has_sinks")? {
        inputs.insert("sinks".into(), random.normals(case.dtype("sinks")?, layout.n_heads, 1.0));
    }
    Ok(inputs)
}

/// Every row alone in its slot, at the last position before `end`.
pub(super) fn last_positions(
    layout: &Layout,
    n_tokens: usize,
    end: usize,
) -> Result<Vec<(usize, usize)>, ReferenceError> {
    if n_tokens > layout.n_slots {
        let why = format!("{n_tokens} rows alone in {} slots", layout.n_slots);
        return Err(ReferenceError::Contradiction { why });
    }
    Ok((0..n_tokens).map(|t| (t, end - 1)).collect())
}

/// Keys or values, and their scales in caches that have such.
type Cache = (Tensor, Option<Tensor>);

/// The deviation of elements of a cache, and the mean of their scales: the products are normal numbers.
fn spread(kv: Dtype) -> (f64, Option<f64>) {
    match kv.largest_of_row().map(f64::from) {
        Some(largest) => (largest / 4.0, Some(4.0 / largest)),
        None => (1.0, None),
    }
}

/// The scale of a row: within a quarter of the mean.
fn a_scale(mean: f64, random: &mut Random) -> f64 {
    mean * (0.75 + random.uniform() / 2.0)
}

/// What no row sees is as tame as the rest.
fn tame_cache(layout: &Layout, kv: Dtype, random: &mut Random) -> Cache {
    let (deviation, mean) = spread(kv);
    let cache = random.normals(kv, layout.cache_size(), deviation);
    let scales = mean.map(|mean| (0..layout.n_scales()).map(|_| a_scale(mean, random)).collect());
    (cache, scales.map(|scales| Tensor::rounded(Dtype::F32, scales)))
}

/// Keys and values where a row sees them, and traps where none does.
fn caches(
    layout: &Layout,
    sight: &Sight,
    rows: &[(usize, usize)],
    table: &Tensor,
    kv: Dtype,
    random: &mut Random,
) -> [Cache; 2] {
    // What nobody may look at is far from what is looked at, or not a number: memory that was never written can hold
    // either.
    let mut unseen = |i: usize| if i.is_multiple_of(3) { f64::NAN } else { 3e4 * random.normal() };
    let mut k_cache: Vec<f64> = (0..layout.cache_size()).map(&mut unseen).collect();
    let mut v_cache = k_cache.clone();
    let (deviation, mean) = spread(kv);
    let mut k_scale: Vec<f64> = mean.map_or_else(Vec::new, |_| (0..layout.n_scales()).map(&mut unseen).collect());
    let mut v_scale = k_scale.clone();
    for &(slot, position) in rows {
        for p in sight.visible(slot, position) {
            let block = layout.block(table, slot, p);
            for i in 0..layout.n_kv_heads * layout.head_dim {
                let (g, d) = (i / layout.head_dim, i % layout.head_dim);
                k_cache[layout.k(block, g, d, p)] = deviation * random.normal();
                v_cache[layout.v(block, g, d, p)] = deviation * random.normal();
            }
            for (g, mean) in (0..layout.n_kv_heads).filter_map(|g| Some((g, mean?))) {
                k_scale[layout.scale(block, g, p)] = a_scale(mean, random);
                v_scale[layout.scale(block, g, p)] = a_scale(mean, random);
            }
        }
    }
    let scales = |scales| mean.map(|_| Tensor::rounded(Dtype::F32, scales));
    [(Tensor::rounded(kv, k_cache), scales(k_scale)), (Tensor::rounded(kv, v_cache), scales(v_scale))]
}

/// The position of row t: the edges of window, block and ring first, then any.
fn a_position(layout: &Layout, window: usize, t: usize, random: &mut Random) -> usize {
    let (block, capacity, end) = (layout.block_tokens, layout.capacity(), layout.end(window));
    // The position is one less than the context: before the window's end, at it, and past it.
    let at_window = [window.saturating_sub(2), window.saturating_sub(1), window];
    let edges = [end - 1, 0, at_window[2], at_window[1], block - 1, block, capacity - 1, capacity, window + block];
    match edges.iter().chain(&[at_window[0], 299]).nth(t) {
        Some(&edge) if edge < end => edge,
        _ => random.below(end),
    }
}

/// Positions of every slot, up to that of its last row, if the flag `causal` is false. No contract declares `causal`;
/// its default is true.
fn n_positions(case: &Case, layout: &Layout, rows: impl Iterator<Item = (usize, usize)>) -> Option<Vec<usize>> {
    if case.flags.get("causal") != Some(&false) {
        return None;
    }
    let mut ends = vec![0; layout.n_slots];
    for (slot, position) in rows {
        ends[slot] = ends[slot].max(position + 1);
    }
    Some(ends)
}

struct Sight {
    /// Positions on one side, the token's own included; 0 is all.
    window: usize,
    /// Positions in each slot; none if attention is causal, so that no row sees later positions.
    n_positions: Option<Vec<usize>>,
}

impl Sight {
    /// The positions that a token of `slot` at `position` sees.
    fn visible(&self, slot: usize, position: usize) -> std::ops::Range<usize> {
        let reach = if self.window == 0 { usize::MAX } else { self.window };
        let end = self.n_positions.as_ref().map_or(position + 1, |n| n[slot].min(position.saturating_add(reach)));
        (position + 1).saturating_sub(reach)..end
    }
}

/// y[t, h] = sum_p w_p v[p], w the softmax over q[t, h] . k[p] / sqrt(head_dim) for all visible p and the sink, if
/// there is one, which has no value; k[p] and v[p] times their scales, if there are such. The scale is the largest
/// visible |v|.
pub(super) fn attention(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (layout, window, n_tokens) = (Layout::from_case(case)?, case.dim("window")?, case.n_tokens()?);
    let [qkv, slot, position, table] = ["qkv", "slot", "position", "block_table"].map(|name| tensor(inputs, name));
    let (qkv, slot, position, table) = (qkv?, slot?, position?, table?);
    let [k, v] = ["k_cache", "v_cache"].map(|name| tensor(inputs, name));
    let (k, v) = (k?.values(), v?.values());
    let has_scales = case.dtype("kv")?.largest_of_row().is_some();
    let [k_scale, v_scale] = ["k_scale", "v_scale"].map(|name| has_scales.then(|| tensor(inputs, name)).transpose());
    let (k_scale, v_scale) = (k_scale?, v_scale?);
    let scale = |scales: Option<&Tensor>, (block, p), g| {
        scales.map_or(1.0, |scales| scales.values()[layout.scale(block, g, p)])
    };
    let sinks = case.flag("has_sinks")?.then(|| tensor(inputs, "sinks")).transpose()?;
    let rows = (0..n_tokens).map(|t| (slot.index(t), position.index(t)));
    let sight = Sight { window, n_positions: n_positions(case, &layout, rows) };
    let group = layout.n_heads / layout.n_kv_heads;
    let mut y = Vec::new();
    for t in 0..n_tokens {
        let places: Vec<(usize, usize)> = sight
            .visible(slot.index(t), position.index(t))
            .map(|p| (layout.block(table, slot.index(t), p), p))
            .collect();
        for h in 0..layout.n_heads {
            let (g, row) = (h / group, t * layout.qkv_size() + h * layout.head_dim);
            let score = |&(block, p): &(usize, usize)| {
                let terms = (0..layout.head_dim).map(|d| qkv.values()[row + d] * k[layout.k(block, g, d, p)]);
                terms.sum::<f64>() * scale(k_scale, (block, p), g) / (layout.head_dim as f64).sqrt()
            };
            let weights = softmax(places.iter().map(score).collect(), sinks.map(|sinks| sinks.values()[h]));
            let value = |d: usize, i: usize| {
                let (block, p) = places[i];
                v[layout.v(block, g, d, p)] * scale(v_scale, (block, p), g)
            };
            let all = (0..layout.head_dim).flat_map(|d| (0..places.len()).map(move |i| (d, i)));
            let largest = all.map(|(d, i)| value(d, i).abs()).fold(0.0, f64::max);
            y.extend(
                (0..layout.head_dim).map(|d| {
                    (weights.iter().enumerate().map(|(i, weight)| weight * value(d, i)).sum::<f64>(), largest)
                }),
            );
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// The softmax over the scores and the sink, without the sink's own weight.
fn softmax(scores: Vec<f64>, sink: Option<f64>) -> Vec<f64> {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total = exponentials.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    exponentials.iter().map(|exponential| exponential / total).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{attention_case, close, f32s, run_one, u32s};
    use super::*;
    use crate::run;

    fn case(op_inputs: &str, window: u32) -> Case {
        let dims = [("num_attention_heads", 2), ("num_key_value_heads", 1), ("half_head_dim", 1), ("block_tokens", 4)];
        let scalars = [("n_tokens", 9.0), ("n_slots", 3.0), ("table_blocks", 3.0), ("n_blocks", 9.0)];
        Case {
            dims: dims.iter().chain(&[("window", window)]).map(|&(name, n)| (name.to_owned(), n)).collect(),
            flags: ["has_sinks", "matrix_layout"].map(|name| (name.to_owned(), true)).into(),
            dtypes: ["kv", "sinks"].map(|name| (name.to_owned(), Dtype::F32)).into(),
            inputs: Some(op_inputs.to_owned()),
            scalars: scalars.map(|(name, n)| (name.to_owned(), n)).into(),
            ..Case::default()
        }
    }

    #[test]
    fn a_chunk_is_consecutive_rows_of_one_slot_between_single_rows_of_the_others() {
        for (kind, window) in [("chunk", 0), ("chunk", 5), ("prompt", 5)] {
            for seed in 0..20 {
                let inputs = attention_inputs(&case(kind, window), &mut Random::new(seed)).unwrap();
                let rows: Vec<(usize, usize)> =
                    (0..9).map(|t| (inputs["slot"].index(t), inputs["position"].index(t))).collect();
                let (slot, start) = rows[1];
                assert!(rows[1..8].iter().enumerate().all(|(i, row)| *row == (slot, start + i)), "{rows:?}");
                assert!(rows[0].0 != slot && rows[8].0 != slot && rows[0].0 != rows[8].0, "{rows:?}");
                assert_eq!(start == 0, kind == "prompt", "{rows:?}");
            }
        }
    }

    #[test]
    fn tokens_see_up_to_their_own_position_or_as_far_behind_it_as_before() {
        let sight = |window, n_positions| Sight { window, n_positions };
        assert_eq!(sight(0, None).visible(1, 7), 0..8);
        assert_eq!(sight(3, None).visible(1, 7), 5..8);
        assert_eq!(sight(0, Some(vec![99, 20])).visible(1, 7), 0..20);
        assert_eq!(sight(3, Some(vec![99, 20])).visible(1, 7), 5..10);
        assert_eq!(sight(3, Some(vec![99, 9])).visible(1, 7), 5..9);
        assert_eq!(sight(3, None).visible(0, 1), 0..2);
    }

    #[test]
    fn the_layouts_for_matrix_units_have_rows_of_keys_along_d_and_of_values_along_positions() {
        let layout = Layout::from_case(&case("chunk", 0)).unwrap();
        let (block, g, d, p) = (2, 0, 1, 7); // position 3 of its block
        assert_eq!(layout.k(block, g, d, p), 2 * 8 + 3 * 2 + 1);
        assert_eq!(layout.v(block, g, d, p), 2 * 8 + 4 + 3);
        let layout = Layout { matrix_layout: false, ..layout };
        assert_eq!(layout.k(block, g, d, p), 2 * 8 + 4 + 3);
        assert_eq!(layout.v(block, g, d, p), 2 * 8 + 3 * 2 + 1);
    }

    #[test]
    fn a_kind_of_inputs_that_no_op_knows_is_an_error() {
        let error = crate::inputs(&["attention".into()], &case("chunks", 0), 0).unwrap_err();
        assert_eq!(error.to_string(), "there are no inputs `chunks` of `attention`, only chunk, prompt, decode, end");
    }

    #[test]
    fn attention_weighs_visible_values_and_the_sink_takes_its_share() {
        // Position 2, blocks in order; q = 0, so all scores are 0; head 0 has a sink of 0, head 1 none to speak of.
        let inputs = named([
            ("qkv", f32s(&[0.0; 8])),
            ("slot", u32s(&[0])),
            ("position", u32s(&[2])),
            ("block_table", u32s(&[0, 1])),
            ("k_cache", f32s(&[1.0; 8])),
            ("v_cache", f32s(&[3.0, 30.0, 6.0, 60.0, 9.0, 90.0, 1e9, 1e9])),
            ("sinks", f32s(&[0.0, -1e3])),
        ]);
        let all = run(&["attention".into()], &attention_case(0), &inputs).unwrap().remove("y").unwrap();
        close(&all.values, &[18.0 / 4.0, 180.0 / 4.0, 6.0, 60.0]);
        close(&all.scale, &[90.0; 4]);
        // A window of 2 counts the token itself.
        close(&run_one("attention", &attention_case(2), inputs, "y"), &[5.0, 50.0, 7.5, 75.0]);
    }

    #[test]
    fn scales_of_positions_multiply_scores_and_values() {
        // Scores are ln 3 and 0 by the scales of keys alone; values are 2 * 3 and 4 * 5, and 2 * 30 and 4 * 50.
        let ln3 = 3f64.ln() * 2f64.sqrt(); // head_dim is 2
        let inputs = named([
            ("qkv", f32s(&[1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
            ("slot", u32s(&[0])),
            ("position", u32s(&[1])),
            ("block_table", u32s(&[0, 1])),
            ("k_cache", Tensor::rounded(Dtype::Int8, [100.0, 100.0].into_iter().chain([0.0; 6]).collect())),
            ("v_cache", Tensor::rounded(Dtype::Int8, vec![3.0, 30.0, 5.0, 50.0, 0.0, 0.0, 0.0, 0.0])),
            ("k_scale", f32s(&[ln3 / 100.0, 0.0, f64::NAN, f64::NAN])),
            ("v_scale", f32s(&[2.0, 4.0, f64::NAN, f64::NAN])),
        ]);
        let mut case = attention_case(0);
        case.flags.insert("has_sinks".into(), false);
        case.dtypes.insert("kv".into(), Dtype::Int8);
        let y = [(3.0 * 6.0 + 20.0) / 4.0, (3.0 * 60.0 + 200.0) / 4.0];
        close(&run_one("attention", &case, inputs, "y"), &[y, y].concat());
    }

    #[test]
    fn attention_without_sinks_gives_all_weight_to_visible_values() {
        // As above, and sinks that are there nevertheless are nothing to it. A window of 1 is the token's own value.
        let inputs = named([
            ("qkv", f32s(&[0.0; 8])),
            ("slot", u32s(&[0])),
            ("position", u32s(&[2])),
            ("block_table", u32s(&[0, 1])),
            ("k_cache", f32s(&[1.0; 8])),
            ("v_cache", f32s(&[3.0, 30.0, 6.0, 60.0, 9.0, 90.0, 1e9, 1e9])),
            ("sinks", f32s(&[0.0, 5.0])),
        ]);
        let without_sinks = |window| {
            let mut case = attention_case(window);
            case.flags.insert("has_sinks".into(), false);
            case.dtypes.insert("kv".into(), Dtype::F32);
            case
        };
        close(&run_one("attention", &without_sinks(0), inputs.clone(), "y"), &[6.0, 60.0, 6.0, 60.0]);
        close(&run_one("attention", &without_sinks(1), inputs, "y"), &[9.0, 90.0, 9.0, 90.0]);
        assert!(!attention_inputs(&without_sinks(0), &mut Random::new(1)).unwrap().contains_key("sinks"));
        close(&softmax(vec![-1e6, -1e6 + 3f64.ln()], None), &[0.25, 0.75]);
    }

    #[test]
    fn attention_that_is_not_causal_sees_up_to_the_last_row_of_its_slot() {
        // Rows at positions 1 and 2 of a slot; q = 0, so all scores are 0; head 1 has no sink to speak of.
        let inputs = named([
            ("qkv", f32s(&[0.0; 16])),
            ("slot", u32s(&[0, 0])),
            ("position", u32s(&[1, 2])),
            ("block_table", u32s(&[0, 1])),
            ("k_cache", f32s(&[1.0; 8])),
            ("v_cache", f32s(&[3.0, 30.0, 6.0, 60.0, 9.0, 90.0, 1e9, 1e9])),
            ("sinks", f32s(&[0.0, -1e3])),
        ]);
        let mut case = attention_case(0);
        case.scalars.insert("n_tokens".into(), 2.0);
        case.flags.insert("causal".into(), false);
        let all = [18.0 / 4.0, 180.0 / 4.0, 6.0, 60.0];
        close(&run_one("attention", &case, inputs.clone(), "y"), &[all, all].concat());
        // A window of 1 is the token alone, one of 2 a neighbour on either side.
        case.dims.insert("window".into(), 1);
        close(&run_one("attention", &case, inputs.clone(), "y"), &[3.0, 30.0, 6.0, 60.0, 4.5, 45.0, 9.0, 90.0]);
        case.dims.insert("window".into(), 2);
        let last = [5.0, 50.0, 7.5, 75.0];
        close(&run_one("attention", &case, inputs, "y"), &[all, last].concat());
    }

    #[test]
    fn attention_scores_are_scaled_by_the_root_of_the_head_size() {
        let ln = |weight: f64| weight.ln() * 2f64.sqrt(); // head_dim is 2
        let inputs = named([
            ("qkv", f32s(&[1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
            ("slot", u32s(&[0])),
            ("position", u32s(&[1])),
            ("block_table", u32s(&[0, 1])),
            ("k_cache", f32s(&[ln(1.0), ln(3.0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
            ("v_cache", f32s(&[0.0, 1.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0])),
            ("sinks", f32s(&[-1e3, 0.0])),
        ]);
        close(&run_one("attention", &attention_case(0), inputs, "y"), &[3.0, 1.0, 12.0 / 5.0, 4.0 / 5.0]);
    }
}
