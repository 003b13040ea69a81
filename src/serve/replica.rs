//! A replica of `serve -g N`: it has the model, and answers its parent process.

use super::Args;
use super::model::{Spoken, cache_facts, fingerprint, shares_cores};
use crate::output::Output;
use crate::report;
use crate::run::getp::signals::{ENDING, leave_to_the_parent};
use chat::grammar::Grammars;
use engine::Engine;
use replica::child;
use serve::metrics::KvCacheFacts;
use serve::replica::ServeReplicaReady;
use serve::replica::child::Orders;

/// Loads the model and answers requests until its parent is gone.
pub(super) fn work(args: &Args, output: &Output) -> anyhow::Result<()> {
    // A service manager tells all processes of a server to end, and requests are to be answered all the same.
    leave_to_the_parent(&ENDING)?;
    let orders = Orders::begin()?;
    let answer = || -> anyhow::Result<()> {
        let checkpoint = args.model.checkpoint()?;
        let Spoken { tokenizer, chat, .. } = args.spoken(&checkpoint)?;
        let mut engine = args.engine(&checkpoint, output)?;
        let ready = ready(&engine, fingerprint(&checkpoint, &engine));
        Ok(orders.work(&mut engine, chat.ok().map(|format| Grammars::new(tokenizer, format)), ready)?)
    };
    if let Err(error) = answer() {
        let message: Vec<String> = error.chain().map(ToString::to_string).collect();
        child::fail(message.join(": "), error.chain().find_map(report::hint));
    }
    Ok(())
}

fn ready(engine: &Engine, fingerprint: String) -> ServeReplicaReady {
    let layout = engine.kv_layout();
    let KvCacheFacts { block_tokens, n_blocks, dtype: kv_dtype } = cache_facts(engine);
    ServeReplicaReady {
        n_slots: layout.n_slots,
        context_tokens: layout.capacity_tokens,
        vocab_size: engine.config().vocab_size,
        block_tokens,
        n_blocks,
        kv_dtype,
        shares_cores: shares_cores(engine),
        fingerprint,
    }
}
