//! References of `rope_angles`, `rope_kv` and `attention`.

use super::random::Random;
use super::{Case, Output, Outputs, ReferenceError, Tensor, Tensors, named, only, tensor};
use crate::dtype::Dtype;

pub(super) fn rope_angles_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let half = case.dim("half_head_dim")?;
    // gpt-oss: theta 150000, and the longest context it states.
    let inv_freq = (0..half).map(|i| 150_000f64.powf(-(i as f64) / half as f64)).collect();
    Ok(named([
        ("inv_freq", Tensor::rounded(Dtype::F32, inv_freq)),
        ("position", random.indices(case.n_tokens()?, 131_072)),
    ]))
}

/// cos_sin[t, i] = cos(position[t] * inv_freq[i]) * concentration, cos_sin[t, half + i] the same with sin. The angle is
/// rounded to f32 first, as the contract states.
pub(super) fn rope_angles(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (inv_freq, position) = (tensor(inputs, "inv_freq")?, tensor(inputs, "position")?);
    let concentration = case.constant("concentration")?;
    let mut cos_sin = Vec::new();
    for &position in position.values() {
        let angles = inv_freq.values().iter().map(|inv_freq| f64::from(position as f32 * *inv_freq as f32));
        cos_sin.extend(angles.clone().map(|angle| angle.cos() * concentration));
        cos_sin.extend(angles.map(|angle| angle.sin() * concentration));
    }
    Ok(only("cos_sin", Output::plain(cos_sin)))
}

/// Where heads are in a row of qkv and positions are in the cache.
struct Layout {
    n_heads: usize,
    n_kv_heads: usize,
    half: usize,
    head_dim: usize,
    block_tokens: usize,
    table_blocks: usize,
    n_slots: usize,
    n_blocks: usize,
}

impl Layout {
    fn of(case: &Case) -> Result<Self, ReferenceError> {
        let half = case.dim("half_head_dim")?;
        let layout = Self {
            n_heads: case.dim("num_attention_heads")?,
            n_kv_heads: case.dim("num_key_value_heads")?,
            half,
            head_dim: 2 * half,
            block_tokens: case.dim("block_tokens")?,
            table_blocks: case.dim("table_blocks")?,
            n_slots: case.dim("n_slots")?,
            n_blocks: case.dim("n_blocks")?,
        };
        if layout.n_blocks < layout.n_slots * layout.table_blocks {
            let why = format!("{} blocks for {} slots of {}", layout.n_blocks, layout.n_slots, layout.table_blocks);
            return Err(ReferenceError::Contradiction { why });
        }
        Ok(layout)
    }

    /// Elements of a row of qkv.
    fn qkv_size(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Positions of a slot that the cache holds at once.
    fn capacity(&self) -> usize {
        self.block_tokens * self.table_blocks
    }

    /// Elements of k_cache, and of v_cache.
    fn cache_size(&self) -> usize {
        self.n_blocks * self.n_kv_heads * self.head_dim * self.block_tokens
    }

    fn block(&self, table: &Tensor, slot: usize, p: usize) -> usize {
        table.index(slot * self.table_blocks + p / self.block_tokens % self.table_blocks)
    }

    /// k_cache: (n_blocks, n_kv_heads, head_dim, block_tokens)
    fn k(&self, block: usize, g: usize, d: usize, p: usize) -> usize {
        ((block * self.n_kv_heads + g) * self.head_dim + d) * self.block_tokens + p % self.block_tokens
    }

    /// v_cache: (n_blocks, n_kv_heads, block_tokens, head_dim)
    fn v(&self, block: usize, g: usize, d: usize, p: usize) -> usize {
        ((block * self.n_kv_heads + g) * self.block_tokens + p % self.block_tokens) * self.head_dim + d
    }

    /// Every slot's blocks: no block is in two places.
    fn block_table(&self, random: &mut Random) -> Tensor {
        let mut blocks: Vec<usize> = (0..self.n_blocks).collect();
        random.shuffle(&mut blocks);
        Tensor::whole(blocks.into_iter().take(self.n_slots * self.table_blocks))
    }
}

pub(super) fn rope_kv_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (layout, n_tokens, kv) = (Layout::of(case)?, case.n_tokens()?, case.dtype("kv")?);
    let rows = runs(&layout, n_tokens, random)?;
    let mut cos_sin = Vec::new();
    for _ in 0..n_tokens {
        let angles: Vec<f64> = (0..layout.half).map(|_| std::f64::consts::TAU * random.uniform()).collect();
        cos_sin.extend(angles.iter().map(|angle| 1.3 * angle.cos()));
        cos_sin.extend(angles.iter().map(|angle| 1.3 * angle.sin()));
    }
    Ok(named([
        ("qkv", random.normals(Dtype::F32, n_tokens * layout.qkv_size(), 1.0)),
        ("cos_sin", Tensor::rounded(Dtype::F32, cos_sin)),
        ("slot", Tensor::whole(rows.iter().map(|row| row.0))),
        ("position", Tensor::whole(rows.iter().map(|row| row.1))),
        ("block_table", layout.block_table(random)),
        ("k_cache", random.normals(kv, layout.cache_size(), 1.0)),
        ("v_cache", random.normals(kv, layout.cache_size(), 1.0)),
    ]))
}

/// Rows as a step has them: each slot stores a run of positions, no two rows in the same place of the cache. One run
/// starts at position 0, one crosses the end of the ring, the others start anywhere.
fn runs(layout: &Layout, n_tokens: usize, random: &mut Random) -> Result<Vec<(usize, usize)>, ReferenceError> {
    let len = n_tokens.div_ceil(layout.n_slots);
    let capacity = layout.capacity();
    if len > capacity {
        let why = format!("{n_tokens} tokens for {} slots of {capacity} positions", layout.n_slots);
        return Err(ReferenceError::Contradiction { why });
    }
    let first_slot = random.below(layout.n_slots);
    let mut rows = Vec::new();
    for i in 0..layout.n_slots {
        let start = match i {
            0 => capacity - len.div_ceil(2),
            1 => 0,
            _ => random.below(3 * capacity),
        };
        rows.extend((start..start + len).map(|p| ((first_slot + i) % layout.n_slots, p)));
    }
    rows.truncate(n_tokens);
    random.shuffle(&mut rows);
    Ok(rows)
}

/// out_i = x_i cos_i - x_{i + half} sin_i, out_{i + half} = x_{i + half} cos_i + x_i sin_i for q and k; k and v go to the
/// cache. What is left of k in qkv is open.
pub(super) fn rope_kv(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let layout = Layout::of(case)?;
    let (slot, position, table) =
        (tensor(inputs, "slot")?, tensor(inputs, "position")?, tensor(inputs, "block_table")?);
    let mut qkv = Output::plain(tensor(inputs, "qkv")?.values().to_vec());
    let mut k_cache = Output::plain(tensor(inputs, "k_cache")?.values().to_vec());
    let mut v_cache = Output::plain(tensor(inputs, "v_cache")?.values().to_vec());
    let cos_sin = tensor(inputs, "cos_sin")?.values().chunks(layout.head_dim);
    for (t, cos_sin) in cos_sin.enumerate() {
        let row = t * layout.qkv_size()..(t + 1) * layout.qkv_size();
        let (values, scale) = (&mut qkv.values[row.clone()], &mut qkv.scale[row]);
        for h in 0..layout.n_heads + layout.n_kv_heads {
            let head = h * layout.head_dim..(h + 1) * layout.head_dim;
            rotate(&mut values[head.clone()], &mut scale[head], cos_sin);
        }
        let (p, k) = (position.index(t), layout.n_heads * layout.head_dim);
        let (block, v) = (layout.block(table, slot.index(t), p), k + layout.n_kv_heads * layout.head_dim);
        for i in 0..layout.n_kv_heads * layout.head_dim {
            let (g, d) = (i / layout.head_dim, i % layout.head_dim);
            store(&mut k_cache, layout.k(block, g, d, p), values[k + i], scale[k + i]);
            store(&mut v_cache, layout.v(block, g, d, p), values[v + i], scale[v + i]);
        }
        scale[k..v].fill(f64::INFINITY);
    }
    Ok(Outputs::from([("qkv".into(), qkv), ("k_cache".into(), k_cache), ("v_cache".into(), v_cache)]))
}

fn store(output: &mut Output, i: usize, value: f64, scale: f64) {
    output.values[i] = value;
    output.scale[i] = scale;
}

/// Rotates a head; the scale becomes the sum of the sizes of the two terms.
fn rotate(x: &mut [f64], scale: &mut [f64], cos_sin: &[f64]) {
    let half = x.len() / 2;
    for i in 0..half {
        let (a, b, cos, sin) = (x[i], x[half + i], cos_sin[i], cos_sin[half + i]);
        (x[i], x[half + i]) = (a * cos - b * sin, b * cos + a * sin);
        (scale[i], scale[half + i]) = ((a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs());
    }
}

pub(super) fn attention_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (layout, window, n_tokens) = (Layout::of(case)?, case.dim("window")?, case.n_tokens()?);
    let kv = case.dtype("kv")?;
    let rows: Vec<(usize, usize)> =
        (0..n_tokens).map(|t| (random.below(layout.n_slots), a_position(&layout, window, t, random))).collect();
    let table = layout.block_table(random);
    // What nobody may look at is far from what is looked at.
    let mut k_cache: Vec<f64> = (0..layout.cache_size()).map(|_| 3e4 * random.normal()).collect();
    let mut v_cache = k_cache.clone();
    for &(slot, position) in &rows {
        for p in visible(window, position) {
            let block = layout.block(&table, slot, p);
            for i in 0..layout.n_kv_heads * layout.head_dim {
                let (g, d) = (i / layout.head_dim, i % layout.head_dim);
                k_cache[layout.k(block, g, d, p)] = random.normal();
                v_cache[layout.v(block, g, d, p)] = random.normal();
            }
        }
    }
    Ok(named([
        ("qkv", random.normals(Dtype::F32, n_tokens * layout.qkv_size(), 2.0)),
        ("slot", Tensor::whole(rows.iter().map(|row| row.0))),
        ("position", Tensor::whole(rows.iter().map(|row| row.1))),
        ("block_table", table),
        ("k_cache", Tensor::rounded(kv, k_cache)),
        ("v_cache", Tensor::rounded(kv, v_cache)),
        ("sinks", random.normals(case.dtype("sinks")?, layout.n_heads, 1.0)),
    ]))
}

/// The position of row t: the edges of window, block and ring first, then any. Without a window a slot's positions
/// end where its blocks do.
fn a_position(layout: &Layout, window: usize, t: usize, random: &mut Random) -> usize {
    let (block, capacity) = (layout.block_tokens, layout.capacity());
    let end = if window == 0 { capacity } else { 3 * capacity };
    let edges =
        [end - 1, 0, window, window.saturating_sub(1), block - 1, block, capacity - 1, capacity, window + block];
    match edges.get(t) {
        Some(&edge) if edge < end => edge,
        _ => random.below(end),
    }
}

/// The positions that a token at `position` sees.
fn visible(window: usize, position: usize) -> std::ops::Range<usize> {
    let begin = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
    begin..position + 1
}

/// y[t, h] = sum_p w_p v[p], w the softmax over q[t, h] . k[p] / sqrt(head_dim) for all visible p and the sink, which has
/// no value. The scale is the largest visible |v|.
pub(super) fn attention(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (layout, window, n_tokens) = (Layout::of(case)?, case.dim("window")?, case.n_tokens()?);
    let [qkv, slot, position, table] = ["qkv", "slot", "position", "block_table"].map(|name| tensor(inputs, name));
    let (qkv, slot, position, table) = (qkv?, slot?, position?, table?);
    let [k, v, sinks] = ["k_cache", "v_cache", "sinks"].map(|name| tensor(inputs, name));
    let (k, v, sinks) = (k?.values(), v?.values(), sinks?.values());
    let group = layout.n_heads / layout.n_kv_heads;
    let mut y = Vec::new();
    for t in 0..n_tokens {
        let places: Vec<(usize, usize)> =
            visible(window, position.index(t)).map(|p| (layout.block(table, slot.index(t), p), p)).collect();
        for (h, &sink) in sinks.iter().enumerate() {
            let (g, row) = (h / group, t * layout.qkv_size() + h * layout.head_dim);
            let score = |&(block, p): &(usize, usize)| {
                let terms = (0..layout.head_dim).map(|d| qkv.values()[row + d] * k[layout.k(block, g, d, p)]);
                terms.sum::<f64>() / (layout.head_dim as f64).sqrt()
            };
            let weights = softmax_with_sink(places.iter().map(score).collect(), sink);
            let value = |d: usize, i: usize| v[layout.v(places[i].0, g, d, places[i].1)];
            let all = (0..layout.head_dim).flat_map(|d| (0..places.len()).map(move |i| (d, i)));
            let scale = all.map(|(d, i)| value(d, i).abs()).fold(0.0, f64::max);
            y.extend(
                (0..layout.head_dim)
                    .map(|d| (weights.iter().enumerate().map(|(i, weight)| weight * value(d, i)).sum::<f64>(), scale)),
            );
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// The softmax over the scores and the sink, without the sink's own weight.
fn softmax_with_sink(scores: Vec<f64>, sink: f64) -> Vec<f64> {
    let max = scores.iter().copied().fold(sink, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total = exponentials.iter().sum::<f64>() + (sink - max).exp();
    exponentials.iter().map(|exponential| exponential / total).collect()
}
