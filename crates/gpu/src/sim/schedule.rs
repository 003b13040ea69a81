//! The order in which blocks, waves and lanes run, where a GPU leaves it open: drawn from a seed.

/// An order for everything, by a number: 0 is one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(crate) seed: u64,
}

impl Schedule {
    /// 0 to n - 1 in some order, another one for each `which`.
    pub(crate) fn order(self, n: usize, which: [u64; 2]) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = self.walk(n as u64, which);
        let (mut next, step) = (first as usize, step as usize);
        (0..n).map(move |_| {
            let this = next;
            next += step;
            next -= if next >= n { n } else { 0 };
            this
        })
    }

    /// Which of n is the i-th.
    pub(crate) fn nth(self, i: u64, n: u64) -> u64 {
        let (first, step) = self.walk(n, [u64::MAX; 2]);
        ((u128::from(first) + u128::from(i) * u128::from(step)) % u128::from(n)) as u64
    }

    /// A first one and a step that meets all of n.
    fn walk(self, n: u64, which: [u64; 2]) -> (u64, u64) {
        if self.seed == 0 || n < 2 {
            return (0, 1);
        }
        let drawn = which.into_iter().fold(mixed(self.seed), |drawn, number| mixed(drawn ^ mixed(number)));
        let mut step = drawn % (n - 1) + 1;
        while gcd(step, n) != 1 {
            step += 1; // at the latest n - 1, which has no divisor of n
        }
        (mixed(drawn) % n, step)
    }
}

/// The finaliser of SplitMix64.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_everyone_once_and_seeds_give_others() {
        for n in [1, 2, 12, 32, 257] {
            let order = |seed| Schedule { seed }.order(n, [3, 4]).collect::<Vec<_>>();
            assert_eq!(order(0), (0..n).collect::<Vec<_>>());
            for seed in 1..20 {
                let mut sorted = order(seed);
                sorted.sort_unstable();
                assert_eq!(sorted, order(0), "{n} {seed}");
                let mut blocks: Vec<u64> = (0..n as u64).map(|i| Schedule { seed }.nth(i, n as u64)).collect();
                blocks.sort_unstable();
                assert_eq!(blocks, (0..n as u64).collect::<Vec<_>>(), "{n} {seed}");
            }
            assert!(n < 12 || (1..20).any(|seed| order(seed) != order(0)), "{n}");
        }
    }

    /// The first numbers of SplitMix64 from 0, which adds a constant before it mixes.
    #[test]
    fn numbers_are_mixed_as_the_generators_are() {
        let numbers = [0, 1, 2].map(|i: u64| mixed(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn a_step_is_shorter_than_the_way_round_and_meets_everyone() {
        for (n, seed) in (2..60).flat_map(|n| (1..60).map(move |seed| (n, seed))) {
            let (first, step) = Schedule { seed }.walk(n, [seed, 7]);
            assert!(first < n && (1..n).contains(&step) && gcd(step, n) == 1, "{first} {step} of {n}");
        }
    }
}
