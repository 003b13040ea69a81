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
    let mut inputs = named([
        ("qkv", random.normals(Dtype::F32, n_tokens * layout.qkv_size(), 1.0)),
        ("cos_sin", Tensor::rounded(Dtype::F32, cos_sin)),
        ("slot", Tensor::whole(rows.iter().map(|row| row.0))),
        ("position", Tensor::whole(rows.iter().map(|row| row.1))),
        ("block_table", layout.block_table(random)),
        ("k_cache", random.normals(kv, layout.cache_size(), 1.0)),
        ("v_cache", random.normals(kv, layout.cache_size(), 1.0)),
    ]);
    if kv.largest_of_row().is_some() {
        for name in ["k_scale", "v_scale"] {
            inputs.insert(name.into(), random.normals(Dtype::F32, layout.n_scales(), 1.0));
        }
    }
    Ok(inputs)
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
    let largest_of_row = case.dtype("kv")?.largest_of_row().map(f64::from);
    let plain = |name: &str| Ok(Output::plain(tensor(inputs, name)?.values().to_vec()));
    let mut qkv = plain("qkv")?;
    let mut caches = [plain("k_cache")?, plain("v_cache")?];
    let mut scales = if largest_of_row.is_some() { vec![plain("k_scale")?, plain("v_scale")?] } else { Vec::new() };
    let cos_sin = tensor(inputs, "cos_sin")?.values().chunks(layout.head_dim);
    for (t, cos_sin) in cos_sin.enumerate() {
        let row = t * layout.qkv_size()..(t + 1) * layout.qkv_size();
        let (values, scale) = (&mut qkv.values[row.clone()], &mut qkv.scale[row]);
        for h in 0..layout.n_heads + layout.n_kv_heads {
            let head = h * layout.head_dim..(h + 1) * layout.head_dim;
            rotate(&mut values[head.clone()], &mut scale[head.clone()], cos_sin);
            if largest_of_row.is_some() {
                spread(&mut values[head.clone()], &mut scale[head], layout.half);
            }
        }
        let p = position.index(t);
        let block = layout.block(table, slot.index(t), p);
        for (which, cache) in caches.iter_mut().enumerate() {
            for g in 0..layout.n_kv_heads {
                let first = (layout.n_heads + which * layout.n_kv_heads + g) * layout.head_dim;
                let head = first..first + layout.head_dim;
                let (mut values, mut sizes) = (values[head.clone()].to_vec(), scale[head].to_vec());
                if let Some(largest) = largest_of_row {
                    let i = layout.scale(block, g, p);
                    (scales[which].values[i], scales[which].scale[i]) = quantised(&mut values, &mut sizes, largest);
                }
                for (d, (value, size)) in values.into_iter().zip(sizes).enumerate() {
                    let place = if which == 0 { layout.k(block, g, d, p) } else { layout.v(block, g, d, p) };
                    (cache.values[place], cache.scale[place]) = (value, size);
                }
            }
        }
        scale[layout.n_heads * layout.head_dim..].fill(f64::INFINITY);
    }
    let [k_cache, v_cache] = caches;
    let mut outputs = Outputs::from([("qkv".into(), qkv), ("k_cache".into(), k_cache), ("v_cache".into(), v_cache)]);
    outputs.extend(["k_scale", "v_scale"].map(String::from).into_iter().zip(scales));
    Ok(outputs)
}

/// Multiplies the channels of a head by a Hadamard matrix, block by block: n of the first half, n of the second, n the
/// largest power of two up to 32 that divides a half. The scale becomes that of the sums.
fn spread(x: &mut [f64], scale: &mut [f64], half: usize) {
    let n = 1 << half.trailing_zeros().min(5);
    let (old_x, old_scale) = (x.to_vec(), scale.to_vec());
    let channel = |block: usize, i: usize| i / n * half + block * n + i % n;
    for block in 0..half / n {
        for i in 0..2 * n {
            let sign = |k: usize| if (i & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let sum = |of: &dyn Fn(usize) -> f64| (0..2 * n).map(of).sum::<f64>() / (2.0 * n as f64).sqrt();
            x[channel(block, i)] = sum(&|k| sign(k) * old_x[channel(block, k)]);
            scale[channel(block, i)] = sum(&|k| old_scale[channel(block, k)]);
        }
    }
}

/// A head's elements over their scale, which makes the largest of them `largest`, not rounded yet; and that scale. A
/// tolerance of the largest element is one of all the others.
fn quantised(values: &mut [f64], sizes: &mut [f64], largest: f64) -> (f64, f64) {
    let of_row = |all: &[f64]| all.iter().fold(0.0, |most: f64, one| most.max(one.abs()));
    let (scale, size) = (of_row(values) / largest, of_row(sizes));
    if scale > 0.0 {
        values.iter_mut().for_each(|value| *value /= scale);
        sizes.fill(2.0 * size / scale);
    }
    (scale, size / largest)
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
