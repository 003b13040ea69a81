//! Prints two kernels at a problem, one line each.

use serde_json::{Value, json};

use super::steps;

/// A kernel at a problem.
#[derive(Default)]
pub(super) struct Found {
    pub(super) kernel: String,
    /// VGPRs, bytes of LDS, spilled registers, waves a SIMD.
    pub(super) uses: Option<[u32; 4]>,
    /// Microseconds, and how far the middle half of them is apart.
    pub(super) time: Option<(f64, f64)>,
    /// Why it could not be used or measured; `None` if it could.
    pub(super) why: Option<String>,
}

/// Both at a problem and a number of rows.
pub(super) struct Line {
    pub(super) node: String,
    pub(super) n_tokens: u32,
    pub(super) both: [Found; 2],
}

impl Line {
    /// What the times of the two say, beside the larger of their own noise and the usual one.
    fn verdict(&self, noise: f64) -> Option<String> {
        let [Some((a, of_a)), Some((b, of_b))] = self.both.each_ref().map(|found| found.time) else { return None };
        Some(steps::verdict(a, b, noise.max(of_a).max(of_b)))
    }

    pub(super) fn rows(&self, noise: f64) -> [Vec<String>; 2] {
        let row = |i: usize| {
            let Found { kernel, uses, time, why } = &self.both[i];
            let (node, n) = if i == 0 { (self.node.clone(), self.n_tokens.to_string()) } else { Default::default() };
            let mut cells = vec![node, n, ["A", "B"][i].to_owned(), kernel.clone()];
            cells.extend(uses.map_or_else(|| vec!["-".to_owned(); 4], |uses| uses.map(|n| n.to_string()).to_vec()));
            cells.push(time.map_or("-".to_owned(), |(us, _)| format!("{us:.1}")));
            let verdict = self.verdict(noise).filter(|_| i == 1);
            cells.push(why.clone().or(verdict).unwrap_or_default());
            cells
        };
        [row(0), row(1)]
    }

    pub(super) fn json(&self, noise: f64) -> Value {
        let [a, b] = self.both.each_ref().map(|found| {
            let uses = found.uses.map(|[vgprs, lds_bytes, spills, waves]| {
                json!({ "vgprs": vgprs, "lds_bytes": lds_bytes, "spills": spills, "waves_per_simd": waves })
            });
            json!({
                "kernel": found.kernel, "uses": uses, "us": found.time.map(|(us, _)| us),
                "spread": found.time.map(|(_, spread)| spread), "why": found.why,
            })
        });
        json!({ "node": self.node, "rows": self.n_tokens, "a": a, "b": b, "verdict": self.verdict(noise) })
    }
}
