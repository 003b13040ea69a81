//! Which tokenizer goes with a model, in every command that takes one.

use crate::checkpoint::kinds;
use crate::fixtures::models::{Counter, letters_tokenizer};
use crate::fixtures::program::{argument, file, run, run_with_stdin};

#[test]
fn a_bin_file_has_the_tokenizer_bin_beside_it() {
    let counter = Counter::new(20);
    let model = counter.path("model.bin");
    assert_eq!(run(&["run", &model, "-i", "Ac", "-n", "3"]).ok().text(), "AcAdAeAf\n");
    assert_eq!(run(&["run", &model, "-m", "getp", "-i", "AcAd", "-n", "4"]).ok().ids(), [[4, 5]]);
    assert_eq!(run(&["tokenize", &model, "-i", "AcAb"]).ok().text(), "2 1\n");
    assert_eq!(run_with_stdin(&["decode", &model], b"2 1\n\n0\n").ok().text(), "AcAb\n\nAa\n");
    // What is named goes before it, and a model without one has the built-in one.
    let mut zed = letters_tokenizer(26);
    zed[12..14].copy_from_slice(b"Zz"); // the first token, behind the header, its score and its length
    let other = file(counter.folder.path(), "other.bin", &zed);
    assert_eq!(run_with_stdin(&["decode", &model, "-z", &other], b"0 1\n").ok().text(), "ZzAb\n");
    assert_eq!(run_with_stdin(&["decode", &counter.model_alone()], b"0 1\n").ok().text(), "!\"\n");
    // A folder with one is a tokenizer too.
    let folder = argument(counter.folder.path());
    assert_eq!(run_with_stdin(&["decode", "-z", &folder], b"2 1\n").ok().text(), "AcAb\n");
}

#[test]
fn a_tokenizer_bin_of_another_model_is_told() {
    let counter = Counter::new(20);
    file(counter.folder.path(), "tokenizer.bin", &letters_tokenizer(25));
    let model = counter.path("model.bin");
    for args in [&["run", &model, "-i", "Aa"][..], &["tokenize", &model, "-i", "Aa"], &["decode", &model]] {
        let stderr = run(args).fails_with_hint(1);
        assert!(stderr.contains(&counter.path("tokenizer.bin")), "{stderr}");
        assert!(stderr.contains("the file holds 25 tokens, expected 26"), "{stderr}");
    }
}

#[test]
fn text_and_ids_are_those_of_the_model_that_is_named() {
    let ids = |args: &[&str]| run(&[&["tokenize"], args, &["-i", "Once upon a time"]].concat()).ok().text().to_owned();
    let json = argument(&kinds::path("tokenizer/tokenizer.json"));
    let expected = ids(&["-z", &json]);
    assert_ne!(ids(&[]), expected, "the built-in one is another");
    for name in ["hf-bf16", "hf-mxfp4", "gguf/mxfp4-bf16.gguf"] {
        let model = argument(&kinds::path(name));
        assert_eq!(ids(&[&model]), expected, "{name}");
        let back = run_with_stdin(&["decode", &model], expected.as_bytes()).ok();
        assert_eq!(back.text(), "Once upon a time\n", "{name}");
    }
    for command in ["tokenize", "decode"] {
        let stderr = run(&[command, "/nowhere/model.bin"]).fails_with_hint(1);
        assert!(stderr.contains("could not read checkpoint `/nowhere/model.bin`"), "{stderr}");
    }
    let stderr = run(&["tokenize", &json, "-z", &json, "--vocab-size", "3"]).stderr;
    assert!(stderr.contains("cannot be used with"), "{stderr}");
}
