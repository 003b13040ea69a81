//! Models by their id, from Hugging Face's cache on this machine.

use std::fs;
use std::path::Path;

use crate::checkpoint::downloads::HubCache;
use crate::checkpoint::kinds;
use crate::fixtures::program::{Ran, argument, command, file, shared_cache};

const ID: &str = "openai/gpt-oss-20b";

/// The program, with these variables and no others that say where Hugging Face's cache is.
fn run(variables: &[(&str, &Path)], args: &[&str]) -> Ran {
    let mut program = command(shared_cache(), args);
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"] {
        program.env_remove(name);
    }
    program.envs(variables.iter().copied());
    Ran::new(args, program.output().expect("started"))
}

#[test]
fn every_command_that_takes_a_model_takes_its_id() {
    let cache = HubCache::of(ID, "hf-mxfp4");
    let at = cache.folder.path();
    let ids = file(at, "ids.txt", b"1 2 3\n");
    let [by_id, by_path] = [ID.to_owned(), argument(&kinds::path("hf-mxfp4"))].map(|model| {
        let of = |args: &[&str]| run(&[("HF_HUB_CACHE", at)], args).ok();
        let out = at.join("out.bin");
        let exported = of(&["export", &model, &argument(&out), "--force"]);
        let logits = at.join("logits.npy");
        of(&["logits", &model, "--ids", &ids, "-o", &argument(&logits)]);
        (
            of(&["run", &model, "-i", "Once", "-n", "4"]).stdout,
            of(&["inspect", &model, "--json"]).json()["parameters"].clone(),
            exported.text().split(' ').next().map(str::to_owned),
            fs::read(logits).expect("written"),
            of(&["tokenize", &model, "-i", "Once upon a time"]).stdout,
            of(&["decode", &model, "-i", &ids]).stdout,
        )
    });
    assert_eq!(by_id, by_path);
    // Once is enough: it measures the machine's limits first, which takes seconds.
    let bench = ["bench", ID, "--work", "decode", "-b", "1", "-n", "1", "--context", "2", "--json"];
    let ran = run(&[("HF_HUB_CACHE", at)], &bench).ok();
    let report: serde_json::Value = serde_json::from_str(ran.text()).expect("JSON");
    assert_eq!((&report["model"], &report["weights"]), (&"checkpoint".into(), &"bf16 and experts mxfp4".into()));
}

#[test]
fn the_cache_is_where_hugging_faces_tools_have_it() {
    let cache = HubCache::of(ID, "hf-mxfp4");
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let homes = tempfile::tempdir().expect("a temporary folder");
    for below in ["home/hub", "user/huggingface/hub", "person/.cache/huggingface/hub"] {
        let hub = homes.path().join(below);
        fs::create_dir_all(hub.parent().expect("a folder")).expect("made");
        std::os::unix::fs::symlink(cache.folder.path(), hub).expect("linked");
    }
    let (home, user, person) = (homes.path().join("home"), homes.path().join("user"), homes.path().join("person"));
    let nowhere = elsewhere.path();
    for variables in [
        &[("HF_HUB_CACHE", cache.folder.path()), ("HF_HOME", nowhere)][..],
        &[("HUGGINGFACE_HUB_CACHE", cache.folder.path()), ("HF_HOME", nowhere)],
        &[("HF_HOME", &home), ("XDG_CACHE_HOME", nowhere)],
        &[("XDG_CACHE_HOME", &user), ("HOME", nowhere)],
        &[("HOME", &person)],
    ] {
        run(variables, &["inspect", ID]).ok();
    }
    for name in [format!("{ID}@main"), format!("hf://{ID}/")] {
        run(&[("HF_HOME", &home)], &["inspect", &name]).ok();
    }
    for (variables, looked) in [
        (&[("HF_HUB_CACHE", nowhere), ("HF_HOME", &home)][..], "models--openai--gpt-oss-20b"),
        (&[("HF_HOME", nowhere), ("HOME", &person)], "hub/models--openai--gpt-oss-20b"),
        (&[("HOME", nowhere)], ".cache/huggingface/hub/models--openai--gpt-oss-20b"),
    ] {
        let stderr = run(variables, &["inspect", ID]).fails_with_hint(1);
        assert!(stderr.contains("there is no file or folder `openai/gpt-oss-20b`"), "{stderr}");
        assert!(stderr.contains(&format!("looked for `{}`", nowhere.join(looked).display())), "{stderr}");
        assert!(stderr.contains("hint: `hf download openai/gpt-oss-20b --exclude \"*/*\"` downloads it"), "{stderr}");
    }
}

#[test]
fn a_path_that_is_there_goes_before_an_id() {
    let cache = HubCache::of(ID, "hf-bf16");
    let here = tempfile::tempdir().expect("a temporary folder");
    let inspect = |folder: &Path| {
        let args = ["inspect", ID, "--json"];
        let mut program = command(shared_cache(), &args);
        let output = program.env("HF_HUB_CACHE", cache.folder.path()).current_dir(folder).output();
        Ran::new(&args, output.expect("started"))
    };
    let dtypes = |folder: &Path| inspect(folder).ok().json()["dtypes"].clone();
    assert_eq!(dtypes(here.path()), serde_json::json!(["bf16"]));
    fs::create_dir(here.path().join("openai")).expect("made");
    std::os::unix::fs::symlink(kinds::path("hf-mxfp4"), here.path().join(ID)).expect("linked");
    assert_ne!(dtypes(here.path()), serde_json::json!(["bf16"]));
    // Also one that is broken: what was meant is here.
    fs::remove_file(here.path().join(ID)).expect("there");
    fs::create_dir(here.path().join(ID)).expect("made");
    assert!(inspect(here.path()).fails(1).contains("could not read checkpoint `openai/gpt-oss-20b`"));
    // What cannot be an id is a path that is not there.
    let bare = run(&[("HF_HUB_CACHE", cache.folder.path())], &["inspect", "gpt-oss-20b"]).fails_with_hint(1);
    assert!(bare.contains("give the owner too, as in `openai/gpt-oss-20b`"), "{bare}");
    for path in ["openai/model.bin", "./openai/gpt", "a/b/c", "gpt-oss"] {
        let stderr = run(&[("HF_HUB_CACHE", cache.folder.path())], &["inspect", path]).fails_with_hint(1);
        assert!(stderr.contains(&format!("could not read checkpoint `{path}`")), "{stderr}");
    }
}

#[test]
fn weights_are_taken_from_the_snapshot_or_from_its_original_folder() {
    let cache = HubCache::of(ID, "hf-mxfp4");
    let tensors = || {
        let json = run(&[("HF_HUB_CACHE", cache.folder.path())], &["inspect", ID, "--all", "--json"]).ok().json();
        json["tensors"].clone()
    };
    let own = tensors();
    let openai = |name: &str| fs::read(kinds::path("openai").join(name)).expect("a fixture");
    for name in ["config.json", "model.safetensors"] {
        cache.add(&format!("original/{name}"), &openai(name));
    }
    cache.add("metal/model.bin", b"weights of yet another layout");
    assert_eq!(tensors(), own, "beside it are the same weights in other layouts");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::remove_file(cache.snapshot().join(name)).expect("there");
    }
    assert_ne!(tensors(), own, "other offsets");
    fs::remove_dir_all(cache.snapshot().join("original")).expect("there");
    let stderr = run(&[("HF_HUB_CACHE", cache.folder.path())], &["inspect", ID]).fails_with_hint(1);
    assert!(stderr.contains("config.json") && stderr.contains("hint: `hf download openai/gpt-oss-20b"), "{stderr}");
}

#[test]
fn a_folder_without_its_revision_says_so() {
    let cache = HubCache::of(ID, "hf-mxfp4");
    let inspect = || run(&[("HF_HUB_CACHE", cache.folder.path())], &["inspect", ID]).fails_with_hint(1);
    fs::rename(cache.snapshot(), cache.snapshot().with_file_name("4567")).expect("there");
    let stderr = inspect();
    assert!(stderr.contains("but not its revision: there is no `") && stderr.contains("0123abcd`"), "{stderr}");
    fs::remove_file(cache.blobs().with_file_name("refs").join("main")).expect("there");
    let stderr = inspect();
    assert!(stderr.contains("refs/main`, which names its revision"), "{stderr}");
    assert!(stderr.contains("hint: name a folder of its `snapshots`"), "{stderr}");
}
