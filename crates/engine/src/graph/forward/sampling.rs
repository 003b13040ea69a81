//! The end of the forward pass: logits of the rows that need them, the changes that requests ask for, and a token for
//! each row.

use super::{Forward, ForwardError, N_TOP};
use crate::graph::{Graph, NodeBuilder, Role, Rows, TensorId};
use format::Dtype;

/// How tokens are drawn, a row each.
#[derive(Clone, Copy)]
struct Draws {
    temperature: TensorId,
    top_k: TensorId,
    top_p: TensorId,
    coin: TensorId,
}

impl Forward<'_> {
    /// logits = unembedding(norm(x)) of the rows that want them, then a token for each.
    ///
    /// # Errors
    /// The family's last norm does not fit its op.
    pub(super) fn unembedding_and_sampling(&mut self, x: TensorId) -> Result<(), ForwardError> {
        let logit_row = self.input("logit_row", Dtype::U32);
        let chosen = self.graph.activation("x.chosen".into(), Dtype::F32);
        self.graph
            .node("chosen_rows", "embedding")
            .scalar("n_rows", self.options.max_rows)
            .dim("hidden_size", self.config.hidden_size)
            .dtype("table", Dtype::F32)
            .arg("table", x)
            .arg("row", logit_row)
            .arg("y", chosen)
            .rows(Rows::Logits);

        let normed = self.last(chosen)?;
        self.last_on_logit_rows();
        let n_logits = self.options.max_logit_rows * self.config.vocab_size;
        let logits = self.graph.external("logits", Dtype::F32, Role::Kept, n_logits);
        let (part, vocab_size) = (self.options.part, self.config.vocab_size);
        let n_own = part.ids(vocab_size).len();
        let own = if n_own == vocab_size { logits } else { self.shared("part.logits", Dtype::F32) };
        let weight = self.checkpoint.unembedding();
        let dtype = self.checkpoint.tensor(weight).dtype;
        self.graph
            .node("unembedding", "linear")
            .dim("in_features", self.config.hidden_size)
            .dim("out_features", n_own)
            .flag("has_bias", false)
            .flag("has_residual", false)
            .dtype("weight", dtype)
            .arg("x", normed)
            .weight("weight", weight, dtype)
            .arg("y", own)
            .rows(Rows::Logits);
        let [temperature, top_p, coin] = ["temperature", "top_p", "coin"].map(|name| self.input(name, Dtype::F32));
        let draws = Draws { temperature, top_k: self.input("top_k", Dtype::U32), top_p, coin };
        let sampled = self.graph.external("sampled", Dtype::U32, Role::Kept, self.options.max_logit_rows);
        let mut rows = Rows::Logits;
        if n_own < vocab_size {
            rows = Rows::Gathered;
            self.compare(own, n_own, draws, sampled);
            self.met("logits", self.number_of_logits(), "unembedding.all_gather".into(), "all_gather")
                .dim("part_len", n_own)
                .arg("y", logits)
                .rows(rows);
        }
        self.change_logits(logits, draws);
        self.sample("sample", logits, vocab_size, draws, sampled).rows(rows);
        self.logprobs(logits, sampled);
        Ok(())
    }

    /// Which of the meetings of a step is about logits, whatever comes of them.
    fn number_of_logits(&self) -> usize {
        self.n_meetings - 1
    }

    /// The best of all tokens, of which each device knows that of its own ids.
    fn compare(&mut self, own: TensorId, n_own: usize, draws: Draws, sampled: TensorId) {
        let [part, all] = ["part.candidate", "parts.candidate"].map(|name| self.shared(name, Dtype::U32));
        self.sample("sample.part", own, n_own, draws, part).rows(Rows::Compared);
        let stride = self.options.strides.candidates;
        self.met("logits", self.number_of_logits(), "sample.all_argmax".into(), "all_argmax")
            .dim("part_len", n_own)
            .scalar("candidate_stride", stride)
            .arg("candidate", all)
            .arg("token", sampled)
            .rows(Rows::Compared);
    }

    /// What a step says of each row that wants logits.
    fn input(&mut self, name: &str, dtype: Dtype) -> TensorId {
        self.graph.external(name, dtype, Role::Input, self.options.max_logit_rows)
    }

    /// Biases and masks of the rows that have some, and how many of their tokens `min_p` leaves.
    fn change_logits(&mut self, logits: TensorId, draws: Draws) {
        let (vocab_size, n_rows) = (self.config.vocab_size, self.options.max_logit_rows);
        let told = |graph: &mut Graph, name, dtype| graph.external(name, dtype, Role::ChangeInput, n_rows);
        let kept = |graph: &mut Graph, name, dtype, n| graph.external(name, dtype, Role::Kept, n);
        let row = told(self.graph, "changed_row", Dtype::U32);
        let whole = ["bias_begin", "bias_end", "mask_row"].map(|name| (name, told(self.graph, name, Dtype::U32)));
        let min_p = told(self.graph, "min_p", Dtype::F32);
        // One row's biases always fit; a row's mask has a bit for each id.
        let bias_id = kept(self.graph, "bias_id", Dtype::U32, vocab_size);
        let bias = kept(self.graph, "bias", Dtype::F32, vocab_size);
        let divisor = kept(self.graph, "bias_divisor", Dtype::F32, vocab_size);
        let mask = kept(self.graph, "mask", Dtype::U32, n_rows * vocab_size.div_ceil(32));
        self.graph
            .node("change_logits", "change_logits")
            .dim("vocab_size", vocab_size)
            .scalar("n_biases", vocab_size)
            .scalar("n_masks", n_rows)
            .scalar("n_rows", n_rows)
            .arg("row", row)
            .args(whole)
            .arg("bias_id", bias_id)
            .arg("mask", mask)
            .arg("bias", bias)
            .arg("bias_divisor", divisor)
            .arg("logit", logits)
            .rows(Rows::Changed);
        self.graph
            .node("min_p", "min_p")
            .dim("vocab_size", vocab_size)
            .scalar("n_rows", n_rows)
            .arg("row", row)
            .arg("min_p", min_p)
            .arg("logit", logits)
            .arg("temperature", draws.temperature)
            .arg("top_k", draws.top_k)
            .rows(Rows::Changed);
    }

    /// A token of each row of logits.
    fn sample(
        &mut self,
        label: &str,
        logits: TensorId,
        n_logits: usize,
        draws: Draws,
        token: TensorId,
    ) -> NodeBuilder<'_> {
        self.graph
            .node(label, "sample")
            .dim("vocab_size", n_logits)
            .arg("logit", logits)
            .arg("temperature", draws.temperature)
            .arg("top_k", draws.top_k)
            .arg("top_p", draws.top_p)
            .arg("coin", draws.coin)
            .arg("token", token)
    }

    /// How probable the token and its rivals were, for the rows that want to know: `logprob_row`. It leaves `logprob`
    /// and `top_token`.
    fn logprobs(&mut self, logits: TensorId, sampled: TensorId) {
        let n_rows = self.options.max_logit_rows;
        let mut kept = |name, dtype, n| self.graph.external(name, dtype, Role::Kept, n);
        let row = kept("logprob_row", Dtype::U32, n_rows);
        let top_token = kept("top_token", Dtype::U32, n_rows * N_TOP);
        let logprob = kept("logprob", Dtype::F32, n_rows * (N_TOP + 1));
        self.graph
            .node("logprobs", "logprobs")
            .dim("vocab_size", self.config.vocab_size)
            .dim("n_top", N_TOP)
            .scalar("n_rows", self.options.max_logit_rows)
            .arg("row", row)
            .arg("logit", logits)
            .arg("token", sampled)
            .arg("logprob", logprob)
            .arg("top_token", top_token)
            .rows(Rows::Logprobs);
    }
}
