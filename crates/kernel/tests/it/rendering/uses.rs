//! What a template has of the files of `lib/` that it uses, and mistakes in either.

use std::fs;

use kernel::template::Params;

use super::{broken, fixtures, host, library, library_under, linear, rendered};

/// `linear/dot` of the fixtures, whose parameter and constraint are in [`TILE`].
fn dot() -> String {
    let text = fs::read_to_string(fixtures().join("linear/dot.c.j2")).expect("a fixture");
    let (begin, end) = (text.find("[params").expect("parameters"), text.find("[launch]").expect("a launch"));
    format!("{}{}", text[..begin].replace("\n\n", "\nuses = [\"lib/tile.c.j2\"]\n\n"), &text[end..])
}

const TILE: &str = r#"{#
[params.tile_n]
values  = [1, 2, 4]
default = 2
doc     = "outputs per block"

[constraints]
"a block has at least one row" = "tile_n <= out_features"
#}
"#;

#[test]
fn what_a_template_uses_is_its_own() {
    let (_folder, with_tile) = library_under(&[("lib/tile.c.j2", TILE), ("linear/dot.c.j2", &dot())]);
    let apart = rendered(&with_tile, "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    let whole = rendered(&library(), "linear/dot", &linear(), &Params::new(), &host()).expect("renders");
    assert_eq!((apart.source, apart.params), (whole.source, whole.params));
    let mut narrow = linear();
    narrow.dims.insert("out_features".into(), 1);
    let refused =
        |library| rendered(library, "linear/dot", &narrow, &Params::new(), &host()).expect_err("refused").to_string();
    assert_eq!(refused(&with_tile), refused(&library()));
}

#[test]
fn a_template_says_what_differs_of_a_parameter_that_it_uses() {
    let defaults = |table: &str| {
        let text = dot().replace("[launch]", &format!("[params.tile_n]\n{table}\n[launch]"));
        let (_folder, library) = library_under(&[("lib/tile.c.j2", TILE), ("linear/dot.c.j2", &text)]);
        let template = library.template("linear/dot", host().language()).expect("right");
        let param = template.params["tile_n"].clone();
        (param.values, param.default, param.doc, param.is_tunable)
    };
    let doc = || "outputs per block".to_owned();
    assert_eq!(defaults("default = 4"), (vec![1, 2, 4], 4, doc(), true));
    assert_eq!(defaults("values = [2, 3]\ntunable = false"), (vec![2, 3], 2, doc(), false));
    assert_eq!(defaults("doc = \"rows\""), (vec![1, 2, 4], 2, "rows".to_owned(), true));
}

#[test]
fn all_that_must_hold_is_joined_and_workspace_comes_first() {
    let tile = TILE.replace(
        "#}",
        "[requires]\nfeatures = [\"avx2\"]\nwhen = [\"in_features % 16 == 0\"]\n\n[let]\nrows = \"tile_n * lines\"\n\n\
         [[workspace]]\nname = \"part\"\ndtype = \"f32\"\nshape = [\"rows\"]\n#}",
    );
    let text = dot().replace(
        "[launch]",
        "[requires]\nfeatures = [\"fma\"]\nwhen = [\"has_bias\"]\n[let]\nlines = \"3\"\n\
         [[workspace]]\nname = \"last\"\ndtype = \"u32\"\nshape = [\"1\"]\n[launch]",
    );
    let (_folder, library) = library_under(&[("lib/tile.c.j2", &tile), ("linear/dot.c.j2", &text)]);
    let template = library.template("linear/dot", host().language()).expect("right");
    assert_eq!(template.requires.features, ["avx2", "fma"]);
    let conditions: Vec<&str> = template.requires.when.iter().map(|when| when.text()).collect();
    assert_eq!(conditions, ["in_features % 16 == 0", "has_bias"]);
    let workspace: Vec<&str> = template.workspace.iter().map(|arg| arg.name.as_str()).collect();
    assert_eq!(workspace, ["part", "last"]);
}

#[test]
fn a_file_that_two_others_use_is_there_once() {
    let uses_tile = "{#\nuses = [\"lib/tile.c.j2\"]\n#}\n";
    let text = dot().replace("\"lib/tile.c.j2\"", "\"lib/a.c.j2\", \"lib/b.c.j2\", \"lib/tile.c.j2\"");
    let files =
        [("lib/a.c.j2", uses_tile), ("lib/b.c.j2", uses_tile), ("lib/tile.c.j2", TILE), ("linear/dot.c.j2", &*text)];
    let (_folder, library) = library_under(&files);
    assert!(library.template("linear/dot", host().language()).is_ok(), "{:?}", library.broken());
}

#[test]
fn what_is_there_twice_is_told_with_both_places() {
    let in_dot = [
        (
            "[params.tile_n]\nvalues = [1]\ndefault = 1\ndoc = \"\"",
            "linear/dot.c.j2:6: the parameter `tile_n` is declared a second time, first in lib/tile.c.j2:2",
        ),
        ("[let]\ntile_n = \"1\"", "linear/dot.c.j2:7: `tile_n` is declared a second time, first in lib/tile.c.j2:2"),
        (
            "[constraints]\n\"a block has at least one row\" = \"true\"",
            "linear/dot.c.j2:7: the constraint `a block has at least one row` is declared a second time, first in \
             lib/tile.c.j2:8",
        ),
        (
            "[let]\nrows = \"1\"",
            "linear/dot.c.j2:7: the fact `rows` is declared a second time, first in lib/tile.c.j2:11",
        ),
        (
            "[requires]\nprecision = [\"f32\"]",
            "linear/dot.c.j2:7: `requires.precision` is declared a second time, first in lib/tile.c.j2:14",
        ),
        (
            "[padded]\nflop = \"1\"",
            "linear/dot.c.j2:7: `padded.flop` is declared a second time, first in lib/tile.c.j2:17",
        ),
        (
            "[[workspace]]\nname = \"part\"\ndtype = \"f32\"\nshape = [\"1\"]",
            "linear/dot.c.j2:7: the argument `part` is declared a second time, first in lib/tile.c.j2:20",
        ),
        (
            "[numerics]\nbf16 = { rtol = 1.0, atol = 1.0 }",
            "linear/dot.c.j2:7: `numerics.bf16` is declared a second time, first in lib/tile.c.j2:25",
        ),
    ];
    let tile = TILE.replace(
        "#}",
        "\n[let]\nrows = \"tile_n + 1\"\n\n[requires]\nprecision = [\"bf16\"]\n\n[padded]\nflop = \"rows\"\n\n[[workspace]]\n\
         name = \"part\"\ndtype = \"f32\"\nshape = [\"rows\"]\n\n[numerics]\nbf16 = { rtol = 0.1, atol = 0.1 }\n#}",
    );
    for (table, told) in in_dot {
        let text = dot().replace("[launch]", &format!("{table}\n[launch]"));
        assert_eq!(broken(&[("lib/tile.c.j2", &tile), ("linear/dot.c.j2", &text)], "linear/dot.c.j2"), told);
    }
    // A file of `lib/` changes nothing of what another declares.
    let other = "{#\n[params.tile_n]\ndefault = 4\n#}\n";
    let text = dot().replace("\"lib/tile.c.j2\"", "\"lib/tile.c.j2\", \"lib/other.c.j2\"");
    let files = [("lib/other.c.j2", other), ("lib/tile.c.j2", TILE), ("linear/dot.c.j2", &*text)];
    let told = "lib/other.c.j2:2: the parameter `tile_n` is declared a second time, first in lib/tile.c.j2:2";
    assert_eq!(broken(&files, "linear/dot.c.j2"), told);
}

#[test]
fn mistakes_in_what_is_used_are_told_where_they_stand() {
    let with_tile = |from: &str, to: &str| {
        assert!(TILE.contains(from), "{from}");
        broken(&[("lib/tile.c.j2", &TILE.replacen(from, to, 1)), ("linear/dot.c.j2", &dot())], "linear/dot.c.j2")
    };
    for (from, to, told) in [
        ("[params.tile_n]", "[parms.tile_n]", "lib/tile.c.j2:2: could not read the header: unknown field `parms`"),
        ("doc  ", "docs ", "lib/tile.c.j2:5: could not read the header: unknown field `docs`"),
        (
            "default = 2",
            "",
            "lib/tile.c.j2:2: params.tile_n: expected `values`, `default` and `doc`, as no file that is used declares it",
        ),
        ("default = 2", "default = 3", "lib/tile.c.j2:2: params.tile_n.default: expected one of its values: 1, 2, 4"),
        ("<= out_features", "<= out_feature", "lib/tile.c.j2:8: `out_feature` is not declared"),
        ("<= out_features", "/ 2", "lib/tile.c.j2:8: could not evaluate `tile_n / 2`: `/` gives a fraction"),
        ("#}", "[let]\nlone = \"1\"\n#}", "lib/tile.c.j2:10: the fact `lone` is declared and never used"),
        (
            "[constraints]",
            "[params.lone]\nvalues = [1]\ndefault = 1\ndoc = \"\"\n[constraints]",
            "lib/tile.c.j2:7: the parameter `lone` is declared and never used",
        ),
        (
            "#}",
            "[launch]\nblock_size = \"64\"\n#}",
            "linear/dot.c.j2:6: [launch]: expected no `block_size` on the host",
        ),
        ("#}", "[launch]\nlds_bytes = \"64\"\n#}", "lib/tile.c.j2:10: launch.lds_bytes: expected none on the host"),
        ("{#\n", "", "lib/tile.c.j2:1: no front matter"),
    ] {
        let found = with_tile(from, to);
        assert!(found.starts_with(told), "{from} -> {to}\n  found    {found}\n  expected {told}");
    }
}

#[test]
fn a_use_that_cannot_be_is_told_with_its_line() {
    let used = |names: &str, others: &[(&str, &str)]| {
        let text = dot().replace("\"lib/tile.c.j2\"", names);
        let files = [&[("lib/tile.c.j2", TILE), ("linear/dot.c.j2", &*text)], others].concat();
        broken(&files, "linear/dot.c.j2")
    };
    assert_eq!(
        used("\"lib/tile.c.j2\",\n\"lib/tiles.c.j2\"", &[]),
        "linear/dot.c.j2:5: uses `lib/tiles.c.j2`, which is in the `lib/` of none of the template folders"
    );
    let template = used("\"rmsnorm+linear/naive.c.j2\"", &[]);
    assert!(
        template.starts_with("linear/dot.c.j2:4: uses `rmsnorm+linear/naive.c.j2`, which is in the `lib/`"),
        "{template}"
    );
    assert_eq!(
        used("\"lib/prelude.c.j2\"", &[]),
        "linear/dot.c.j2:4: uses `lib/prelude.c.j2`: expected a file whose header declares something to be used, found none"
    );
    let circle =
        [("lib/a.c.j2", "{#\nuses = [\"lib/b.c.j2\"]\n#}\n"), ("lib/b.c.j2", "{#\n\nuses = [\"lib/a.c.j2\"]\n#}\n")];
    assert_eq!(
        used("\"lib/a.c.j2\"", &circle),
        "lib/b.c.j2:3: uses `lib/a.c.j2`: expected no circle, found one: lib/a.c.j2, lib/b.c.j2 use each other"
    );
    let chain: Vec<(String, String)> = (0..40)
        .map(|i| (format!("lib/c{i}.c.j2"), format!("{{#\nuses = [\"lib/c{}.c.j2\"]\n#}}\n", i + 1)))
        .chain([("lib/c40.c.j2".to_owned(), TILE.to_owned())])
        .collect();
    let chain: Vec<(&str, &str)> = chain.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let deep = used("\"lib/c0.c.j2\"", &chain);
    assert!(
        deep.starts_with("lib/c31.c.j2:2: uses `lib/c32.c.j2`: expected files that use each other 32 deep"),
        "{deep}"
    );
}

#[test]
fn a_file_whose_parameters_its_includer_does_not_have_is_told() {
    let tile = format!("{TILE}// {{{{ tile_n }}}}\n");
    let text = fs::read_to_string(fixtures().join("rmsnorm+linear/naive.c.j2")).expect("a fixture");
    let text = text.replace("{{ signature", "{% include \"lib/tile.c.j2\" %}\n{{ signature");
    let name = "rmsnorm+linear/naive.c.j2";
    let found = broken(&[("lib/tile.c.j2", &tile), (name, &text)], name);
    assert_eq!(
        found,
        "rmsnorm+linear/naive.c.j2:16: includes `lib/tile.c.j2`, which takes the Jinja name `tile_n`: nothing before this \
         line gives it"
    );
}
