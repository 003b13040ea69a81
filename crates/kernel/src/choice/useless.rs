//! Tuning rows that can never decide anything: no problem matches them, or their template cannot do the problem.

use std::collections::{BTreeMap, BTreeSet};

use crate::target::Target;
use crate::template::library::Library;
use crate::template::signature::Signature;
use crate::tuning::TuningTables;
use crate::tuning::lint::{FindingKind, LintFinding};
use crate::tuning::table::{APART, Fact, TuningRow};
use crate::tuning::words::PRECISIONS;

/// Why a row can never be followed on a target.
struct Never {
    why: String,
    /// Whether it may be on another target.
    is_of_target: bool,
}

/// What a name in `where` may be.
enum Wanted {
    Number,
    Flag,
    /// One of these.
    Words(Vec<&'static str>),
}

impl Wanted {
    fn takes(&self, fact: &Fact) -> bool {
        match (self, fact) {
            (Self::Number, Fact::Number(_)) | (Self::Flag, Fact::Flag(_)) => true,
            (Self::Words(words), Fact::Text(word)) => words.contains(&word.as_str()),
            _ => false,
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Number => "a number".into(),
            Self::Flag => "true or false".into(),
            Self::Words(words) => words.join(" or "),
        }
    }
}

/// What a person is to hear of the rows that concern a target: a line for each reason that rows of a file have. Of a
/// table for several chips a row may be for others of them.
pub(super) fn warnings(library: &Library, tables: &TuningTables, target: &Target) -> Vec<String> {
    let arch = target.arch.split(':').next().unwrap_or_default();
    let own_table = format!("{arch}.toml");
    let is_for_it = |row: &TuningRow| row.file().rsplit(['/', '\\']).next() == Some(own_table.as_str());
    let mut known = Followed::default();
    let own = tables.rows_for(target).filter(|row| !row.is_built_in());
    let never = own.filter_map(|row| {
        let never = known.never(library, row, target)?;
        (!never.is_of_target || is_for_it(row)).then(|| (row.place.clone(), never.why.clone()))
    });
    let never: Vec<_> = never.collect();
    grouped(never_asked_for(library, tables, target).into_iter().chain(never))
}

/// A line for each reason that rows of a file have, by the first of them; of rows, the place and the reason.
pub fn grouped(rows: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut groups: Vec<(String, String, usize)> = Vec::new();
    let mut index: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (place, why) in rows {
        let file = place.rsplit_once(':').map_or(place.as_str(), |(file, _)| file).to_owned();
        match index.get(&(file.clone(), why.clone())) {
            Some(&group) => groups[group].2 += 1,
            None => {
                index.insert((file, why.clone()), groups.len());
                groups.push((place, why, 0));
            }
        }
    }
    let line = |(place, why, more): (String, String, usize)| match more {
        0 => format!("{place}: {why}"),
        1 => format!("{place} and 1 more row: {why}"),
        _ => format!("{place} and {more} more rows: {why}"),
    };
    groups.into_iter().map(line).collect()
}

/// What a row uses: the op, the template, the parameters.
type Use<'a> = (&'a str, &'a str, &'a BTreeMap<String, u32>);

/// What is known of rows that use the same: whether they can be followed at all.
#[derive(Default)]
struct Followed<'a> {
    never: BTreeMap<Use<'a>, Option<Never>>,
}

impl<'a> Followed<'a> {
    fn never(&mut self, library: &Library, row: &'a TuningRow, target: &Target) -> Option<&Never> {
        let key = (row.op.as_str(), row.template.as_str(), &row.params);
        self.never.entry(key).or_insert_with(|| never_followed(library, row, target)).as_ref()
    }
}

/// The rows of these targets that can never decide anything, as findings.
///
/// - `all`: the targets that are known. A row of a family is of use if one of them follows it.
pub fn unusable(library: &Library, tables: &TuningTables, targets: &[Target], all: &[Target]) -> Vec<LintFinding> {
    let finding =
        |place: &str, text: String| LintFinding { kind: FindingKind::Unusable, place: place.to_owned(), text };
    let mut findings = Vec::new();
    for target in targets {
        let told = never_asked_for(library, tables, target);
        findings.extend(told.into_iter().map(|(place, why)| finding(&place, why)));
    }
    let concerned: BTreeSet<&str> =
        targets.iter().flat_map(|target| tables.rows_for(target)).map(|row| row.place.as_str()).collect();
    let mut never: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for target in all {
        let mut known = Followed::default();
        for row in tables.rows_for(target).filter(|row| concerned.contains(row.place.as_str())) {
            let mut why = || known.never(library, row, target).map(|one| one.why.clone());
            match never.get_mut(row.place.as_str()) {
                Some(None) => {}
                Some(known) => *known = known.take().and_then(|known| why().map(|_| known)),
                None => drop(never.insert(&row.place, why())),
            }
        }
    }
    findings.extend(never.into_iter().filter_map(|(place, why)| Some(finding(place, why?))));
    findings
}

/// Why `apart` is nothing for one op.
pub(super) fn apart_alone(op: &str) -> String {
    format!("`apart` is for runs of ops, and `{op}` is a single one")
}

/// That there is no template of a label that a row uses, and what may be meant.
pub(super) fn no_template(library: &Library, label: &str) -> String {
    let is_apart = hint::meant(label, [APART]).is_some();
    if is_apart {
        format!("there is no template `{label}`; did you mean `{APART}`?")
    } else {
        library.no_template(label)
    }
}

/// The rows for a target that name an unknown op, or a condition that the op cannot have: their place and the reason.
fn never_asked_for(library: &Library, tables: &TuningTables, target: &Target) -> Vec<(String, String)> {
    let mut names_of: BTreeMap<&str, Result<BTreeMap<String, Wanted>, String>> = BTreeMap::new();
    let mut told = Vec::new();
    for row in tables.rows_for(target) {
        let mut tell = |why: String| told.push((row.place.clone(), format!("nothing asks for this row: {why}")));
        match names_of.entry(&row.op).or_insert_with(|| wanted(library, &row.op)) {
            Err(why) => tell(why.clone()),
            Ok(names) => {
                for (name, fact) in &row.facts {
                    match names.get(name) {
                        None => {
                            let known = names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                            tell(format!("`{}` has no `{name}`, only {known}", row.op));
                        }
                        Some(wanted) if !wanted.takes(fact) => {
                            let expected = wanted.expected();
                            tell(format!("`{name}` of `{}`: expected {expected}, found {fact}", row.op));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }
    told
}

/// Why a row is passed over at every problem.
fn never_followed(library: &Library, row: &TuningRow, target: &Target) -> Option<Never> {
    let never = |is_of_target: bool, why: String| Some(Never { why, is_of_target });
    if row.template == APART {
        return match row.params.keys().next() {
            _ if !row.op.contains('+') => never(false, format!("the row is passed over: {}", apart_alone(&row.op))),
            Some(name) => never(false, format!("`{APART}` has no parameters: `{name}` has no effect")),
            None => None,
        };
    }
    let (label, of_its_ops) = (&row.template, row.template.rsplit_once('/').map_or("", |(ops, _)| ops));
    let of_label = library.templates_where(|ops, _| ops == of_its_ops);
    let of_label: Vec<_> = of_label.filter(|template| template.is_labelled(label)).collect();
    let Some(first) = of_label.first() else { return never(false, no_template(library, label)) };
    if of_its_ops != row.op {
        return never(false, format!("the row is passed over: `{label}` does not do `{}`", row.op));
    }
    let Some(template) = of_label.iter().find(|template| template.language == target.language()) else {
        return never(true, format!("the row is passed over: `{label}` is in {}", first.language.name()));
    };
    if let Err(misfit) = template.fits_target(target) {
        return never(true, format!("the row is passed over: `{label}` {misfit}"));
    }
    let refused = template.complete_params(&row.params).err()?;
    never(false, format!("the row is passed over: {refused}"))
}

/// What rows for an op, or a run of ops, may want.
fn wanted(library: &Library, op: &str) -> Result<BTreeMap<String, Wanted>, String> {
    let contracts = op.split('+').map(|op| library.contract(op).cloned()).collect::<Result<Vec<_>, _>>();
    let signature = contracts.and_then(|contracts| Signature::join(&contracts)).map_err(|error| error.to_string())?;
    let dims = signature.dims.iter().map(|name| (name.clone(), Wanted::Number));
    let flags = signature.flags.iter().map(|name| (name.clone(), Wanted::Flag));
    let words = |(name, dtypes): (&String, &Vec<format::Dtype>)| {
        (name.clone(), Wanted::Words(dtypes.iter().map(|dtype| dtype.name()).collect()))
    };
    let precision = ("precision".to_owned(), Wanted::Words(PRECISIONS.to_vec()));
    Ok(dims.chain(flags).chain(signature.dtypes.iter().map(words)).chain([precision]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::library::Layer;

    const ROWS: &str = r#"
        provenance.hand = { kind = "hand", date = "2026-11-22", method = "judgement" }
        [[rows]]
        op = "linear"
        where = { in_features = 64, precision = "bf16", out_feature = 8 }
        use = "linear/dot"
        provenance = "hand"
        [[rows]]
        op = ["rmsnorm", "lineal"]
        use = "apart"
        provenance = "hand"
    "#;

    #[test]
    fn rows_that_nothing_asks_for_are_told_with_their_place_and_what_there_is() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let tables = TuningTables::from_texts(&[("host", ROWS)]).expect("right");
        let lines = never_asked_for(&library, &tables, &Target::host());
        assert_eq!(lines.len(), 2, "{lines:?}");
        let known = "bias, has_bias, has_residual, in_features, out_features, precision, weight";
        let why = format!("nothing asks for this row: `linear` has no `out_feature`, only {known}");
        assert_eq!(lines[0], ("host.toml:3".to_owned(), why));
        assert!(lines[1].0 == "host.toml:8" && lines[1].1.contains("`lineal`"), "{lines:?}");
        assert!(never_asked_for(&library, &tables, &Target::named("gfx1100").expect("known")).is_empty());
    }

    #[test]
    fn rows_that_are_passed_over_whatever_is_asked_are_findings() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let target = Target::gpu("gfx1100").expect("known");
        for (template, params, why) in [
            ("linear/gemw", "", "there is no template `linear/gemw`"),
            ("rmsnorm/row", "", "the row is passed over: `rmsnorm/row` does not do `linear`"),
            ("linear/dot", "", "the row is passed over: `linear/dot` is in C"),
            (
                "linear/gemv",
                "row = 2",
                "the row is passed over: `linear/gemv` has no parameter `row`, expected one of: ",
            ),
            ("linear/gemv", "rows = 3", "the row is passed over: `linear/gemv`: rows = 3, expected one of: 1, 2, 4"),
        ] {
            let text = format!(
                "provenance.hand = {{ kind = \"hand\", date = \"2026-11-22\", method = \"judgement\" }}\n[[rows]]\n\
                 op = \"linear\"\nuse = \"{template}\"\nparams = {{ {params} }}\nprovenance = \"hand\"\n"
            );
            let tables = TuningTables::from_texts(&[("gfx1100", &text)]).expect("right");
            let found = unusable(&library, &tables, std::slice::from_ref(&target), std::slice::from_ref(&target));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].kind, found[0].place.as_str()), (FindingKind::Unusable, "gfx1100.toml:2"));
            assert!(found[0].text.starts_with(why), "{found:?}");
        }
    }

    #[test]
    fn every_built_in_row_is_of_an_op_that_has_what_it_wants() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let tables = TuningTables::load(&[]).expect("right");
        let archs = crate::target::built_in().into_iter().map(|(name, _)| Target::named(&name).expect("known"));
        let all: Vec<Target> = archs.chain([Target::host()]).collect();
        assert_eq!(unusable(&library, &tables, &all, &all), []);
    }

    #[test]
    fn a_row_for_a_template_that_nobody_has_is_told_and_others_are_not() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let row = |template: &str, tokens: &str| {
            let of = format!("op = \"linear\"\ntokens = \"{tokens}\"\nuse = \"{template}\"");
            format!("[[rows]]\n{of}\nprovenance = \"hand\"\n\n")
        };
        let hand = "provenance.hand = { kind = \"hand\", date = \"2026-11-22\", method = \"judgement\" }\n";
        let text = format!("{hand}{}{}", row("linear/dot", "1-8"), row("linear/nobody", "9+"));
        let tables = TuningTables::from_texts(&[("host", &text)]).expect("right");
        let found = unusable(&library, &tables, &[Target::host()], &[Target::host()]);
        let found: Vec<_> = found.iter().map(|finding| (finding.place.as_str(), finding.text.as_str())).collect();
        assert_eq!(found, [("host.toml:8", "there is no template `linear/nobody`")]);
    }

    /// A row of a table for several chips is one for those that have what its template needs; of a chip's own table
    /// nobody else follows it.
    #[test]
    fn a_row_of_a_family_is_of_use_if_one_of_its_chips_follows_it() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let [amd, nvidia] = ["gfx1100", "sm_90"].map(|arch| Target::gpu(arch).expect("known"));
        let row = |op: &str, template: &str, wants: &str| {
            format!(
                "provenance.hand = {{ kind = \"hand\", date = \"2026-11-22\", method = \"judgement\" }}\n[[rows]]\n\
                 op = \"{op}\"\nuse = \"{template}\"\nwhere = {{ {wants} }}\nprovenance = \"hand\"\n"
            )
        };
        let found = |table: &str, text: &str, all: &[Target]| {
            let tables = TuningTables::from_texts(&[(table, text)]).expect("right");
            let found = unusable(&library, &tables, std::slice::from_ref(&amd), all);
            let warned = warnings(&library, &tables, &amd);
            (found.into_iter().map(|one| one.text).collect::<Vec<_>>(), warned)
        };
        let wgmma = row("linear", "linear/wgmma", "");
        let (told, warned) = found("gfx1100", &wgmma, std::slice::from_ref(&amd));
        assert_eq!(told, ["the row is passed over: `linear/wgmma` requires arch sm_90*, the target is gfx1100"]);
        assert_eq!(warned, [format!("gfx1100.toml:2: {}", told[0])]);
        let all = [amd.clone(), nvidia];
        assert_eq!(found("generic", &wgmma, &all), (vec![], vec![]), "sm_90 follows it");
        let (told, warned) = found("generic", &row("linear", "apart", ""), &all);
        assert_eq!(told, ["the row is passed over: `apart` is for runs of ops, and `linear` is a single one"]);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert_eq!(found("gfx1100", &row("rmsnorm+linear", "apart", ""), &all), (vec![], vec![]));
        let with_params = format!("{}params = {{ rows = 2 }}\n", row("rmsnorm+linear", "apart", ""));
        let (told, _) = found("gfx1100", &with_params, &all);
        assert_eq!(told, ["`apart` has no parameters: `rows` has no effect"]);
        let place = |line: usize| (format!("a.toml:{line}"), "no".to_owned());
        let lines = grouped([place(1), place(4), ("b.toml:1".into(), "no".into()), place(9)].into_iter());
        assert_eq!(lines, ["a.toml:1 and 2 more rows: no", "b.toml:1: no"]);
        for (wants, said) in [
            ("has_bias = 1", "`has_bias` of `linear`: expected true or false, found 1"),
            ("in_features = true", "`in_features` of `linear`: expected a number, found true"),
            ("weight = \"u32\"", "`weight` of `linear`: expected f32 or bf16"),
        ] {
            let (told, warned) = found("gfx1100", &row("linear", "linear/gemv", wants), &all);
            assert!(told[0].starts_with(&format!("nothing asks for this row: {said}")), "{told:?}");
            assert_eq!((told.len(), warned.len()), (1, 1), "{told:?} {warned:?}");
        }
    }
}
