//! What is done with the bytes that a fuzzer makes up, one function per target: read, and if that succeeds, used. The fuzz targets
//! and `tests/it/checkpoint/fuzzed.rs`, which keeps the cases that were found, include this file.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use bytes::Bytes;
use format::Dtype;
use hint::Hint;
use model::checkpoint::export::BinFile;
use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::checkpoint::layout::Layout;
use model::checkpoint::{Checkpoint, CheckpointError};
use model::tokenizer::split::Split;
use model::tokenizer::{Tokenizer, TokenizerError};

/// A `.bin` file, and in its last byte which layout it is said to have.
pub fn bin(data: &[u8]) {
    is_bin(data);
}

/// A folder: the texts of `config.json` and of the index, and a safetensors file, which the index can name `a`. Each of the texts ends
/// with a NUL. Without an index it is a folder with one file.
pub fn safetensors(data: &[u8]) {
    is_safetensors(data);
}

/// A GGUF file: its tensors, and its tokens.
pub fn gguf(data: &[u8]) {
    is_gguf(data);
    is_gguf_tokenizer(data);
}

/// A `tokenizer.bin`, and in its last byte how many tokens the model has.
pub fn tokenizer_bin(data: &[u8]) {
    is_tokenizer_bin(data);
}

/// A `tokenizer.json`, and in its last byte how many tokens the model has, over two.
pub fn tokenizer_json(data: &[u8]) {
    is_tokenizer_json(data);
}

// ---- the same, telling whether it could be read ----

pub fn is_bin(data: &[u8]) -> bool {
    let Some((last, file)) = data.split_last() else { return false };
    let layouts = [Layout::Auto, Layout::Plain, Layout::Swapped, Layout::Fork, Layout::SwappedFork];
    let layout = layouts[usize::from(*last) % layouts.len()];
    use_checkpoint(Checkpoint::from_bytes(Bytes::copy_from_slice(file), layout))
}

pub fn is_safetensors(data: &[u8]) -> bool {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let [Some(config), Some(index), Some(tensors)] = [(); 3].map(|()| parts.next()) else { return false };
    let folder = folder();
    let place = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("memory has room");
    place("config.json", config);
    if index.is_empty() {
        place("model.safetensors", tensors);
    } else {
        place("model.safetensors.index.json", index);
        place("a", tensors);
        place("b", tensors);
    }
    use_checkpoint(Checkpoint::open(folder.path(), Layout::Auto))
}

pub fn is_gguf(data: &[u8]) -> bool {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    fs::write(&path, data).expect("memory has room");
    use_checkpoint(Checkpoint::open(&path, Layout::Auto))
}

pub fn is_gguf_tokenizer(data: &[u8]) -> bool {
    match Gguf::read(&Bytes::copy_from_slice(data)).and_then(|file| GgufTokenizer::from_gguf(&file)) {
        Ok(tokenizer) => {
            let split = (!tokenizer.is_sentencepiece()).then_some(Split::O200k);
            use_tokenizer(Tokenizer::from_gguf(&tokenizer, None, split))
        }
        Err(error) => refused(&error),
    }
}

pub fn is_tokenizer_bin(data: &[u8]) -> bool {
    let Some((last, file)) = data.split_last() else { return false };
    let vocab_size = (*last > 0).then_some(usize::from(*last));
    use_tokenizer(Tokenizer::from_bin(Bytes::copy_from_slice(file), vocab_size, None))
}

pub fn is_tokenizer_json(data: &[u8]) -> bool {
    let Some((last, file)) = data.split_last() else { return false };
    let vocab_size = (*last > 0).then_some(2 * usize::from(*last));
    use_tokenizer(Tokenizer::from_json(Bytes::copy_from_slice(file), vocab_size, None))
}

/// In memory, where there is such a place.
fn folder() -> tempfile::TempDir {
    static PLACE: LazyLock<&Path> = LazyLock::new(|| match Path::new("/dev/shm") {
        memory if memory.is_dir() => memory,
        _ => Path::new("/tmp"),
    });
    tempfile::tempdir_in(*PLACE).expect("a temporary folder")
}

/// What can be read can be written, and what cannot be has a message.
fn use_checkpoint(read: Result<Checkpoint, CheckpointError>) -> bool {
    let checkpoint = match read {
        Ok(checkpoint) => checkpoint,
        Err(error) => return refused(&error),
    };
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let bin = BinFile::new(&checkpoint, dtype, None).expect("what is read has a size");
        let mut len_bytes = 0;
        let mut sink = |chunk: &[u8]| {
            len_bytes += chunk.len() as u64;
            Ok::<_, CheckpointError>(())
        };
        bin.write(&mut sink).expect("small files fit into memory");
        assert_eq!(len_bytes, bin.len_bytes());
    }
    drop(checkpoint.findings.iter().map(ToString::to_string).collect::<Vec<_>>());
    true
}

/// Text becomes ids, and whatever ids there are become bytes.
fn use_tokenizer(read: Result<Tokenizer, TokenizerError>) -> bool {
    let tokenizer = match read {
        Ok(tokenizer) => tokenizer,
        Err(error) => return refused(&error),
    };
    for text in ["", "a", "Once upon a time, 1234 cats\r\n\n  didn't: é日🦀 <|start|>"] {
        let with_and_without = [tokenizer.encode(text.as_bytes()), tokenizer.encode_with_specials(text.as_bytes())];
        for ids in with_and_without.into_iter().flatten() {
            tokenizer.decode_all(&ids).expect("they are its own");
        }
    }
    let n = tokenizer.vocab_size().min(1000) as u32;
    drop((0..n + 2).map(|id| tokenizer.decode(id).map(<[u8]>::len)).collect::<Vec<_>>());
    true
}

fn refused<E: Hint + std::error::Error>(error: &E) -> bool {
    drop((messages(error), error.hint()));
    false
}

fn messages(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
