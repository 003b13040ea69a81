//! The reference of every op: plain f64 loops written from the formulas, and valid random inputs.
//!
//! This crate knows element types and dimensions, but no templates, kernels or devices; the contracts (`op.toml`)
//! state shapes and layouts. [`dense`], [`attention`], [`moe`], [`collective`], [`logits`], [`sample`], [`peak`] and
//! [`weights`] have the ops. [`Output`] says how results are compared.

mod attention;
mod case;
mod collective;
mod dense;
mod drawn;
mod formats;
mod logits;
mod moe;
mod peak;
mod random;
mod rope;
mod sample;
mod tensor;
mod weights;

pub use case::{Case, Output, Outputs, ReferenceError, Tensors};
pub use tensor::Tensor;

use random::Random;

/// An op's entry in the table of references.
struct Op {
    name: &'static str,
    /// Its first argument: what a fused op before it hands over.
    first: &'static str,
    /// Names of the kinds of inputs that it has besides the usual mixture.
    kinds: &'static [&'static str],
    inputs: fn(&Case, &mut Random) -> Result<Tensors, ReferenceError>,
    run: fn(&Case, &Tensors) -> Result<Outputs, ReferenceError>,
}

const OPS: [Op; 31] = [
    Op { name: "embedding", first: "table", kinds: &[], inputs: dense::embedding_inputs, run: dense::embedding },
    Op { name: "multiply", first: "x", kinds: &[], inputs: dense::multiply_inputs, run: dense::multiply },
    Op { name: "concat", first: "first", kinds: &[], inputs: dense::concat_inputs, run: dense::concat },
    Op { name: "narrow", first: "x", kinds: &[], inputs: dense::multiply_inputs, run: dense::narrow },
    Op { name: "rmsnorm", first: "x", kinds: &[], inputs: dense::rmsnorm_inputs, run: dense::rmsnorm },
    Op { name: "norm_and_add", first: "x", kinds: &[], inputs: dense::norm_and_add_inputs, run: dense::norm_and_add },
    Op { name: "head_norm", first: "qkv", kinds: &[], inputs: dense::head_norm_inputs, run: dense::head_norm },
    Op { name: "silu_and_mul", first: "h", kinds: &[], inputs: dense::silu_and_mul_inputs, run: dense::silu_and_mul },
    Op { name: "gelu_and_mul", first: "h", kinds: &[], inputs: dense::silu_and_mul_inputs, run: dense::gelu_and_mul },
    Op { name: "linear", first: "x", kinds: &[], inputs: dense::linear_inputs, run: dense::linear },
    Op { name: "rope_angles", first: "inv_freq", kinds: &[], inputs: rope::rope_angles_inputs, run: rope::rope_angles },
    Op { name: "rope_kv", first: "qkv", kinds: &["chunk", "decode"], inputs: rope::rope_kv_inputs, run: rope::rope_kv },
    Op {
        name: "attention",
        first: "qkv",
        kinds: &["chunk", "prompt", "decode", "end"],
        inputs: attention::attention_inputs,
        run: attention::attention,
    },
    Op { name: "moe_route", first: "logit", kinds: &[], inputs: moe::route_inputs, run: moe::route },
    Op {
        name: "moe_sort",
        first: "expert",
        kinds: &["same_experts", "uneven"],
        inputs: moe::sort_inputs,
        run: moe::sort,
    },
    Op {
        name: "moe_mlp1",
        first: "x",
        kinds: &["same_experts", "uneven", "wide_scales"],
        inputs: moe::mlp1_inputs,
        run: moe::mlp1,
    },
    Op {
        name: "moe_mlp2",
        first: "x",
        kinds: &["same_experts", "uneven", "wide_scales"],
        inputs: moe::mlp2_inputs,
        run: moe::mlp2,
    },
    Op {
        name: "all_argmax",
        first: "part",
        kinds: &[],
        inputs: collective::all_argmax_inputs,
        run: collective::all_argmax,
    },
    Op {
        name: "all_gather",
        first: "part",
        kinds: &[],
        inputs: collective::all_gather_inputs,
        run: collective::all_gather,
    },
    Op {
        name: "all_reduce",
        first: "part",
        kinds: &[],
        inputs: collective::all_reduce_inputs,
        run: collective::all_reduce,
    },
    Op { name: "change_logits", first: "row", kinds: &[], inputs: logits::change_inputs, run: logits::change },
    Op { name: "min_p", first: "row", kinds: &[], inputs: logits::min_p_inputs, run: logits::min_p },
    Op { name: "logprobs", first: "row", kinds: &[], inputs: logits::logprobs_inputs, run: logits::logprobs },
    Op { name: "sample", first: "logit", kinds: &[sample::STEEP], inputs: sample::inputs, run: sample::sample },
    Op { name: "take_token", first: "from", kinds: &[], inputs: sample::take_inputs, run: sample::take },
    Op {
        name: "peak_multiply_add",
        first: "n_rounds",
        kinds: &[],
        inputs: peak::multiply_add_inputs,
        run: peak::multiply_add,
    },
    Op { name: "fill_lds", first: "n_blocks", kinds: &[], inputs: peak::fill_inputs, run: peak::fill },
    Op { name: "peak_copy", first: "x", kinds: &[], inputs: peak::read_inputs, run: peak::copy },
    Op { name: "peak_matrix", first: "a", kinds: &[], inputs: peak::matrix_inputs, run: peak::matrix },
    Op { name: "peak_read", first: "x", kinds: &[], inputs: peak::read_inputs, run: peak::read },
    Op { name: "random_weights", first: "n_rows", kinds: &[], inputs: weights::random_inputs, run: weights::random },
];

/// How often inputs are drawn anew whose outputs would hang on a rounding, and of how many tokens at most: among many
/// there are always some.
const DRAWS: u64 = 16;
const FEW_TOKENS: usize = 512;

/// Random inputs that are valid for an op or a fused run, rounded to the arguments' types, so that the reference and a
/// kernel see the same numbers. Tensors that are only written are not among them. Of two tensors of one name the later
/// op's is under the name of the op and its own: `rmsnorm_scale`. Where a run chooses experts of few tokens by logits
/// of its own, none is chosen so narrowly that the order of a sum decides.
///
/// # Errors
/// If an op has no reference, or the case does not fit it.
pub fn inputs(ops: &[String], case: &Case, seed: u64) -> Result<Tensors, ReferenceError> {
    check_kind(ops, case)?;
    let chooses = ops.iter().position(|op| op == "moe_route").filter(|&i| i > 0);
    let mut drawn = draw(ops, case, seed)?;
    if let Some(i) = chooses.filter(|_| case.n_tokens().is_ok_and(|n| n <= FEW_TOKENS)) {
        for again in 1..DRAWS {
            let made = run(&ops[..i], case, &drawn)?;
            if !made.get("y").is_some_and(|logit| moe::is_narrow(case, logit)) {
                break;
            }
            drawn = draw(ops, case, seed.wrapping_add(again << 32))?;
        }
    }
    if ops.iter().eq(["all_reduce", "rmsnorm"]) {
        let y = run(ops, case, &drawn)?.remove("y").expect("rmsnorm gives y");
        collective::hand_on_normed(case, &mut drawn, &y)?;
    }
    Ok(drawn)
}

fn draw(ops: &[String], case: &Case, seed: u64) -> Result<Tensors, ReferenceError> {
    let mut random = Random::new(seed);
    let mut all = Tensors::new();
    for (i, name) in ops.iter().enumerate() {
        let op = find(name)?;
        let mut own = (op.inputs)(case, &mut random)?;
        if i > 0 {
            own.remove(op.first);
        }
        for (own_name, tensor) in own {
            let is_taken = all.contains_key(&own_name);
            all.insert(if is_taken { format!("{name}_{own_name}") } else { own_name }, tensor);
        }
    }
    Ok(all)
}

fn check_kind(ops: &[String], case: &Case) -> Result<(), ReferenceError> {
    let Some(kind) = &case.inputs else { return Ok(()) };
    let mut known = Vec::new();
    for op in ops {
        known.extend(find(op)?.kinds);
    }
    if known.contains(&kind.as_str()) {
        return Ok(());
    }
    let known = if known.is_empty() { "the usual ones".into() } else { known.join(", ") };
    Err(ReferenceError::UnknownInputs { kind: kind.clone(), ops: ops.join("+"), known })
}

/// What an op or a fused run should give, of inputs that are named as [`inputs`] names them. What one op of a run hands
/// to the next is not rounded, and is among the outputs under the name of the op and its own: `rmsnorm_y`.
///
/// # Errors
/// If an op has no reference, the case does not fit it, or an input is missing.
pub fn run(ops: &[String], case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let mut inputs = inputs.clone();
    let mut outputs = Outputs::new();
    let mut last = Outputs::new();
    for (i, name) in ops.iter().enumerate() {
        let op = find(name)?;
        if i > 0 {
            let (written, handed) = handed(&mut last, &ops[i - 1], op.first)?;
            let own = inputs.iter().filter_map(|(key, tensor)| {
                Some((key.strip_prefix(name.as_str())?.strip_prefix('_')?.to_owned(), tensor.clone()))
            });
            let own: Vec<_> = own.collect();
            inputs.extend(own);
            inputs.insert(op.first.to_owned(), Tensor::handed(&handed));
            outputs.insert(format!("{}_{written}", ops[i - 1]), handed);
        }
        outputs.append(&mut last);
        last = (op.run)(case, &inputs)?;
    }
    outputs.append(&mut last);
    Ok(outputs)
}

/// Takes out of what `op` gives the tensor that the next op begins with.
fn handed(outputs: &mut Outputs, op: &str, next: &'static str) -> Result<(String, Output), ReferenceError> {
    let name = [next, "y"].into_iter().find(|name| outputs.contains_key(*name));
    let only = || outputs.keys().next().filter(|_| outputs.len() == 1).cloned();
    let name = name.map(str::to_owned).or_else(only);
    name.and_then(|name| outputs.remove_entry(&name)).ok_or_else(|| ReferenceError::NotFusible {
        op: op.to_owned(),
        found: outputs.keys().cloned().collect(),
        next,
    })
}

fn find(name: &str) -> Result<&'static Op, ReferenceError> {
    OPS.iter()
        .find(|op| op.name == name)
        .ok_or_else(|| ReferenceError::UnknownOp { op: name.to_owned(), known: OPS.map(|op| op.name).join(", ") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::case::named;
    use super::*;
    use format::Dtype;

    pub(super) fn case(dims: &[(&str, u32)], n_tokens: u32) -> Case {
        Case {
            dims: dims.iter().map(|&(name, dim)| (name.to_owned(), dim)).collect(),
            scalars: BTreeMap::from([("n_tokens".to_owned(), n_tokens.into())]),
            ..Case::default()
        }
    }

    pub(super) fn f32s(values: &[f64]) -> Tensor {
        Tensor::rounded(Dtype::F32, values.to_vec())
    }

    pub(super) fn u32s(values: &[usize]) -> Tensor {
        Tensor::whole(values.iter().copied())
    }

    pub(super) fn run_one(op: &str, case: &Case, inputs: Tensors, output: &str) -> Vec<f64> {
        run(&[op.to_owned()], case, &inputs).unwrap().remove(output).unwrap().values
    }

    pub(super) fn close(got: &[f64], want: &[f64]) {
        let far = got.iter().zip(want).any(|(got, want)| (got - want).abs() > 1e-6);
        assert!(got.len() == want.len() && !far, "got {got:?}, want {want:?}");
    }

    pub(super) fn attention_case(window: u32) -> Case {
        let heads = [("num_attention_heads", 2), ("num_key_value_heads", 1), ("half_head_dim", 1), ("window", window)];
        let mut case = case(&[&heads[..], &[("block_tokens", 2)]].concat(), 1);
        case.scalars
            .extend([("table_blocks", 2.0), ("n_slots", 1.0), ("n_blocks", 2.0)].map(|(name, n)| (name.into(), n)));
        case.flags.extend([("has_sinks", true), ("matrix_layout", false)].map(|(name, flag)| (name.into(), flag)));
        case.dtypes.insert("kv".into(), Dtype::F32);
        case
    }

    #[test]
    fn rope_turns_pairs_and_the_cache_takes_keys_and_values_where_the_table_says() {
        // One token at position 6 of a ring of 4: block 1 of the table, which is block 0 of the cache, place 0 in it.
        let inputs = named([
            ("qkv", f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
            ("cos_sin", f32s(&[0.0, 1.0])), // a quarter turn
            ("slot", u32s(&[0])),
            ("position", u32s(&[6])),
            ("block_table", u32s(&[1, 0])),
            ("k_cache", f32s(&[0.0; 8])),
            ("v_cache", f32s(&[0.0; 8])),
        ]);
        let outputs = run(&["rope_kv".into()], &attention_case(0), &inputs).unwrap();
        close(&outputs["qkv"].values[..4], &[-2.0, 1.0, -4.0, 3.0]);
        close(&outputs["qkv"].values[6..], &[7.0, 8.0]);
        assert_eq!(outputs["qkv"].scale[4..6], [f64::INFINITY; 2]);
        close(&outputs["k_cache"].values, &[-6.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0]); // (block, g, d, position)
        close(&outputs["v_cache"].values, &[7.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]); // (block, g, position, d)
    }

    #[test]
    fn rows_of_eight_bits_have_their_largest_element_at_the_end_of_the_range() {
        // Keys and values of one position: a head of two, rotated by nothing, then a sum and a difference over sqrt(2).
        let inputs = |kv| {
            named([
                ("qkv", f32s(&[1.0, 2.0, 3.0, 4.0, -0.5, 0.25, 0.0, 0.0])),
                ("cos_sin", f32s(&[1.0, 0.0])),
                ("slot", u32s(&[0])),
                ("position", u32s(&[2])),
                ("block_table", u32s(&[0, 1])),
                ("k_cache", Tensor::rounded(kv, vec![7.0; 8])),
                ("v_cache", Tensor::rounded(kv, vec![7.0; 8])),
                ("k_scale", f32s(&[9.0; 4])),
                ("v_scale", f32s(&[9.0; 4])),
            ])
        };
        for (kv, largest) in [(Dtype::Int8, 127.0), (Dtype::Fp8, 448.0)] {
            let mut case = attention_case(0);
            case.dtypes.insert("kv".into(), kv);
            let outputs = run(&["rope_kv".into()], &case, &inputs(kv)).unwrap();
            // Position 2 is the first of block 1: (block, g, d, position). Nothing else is touched; not rounded yet.
            close(&outputs["k_cache"].values, &[7.0, 7.0, 7.0, 7.0, -largest / 3.0, 7.0, -largest, 7.0]);
            close(&outputs["k_scale"].values, &[9.0, 9.0, 0.75 / 2f64.sqrt() / largest, 9.0]);
            close(&outputs["qkv"].values[..4], &[3.0, -1.0, 7.0, -1.0].map(|q| q / 2f64.sqrt()));
            // Of zeros all is 0, the scale too.
            close(&outputs["v_cache"].values, &[7.0, 7.0, 7.0, 7.0, 0.0, 0.0, 7.0, 7.0]);
            close(&outputs["v_scale"].values, &[9.0, 9.0, 0.0, 9.0]);
        }
    }

    #[test]
    fn the_router_takes_the_lower_of_equal_experts_and_weighs_the_chosen_or_all() {
        let mut case = case(&[("num_experts", 4), ("experts_per_token", 2)], 2);
        case.flags.insert("of_all".into(), false);
        let inputs = named([("logit", f32s(&[1.0, 1.0 + 3f64.ln(), 1.0, 1.0, -0.0, 0.0, -1.0, 0.0]))]);
        let outputs = run(&["moe_route".into()], &case, &inputs).unwrap();
        close(&outputs["expert"].values, &[0.0, 1.0, 0.0, 1.0]);
        close(&outputs["route_weight"].values, &[0.25, 0.75, 0.5, 0.5]);
        case.flags.insert("of_all".into(), true);
        let outputs = run(&["moe_route".into()], &case, &inputs).unwrap();
        let total = 3.0 + (-1f64).exp();
        close(&outputs["route_weight"].values, &[1.0 / 6.0, 0.5, 1.0 / total, 1.0 / total]);
    }

    #[test]
    fn of_two_tensors_of_one_name_each_op_has_its_own() {
        let mut case = case(&[("in_features", 3), ("out_features", 3)], 2);
        case.flags.extend([("has_bias", false), ("has_residual", false)].map(|(name, flag)| (name.into(), flag)));
        case.dtypes.insert("weight".into(), Dtype::F32);
        let ops = ["linear", "linear"].map(str::to_owned);
        let drawn = inputs(&ops, &case, 7).unwrap();
        assert_eq!(drawn.keys().collect::<Vec<_>>(), ["linear_weight", "weight", "x"]);
        let first =
            run_one("linear", &case, named([("x", drawn["x"].clone()), ("weight", drawn["weight"].clone())]), "y");
        let handed = Tensor::handed(&Output::plain(first));
        let want = run_one("linear", &case, named([("x", handed), ("weight", drawn["linear_weight"].clone())]), "y");
        assert_ne!(drawn["weight"].values(), drawn["linear_weight"].values());
        close(&run(&ops, &case, &drawn).unwrap()["y"].values, &want);
    }

    #[test]
    fn assignments_are_grouped_by_expert() {
        let case = case(&[("num_experts", 4), ("experts_per_token", 2)], 3);
        let outputs = run(&["moe_sort".into()], &case, &named([("expert", u32s(&[0, 3, 0, 1, 1, 3]))])).unwrap();
        close(&outputs["expert_begin"].values, &[0.0, 2.0, 4.0, 4.0, 6.0]);
        close(&outputs["assignment"].values, &[0.0, 2.0, 3.0, 4.0, 1.0, 5.0]);
        close(&outputs["active_expert"].values, &[0.0, 1.0, 3.0, 4.0]);
    }

    /// One token, sent to both experts.
    fn moe_case() -> (Case, Tensors) {
        let dims = [("hidden_size", 1), ("intermediate_size", 1), ("num_experts", 2), ("experts_per_token", 2)];
        let constants = [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702), ("swiglu_offset", 1.0)];
        let constants = constants.map(|(name, number)| (name.to_owned(), number)).into();
        let case = Case { constants, flags: [("has_bias".into(), true)].into(), ..case(&dims, 1) };
        let routing =
            [("expert_begin", u32s(&[0, 1, 2])), ("assignment", u32s(&[0, 1])), ("active_expert", u32s(&[0, 1]))];
        (case, named(routing))
    }

    #[test]
    fn swiglu_clamps_gate_above_and_up_on_both_sides() {
        let (case, mut inputs) = moe_case();
        // Expert 0: gate 2, up -9, cut to -7; expert 1: gate 20, cut to 7, up 1. Rows alternate: gate, up.
        let (weight, bias) = (f32s(&[2.0, -9.0, 10.0, 0.0]), f32s(&[0.0, 0.0, 10.0, 1.0]));
        inputs.extend(named([("x", f32s(&[1.0])), ("weight", weight), ("bias", bias)]));
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let want = [2.0 * sigmoid(1.702 * 2.0) * -6.0, 7.0 * sigmoid(1.702 * 7.0) * 2.0];
        close(&run_one("moe_mlp1", &case, inputs, "y"), &want);
    }

    #[test]
    fn swiglu_of_1_and_0_without_clamps_and_biases_is_silu_and_mul() {
        let (mut case, mut inputs) = moe_case();
        for (name, number) in [("swiglu_limit", 3e38), ("swiglu_alpha", 1.0), ("swiglu_offset", 0.0)] {
            case.constants.insert(name.into(), number);
        }
        case.flags.insert("has_bias".into(), false);
        inputs.extend(named([("x", f32s(&[1.0])), ("weight", f32s(&[2.0, -9.0, 20.0, 0.5]))]));
        let silu = |v: f64| v / (1.0 + (-v).exp());
        close(&run_one("moe_mlp1", &case, inputs, "y"), &[-9.0 * silu(2.0), 0.5 * silu(20.0)]);
    }

    #[test]
    fn experts_are_added_by_their_weights_bias_included() {
        let (case, mut inputs) = moe_case();
        inputs.extend(named([
            ("x", f32s(&[3.0, 5.0])),
            ("weight", f32s(&[10.0, 100.0])),
            ("bias", f32s(&[1.0, 2.0])),
            ("route_weight", f32s(&[0.25, 0.75])),
            ("residual", f32s(&[1000.0])),
        ]));
        close(&run_one("moe_mlp2", &case, inputs, "y"), &[1000.0 + 0.25 * 31.0 + 0.75 * 502.0]);
    }

    /// Draws from probabilities 0.1, 0.4, 0.1, 0.4.
    fn drawn(temperature: f64, top_k: usize, top_p: f64, coin: f64) -> f64 {
        let inputs = named([
            ("logit", f32s(&[1.0, 4.0, 1.0, 4.0].map(f64::ln))),
            ("temperature", f32s(&[temperature])),
            ("top_k", u32s(&[top_k])),
            ("top_p", f32s(&[top_p])),
            ("coin", f32s(&[coin])),
        ]);
        run_one("sample", &case(&[("vocab_size", 4)], 1), inputs, "token")[0]
    }

    #[test]
    fn draws_follow_the_contract() {
        assert_eq!(drawn(0.0, 0, 1.0, 0.9), 1.0); // argmax, the lower of equal ones
        assert_eq!([0.05, 0.3, 0.55, 0.8].map(|coin| drawn(1.0, 0, 1.0, coin)), [0.0, 1.0, 2.0, 3.0]); // by id
        assert_eq!([0.3, 0.6].map(|coin| drawn(1.0, 2, 1.0, coin)), [1.0, 3.0]); // top_k, of what is left
        assert_eq!([0.1, 0.9].map(|coin| drawn(1.0, 1, 1.0, coin)), [1.0, 1.0]);
        assert_eq!([0.4, 0.6].map(|coin| drawn(1.0, 0, 0.5, coin)), [1.0, 3.0]); // 0.4 does not exceed 0.5, 0.8 does
        assert_eq!([0.4, 0.95].map(|coin| drawn(1.0, 0, 0.3, coin)), [1.0, 1.0]);
        assert_eq!([0.85, 0.95].map(|coin| drawn(1.0, 0, 0.95, coin)), [0.0, 2.0]); // sorted: 1, 3, 0, 2
    }

    #[test]
    fn what_is_infinitely_improbable_is_not_drawn() {
        let drawn = |logits: [f64; 3], temperature: f64, top_k: usize, coin: f64| {
            let settings = [("temperature", temperature), ("top_p", 1.0), ("coin", coin)];
            let mut inputs = named(settings.map(|(name, value)| (name, f32s(&[value]))));
            inputs.extend(named([("logit", f32s(&logits)), ("top_k", u32s(&[top_k]))]));
            run_one("sample", &case(&[("vocab_size", 3)], 1), inputs, "token")[0]
        };
        let none = f64::NEG_INFINITY;
        for coin in [0.0, 0.5, 0.999] {
            assert_eq!([0, 3].map(|top_k| drawn([none, 1.0, none], 1.0, top_k, coin)), [1.0, 1.0]);
            assert_eq!([0.0, 1.0].map(|temperature| drawn([none; 3], temperature, 0, coin)), [0.0, 0.0]);
        }
    }

    #[test]
    fn a_fused_run_is_the_composition_of_its_ops() {
        let mut case = case(&[("hidden_size", 5), ("in_features", 5), ("out_features", 3)], 2);
        case.constants.insert("eps".into(), 1e-5);
        case.flags.extend(["has_bias", "has_residual"].map(|name| (name.into(), false)));
        case.dtypes.extend([("scale".into(), Dtype::F32), ("weight".into(), Dtype::Bf16)]);
        let [rmsnorm, linear] = ["rmsnorm", "linear"].map(String::from);
        let fused = [rmsnorm.clone(), linear.clone()];
        let mut inputs = inputs(&fused, &case, 1).unwrap();
        let names: Vec<&str> = inputs.keys().map(String::as_str).collect();
        assert_eq!(names, ["scale", "weight", "x"]);
        let mut want = run(&fused, &case, &inputs).unwrap();
        let normed = run(&[rmsnorm], &case, &inputs).unwrap().remove("y").unwrap();
        assert_eq!(want.remove("rmsnorm_y").unwrap(), normed);
        inputs.insert("x".into(), Tensor::handed(&normed));
        assert_eq!(run(&[linear], &case, &inputs).unwrap(), want);
    }

    #[test]
    fn what_the_references_cannot_do_is_an_error() {
        let error = |op: &str| inputs(&[op.to_owned()], &Case::default(), 0).unwrap_err().to_string();
        assert!(error("conv").starts_with("there is no reference for the op `conv`, only for embedding"));
        assert_eq!(error("rmsnorm"), "the reference needs the scalar `n_tokens`, which the case does not give");
    }
}
