//! `kernels check --watch` and `--within`: what is said when a file is saved.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::fixtures::program::{command, repository, run, shared_cache};

/// A process that ends with the test.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Appears whole, as editors save.
fn save(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).expect("written");
    fs::rename(&new, file).expect("renamed");
}

#[test]
fn every_save_is_answered_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("rmsnorm")).expect("made");
    let file = folder.path().join("rmsnorm/mine.c.j2");
    let text = fs::read_to_string(repository().join("templates/rmsnorm/rows.c.j2")).expect("it is there");
    save(&file, &text);
    // A run that the op is a part of, of the same name, is another file.
    fs::create_dir(folder.path().join("rmsnorm+linear")).expect("made");
    let fused = fs::read_to_string(repository().join("templates/rmsnorm+linear/dot.c.j2")).expect("it is there");
    let does_nothing = fused.replace("{{ signature }} {", "{{ signature }} { return; ");
    assert_ne!(fused, does_nothing);
    save(&folder.path().join("rmsnorm+linear/mine.c.j2"), &does_nothing);
    let args = ["kernels", "check", "--watch", file.to_str().expect("a name"), "--deadline", "120"];
    let child = command(shared_cache(), &args).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut child = Watching(child.expect("started"));
    let mut lines = BufReader::new(child.0.stdout.take().expect("it is piped")).lines();
    let mut next = || lines.next().expect("it goes on").expect("a line");

    let said = next();
    assert!(said.starts_with("right (") && said.contains(" % of tolerance), "), "{said}");
    assert!(said.contains(" us, incumbent rows ") && said.ends_with(" us"), "{said}");

    let signature = text.find("{{ signature }} {").expect("it has one");
    let line = text[..signature].lines().count() + 1;
    save(&file, &text.replace("{{ signature }} {", "{{ signature }} { return; "));
    let said = next();
    assert!(said.starts_with("wrong, "), "{said}");

    save(&file, &text.replace("{{ signature }} {", "{{ signature }} { {{ nothing }}"));
    let mut said = next();
    while !said.starts_with("broken: ") {
        said = next(); // the rest of what was wrong before
    }
    assert!(said.contains(&format!("rmsnorm/mine.c.j2:{line}: `nothing` is not declared")), "{said}");

    // A save ends what runs, and nothing is said of the text that is not there any more.
    let hangs = "{{ signature }} { for (volatile int i = 0; i >= 0; i = 0) {}";
    save(&file, &text.replace("{{ signature }} {", hangs));
    std::thread::sleep(std::time::Duration::from_secs(1));
    save(&file, &text);
    let saved = std::time::Instant::now();
    let said = next();
    assert!(said.starts_with("right ("), "{said}");
    assert!(saved.elapsed().as_secs() < 100, "what ran was not ended");
}

#[test]
fn what_is_no_template_is_a_usage_error() {
    let file = repository().join("Cargo.toml");
    let said = run(&["kernels", "check", "--watch", file.to_str().expect("a name")]).fails(2);
    assert!(said.contains("expected a template, like `mine/attention/quick.hip.j2`"), "{said}");
}

#[test]
fn a_check_in_a_hurry_runs_a_case_at_least_and_not_all() {
    let cases = |more: &[&str]| {
        let args = ["kernels", "check", "--op", "rmsnorm", "--variant", "rows", "--tuned=false", "--json"];
        let report = run(&[&args[..], more].concat()).ok().json();
        let templates = report["templates"].as_array().expect("a list").clone();
        assert!(templates.iter().all(|one| one["status"] == "ok"), "{report}");
        templates.iter().map(|one| one["cases"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    let (all, few) = (cases(&[]), cases(&["--within", "0s"]));
    assert_eq!(all.len(), few.len());
    assert!(few.iter().zip(&all).all(|(few, all)| *few >= 1 && few < all), "{few:?} of {all:?}");
    let said = run(&["kernels", "check", "--within", "soon"]).fails(2);
    assert!(said.contains("expected a time like 90s, 20min or 2h"), "{said}");
}
