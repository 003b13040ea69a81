//! `gptoss-jit models`: what is known of families, and what is wrong with a file of one.

use crate::fixtures::program::{file, repository, run};

#[test]
fn families_and_their_published_models_are_listed_with_their_sizes() {
    let listed = run(&["models", "ls"]).ok();
    let lines: Vec<Vec<&str>> = listed.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["family", "model", "layers", "parameters", "size"]);
    // OpenAI's model card has 20.9 and 116.8 billion parameters, and checkpoints of 12.8 and 60.8 GiB.
    let of = |family: &str| lines.iter().filter(|line| line[0] == family).collect::<Vec<_>>();
    assert_eq!(*of("gpt-oss")[0], ["gpt-oss", "gpt-oss-20b", "24", "20,914,757,184", "13.8", "GB"]);
    assert_eq!(*of("gpt-oss")[1], ["gpt-oss", "gpt-oss-120b", "36", "116,829,156,672", "65.2", "GB"]);
    // As the cards of gemma-3-1b and OLMo-2-1124-7B have them on Hugging Face.
    assert_eq!(of("gemma3")[0][1..4], ["gemma-3-1b", "26", "999,885,952"]);
    assert_eq!(of("olmo2")[0][1..4], ["olmo-2-7b", "32", "7,298,617,344"]);
    let json = run(&["models", "ls", "--json"]).ok().json();
    let families = json["families"].as_array().expect("a list");
    let shape = &families.iter().find(|family| family["name"] == "gpt-oss").expect("it is built in")["shapes"][0];
    assert_eq!((&json["schema"], &shape["parameters"]), (&1.into(), &20_914_757_184_u64.into()));
}

#[test]
fn a_familys_tensors_are_shown_with_their_names_in_files() {
    let shown = run(&["models", "show", "gpt-oss", "--shape", "gpt-oss-120b"]).ok();
    assert!(shown.text().starts_with("gpt-oss-120b: 116,829,156,672 parameters, 65.2 GB\n"), "{}", shown.text());
    let qkv = shown.text().lines().find(|line| line.starts_with("attn.qkv.weight")).expect("it has one");
    for part in ["36", "[5120, 2880]", "self_attn.q_proj.weight + self_attn.k_proj.weight", "attn_q.weight + attn_k"] {
        assert!(qkv.contains(part), "{qkv}");
    }
    let json = run(&["models", "show", "gpt-oss", "--json"]).ok().json();
    let tensors = json["tensors"].as_array().expect("a list");
    let total: u64 = tensors.iter().map(|tensor| tensor["parameters"].as_u64().expect("a number")).sum();
    assert_eq!((tensors.len(), total), (16, 20_914_757_184));
    let error = run(&["models", "show", "mamba"]).fails(2);
    assert!(error.contains("there is no family `mamba`; there are `gemma3`, `glm`"), "{error}");
}

#[test]
fn a_family_s_file_is_right_or_its_mistake_has_a_line() {
    let built_in = repository().join("models/gpt-oss.toml");
    let built_in = built_in.to_str().expect("UTF-8");
    let right = run(&["models", "check", built_in]).ok();
    assert!(
        right.text().ends_with("family `gpt-oss`: 12 dimensions, 16 tensors, 2 published models\n"),
        "{}",
        right.text()
    );
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(built_in).expect("it is there");
    let line = text.lines().position(|line| line.starts_with("cut   = \"head rows\"")).expect("it has one") + 1;
    let wrong = file(folder.path(), "wrong.toml", text.replacen("\"head rows\"", "\"heads\"", 1).as_bytes());
    let error = run(&["models", "check", &wrong]).fails(1);
    assert!(
        error.contains(&format!("wrong.toml:{line}: could not read the family: unknown variant `heads`")),
        "{error}"
    );
    assert!(error.contains("\nhint: `models/README.md` describes the format"), "{error}");
    let missing = run(&["models", "check", "no-such.toml"]).fails(1);
    assert!(missing.contains("could not read the family's file `no-such.toml`"), "{missing}");
}
