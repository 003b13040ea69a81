use std::collections::BTreeMap;

use super::*;
use crate::graph::Rows;
use kernel::template::{Precision, Problem};

fn node(n_experts: u32, per_token: u32) -> Node {
    let mut problem = Problem::plain("moe_mlp1", Precision::F32);
    problem.dims = [("num_experts", n_experts), ("experts_per_token", per_token)].map(|(n, v)| (n.into(), v)).into();
    let (args, scalars) = (BTreeMap::new(), BTreeMap::new());
    Node { label: "experts".into(), problem, args, scalars, rows: Rows::All, place: Place::Host }
}

#[test]
fn rows_go_to_all_experts_alike() {
    let of = |n_experts, per_token, n_rows| routing(&node(n_experts, per_token), n_rows);
    assert_eq!(
        of(3, 2, 4),
        [
            ("expert_begin", vec![0, 3, 6, 8]),
            ("assignment", vec![0, 3, 6, 1, 4, 7, 2, 5]),
            ("active_expert", vec![0, 1, 2]),
        ]
    );
    // Fewer assignments than experts: the rest is idle, and told so as `moe_sort` tells it.
    assert_eq!(of(4, 1, 2)[0].1, [0, 1, 2, 2, 2]);
    assert_eq!(of(4, 1, 2)[2].1, [0, 1, 4, 4]);
}

#[test]
fn a_plan_says_from_where_on_and_why() {
    let ms = Duration::from_millis;
    let plan = StreamPlan {
        from_rows: Some(256),
        n_layers: 3,
        layer_bytes: 1_692_000_000,
        is_pinned: true,
        times: Some((ms(31), 256, ms(44))),
    };
    assert_eq!(
        plan.to_string(),
        "steps that take in prompts bring experts to the device from 256 tokens on: 1.692 GB a layer in 31.00 ms \
         (54.6 GB/s, from pinned memory), and the processor takes 44.00 ms for 256 tokens"
    );
    let never = StreamPlan { from_rows: None, is_pinned: false, times: Some((ms(31), 512, ms(3))), ..plan.clone() };
    assert!(never.to_string().starts_with("steps that take in prompts leave experts to the processor: 1.692 GB"));
    // Three layers, of 31 ms each.
    let copies_ms = |plan: &StreamPlan, n_rows| plan.copies_s(n_rows).map(|s| (1e3 * s).round());
    assert_eq!([255, 256, 9999].map(|n_rows| copies_ms(&plan, n_rows)), [None, Some(93.0), Some(93.0)]);
    assert_eq!(copies_ms(&never, 9999), None);
    let asked = StreamPlan { times: None, is_pinned: false, ..plan };
    assert!(asked.to_string().ends_with(": 1.692 GB a layer, by way of pinned memory"), "{asked}");
}

#[test]
fn the_first_number_of_rows_is_where_the_processor_takes_as_long() {
    let ms = Duration::from_millis;
    let host = [(256, ms(18)), (512, ms(26)), (1024, ms(42))];
    // 5/16 of the way from 512 to 1,024, in eighths.
    assert_eq!(first_as_long(ms(31), &host), Some(512 + 3 * 64));
    assert_eq!(first_as_long(ms(42), &host), Some(1024));
    assert_eq!(first_as_long(ms(43), &host), None);
    assert_eq!(first_as_long(ms(18), &host[..1]), Some(256));
    assert_eq!(first_as_long(ms(43), &[]), None);
}

#[test]
fn the_processor_is_timed_up_to_the_first_number_of_rows_that_takes_as_long_as_a_copy() {
    let ms = Duration::from_millis;
    let timed = |copy_ms, least, most| {
        let times = times_up_to::<()>(ms(copy_ms), [least, most], |n_rows| Ok(ms(n_rows as u64)));
        times.expect("none fails").into_iter().map(|(n_rows, _)| n_rows).collect::<Vec<_>>()
    };
    assert_eq!(timed(40, 16, 1000), [16, 32, 64]);
    assert_eq!(timed(32, 16, 1000), [16, 32]);
    assert_eq!(timed(1000, 16, 50), [16, 32, 50]);
    assert_eq!(timed(1000, 7, 7), [7]);
}

#[test]
fn a_tensor_has_a_place_if_it_was_given_one() {
    let slots = Slots { ranges: [(3, (1, 0, 16))].into(), len_bytes: [0, 256] };
    assert_eq!([2, 3, 4].map(|tensor| slots.has(tensor)), [false, true, false]);
    assert_eq!(slots.total_bytes(), 256);
}
