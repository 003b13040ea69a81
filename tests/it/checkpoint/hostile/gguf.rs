//! GGUF files.

use std::fs;

use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use proptest::prelude::*;

use super::refused;
use crate::checkpoint::kinds;

const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;

/// A file put together by hand.
#[derive(Clone, Default)]
pub struct File {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

pub fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

/// An array that claims so many elements.
pub fn array(name: &str, kind: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    key(name, ARRAY, &[&kind.to_le_bytes()[..], &len.to_le_bytes(), elements].concat())
}

pub fn tensor(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let shape_bytes: Vec<u8> = shape.iter().flat_map(|n| n.to_le_bytes()).collect();
    let dimensions = (shape.len() as u32).to_le_bytes();
    [&text(name.as_bytes())[..], &dimensions, &shape_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl File {
    pub fn key(mut self, key: Vec<u8>) -> Self {
        self.keys.push(key);
        self
    }

    pub fn tensor(mut self, tensor: Vec<u8>) -> Self {
        self.tensors.push(tensor);
        self
    }

    fn data(self, len: usize) -> Self {
        self.with_data(vec![0; len])
    }

    /// What is behind the header.
    pub fn with_data(self, data: Vec<u8>) -> Self {
        Self { data, ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|part| bytes.extend(part));
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// The beginning of a file that claims so many tensors and keys.
fn header(version: u32, n_tensors: u64, n_keys: u64) -> Vec<u8> {
    [b"GGUF", &version.to_le_bytes()[..], &n_tensors.to_le_bytes(), &n_keys.to_le_bytes()].concat()
}

#[test]
fn headers_that_lie_are_refused() {
    let file = File::default;
    let a = || file().tensor(tensor("a", &[2, 3], F32, 0));
    let alignment = |n: u32| file().key(key("general.alignment", U32, &n.to_le_bytes()));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "the file has 0 bytes and ends within the header"),
        (b"GGML\x03\0\0\0".to_vec(), "the file begins with [47, 47, 4d, 4c], expected `GGUF`"),
        (header(3, 0, 0)[..20].to_vec(), "the file has 20 bytes and ends within the header"),
        (header(2, 0, 0), "the file is of version 2 of the format, expected 3"),
        (header(3 << 24, 0, 0), "hint: the file is big-endian"),
        (header(3, u64::MAX, 0), "the file claims 18446744073709551615 tensors, expected 65536 at most"),
        (header(3, 0, 1 << 40), "the file claims 1099511627776 keys"),
        (header(3, 0, 65_536), "ends within the name of key 0"),
        (header(3, 65_536, 0), "ends within the name of tensor 0"),
        (
            [header(3, 0, 1), u64::MAX.to_le_bytes().to_vec()].concat(),
            "takes 18446744073709551615 bytes from offset 32",
        ),
        ([header(3, 0, 1), text(b"\xff")].concat(), "the name of key 0 is not UTF-8 at offset 32"),
        (file().key(key("a", STRING, &text(b"x\xc3"))).bytes(), "the value of `a` is not UTF-8 at offset 46"),
        (file().key(key("a", U32, &[0; 4])).key(key("a", U32, &[0; 4])).bytes(), "key 1 is `a`, a duplicate"),
        (file().key(key("a", 13, &[0; 8])).bytes(), "the value of `a` has a value of type 13"),
        (file().key(key("a", 7, &[2])).bytes(), "the key `a` is 2, expected a bool, 0 or 1"),
        (file().key(array("a", ARRAY, 1, &[0; 32])).bytes(), "the array `a` has a value of type 9"),
        (
            file().key(array("a", 10, u64::MAX, &[0; 32])).bytes(),
            "ends within the array `a`, which takes 18446744073709551615",
        ),
        (file().key(array("a", U32, 1 << 40, &[0; 32])).bytes(), "which takes 4398046511104 bytes"),
        (file().key(array("a", STRING, 1 << 60, &text(b"x"))).bytes(), "ends within element"),
        (alignment(0).bytes(), "the key `general.alignment` is 0, expected a power of two"),
        (alignment(48).bytes(), "the key `general.alignment` is 48"),
        (alignment(1 << 31).bytes(), "the key `general.alignment` is 2147483648"),
        (file().tensor(tensor("a", &[], F32, 0)).bytes(), "`a` has 0 dimensions, expected 1 to 4"),
        (file().tensor(tensor("a", &[1; 5], F32, 0)).bytes(), "`a` has 5 dimensions"),
        (file().tensor(tensor("a", &[2], 4, 0)).bytes(), "`a` has elements of type 4, which is not known"),
        (
            file().tensor(tensor("a", &[33, 2], 39, 0)).bytes(),
            "`a` cannot be [2, 33] of MXFP4: rows are whole blocks of 32",
        ),
        (file().tensor(tensor("a", &[1 << 62, 4], F32, 0)).bytes(), "`a` cannot be [4, 4611686018427387904] of F32"),
        (file().tensor(tensor("a", &[1 << 40], F32, 0)).data(64).bytes(), "the tensors take 4398046511104 bytes"),
        (a().data(20).bytes(), "the tensors take 24 bytes, the file has 20 after its header"),
        (a().data(64).bytes(), "the tensors take 24 bytes, the file has 64 after its header"),
        (a().tensor(tensor("b", &[2], F32, 0)).data(64).bytes(), "`b` begins at byte 0 of the data, expected 32"),
        (a().tensor(tensor("b", &[2], F32, 24)).data(64).bytes(), "`b` begins at byte 24 of the data, expected 32"),
        (a().tensor(tensor("b", &[2], F32, u64::MAX)).data(64).bytes(), "`b` begins at byte 18446744073709551615"),
        (a().tensor(tensor("a", &[2], F32, 32)).data(40).bytes(), "tensor 1 is `a`, a duplicate"),
        (a().data(32).bytes(), "the key `general.architecture` is missing"),
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    for (bytes, message) in cases {
        fs::write(&path, bytes).expect("written");
        refused(&path, message);
    }
}

/// The fixture with the first of these bytes made the second, of the same length.
fn changed(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = fs::read(kinds::path("gguf/mxfp4-bf16.gguf")).expect("a fixture");
    let at = bytes.windows(from.len()).position(|window| window == from).expect("there");
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn models_that_are_not_as_the_program_computes_are_refused() {
    let value = |name: &str, kind: u32, value: [u8; 4]| [name.as_bytes(), &kind.to_le_bytes(), &value].concat();
    let eps = |eps: f32| value("attention.layer_norm_rms_epsilon", 6, eps.to_le_bytes());
    let head_dim = |n: u32| value("attention.key_length", U32, n.to_le_bytes());
    let heads = |n: u32| value("attention.head_count", U32, n.to_le_bytes());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    for (bytes, message) in [
        (changed(b"\x07\0\0\0\0\0\0\0gpt-oss", b"\x07\0\0\0\0\0\0\0gpt-pss"), "`general.architecture` is `gpt-pss`"),
        (changed(&eps(1e-5), &eps(1e-6)), "`gpt-oss.attention.layer_norm_rms_epsilon` is"),
        (changed(&head_dim(16), &head_dim(32)), "`gpt-oss.attention.value_length` is 16.0, expected 32"),
        (changed(&heads(8), &heads(6)), "`blk.0.attn_q.weight` is (128, 96), expected (96, 96)"),
        (changed(&heads(8), &heads(7)), "`num_attention_heads` is 7, not a multiple of `num_key_value_heads`"),
        (
            changed(b"gpt-oss.attention.key_length", b"gpt-oss.attention.kee_length"),
            "`gpt-oss.attention.key_length` is missing",
        ),
        (changed(b"blk.1.attn_k.bias", b"blk.1.attn_k.byas"), "`blk.1.attn_k.byas` has no place in the model"),
        (
            changed(b"blk.1.attn_k.bias", b"blk.1.attn_k.byas"),
            "`blk.1.attn_k.bias` is missing, expected BF16, F16 or F32, (32)",
        ),
        (
            changed(b"\x04\0\0\0\0\0\0\0yarn", b"\x04\0\0\0\0\0\0\0barn"),
            "`gpt-oss.rope.scaling.type` is `barn`, expected yarn or none",
        ),
    ] {
        fs::write(&path, bytes).expect("written");
        refused(&path, message);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_damage_panics(changes in prop::collection::vec((4usize..16_000, any::<u8>()), 1..5), cut in prop::option::of(0usize..20_000)) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        let mut bytes = fs::read(kinds::path("gguf/mxfp4-bf16.gguf")).expect("a fixture");
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        fs::write(&path, bytes).expect("written");
        if let Ok(checkpoint) = Checkpoint::open(&path, Layout::Auto) {
            for tensor in checkpoint.tensors.values() {
                prop_assert_eq!(tensor.read().expect("memory").expect("bytes").len(), tensor.len_bytes());
            }
        }
    }
}
