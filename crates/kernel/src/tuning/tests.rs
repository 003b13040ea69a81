use super::table::Fact;
use super::*;

const HAND: &str = "[provenance.hand]\nkind = \"hand\"\ndate = \"2026-11-20\"\nmethod = \"judgement\"\n";

fn row(tokens: &str, where_: &str, tile: u32) -> String {
    format!(
        "[[rows]]\nop = \"linear\"\nwhere = {{ {where_} }}\ntokens = \"{tokens}\"\nuse = \"linear/dot\"\n\
         params = {{ tile = {tile} }}\nprovenance = \"hand\"\n"
    )
}

fn tables(files: &[(&str, String)]) -> Result<TuningTables, TuningError> {
    let files: Vec<(&str, String)> = files.iter().map(|(name, rows)| (*name, format!("{HAND}{rows}"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    TuningTables::from_texts(&files)
}

fn query(in_features: i64) -> Query {
    let facts = [("in_features", Fact::Number(in_features)), ("weight", Fact::Text("bf16".into()))];
    Query { op: "linear".into(), facts: facts.map(|(name, fact)| (name.to_owned(), fact)).into() }
}

fn tile(tables: &TuningTables, in_features: i64, n_tokens: u32, arch: &str) -> Option<u32> {
    let target = Target::gpu(arch).expect("known");
    tables.lookup(&query(in_features), n_tokens, StepKind::Decode, &target).map(|row| row.params["tile"])
}

/// The gaps on every chip that is known, and on hosts.
fn gaps(tables: &TuningTables) -> Vec<String> {
    let archs = target::built_in().into_iter().map(|(arch, _)| Target::gpu(&arch).expect("known"));
    tables.gaps(&archs.chain([Target::host()]).collect::<Vec<_>>())
}

#[test]
fn built_in_tables_are_right_and_leave_no_gap() {
    let tables = TuningTables::load(&[]).expect("right");
    assert_eq!(gaps(&tables), Vec::<String>::new());
    assert!(target::built_in().len() >= 13);
}

#[test]
fn a_gap_is_none_where_a_table_behind_fills_it() {
    let some = row("1-8", "in_features = 64", 1);
    let both = |behind: String| gaps(&tables(&[("gfx1100", some.clone()), ("generic", behind)]).expect("right"));
    assert_eq!(both(row("1+", "", 2)), Vec::<String>::new());
    assert_eq!(both(row("1+", "in_features = 65", 2)).len(), 1);
    assert_eq!(both(row("1-16", "", 2)).len(), 2, "at more than 8, and behind at more than 16");
}

#[test]
fn the_closest_table_wins_and_its_gaps_fall_through() {
    let tables = tables(&[
        ("gfx1100", row("1-8", "in_features = 64", 1)),
        ("gfx11", row("1+", "weight = 'bf16'", 2)),
        ("generic", row("1+", "", 3)),
    ])
    .expect("right");
    assert_eq!(tile(&tables, 64, 8, "gfx1100"), Some(1));
    assert_eq!(tile(&tables, 64, 9, "gfx1100"), Some(2));
    assert_eq!(tile(&tables, 65, 8, "gfx1100"), Some(2));
    assert_eq!(tile(&tables, 64, 8, "gfx1151"), Some(2));
    assert_eq!(tile(&tables, 64, 8, "gfx942"), Some(3));
    let target = Target::gpu("gfx1100").expect("known");
    assert_eq!(tables.token_edges(&query(64), StepKind::Mixed, &target), [1, 9]);
}

#[test]
fn the_first_folder_wins_over_a_closer_table_of_a_later_one() {
    let mut both = tables(&[("generic", row("1+", "", 1))]).expect("right");
    both.layers.extend(tables(&[("gfx1100", row("1+", "", 2))]).expect("right").layers);
    assert_eq!(tile(&both, 64, 1, "gfx1100"), Some(1));
}

#[test]
fn overlapping_rows_are_refused_with_both_lines() {
    let error = tables(&[("gfx11", row("1-8", "in_features = 64", 1) + &row("8+", "weight = 'bf16'", 2))]);
    let error = error.expect_err("both apply at 8").to_string();
    assert_eq!(error, "gfx11.toml:12: this row for `linear` and the one in line 5 both apply at 8 tokens");
    let apart = [("gfx11", row("1-8", "in_features = 64", 1) + &row("8+", "in_features = 65", 2))];
    assert!(tables(&apart).is_ok());
}

#[test]
fn a_row_may_be_for_one_kind_of_step() {
    let of_step = |tokens: &str, step: &str, tile| format!("{}step = \"{step}\"\n", row(tokens, "", tile));
    let rows = row("1-8", "", 1) + &of_step("9+", "decode", 2) + &of_step("9-64", "mixed", 3);
    let tables = tables(&[("gfx11", rows)]).expect("rows of other steps do not meet");
    let target = Target::gpu("gfx1100").expect("known");
    let tile = |n, step| tables.lookup(&query(64), n, step, &target).map(|row| row.params["tile"]);
    assert_eq!([8, 9, 65].map(|n| tile(n, StepKind::Decode)), [Some(1), Some(2), Some(2)]);
    assert_eq!([8, 9, 65].map(|n| tile(n, StepKind::Mixed)), [Some(1), Some(3), None]);
    assert_eq!(tables.token_edges(&query(64), StepKind::Decode, &target), [1, 9]);
    assert_eq!(tables.token_edges(&query(64), StepKind::Mixed, &target), [1, 9, 65]);
    assert_eq!(gaps(&tables), ["gfx11.toml:20: no row for `linear` at more than 64 tokens in a mixed step"]);
}

#[test]
fn a_row_for_a_kind_of_step_goes_before_one_for_all() {
    let rows = row("1+", "", 1) + &row("9+", "", 2) + "step = \"mixed\"\n";
    let both = tables(&[("gfx11", rows)]).expect("one wants more than the other");
    let target = Target::gpu("gfx1100").expect("known");
    let tile = |n, step| both.lookup(&query(64), n, step, &target).map(|row| row.params["tile"]);
    assert_eq!([8, 9].map(|n| tile(n, StepKind::Mixed)), [Some(1), Some(2)]);
    assert_eq!([8, 9].map(|n| tile(n, StepKind::Decode)), [Some(1), Some(1)]);
    let alone = row("2+", "", 1) + "step = \"mixed\"\n";
    assert_eq!(
        gaps(&tables(&[("gfx11", alone)]).expect("right")),
        ["gfx11.toml:5: no row for `linear` in a decode step"]
    );
    let unknown = row("1+", "", 1) + "step = \"prefill\"\n";
    let error = tables(&[("gfx11", unknown)]).expect_err("no such step").to_string();
    assert!(error.starts_with("gfx11.toml:12: could not read the tuning table: unknown variant `prefill`"), "{error}");
}

#[test]
fn gaps_are_linted() {
    let gap = gaps(&tables(&[("gfx11", row("1-8", "", 1) + &row("10-20", "", 2))]).expect("right"));
    assert_eq!(
        gap,
        ["gfx11.toml:12: no row for `linear` at 9 tokens", "gfx11.toml:12: no row for `linear` at more than 20 tokens",]
    );
    let fused = row("1-8", "", 1).replace("op = \"linear\"", "op = [\"rmsnorm\", \"linear\"]");
    assert!(fused.contains("rmsnorm"));
    assert_eq!(gaps(&tables(&[("gfx11", fused)]).expect("right")), Vec::<String>::new());
}

#[test]
fn wrong_rows_are_refused_with_their_line() {
    for (text, why) in [
        (row("8-1", "", 1), "gfx11.toml:8: could not read the tuning table: `8-1`: expected a number of tokens"),
        (row("0-1", "", 1), "gfx11.toml:8:"),
        (row("1+", "", 1).replace("\"hand\"", "\"dream\""), "gfx11.toml:5: the row's provenance `dream`"),
        (row("1+", "a = 1.5", 1), "gfx11.toml:7: could not read the tuning table"),
        (
            row("1+", "", 1).replace("use =", "uses ="),
            "gfx11.toml:9: could not read the tuning table: unknown field `uses`",
        ),
        (row("1+", "", 1) + "source = \"abc\"\n", "gfx11.toml:12: could not read the tuning table"),
        (row("1+", "", 1) + "time_us = -1.0\n", "gfx11.toml:12: could not read the tuning table"),
        (row("1+", "", 1) + "spread = -0.1\n", "gfx11.toml:12: could not read the tuning table"),
    ] {
        let error = tables(&[("gfx11", text)]).expect_err(why).to_string();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn a_table_takes_the_place_of_that_of_its_name_and_folder_alone() {
    let built_in = tables(&[("gfx1100", row("1+", "", 1)), ("gfx942", row("1+", "", 2))]).expect("right");
    let folder = std::path::Path::new("/nowhere");
    let with = |tables: &TuningTables, name: &str, tile: u32| {
        let search = [folder.to_owned()];
        let text = format!("{HAND}{}", row("1+", "", tile));
        tables.with_table(&search[..usize::from(tile > 3)], folder, name, &text).expect("right")
    };
    let tiles = |tables: &TuningTables| ["gfx1100", "gfx942"].map(|arch| tile(tables, 64, 1, arch));
    let first = with(&built_in, "gfx1100", 3);
    assert_eq!((tiles(&built_in), tiles(&first)), ([Some(1), Some(2)], [Some(3), Some(2)]));
    let second = with(&first, "gfx942", 4);
    assert_eq!(tiles(&second), [Some(3), Some(4)], "the other table of the folder stays");
    assert_eq!(tiles(&with(&second, "gfx1100", 5)), [Some(5), Some(4)]);
}

#[test]
fn a_gap_is_none_where_no_step_has_so_few_rows() {
    // A step that is not for decoding has two rows or more.
    let of_gfx11 = |tokens: &str| {
        let behind = row("1+", "", 2) + "step = \"decode\"\n";
        let found = gaps(&tables(&[("gfx11", row(tokens, "", 1)), ("generic", behind)]).expect("right"));
        found.into_iter().filter(|gap| gap.starts_with("gfx11.")).count()
    };
    assert_eq!(["2+", "3+"].map(of_gfx11), [0, 1]);
}

#[test]
fn a_table_of_a_folder_that_cannot_be_read_is_told_of_its_targets_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("gfx1100.toml"), "rows = 7\n").expect("written");
    let tables = TuningTables::load(&[folder.path().to_owned()]).expect("the folder can");
    let check = |arch: &str| tables.check_for(&Target::gpu(arch).expect("known"));
    assert!(matches!(check("gfx1100"), Err(TuningError::Toml { .. })));
    check("gfx942").expect("its tables are right");
}

#[test]
fn a_template_is_used_by_a_row_for_the_target() {
    let tables = tables(&[("gfx11", row("1-8", "", 1))]).expect("right");
    let uses = |template: &str, arch: &str| tables.use_template(template, &Target::gpu(arch).expect("known"));
    assert!(uses("linear/dot", "gfx1100") && !uses("linear/tile", "gfx1100") && !uses("linear/dot", "gfx942"));
}

#[test]
fn stale_rows_are_counted_by_their_files() {
    let tables = tables(&[("gfx11", row("1-8", "", 1) + &row("9+", "", 1)), ("gfx1100", row("1+", "", 2))]);
    let (tables, target) = (tables.expect("right"), Target::gpu("gfx1100").expect("known"));
    let warning = stale_warning(tables.rows_for(&target), &target).expect("three are");
    assert!(warning.starts_with("2 rows of gfx11.toml, 1 row of gfx1100.toml are stale: "), "{warning}");
    assert_eq!(stale_warning(std::iter::empty(), &target), None);
}
