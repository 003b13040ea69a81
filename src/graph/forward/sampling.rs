//! The end of the forward pass: logits of the rows that want them, what requests change of them, and a token for each.

use super::{Forward, ForwardError, N_TOP};
use crate::checkpoint::tensors::unembedding;
use crate::dtype::Dtype;
use crate::graph::{NodeBuilder, Rows, TensorId};

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
        let logit_row = self.graph.external("logit_row", Dtype::U32);
        let chosen = self.graph.activation("x.chosen".into(), Dtype::F32);
        self.graph
            .node("chosen_rows", "embedding")
            .dim("n_rows", self.options.max_rows)
            .dim("hidden_size", self.config.hidden_size)
            .dtype("table", Dtype::F32)
            .arg("table", x)
            .arg("row", logit_row)
            .arg("y", chosen)
            .rows(Rows::Logits);

        let normed = self.last(chosen)?;
        self.last_on_logit_rows();
        let logits = self.graph.external("logits", Dtype::F32);
        let (part, vocab_size) = (self.options.part, self.config.vocab_size);
        let n_own = part.ids(vocab_size).len();
        let own = if n_own == vocab_size { logits } else { self.graph.external("part.logits", Dtype::F32) };
        let weight = unembedding(self.config);
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
        let [temperature, top_p, coin] =
            ["temperature", "top_p", "coin"].map(|name| self.graph.external(name, Dtype::F32));
        let draws = Draws { temperature, top_k: self.graph.external("top_k", Dtype::U32), top_p, coin };
        let sampled = self.graph.external("sampled", Dtype::U32);
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
        let [part, all] = ["part.candidate", "parts.candidate"].map(|name| self.graph.external(name, Dtype::U32));
        self.sample("sample.part", own, n_own, draws, part).rows(Rows::Compared);
        let stride = self.options.strides.candidates;
        self.met("logits", self.number_of_logits(), "sample.all_argmax".into(), "all_argmax")
            .dim("part_len", n_own)
            .scalar("candidate_stride", stride)
            .arg("candidate", all)
            .arg("token", sampled)
            .rows(Rows::Compared);
    }

    /// Biases and masks of the rows that have some, and how many of their tokens `min_p` leaves. External tensors:
    /// `changed_row`, `bias_begin`, `bias_end`, `mask_row`, `min_p` (a row for each), `bias_id`, `bias` (as many as a
    /// vocabulary has), `mask` (a row for each logit, a bit for each id). They change `logits` and `top_k`.
    fn change_logits(&mut self, logits: TensorId, draws: Draws) {
        let (vocab_size, n_rows) = (self.config.vocab_size, self.options.max_logit_rows);
        let row = self.graph.external("changed_row", Dtype::U32);
        let whole = ["bias_begin", "bias_end", "bias_id", "mask_row", "mask"];
        let whole = whole.map(|name| (name, self.graph.external(name, Dtype::U32)));
        let [bias, min_p] = ["bias", "min_p"].map(|name| self.graph.external(name, Dtype::F32));
        self.graph
            .node("change_logits", "change_logits")
            .dim("vocab_size", vocab_size)
            .scalar("n_biases", vocab_size)
            .scalar("n_masks", n_rows)
            .scalar("n_rows", n_rows)
            .arg("row", row)
            .args(whole)
            .arg("bias", bias)
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
        let [row, top_token] = ["logprob_row", "top_token"].map(|name| self.graph.external(name, Dtype::U32));
        let logprob = self.graph.external("logprob", Dtype::F32);
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
