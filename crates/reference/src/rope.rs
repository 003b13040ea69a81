//! References of `rope_angles` and `rope_kv`.

use super::attention::{Layout, chunk, last_positions};
use super::case::{Case, Output, Outputs, ReferenceError, Tensors, named, only, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

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

pub(super) fn rope_kv_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (layout, n_tokens, kv) = (Layout::from_case(case)?, case.n_tokens()?, case.dtype("kv")?);
    let rows = rope_kv_rows(case, &layout, random)?;
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

/// Slot and position of every row, no two of them in the same place of the cache.
fn rope_kv_rows(case: &Case, layout: &Layout, random: &mut Random) -> Result<Vec<(usize, usize)>, ReferenceError> {
    let (n_tokens, capacity, is_chunk) = (case.n_tokens()?, layout.capacity(), case.wants("chunk"));
    let longest = if is_chunk { n_tokens } else { n_tokens.div_ceil(layout.n_slots) };
    if longest > capacity {
        let why = format!("a run of {longest} tokens in a slot of {capacity} positions");
        return Err(ReferenceError::Contradiction { why });
    }
    if case.wants("decode") {
        return last_positions(layout, n_tokens, capacity);
    }
    if is_chunk {
        return Ok(chunk(layout, n_tokens, |len, _| capacity - len.div_ceil(2), random));
    }
    Ok(runs(layout, n_tokens, random))
}

/// Each slot stores a run of positions; one starts at position 0, one crosses the end of the ring, the others start
/// anywhere.
fn runs(layout: &Layout, n_tokens: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let (len, capacity) = (n_tokens.div_ceil(layout.n_slots), layout.capacity());
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
    rows
}

/// out_i = x_i cos_i - x_{i + half} sin_i, out_{i + half} = x_{i + half} cos_i + x_i sin_i for q and k; k and v go to
/// the cache. What is left of k and v in qkv is open.
pub(super) fn rope_kv(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let layout = Layout::from_case(case)?;
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
        scale[k..].fill(f64::INFINITY);
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
