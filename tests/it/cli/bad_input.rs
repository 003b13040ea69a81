//! Whatever is wrong with what the program is given: an error that says so, a hint, and an exit code.

use std::fs;

use crate::fixtures::models::{Counter, Fixture, letters_tokenizer, prompt_file};
use crate::fixtures::program::{Ran, argument, command, file, run, shared_cache};

/// Bytes without any order, always the same ones.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn files_that_are_no_model_are_refused_by_every_command_that_reads_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = fs::read(Fixture::open("odd").path("model.bin")).expect("a fixture");
    let larger = [&model[..], b"more"].concat();
    let mut experts = model.clone();
    experts[12..16].copy_from_slice(&77_i32.to_le_bytes());
    let mut negative = model.clone();
    negative[4..8].copy_from_slice(&(-45_i32).to_le_bytes());
    let mut not_a_number = model.clone();
    not_a_number[56..60].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut huge = model.clone();
    huge[..36].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f].repeat(9));
    let cases: [(&[u8], &str); 11] = [
        (b"", "the file has 0 bytes, the header alone takes 60"),
        (&model[..59], "the file has 59 bytes, the header alone takes 60"),
        (&model[..60], "the file has 60 bytes, 248364 too few for bf16"),
        (&model[..model.len() - 1], "too many for bf16 and 1 too few for f32"),
        (&larger, "the file has 496792 bytes, 4 too many for f32"),
        (&experts, "`experts_per_token` is 77, more than `num_experts`, which is 5"),
        (&negative, "the header's 4 bytes at offset 4 make no sense\n  caused by: `hidden_size` is -45"),
        (&not_a_number, "offset 56 make no sense\n  caused by: `swiglu_limit` is NaN"),
        (&huge, "`vocab_size` is 2147483647"),
        (&noise(100_000), "the header's 4 bytes at offset"),
        (b"#!/bin/sh\necho a text of some length that is certainly longer than the header of a model is\n", "offset"),
    ];
    for (bytes, message) in cases {
        let path = file(folder.path(), "model.bin", bytes);
        let ids = file(folder.path(), "ids.txt", b"1\n");
        for args in [
            &["run", &path, "-i", "x"][..],
            &["run", &path, "-m", "chat", "-i", "x"],
            &["logits", &path, "--ids", &ids, "--trace"],
            &["inspect", &path],
        ] {
            let stderr = run(args).fails_with_hint(1);
            assert!(stderr.starts_with(&format!("error: could not read checkpoint `{path}`\n")), "{stderr}");
            assert!(stderr.contains(message), "{message}: {stderr}");
        }
    }
}

#[test]
fn files_that_are_not_there_are_named() {
    let counter = Counter::new(20);
    let (model, folder) = (counter.path("model.bin"), argument(counter.folder.path()));
    let input = file(counter.folder.path(), "in.txt", b"1\nAa\n");
    for (args, named) in [
        (&["run", "/nowhere/model.bin", "-i", "x"][..], "`/nowhere/model.bin`"),
        (&["run", &folder, "-i", "x"], &folder),
        (&["run", &model, "-z", "/nowhere/tokenizer.bin", "-i", "x"], "`/nowhere/tokenizer.bin`"),
        (&["run", &model, "-m", "getp", "-i", "/nowhere/in.txt"], "`/nowhere/in.txt`"),
        (&["run", &model, "-m", "getp", "-i", &folder], &folder),
        (&["run", &model, "-m", "getp", "-i", &input, "--templates", "/nowhere/templates"], "`/nowhere/templates`"),
        (&["run", &model, "-m", "getp", "-i", &input, "--tuning", "/nowhere/tuning"], "`/nowhere/tuning`"),
        (&["logits", &model, "--ids", "/nowhere/ids.txt", "--trace"], "`/nowhere/ids.txt`"),
    ] {
        let stderr = run(args).fails(1);
        assert!(stderr.contains(named) && stderr.contains("\n  caused by: "), "{args:?}: {stderr}");
    }
}

#[test]
fn files_that_are_no_tokenizer_are_refused() {
    let counter = Counter::new(20);
    let whole = letters_tokenizer(26);
    let mut no_length = whole.clone();
    no_length[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
    for (bytes, message) in [
        (&b""[..], "the header"),
        (&whole[..whole.len() - 1], "record 25"),
        (&letters_tokenizer(25), "25"),
        (&no_length, "record 0"),
        (&noise(5000), "longest"),
    ] {
        let tokenizer = file(counter.folder.path(), "broken.bin", bytes);
        let stderr = run(&["run", &counter.path("model.bin"), "-z", &tokenizer, "-i", "Aa"]).fails_with_hint(1);
        assert!(stderr.contains(&tokenizer) && stderr.contains(message), "{message}: {stderr}");
    }
}

#[test]
fn a_tokenizer_of_another_model_is_told() {
    // The built-in tokenizer knows more tokens than the model: ids up to 25 are taken.
    let counter = Counter::new(20);
    let model = counter.model_alone();
    assert_eq!(run(&["run", &model, "-i", "!", "-n", "2"]).ok().text(), "!\"#\n");
    let stderr = run(&["run", &model, "-i", "Hello"]).fails_with_hint(1);
    assert!(stderr.contains("at position 0 is not below the model's vocab_size, 26"), "{stderr}");
    assert!(stderr.contains("`-z`"), "{stderr}");
    let input = file(counter.folder.path(), "in.txt", &prompt_file(&["!", "Hello"]));
    let out = argument(&counter.folder.path().join("out.txt"));
    let stderr = run(&["run", &model, "-m", "getp", "-i", &input, "-o", &out]).fails_with_hint(1);
    let told = stderr.starts_with("error: could not run prompt 2 (`");
    assert!(told && stderr.contains("/in.txt`, line 3)\n  caused by: token id "), "{stderr}");
    assert!(!counter.folder.path().join("out.txt").exists(), "nothing half done is left");
}

#[test]
fn a_prompt_that_is_empty_or_too_long_is_told() {
    let counter = Counter::new(20);
    let stderr = counter.run(&["-i", ""]).fails_with_hint(1);
    assert!(stderr.contains("error: the prompt has no tokens"), "{stderr}");
    for args in [&[][..], &["--max-new-tokens", "5"]] {
        let ran = counter.run(&[&["-i", &"Aa".repeat(50)], args].concat()).ok();
        assert_eq!(ran.text(), format!("{}\n", "Aa".repeat(21)));
        let note = "note: the prompt has 50 tokens, of which 21 fit: nothing is generated\n";
        assert!(ran.stderr.contains(note), "{}", ran.stderr);
        let ran = counter.getp(&prompt_file(&["Aa", &"Aa".repeat(50), "", &"Aa".repeat(20)]), args).ok();
        assert_eq!(ran.ids().iter().map(Vec::is_empty).collect::<Vec<_>>(), [false, true, true, true]);
        let note = "note: 2 prompts have 20 tokens or more, the first is prompt 2: no room for new ones\n";
        assert!(ran.stderr.contains(note), "{}", ran.stderr);
    }
    let ran = counter.getp(&prompt_file(&["Aa"]), &["--max-new-tokens", "0"]).ok();
    assert!(!ran.stderr.contains("note: "), "{}", ran.stderr);
}

#[test]
fn wrong_usage_is_exit_2_and_says_what_would_be_right() {
    let counter = Counter::new(20);
    let model = counter.path("model.bin");
    for (args, message) in [
        (&["run", &model][..], "generate needs a prompt: `-i TEXT`"),
        (&["run", &model, "-m", "getp"], "getp needs a file of prompts: `-i FILE`"),
        (&["run", &model, "-i", "Aa", "--device", "nonsense"], "there is no device `nonsense`"),
        (&["run", &model, "-i", "Aa", "--device", ""], "there is no device ``"),
        (&["run", &model, "-i", "Aa", "--stop", "nonsense"], "`--stop nonsense` is neither an id nor a special token"),
        (&["run", &model, "-i", "Aa", "--stop", "-1"], "'-1'"),
        (&["run", &model, "-i", "Aa", "-b", "0"], "invalid value '0'"),
        (&["run", &model, "-i", "Aa", "--chunk", "0"], "invalid value '0'"),
        (&["run", &model, "-i", "Aa", "--threads", "1000000"], "invalid value '1000000'"),
        (&["run", &model, "-i", "Aa", "-n", "many"], "invalid value 'many'"),
        (&["run", &model, "-i", "Aa", "-n", "99999999999999999999"], "invalid value"),
        (&["run", &model, "-i", "Aa", "-k", "-1"], "'-1'"),
        (&["run", &model, "-i", "Aa", "-T", "warm"], "invalid value 'warm'"),
        (&["run", &model, "-i", "Aa", "-m", "sing"], "invalid value 'sing'"),
        (&["run", &model, "-i", "Aa", "--precision", "f64"], "invalid value 'f64'"),
        (&["run", &model, "-i", "Aa", "--kv16", "--kv32"], "cannot be used with"),
        (&["run", &model, "-i", "Aa", "--kv16", "--kv-dtype", "int8"], "cannot be used with"),
        (&["run", &model, "-i", "Aa", "--kv32", "--kv-dtype", "f32"], "cannot be used with"),
        (&["run", &model, "-i", "Aa", "--kv-dtype", "int4"], "[possible values: fp8, int8, bf16, f32]"),
        (&["run", &model, "-i", "Aa", "--nonsense"], "'--nonsense'"),
        (&["run", &model, "more", "-i", "Aa"], "'more'"),
        (&["nonsense"], "'nonsense'"),
        (&[], "Usage"),
    ] {
        let ran = run(args);
        assert_eq!((ran.code, ran.text()), (2, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn numbers_at_the_end_of_their_range_are_taken_or_refused() {
    let counter = Counter::new(20);
    let text = |args: &[&str]| counter.run(&[&["-i", "Aa", "-n", "3"], args].concat()).ok().text().to_owned();
    assert_eq!(text(&["--chunk", "65536"]), "AaAbAcAd\n");
    assert_eq!(text(&["--odd-win", "1"]), "AaAbAcAd\n");
    assert_eq!(text(&["--odd-win", "1", "--kv-dtype", "bf16"]), "AaAbAcAd\n");
    let windows = counter.run(&["-i", "Aa", "--odd-win", "1", "--kv-dtype", "int8"]);
    assert_eq!((windows.code, windows.text()), (1, ""), "{}", windows.stderr);
    let expected = "could not keep keys and values in int8: no layer of the model sees everything";
    assert!(windows.stderr.contains(expected) && windows.stderr.contains("hint: "), "{}", windows.stderr);
    assert_eq!(text(&["--odd-win", "18446744073709551615"]), "AaAbAcAd\n");
    assert_eq!(text(&["--kv-memory", "18446744073709551615"]), "AaAbAcAd\n");
    assert_eq!(text(&["-T", "nan"]), "AaAbAcAd\n", "that is not above 0");
    assert_eq!(text(&["-k", "4294967295", "-T", "0.01", "-s", "3"]), "AaAbAcAd\n");
    for coldest in ["1e-30", "1e-38", "1e-45"] {
        assert_eq!(text(&["-T", coldest]), "AaAbAcAd\n");
    }
    for args in [["-T", "inf"], ["-T", "1e38"], ["-p", "nan"], ["-s", "-9223372036854775808"]] {
        text(&[&["-s", "5"][..usize::from(args[0] != "-s") * 2], &args].concat());
    }
    let stderr = counter.run(&["-i", "Aa", "--kv-memory", "0"]).fails_with_hint(1);
    assert!(stderr.contains("could not fit the KV cache: one sequence of 64 tokens takes"), "rounded up: {stderr}");
}

#[test]
fn a_variable_of_ours_that_makes_no_sense_is_told() {
    let counter = Counter::new(20);
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let args = ["run", &model, "-z", &tokenizer, "-i", "Aa"];
    for (name, value) in [("GPTOSS_JIT_CACHE_SIZE", "lots"), ("GPTOSS_JIT_JOBS", "0"), ("GPTOSS_JIT_JOBS", "two")] {
        let mut program = command(shared_cache(), &args);
        let output = program.env(name, value).output().expect("started");
        let stderr = Ran::new(&args, output).fails_with_hint(1);
        assert!(stderr.contains(name) && stderr.contains(value), "{stderr}");
    }
}

#[test]
fn a_tuning_table_of_another_chip_is_no_obstacle_and_rows_that_nothing_asks_for_are_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let provenance = "[provenance.hand]\nkind = \"hand\"\ndate = \"2026-11-22\"\nmethod = \"judgement\"\n";
    let row = "[[rows]]\nop = \"linear\"\nwhere = { in_feature = 64 }\nuse = \"linear/dot\"\nprovenance = \"hand\"\n";
    let no_op = row.replace("linear", "liner").replace("in_feature = 64", "");
    file(folder.path(), "host.toml", format!("{provenance}{row}{no_op}").as_bytes());
    let other = file(folder.path(), "gfx942.toml", b"rows = 1\n");
    let tables = argument(folder.path());
    let args = ["run", "-i", "Once", "-n", "8", "--tuning", &tables];

    let stderr = run(&args).ok().stderr;
    assert!(stderr.contains(&format!("{other}:1: could not read the tuning table")), "{stderr}");
    assert!(stderr.contains("host.toml:5: nothing asks for this row: `linear` has no `in_feature`"), "{stderr}");
    assert!(stderr.contains("host.toml:10: nothing asks for this row: the op `liner` has no contract"), "{stderr}");

    let own = file(folder.path(), "host.toml", b"rows = 1\n");
    let stderr = run(&args).fails_with_hint(1);
    assert!(stderr.contains(&format!("error: {own}:1: could not read the tuning table")), "{stderr}");
    let stderr = run(&["kernels", "check", "--op", "take_token", "--tuning", &tables]).fails_with_hint(1);
    assert!(stderr.contains(&format!("error: {own}:1: ")), "{stderr}");
}
