//! A user's tuning rows that decide nothing in a plan, although they seem meant to.

use std::collections::{BTreeMap, BTreeSet};

use crate::known_models::{self, Asked, KnownModels, problems_of};
use engine::graph::Graph;
use kernel::choice::{Chooser, useless};
use kernel::template::{Params, Problem};
use kernel::tuning::table::TuningRow;

/// Results of rows with the same use, at a problem of the model: template, parameters, and which problem.
type Told<'a> = BTreeMap<(&'a str, &'a Params, usize), Option<String>>;

/// Lines for rows that are passed over at every problem of the model to which they apply, and for rows that apply to no
/// problem of it or of a model known by name. Rows that can never decide were reported before; a measured row was
/// measured on some model's problem.
pub(super) fn warnings(chooser: &Chooser, graph: &Graph) -> anyhow::Result<Vec<String>> {
    let (library, tables, target) = (chooser.library(), chooser.tables(), chooser.target());
    let own = known_models::own(tables.rows_for(target));
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let this = std::slice::from_ref(target);
    let never =
        useless::unusable(library, tables, this, this).into_iter().map(|one| one.place).collect::<BTreeSet<_>>();
    let mut of_model: BTreeMap<String, Vec<(usize, Asked)>> = BTreeMap::new();
    for (i, problem) in problems_of(graph, &chooser.fusions()).into_iter().enumerate() {
        of_model.entry(problem.ops.join("+")).or_default().push((i, Asked::new(problem)));
    }
    let (mut known, mut told): (Option<KnownModels>, Told<'_>) = (None, BTreeMap::new());
    let mut refused: Vec<(String, String)> = Vec::new();
    let mut unasked: BTreeMap<&str, (&TuningRow, String, usize)> = BTreeMap::new();
    for row in own.into_iter().filter(|row| !never.contains(&row.place)) {
        let of_op = of_model.get(&row.op).map_or(&[][..], Vec::as_slice);
        let asked: Vec<&(usize, Asked)> = of_op.iter().filter(|(_, asked)| asked.by(row)).collect();
        let mut why = all(asked.iter().map(|(i, asked)| {
            let pass = || chooser.passes_over(row, &asked.problem);
            told.entry((&row.template, &row.params, *i)).or_insert_with(pass).clone()
        }));
        if asked.is_empty() && row.problem.is_none() {
            let models = match &mut known {
                Some(models) => models,
                None => known.insert(KnownModels::new(library, target)?),
            };
            if let Some(entry) = unasked.get_mut(row.file()).filter(|_| models.asking(row).next().is_none()) {
                entry.2 += 1;
            } else if let Some(why) = models.unasked(row) {
                unasked.insert(row.file(), (row, why, 0));
            }
            let asking: Vec<Problem> = models.asking(row).collect();
            why = all(asking.iter().map(|problem| chooser.passes_over(row, problem)));
        }
        let passed_over = |why| (row.place.clone(), format!("the row is passed over wherever it applies: {why}"));
        refused.extend(why.map(passed_over));
    }
    let unasked = unasked.into_values().map(|(row, why, n_more)| match n_more {
        0 => format!("{}: {why}", row.place),
        _ => format!("{} (and {n_more} more of the file, which `tune lint` lists): {why}", row.place),
    });
    Ok(useless::grouped(refused.into_iter()).into_iter().chain(unasked).collect())
}

/// The first of these, if there are any and none is left out.
fn all(mut whys: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = whys.next()??;
    whys.all(|why| why.is_some()).then_some(first)
}
