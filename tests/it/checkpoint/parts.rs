//! GGUF in several files: what any of them gives is what the whole file gives.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use super::hostile::gguf::{File, key};
use super::hostile::refused;
use super::kinds;
use crate::fixtures::program::{argument, repository, run};

/// A whole file, taken apart.
struct Whole {
    keys: Vec<Vec<u8>>,
    /// What the list says of a tensor but for its offset, and its data, padded.
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("there")) as usize
}

fn long(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("there")) as usize
}

/// Where a value ends.
fn value_end(bytes: &[u8], kind: usize, at: usize) -> usize {
    match kind {
        0 | 1 | 7 => at + 1,
        2 | 3 => at + 2,
        4..=6 => at + 4,
        8 => at + 8 + long(bytes, at),
        9 => (0..long(bytes, at + 4)).fold(at + 12, |end, _| value_end(bytes, word(bytes, at), end)),
        _ => at + 8,
    }
}

impl Whole {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a fixture");
        let (n_tensors, n_keys) = (long(&bytes, 8), long(&bytes, 16));
        let mut at = 24;
        let mut taken = |end: usize| bytes[std::mem::replace(&mut at, end)..end].to_vec();
        let mut end = 24;
        let mut next = |is_key: bool| {
            end += 8 + long(&bytes, end);
            end = if is_key {
                value_end(&bytes, word(&bytes, end), end + 4)
            } else {
                end + 4 + 8 * word(&bytes, end) + 12
            };
            taken(end)
        };
        let keys = (0..n_keys).map(|_| next(true)).collect();
        let listed: Vec<Vec<u8>> = (0..n_tensors).map(|_| next(false)).collect();
        let data = &bytes[end.next_multiple_of(32)..];
        let offsets = listed.iter().map(|entry| long(entry, entry.len() - 8)).chain([data.len()]);
        let offsets: Vec<usize> = offsets.collect();
        let tensors = listed.iter().zip(offsets.windows(2)).map(|(entry, place)| {
            let mut of_tensor = data[place[0]..place[1]].to_vec();
            of_tensor.resize(of_tensor.len().next_multiple_of(32), 0);
            (entry[..entry.len() - 8].to_vec(), of_tensor)
        });
        Self { keys, tensors: tensors.collect() }
    }

    /// The part of this number of so many, with these tensors, which says that there are `n_tensors` in all.
    fn part(&self, no: u16, count: u16, n_tensors: usize, tensors: Range<usize>) -> Vec<u8> {
        let mut file = File::default();
        for own in self.keys.iter().filter(|_| no == 0) {
            file = file.key(own.clone());
        }
        file = file.key(key("split.no", 2, &no.to_le_bytes())).key(key("split.count", 2, &count.to_le_bytes()));
        file = file.key(key("split.tensors.count", 5, &(n_tensors as i32).to_le_bytes()));
        let mut data = Vec::new();
        for (entry, of_tensor) in &self.tensors[tensors] {
            file = file.tensor([&entry[..], &(data.len() as u64).to_le_bytes()].concat());
            data.extend(of_tensor);
        }
        file.with_data(data).bytes()
    }

    /// Three parts, the first without tensors if they begin at 0.
    fn write(&self, folder: &Path, begin: usize) -> [PathBuf; 3] {
        let n = self.tensors.len();
        let middle = usize::midpoint(begin, n);
        let parts = [0..begin, begin..middle, middle..n];
        std::array::from_fn(|i| put(folder, i + 1, &self.part(i as u16, 3, n, parts[i].clone())))
    }
}

/// Writes what is called the part of this number.
fn put(folder: &Path, no: usize, bytes: &[u8]) -> PathBuf {
    let path = folder.join(format!("a-model-0000{no}-of-00003.gguf"));
    fs::write(&path, bytes).expect("written");
    path
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path, Layout::Auto).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

#[test]
fn any_part_is_the_whole_file_bit_for_bit() {
    let families = repository().join("tests/fixtures/families");
    let files =
        [kinds::path("gguf/mxfp4-bf16.gguf"), families.join("llama3/model.gguf"), families.join("qwen3/model.gguf")];
    for (path, begin) in files.iter().zip([0, 1, 5]) {
        let folder = tempfile::tempdir().expect("a folder");
        let parts = Whole::read(path).write(folder.path(), begin);
        let expected = open(path);
        for part in &parts {
            let found = open(part);
            assert_eq!(format!("{:?}", found.config), format!("{:?}", expected.config));
            assert_eq!(found.origin.files, parts);
            let sizes = parts.iter().map(|part| fs::metadata(part).expect("written").len());
            assert_eq!(found.origin.total_bytes, sizes.sum::<u64>());
            assert!(found.tensors.keys().eq(expected.tensors.keys()));
            for (found, expected) in found.tensors.values().zip(expected.tensors.values()) {
                assert_eq!(found.dtype, expected.dtype, "{}", found.name);
                assert_eq!(found.read().expect("made"), expected.read().expect("made"), "{}", found.name);
            }
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [_, part, _] = Whole::read(&files[2]).write(folder.path(), 0);
    let [ids, logits] = ["ids.txt", "logits.npy"].map(|name| argument(&files[2].with_file_name(name)));
    let args = ["logits", &argument(&part), "--ids", &ids, "--expect", &logits, "--device", "cpu"];
    run(&[&args[..], &["--precision", "f32", "--rtol", "0", "--atol", "2e-4"]].concat()).ok();
    // The tokenizer is the first part's.
    let [_, _, part] = Whole::read(&files[0]).write(folder.path(), 2);
    let ids = |path: &Path| run(&["tokenize", "-z", &argument(path), "-i", "Once upon"]).ok().text().to_owned();
    assert_eq!(ids(&part), ids(&files[0]));
}

#[test]
fn parts_that_are_not_of_one_model_are_refused() {
    let whole = Whole::read(&repository().join("tests/fixtures/families/qwen3/model.gguf"));
    let n = whole.tensors.len();
    let with = |change: fn(&Whole, &Path, usize), message: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let parts = whole.write(folder.path(), 4);
        change(&whole, folder.path(), n);
        for part in parts.iter().filter(|part| part.exists()) {
            refused(part, message);
        }
    };
    with(
        |_, folder, _| fs::remove_file(folder.join("a-model-00002-of-00003.gguf")).expect("it was there"),
        "1 of the 3 parts of the model are not there: `a-model-00002-of-00003.gguf`",
    );
    with(
        |whole, folder, n| drop(put(folder, 2, &whole.part(0, 3, n, 0..4))),
        "the key `split.no` is 0, expected 1, as the file's name says",
    );
    with(
        |whole, folder, n| drop(put(folder, 3, &whole.part(2, 3, n + 1, 5..n))),
        &format!("the key `split.tensors.count` is {}, expected {n}, as in the first part", n + 1),
    );
    with(
        |whole, folder, n| drop(put(folder, 3, &whole.part(2, 3, n, n - 1..n))),
        &format!("the key `split.tensors.count` is {n}, expected "),
    );
    with(|whole, folder, n| drop(put(folder, 3, &whole.part(2, 3, n, 4..n))), "a duplicate");
    let folder = tempfile::tempdir().expect("a folder");
    let parts = whole.write(folder.path(), 4);
    put(folder.path(), 2, &whole.part(1, 4, n, 4..5));
    refused(&parts[0], "the key `split.count` is 4, expected 3, as the file's name says");
    refused(&parts[1], "is one of 4 parts and is named `a-model-00002-of-00003.gguf`, expected `NAME-00001-of-00004");
    put(folder.path(), 2, &File::default().bytes());
    refused(&parts[0], "the key `split.no` is missing");
    let renamed = folder.path().join("model.gguf");
    fs::rename(&parts[0], &renamed).expect("renamed");
    refused(&renamed, "is one of 3 parts and is named `model.gguf`, expected `NAME-00001-of-00003.gguf`");
}
