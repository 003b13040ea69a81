//! One block of memory for all activations: tensors that are never needed at the same time share bytes.

use gpu::ALIGNMENT_BYTES;

/// A tensor as the planner sees it: how long, and from which node to which it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// Size in bytes.
    pub(crate) len_bytes: usize,
    /// Index of the node that writes it first.
    pub(crate) first_node: usize,
    /// Index of the last node that reads or writes it.
    pub(crate) last_node: usize,
}

/// Places tensors so that no two that live at the same time overlap. Gives each one's offset in bytes, and the
/// arena's length.
///
/// Largest first, each at the lowest offset that is free for its whole life: simple, and within a few per cent of
/// the largest sum of live tensors on a transformer's graph.
pub(crate) fn place(tensors: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(tensors[i].len_bytes), tensors[i].first_node));
    let mut offsets = vec![0; tensors.len()];
    let mut placed: Vec<usize> = Vec::new();
    for i in order {
        offsets[i] = lowest_free(tensors, &offsets, &placed, i);
        placed.push(i);
    }
    let len_bytes = (0..tensors.len()).map(|i| offsets[i] + aligned(tensors[i].len_bytes)).max().unwrap_or(0);
    (offsets, len_bytes)
}

/// The lowest offset at which tensor `i` meets none of the placed ones that live with it.
fn lowest_free(tensors: &[Lifetime], offsets: &[usize], placed: &[usize], i: usize) -> usize {
    let lives_with =
        |&&j: &&usize| tensors[j].first_node <= tensors[i].last_node && tensors[i].first_node <= tensors[j].last_node;
    let mut taken: Vec<(usize, usize)> =
        placed.iter().filter(lives_with).map(|&j| (offsets[j], offsets[j] + aligned(tensors[j].len_bytes))).collect();
    taken.sort_unstable();
    let mut offset = 0;
    for (begin, end) in taken {
        if begin >= offset + aligned(tensors[i].len_bytes) {
            break;
        }
        offset = offset.max(end);
    }
    offset
}

fn aligned(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(ALIGNMENT_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tensor_takes_the_place_of_one_that_is_gone() {
        let tensor = |len_bytes, first_node, last_node| Lifetime { len_bytes, first_node, last_node };
        let (offsets, len_bytes) = place(&[tensor(1024, 0, 1), tensor(512, 1, 2), tensor(1024, 2, 3)]);
        assert_eq!(offsets, [0, 1024, 0]);
        assert_eq!(len_bytes, 1536);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn live_tensors_never_overlap(
            raw in prop::collection::vec((0usize..5000, 0usize..30, 0usize..10), 0..40)
        ) {
            let tensors: Vec<Lifetime> = raw
                .iter()
                .map(|&(len_bytes, first_node, more)| Lifetime { len_bytes, first_node, last_node: first_node + more })
                .collect();
            let (offsets, len_bytes) = place(&tensors);
            for i in 0..tensors.len() {
                prop_assert_eq!(offsets[i] % ALIGNMENT_BYTES, 0);
                prop_assert!(offsets[i] + tensors[i].len_bytes <= len_bytes);
                for j in 0..i {
                    let together = tensors[i].first_node <= tensors[j].last_node
                        && tensors[j].first_node <= tensors[i].last_node;
                    let apart = offsets[i] + tensors[i].len_bytes <= offsets[j]
                        || offsets[j] + tensors[j].len_bytes <= offsets[i];
                    prop_assert!(!together || apart || tensors[i].len_bytes == 0 || tensors[j].len_bytes == 0);
                }
            }
        }
    }
}
