//! Checkpoints that are not whole: clones without Git LFS, downloads that were interrupted, files that are cut short.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::checkpoint::hostile::{copy_of, refused};
use crate::checkpoint::kinds;
use crate::fixtures::program::{argument, file, run};

/// What `git clone` leaves where a large file should be.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4792272488\n";

const SHARD: &str = "model-00002-of-00004.safetensors";

/// Hugging Face's cache, as its tools make it: files among the blobs, links to them in the snapshot.
pub struct HubCache {
    pub folder: tempfile::TempDir,
    root: PathBuf,
}

impl HubCache {
    /// With these files of a fixture, under this id.
    pub fn of(id: &str, fixture: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().join(format!("models--{}", id.replace('/', "--")));
        file(&root, "refs/main", b"0123abcd");
        let cache = Self { folder, root };
        for entry in fs::read_dir(kinds::path(fixture)).expect("a fixture") {
            let path = entry.expect("listed").path();
            let name = path.file_name().expect("a file").to_str().expect("text");
            cache.add(name, &fs::read(&path).expect("read"));
        }
        cache
    }

    /// Puts a file into the snapshot.
    pub fn add(&self, name: &str, bytes: &[u8]) {
        let blob = format!("blob-of-{}", name.replace('/', "-"));
        file(&self.root, &format!("blobs/{blob}"), bytes);
        let link = self.snapshot().join(name);
        fs::create_dir_all(link.parent().expect("in a folder")).expect("made");
        let up = "../".repeat(name.matches('/').count() + 2);
        symlink(format!("{up}blobs/{blob}"), link).expect("linked");
    }

    /// Takes a file's link away and leaves what a download leaves that was interrupted.
    pub fn interrupt(&self, name: &str) {
        fs::remove_file(self.snapshot().join(name)).expect("there");
        let blob = self.root.join("blobs").join(format!("blob-of-{name}"));
        fs::rename(&blob, blob.with_extension("incomplete")).expect("there");
    }

    pub fn snapshot(&self) -> PathBuf {
        self.root.join("snapshots/0123abcd")
    }

    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }
}

#[test]
fn a_pointer_of_git_lfs_is_told_from_a_checkpoint() {
    let said = "the file is a Git-LFS pointer, and not the 4792272488 bytes that it stands for";
    for (fixture, name) in [("hf-mxfp4", "model.safetensors"), ("hf-bf16-sharded", SHARD)] {
        let folder = copy_of(fixture);
        file(folder.path(), name, POINTER);
        refused(folder.path(), said);
        refused(folder.path(), "hint: `git lfs pull` in its folder");
        refused(folder.path(), &format!("could not read its file `{}`", folder.path().join(name).display()));
    }
    for name in ["model.bin", "model.gguf", "model.safetensors", "model"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        refused(Path::new(&file(folder.path(), name, POINTER)), said);
    }
    let folder = copy_of("hf-mxfp4");
    let tokenizer = file(folder.path(), "tokenizer.json", POINTER);
    for args in [&["tokenize", "-z", &tokenizer][..], &["tokenize", &argument(folder.path())]] {
        let stderr = run(args).fails_with_hint(1);
        assert!(stderr.contains(said) && stderr.contains(&tokenizer) && stderr.contains("git lfs pull"), "{stderr}");
    }
}

#[test]
fn shards_that_are_missing_are_all_named() {
    let folder = copy_of("hf-bf16-sharded");
    fs::remove_file(folder.path().join(SHARD)).expect("there");
    fs::remove_file(folder.path().join(SHARD.replace("00002", "00004"))).expect("there");
    refused(
        folder.path(),
        "2 of the 4 files that the index names are not there: `model-00002-of-00004.safetensors`, `model-00004-of-00004.safetensors`\n",
    );
    refused(folder.path(), &format!("hint: download what is missing into `{}`", folder.path().display()));
    // Without the index, what is there of several is not taken for the whole.
    fs::remove_file(folder.path().join("model.safetensors.index.json")).expect("there");
    for other in ["00001", "00003"] {
        refused(folder.path(), "files `*.safetensors` and no `model.safetensors.index.json`");
        fs::remove_file(folder.path().join(SHARD.replace("00002", other))).expect("there");
    }
}

#[test]
fn an_interrupted_download_says_what_completes_it() {
    let cache = HubCache::of("openai/gpt-oss-20b", "hf-bf16-sharded");
    let snapshot = cache.snapshot();
    run(&["inspect", &argument(&snapshot)]).ok();
    cache.interrupt(SHARD);
    let incomplete = cache.blobs().join("blob-of-model-00002-of-00004.incomplete");
    refused(&snapshot, &format!("1 of the 4 files that the index names are not there: `{SHARD}`; the download `"));
    refused(&snapshot, "blob-of-model-00002-of-00004.incomplete` is not complete");
    refused(&snapshot, "hint: `hf download openai/gpt-oss-20b --exclude \"*/*\"` fetches what is missing");
    refused(&incomplete, "the file is an incomplete download");
    refused(&incomplete, "hint: `hf download openai/gpt-oss-20b");
    // Before the index is there, and before anything is.
    cache.interrupt("model.safetensors.index.json");
    for entry in fs::read_dir(&snapshot).expect("listed") {
        let path = entry.expect("listed").path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            fs::remove_file(path).expect("removed");
        }
    }
    refused(&snapshot, "the folder has none of `model.safetensors`, ");
    refused(&snapshot, "; 2 downloads such as `");
    refused(&snapshot, "hint: `hf download openai/gpt-oss-20b");
    cache.interrupt("config.json");
    refused(&snapshot, &format!("could not read its file `{}`", snapshot.join("config.json").display()));
    refused(&snapshot, "the file is not there; 3 downloads such as `");
    refused(&snapshot, "hint: `hf download openai/gpt-oss-20b");
}

#[test]
fn a_link_to_nothing_is_told_with_where_it_points() {
    let cache = HubCache::of("openai/gpt-oss-20b", "hf-mxfp4");
    fs::remove_file(cache.blobs().join("blob-of-model.safetensors")).expect("there");
    let snapshot = cache.snapshot();
    refused(&snapshot, "the file is a link to `../../blobs/blob-of-model.safetensors`, which is not there");
    refused(&snapshot, "hint: `hf download openai/gpt-oss-20b");
    refused(&snapshot.join("model.safetensors"), "is a link to `../../blobs/blob-of-model.safetensors`");
    // Nor is the built-in tokenizer taken for one that a link should lead to.
    let cache = HubCache::of("openai/gpt-oss-20b", "hf-mxfp4");
    fs::remove_file(cache.blobs().join("blob-of-tokenizer.json")).expect("there");
    refused(&cache.snapshot(), "the file is a link to `../../blobs/blob-of-tokenizer.json`, which is not there");
    let folder = tempfile::tempdir().expect("a temporary folder");
    symlink("elsewhere.gguf", folder.path().join("model.gguf")).expect("linked");
    refused(&folder.path().join("model.gguf"), "the file is a link to `elsewhere.gguf`, which is not there");
}

#[test]
fn a_download_to_a_folder_is_known_by_what_it_keeps_there() {
    let folder = copy_of("hf-bf16-sharded");
    fs::remove_file(folder.path().join(SHARD)).expect("there");
    file(folder.path(), ".cache/huggingface/download/x.abc.incomplete", b"a part");
    refused(folder.path(), "x.abc.incomplete` is not complete");
    refused(folder.path(), "hint: `hf download ID --local-dir DIR`, as it was begun, fetches what is missing");
}

#[test]
fn a_file_that_is_cut_short_says_how_to_fetch_it_again() {
    let whole = fs::read(kinds::path("hf-mxfp4/model.safetensors")).expect("a fixture");
    let folder = copy_of("hf-mxfp4");
    file(folder.path(), "model.safetensors", &whole[..whole.len() - 1]);
    refused(folder.path(), "hint: the file is cut short: download or copy it again\n");
    let cache = HubCache::of("openai/gpt-oss-20b", "hf-mxfp4");
    for (inside, shown) in [("", "model.safetensors"), ("original/", "original/model.safetensors")] {
        for name in ["config.json", "model.safetensors"] {
            let _ = fs::remove_file(cache.snapshot().join(name));
        }
        let config = fs::read(kinds::path("hf-mxfp4/config.json")).expect("a fixture");
        cache.add(&format!("{inside}config.json"), &config);
        cache.add(&format!("{inside}model.safetensors"), &whole[..whole.len() - 1]);
        let hint = format!("hint: the file is cut short: `hf download openai/gpt-oss-20b {shown} --force-download`");
        refused(&cache.snapshot(), &hint);
    }
}
