//! Settings that answers depend on: a run continues from recorded answers only if all of them are equal.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Args;
use batch::records::{Header, VERSION};
use chat::today;
use model::checkpoint::{Checkpoint, Elements};

/// What a first run is recorded with.
pub(super) fn header(args: &Args, checkpoint: &Checkpoint) -> Header {
    let (precision, _) = args.device.precision(checkpoint);
    let sampling = args.sampling_or(super::super::AS_SEEDS, 0);
    let settings = json!({
        "weights": fingerprint(checkpoint),
        "precision": precision.to_string(),
        "kv_cache": args.cache.dtype(precision).to_string(),
        "odd_win": args.cache.odd_window,
        "steps": if args.max_new_tokens.is_some() { Value::Null } else { args.steps(&checkpoint.config).into() },
        "max_new_tokens": args.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": args.seed,
        "stop": args.stop,
        "chat_format": format!("{:?}", args.chat_format),
        "reasoning": format!("{:?}", args.reasoning.unwrap_or_default()),
    });
    let Value::Object(settings) = settings else { unreachable!("an object") };
    Header {
        gptoss_jit_records: VERSION,
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        current_date: today(),
        seed: args.first_seed(),
        settings,
    }
}

/// A digest that distinguishes models without reading all of their bytes: of the tensors' names, types and shapes, and
/// of the beginning and end of each that is in a file as it is.
fn fingerprint(checkpoint: &Checkpoint) -> String {
    const SAMPLE_BYTES: usize = 64;
    let mut hasher = Sha256::new();
    for tensor in checkpoint.tensors.values() {
        hasher.update(format!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape));
        if let Elements::Bytes(bytes) = &tensor.elements {
            let n = bytes.len().min(SAMPLE_BYTES);
            hasher.update(&bytes[..n]);
            hasher.update(&bytes[bytes.len() - n..]);
        }
    }
    hasher.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
