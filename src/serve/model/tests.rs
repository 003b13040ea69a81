use std::fs;
use std::path::Path;

use model::checkpoint::layout::Layout;

use super::*;

/// The digest of a copy of a folder whose tensor `name` has another byte in its middle; as it is where none is named.
fn with_another(name: Option<&str>) -> [u8; 32] {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama3");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    if let Some(name) = name {
        let [begin, end] = [0, 1].map(|i| header[name]["data_offsets"][i].as_u64().expect(name) as usize);
        bytes[start + (begin + end) / 2] ^= 1;
    }
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    digest_of_weights(&Checkpoint::open(folder.path(), Layout::Auto).unwrap())
}

/// Keys are of a matrix that is put together from three, gates of one from two.
#[test]
fn weights_that_differ_in_one_matrix_are_others() {
    let own = with_another(None);
    assert_eq!(own, with_another(None));
    for name in ["self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "self_attn.o_proj", "input_layernorm"] {
        assert_ne!(own, with_another(Some(&format!("model.layers.0.{name}.weight"))), "{name}");
    }
}
