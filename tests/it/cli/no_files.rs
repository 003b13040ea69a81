//! Pipes, devices and folders where files should be: an error that says so, and nobody waits.

use std::path::Path;

use crate::checkpoint::{hostile::copy_of, kinds};
use crate::fixtures::program::{argument, named_pipe, run};

/// A pipe that nobody writes to.
fn pipe(path: &Path) -> String {
    named_pipe(path);
    argument(path)
}

#[test]
fn a_pipe_in_a_files_place_is_refused_and_not_waited_for() {
    let says_so = |stderr: String| assert!(stderr.contains("it is a pipe, expected a regular file"), "{stderr}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lone = pipe(&folder.path().join("model.bin"));
    says_so(run(&["inspect", &lone]).fails(1));
    says_so(run(&["tokenize", "-z", &lone, "-i", "x"]).fails(1));
    for (checkpoint, name) in [
        ("hf-bf16", "config.json"),
        ("hf-bf16", "model.safetensors"),
        ("hf-bf16", "tokenizer.json"),
        ("hf-bf16-sharded", "model.safetensors.index.json"),
        ("hf-bf16-sharded", "model-00001-of-00004.safetensors"),
    ] {
        let copy = copy_of(checkpoint);
        pipe(&copy.path().join(name));
        says_so(run(&["run", &argument(copy.path()), "-i", "Once", "-n", "4"]).fails(1));
    }
    let copy = copy_of("hf-bf16");
    pipe(&copy.path().join("chat_template.jinja"));
    says_so(run(&["run", "-m", "chat", &argument(copy.path())]).fails(1));

    let templates = folder.path().join("templates");
    std::fs::create_dir_all(templates.join("embedding")).expect("made");
    pipe(&templates.join("embedding/rows.c.j2"));
    says_so(run(&["kernels", "show", "embedding/rows", "--templates", &argument(&templates)]).fails(1));
    let tables = folder.path().join("tables");
    std::fs::create_dir_all(&tables).expect("made");
    pipe(&tables.join("gfx1100.toml"));
    let args = ["kernels", "plan", "--arch", "gfx1100", "--shape", "gpt-oss-20b", "--tuning", &argument(&tables)];
    says_so(run(&args).fails(1));
}

#[test]
fn a_device_in_a_files_place_is_refused_and_not_read() {
    for device in ["/dev/zero", "/dev/tty"] {
        for args in [&["inspect", device][..], &["tokenize", "-z", device, "-i", "x"]] {
            let stderr = run(args).fails(1);
            // Without a terminal there is no such device.
            let is_right = stderr.contains("it is a device, expected a regular file")
                || (device == "/dev/tty" && stderr.contains("No such device or address"));
            assert!(is_right, "{stderr}");
        }
    }
    // What people type or pipe may come from anywhere.
    let tokenizer = kinds::path("tokenizer/tokenizer.json");
    run(&["decode", "-z", &argument(&tokenizer), "-i", "/dev/null"]).ok();
}
