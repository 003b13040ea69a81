//! A folder of one's own templates: used at once where they are right, told with file and line where they are not.

use std::fs;
use std::path::Path;

use kernel::template::library::{Layer, Library};
use serde_json::Value;

use crate::fixtures::models::{Counter, letters};
use crate::fixtures::program::{Ran, argument, file, run};

/// The built-in template that the tests change, and the tokens of a short run.
const TEMPLATE: &str = "embedding/rows.c.j2";
const TEXT: &str = "AaAbAcAdAeAf\n";

/// A model and a folder of templates.
struct Workshop {
    counter: Counter,
}

impl Workshop {
    fn new() -> Self {
        Self { counter: Counter::new(64) }
    }

    fn templates(&self) -> String {
        argument(&self.counter.folder.path().join("templates"))
    }

    /// Puts the built-in template into the folder under another name, parts of it replaced.
    fn put(&self, name: &str, edits: &[(&str, &str)]) {
        let mut text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(TEMPLATE))
            .expect("a built-in template");
        for (from, to) in edits {
            assert_eq!(text.matches(from).count(), 1, "`{from}` is not once in {text}");
            text = text.replace(from, to);
        }
        let _ = file(Path::new(&self.templates()), name, text.as_bytes());
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.counter.run(&[&["-i", &letters(&[0]), "-n", "5", "--templates", &self.templates()], args].concat())
    }

    /// `kernels ls` of the op.
    fn ls(&self) -> Vec<Value> {
        let args = ["kernels", "ls", "--op", "embedding", "--templates", &self.templates(), "--json"];
        run(&args).ok().json()["templates"].as_array().expect("a list").clone()
    }
}

/// Where a line of the changed template is.
fn line_of(text: &str) -> usize {
    let template = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(TEMPLATE));
    let template = template.expect("a built-in template");
    template.lines().position(|line| line.contains(text)).expect(text) + 1
}

const PRIORITY: (&str, &str) = ("\nsummary = ", "\npriority = 7\nsummary = ");

/// A line of the kernel's body, and a comment behind it that makes the source another one.
const BODY: &str = "const u32 t = block_x;";

#[test]
fn a_file_dropped_into_a_folder_is_a_kernel() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.templates()).expect("made");
    assert_eq!(workshop.run(&[]).ok().text(), TEXT);
    workshop.put("embedding/dropped.c.j2", &[PRIORITY, (BODY, "const u32 t = block_x;  // dropped")]);

    let listed = workshop.ls();
    let row = |variant: &str| listed.iter().find(|row| row["variant"] == variant && row["backend"] != "hiprtc");
    let dropped = row("dropped").unwrap_or_else(|| panic!("{listed:?}"));
    assert_eq!((&dropped["origin"], &dropped["fits"]), (&workshop.templates().into(), &true.into()));
    assert_eq!(dropped["shadows"], serde_json::json!([]));
    assert_eq!(row("rows").expect("still there")["origin"], "built in");

    let ran = workshop.run(&[]).ok();
    assert_eq!(ran.text(), TEXT);
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    let compiled = run(&["cache", "ls"]).ok();
    assert!(compiled.text().contains("embedding/dropped"), "{}", compiled.text());
    let trace = trace(&workshop);
    assert!(trace.contains("embedding/dropped") && !trace.contains("embedding/rows"), "{trace}");

    // A lower priority only joins the candidates.
    workshop.put("embedding/dropped.c.j2", &[("\nsummary = ", "\npriority = -7\nsummary = ")]);
    assert!(!self::trace(&workshop).contains("embedding/dropped"));
}

/// Which template ran where.
fn trace(workshop: &Workshop) -> String {
    let ids = file(workshop.counter.folder.path(), "ids.txt", b"0\n");
    let (model, templates) = (workshop.counter.path("model.bin"), workshop.templates());
    run(&["logits", &model, "--ids", &ids, "--trace", "--templates", &templates]).ok().stderr
}

#[test]
fn a_file_of_the_same_name_shadows() {
    let workshop = Workshop::new();
    workshop.put(TEMPLATE, &[(BODY, "const u32 t = block_x;  // shadow")]);
    let listed = workshop.ls();
    let row = listed.iter().find(|row| row["variant"] == "rows").expect("listed");
    assert_eq!((&row["origin"], &row["shadows"]), (&workshop.templates().into(), &serde_json::json!(["built in"])));
    let ran = workshop.run(&["--verbose"]).ok();
    assert_eq!(ran.text(), TEXT);

    // It is really this one that runs: with other rows come other tokens.
    workshop.put(TEMPLATE, &[("(size_t)row[t] *", "(size_t)(row[t] + 1) *")]);
    assert_ne!(workshop.run(&[]).ok().text(), TEXT);
}

#[test]
fn a_folder_in_the_environment_is_searched_after_the_flag() {
    let workshop = Workshop::new();
    workshop.put(TEMPLATE, &[("(size_t)row[t] *", "(size_t)(row[t] + 1) *")]);
    let (model, tokenizer) = (workshop.counter.path("model.bin"), workshop.counter.path("tokenizer.bin"));
    let empty = tempfile::tempdir().expect("a temporary folder");
    let text = |flag: &[&str]| {
        let args = [&["run", &model, "-z", &tokenizer, "-i", "Aa", "-n", "5"], flag].concat();
        let mut command = crate::fixtures::program::command(crate::fixtures::program::shared_cache(), &args);
        let output = command.env("GPTOSS_JIT_TEMPLATES", workshop.templates()).output().expect("started");
        Ran::new(&args, output).ok().text().to_owned()
    };
    assert_ne!(text(&[]), TEXT);
    assert_ne!(text(&["--templates", empty.path().to_str().expect("text")]), TEXT);
    let over = Workshop::new();
    over.put(TEMPLATE, &[(BODY, "const u32 t = block_x;  // over")]);
    assert_eq!(text(&["--templates", &over.templates()]), TEXT);
}

#[test]
fn files_of_lib_go_before_those_built_in_however_deep_they_lie() {
    let workshop = Workshop::new();
    let name = "lib/host/weights/q8_0.c.j2";
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(name);
    let own = format!("{}// mine\n", fs::read_to_string(built_in).expect("a file of the repository"));
    let _ = file(Path::new(&workshop.templates()), name, own.as_bytes());
    let show = ["kernels", "show", "embedding/blocks", "--arch", "x86-64", "--with", "table=q8_0"];
    assert!(!run(&show).ok().text().contains("// mine"));
    let templates = workshop.templates();
    let shown = run(&[&show[..], &["--templates", templates.as_str()]].concat()).ok();
    assert!(shown.text().contains("// mine"), "{}", shown.text());
}

#[test]
fn a_mistake_in_a_template_is_told_with_file_and_line() {
    let grid = line_of("grid = ");
    let body = line_of(BODY);
    for (from, to, line, message) in [
        ("grid = ", "gird = ", grid, "unknown field `gird`"),
        ("[\"n_tokens\"]", "[\"n_token\"]", grid, "`n_token` is not declared"),
        (BODY, "const u32 t = {{ blok_x }};", body, "`blok_x` is not declared"),
        (BODY, "const u32 t = {{ hidden_size };", body, "syntax error"),
        (
            "lib/host/types.c.j2",
            "lib/hots/types.c.j2",
            line_of("lib/host/types.c.j2"),
            "includes `lib/hots/types.c.j2`",
        ),
    ] {
        // Whether it shadows or is one more: a broken file is never passed over in silence.
        for name in [TEMPLATE, "embedding/more.c.j2"] {
            let workshop = Workshop::new();
            workshop.put(name, &[(from, to)]);
            let stderr = workshop.run(&[]).fails_with_hint(1);
            assert!(stderr.starts_with(&format!("error: the template `{name}` is broken\n")), "{stderr}");
            let place = format!("{}/{name}:{line}: ", workshop.templates());
            assert!(stderr.contains(&place) && stderr.contains(message), "{place} {message}: {stderr}");
            let listed = workshop.ls();
            let row = listed.iter().find(|row| row["fits"] == false && row["origin"] == *workshop.templates());
            assert!(row.is_some_and(|row| row["reason"].as_str().is_some_and(|why| why.contains(message))));
        }
    }
}

#[test]
fn a_template_that_is_not_c_gives_way_to_the_next_or_is_an_error() {
    let wrong = (BODY, "const u32 t = block_x; y = undeclared_thing;");
    let workshop = Workshop::new();
    workshop.put("embedding/more.c.j2", &[PRIORITY, wrong]);
    for _ in 0..2 {
        // The second time the compiler is not asked again, and the words are the same.
        let ran = workshop.run(&[]).ok();
        assert_eq!(ran.text(), TEXT);
        let expected =
            "warning: `embedding/more` is replaced by `embedding/rows`: could not compile kernel `embedding/more`";
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        check_place(&ran.stderr);
    }

    let workshop = Workshop::new();
    workshop.put(TEMPLATE, &[wrong]);
    for _ in 0..2 {
        let stderr = workshop.run(&[]).fails_with_hint(1);
        assert!(stderr.starts_with("error: could not compile kernel `embedding/rows` for "), "{stderr}");
        assert!(stderr.contains("hint: `gptoss-jit kernels show embedding/rows`"), "{stderr}");
        check_place(&stderr);
    }
}

/// The compiler's words come with the line, and the source that they are about is kept.
fn check_place(stderr: &str) {
    let (before, _) = stderr.split_once(": error: ").unwrap_or_else(|| panic!("{stderr}"));
    let place: Vec<&str> = before.rsplit(':').take(2).collect();
    let line: usize = place[1].parse().unwrap_or_else(|_| panic!("no line: {stderr}"));
    let (_, source) = stderr.split_once("source: ").unwrap_or_else(|| panic!("no source: {stderr}"));
    let source = fs::read_to_string(source.lines().next().expect("a path")).expect("it is kept");
    assert!(source.lines().nth(line - 1).is_some_and(|line| line.contains("undeclared_thing")), "{stderr}");
}

#[test]
fn a_folder_that_cannot_be_read_and_a_stray_file_are_told() {
    let workshop = Workshop::new();
    let stderr = workshop.run(&[]).fails(1);
    assert!(stderr.contains(&format!("could not read `{}`", workshop.templates())), "{stderr}");

    workshop.put("embedding/mine.hop.j2", &[]);
    let stderr = workshop.run(&[]).fails_with_hint(1);
    assert!(stderr.contains("embedding/mine.hop.j2") && stderr.contains("not a kernel, expected"), "{stderr}");
}

/// Templates that take all memory, all stack or all time: an error with the file's name, and the program lives.
#[test]
fn a_template_that_takes_too_much_is_an_error() {
    let doubled = |step: &str| format!("{{% set x = 'abcdefgh' %}}{}// {{{{ x == 'a' }}}}\n", step.repeat(60));
    let chained = |n: usize, link: &str| format!("// {{{{ 1{} }}}}\n", link.repeat(n));
    for (inserted, expected) in [
        (doubled("{% set x = x ~ x %}"), "more than 512 MiB of memory"),
        (doubled("{% set x = x + x %}"), "more than 512 MiB of memory"),
        (doubled("{% set x %}{{ x }}{{ x }}{% endset %}"), "more than 512 MiB of memory"),
        (doubled("{% set x = x * 2 %}"), "repeated string is too large"),
        (chained(200_000, "+1"), "expected 131072 at most"),
        // As deep as a file can be; it may be right.
        (chained(60_000, "+1"), ""),
        (format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(8_000)), ""),
        (format!("// {{{{ 1 {} }}}}\n", "| div_exact(1)".repeat(9_000)), ""),
        ("{% include \"lib/host/types.c.j2\" %}\n".repeat(3_500), ""),
        ("{% for a in range(65536) %}{% for b in range(65536) %}{% endfor %}{% endfor %}".into(), "runs too long"),
    ] {
        let workshop = Workshop::new();
        workshop.put("embedding/greedy.c.j2", &[PRIORITY, (BODY, &format!("{inserted}{BODY}"))]);
        let args = ["kernels", "show", "embedding/greedy", "--templates", &workshop.templates()];
        let ran = run(&args);
        let begin = &inserted[..inserted.len().min(60)];
        if expected.is_empty() {
            let is_told = ran.code == 0 || (ran.code == 1 && ran.stderr.contains("greedy.c.j2"));
            assert!(is_told, "{begin}: {}", ran.stderr);
        } else {
            let stderr = ran.fails(1);
            assert!(stderr.contains(expected) && stderr.contains("greedy.c.j2"), "{begin}: {stderr}");
        }
    }
}

#[test]
fn files_that_include_each_other_without_end_and_parameters_without_number_are_refused() {
    let workshop = Workshop::new();
    let header = "{#\n[gives]\nc = []\n#}\n";
    for i in 0..5_000 {
        let text = format!("{header}{{% include \"lib/deep/{}.c.j2\" %}}\n", i + 1);
        let _ = file(Path::new(&workshop.templates()), &format!("lib/deep/{i}.c.j2"), text.as_bytes());
    }
    let _ = file(Path::new(&workshop.templates()), "lib/deep/5000.c.j2", header.as_bytes());
    workshop.put("embedding/greedy.c.j2", &[(BODY, &format!("{{% include \"lib/deep/0.c.j2\" %}}\n{BODY}"))]);
    let args = ["kernels", "show", "embedding/greedy", "--templates", &workshop.templates()];
    let stderr = run(&args).fails(1);
    assert!(stderr.contains("32 deep at most"), "{stderr}");

    let workshop = Workshop::new();
    let values = (0..400).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let param = |name: &str| format!("\n[params.{name}]\nvalues = [{values}]\ndefault = 1\ndoc = \"many\"\n");
    let params = ["a", "b"].map(param).concat();
    workshop.put("embedding/greedy.c.j2", &[("\n[launch]", &format!("{params}\n[launch]"))]);
    let stderr = run(&["kernels", "show", "embedding/greedy", "--templates", &workshop.templates()]).fails(1);
    assert!(stderr.contains("expected at most 131072 choices of all parameters together"), "{stderr}");
}

/// The files that cannot be used where these are somebody's own, the others built in.
fn broken_beside_built_in(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        let _ = file(folder.path(), name, text.as_bytes());
    }
    let library = Library::from_layers(vec![Layer::read(folder.path()).expect("readable"), Layer::built_in()]);
    library.broken().into_iter().map(|broken| broken.name).collect()
}

#[test]
fn built_in_templates_that_depend_on_an_own_file_are_checked_with_it() {
    let own = "{#\nop = \"rmsnorm\"\nsummary = \"x\"\n[launch]\ngrid = [\"n_tokens\"]\n#}\n{{ signature }} {}\nNAME\n";
    assert!(broken_beside_built_in(&[("rmsnorm/own.c.j2", &own.replace("NAME", ""))]).is_empty());
    let wrong = own.replace("NAME", "{{ nobody_s }}");
    assert_eq!(broken_beside_built_in(&[("rmsnorm/own.c.j2", &wrong)]), ["rmsnorm/own.c.j2"]);
    // What they include takes what they do not give.
    let takes = "{#\n[takes]\njinja = [\"nobody_s\"]\n#}\n{{ nobody_s }}\n";
    let broken = broken_beside_built_in(&[("lib/host/types.c.j2", takes)]);
    for name in ["rmsnorm/rows.c.j2", "embedding/rows.c.j2"] {
        assert!(broken.iter().any(|broken| broken == name), "{name}: {broken:?}");
    }
    // What a contract declared it no longer does: of its op, and of a run that has it.
    let contract = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/rmsnorm/op.toml"));
    let contract =
        contract.expect("a contract").replace("eps = \"added", "epsilon = \"added").replace("eps = 1e", "epsilon = 1e");
    let broken = broken_beside_built_in(&[("rmsnorm/op.toml", &contract)]);
    assert!(broken.iter().any(|name| name == "rmsnorm/rows.c.j2"), "{broken:?}");
    assert!(broken.iter().any(|name| name.starts_with("rmsnorm+linear/")), "{broken:?}");
    assert!(broken.iter().all(|name| name.contains("rmsnorm")), "{broken:?}");
}
