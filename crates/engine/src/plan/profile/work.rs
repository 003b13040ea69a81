//! The least bytes and operations of a launch, on the data that it finds in memory.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{Argument, Driver};

use super::ProfileEntry;
use crate::plan::error::PlanError;
use crate::plan::segment::Steps;
use crate::plan::segment::{PlannedLaunch, scalars};
use format::Dtype;
use kernel::template::Problem;
use kernel::template::launch::ArgSpec;
use kernel::template::work::Elements;

/// One launch, not timed yet; its inputs are in memory.
pub(super) fn count(
    steps: &Steps<'_>,
    driver: &dyn Driver,
    planned: &PlannedLaunch,
    args: &[Argument],
    n_rows: usize,
) -> Result<ProfileEntry, PlanError> {
    let scalars = scalars(n_rows, &planned.scalars);
    let mut left: Vec<ArgSpec> = planned.kernel.rendered.args.clone();
    let mut entry = ProfileEntry { calls: 1, ..ProfileEntry::default() };
    for op in &planned.problem.ops {
        let contract = steps.sites.device.pipeline.library().contract(op)?;
        let declared: BTreeSet<&str> = contract.args.iter().map(|arg| arg.name.as_str()).collect();
        let (own, others) = left.into_iter().partition(|arg| declared.contains(arg.name.as_str()));
        left = others;
        let own: Vec<ArgSpec> = own;
        let inputs = read(driver, planned, args, contract.work.counted())?;
        let mut work = contract.work.count(&planned.problem, &own, &scalars, &inputs)?;
        if op == "attention" {
            cap_cache(&mut work.bytes, &planned.problem, &read(driver, planned, args, ["slot", "position"])?);
        }
        entry.bytes += work.total_bytes();
        entry.flop += work.flop.unwrap_or(0.0);
    }
    for arg in left.iter().filter(|arg| !arg.is_scalar()) {
        entry.bytes += arg.len_bytes(&scalars)? as f64;
    }
    Ok(entry)
}

/// Whole numbers that a launch takes, as they are in memory now; those that the kernel does not have are left out.
fn read<'n>(
    driver: &dyn Driver,
    planned: &PlannedLaunch,
    args: &[Argument],
    names: impl IntoIterator<Item = &'n str>,
) -> Result<Elements, PlanError> {
    let mut elements = Elements::new();
    for name in names {
        let mut specs = planned.kernel.rendered.all_args().zip(args);
        let Some((_, Argument::Memory { view, required_bytes })) =
            specs.find(|(spec, _)| spec.name == name && matches!(spec.dtype, Dtype::U32 | Dtype::I32))
        else {
            continue;
        };
        let mut bytes = vec![0; *required_bytes];
        let failed = |source| PlanError::Device { label: planned.label.clone(), source };
        driver.read(view, &mut bytes).map_err(failed)?;
        let words = bytemuck::pod_collect_to_vec::<u8, u32>(&bytes).into_iter();
        elements.insert(name.to_owned(), words.map(i64::from).collect());
    }
    Ok(elements)
}

/// Rows of one slot read its keys and values once for all of them: no more bytes than the positions that any of them
/// sees have.
fn cap_cache(bytes: &mut BTreeMap<String, f64>, problem: &Problem, rows: &Elements) {
    let (Some(slot), Some(position)) = (rows.get("slot"), rows.get("position")) else { return };
    let dim = |name: &str| problem.dims.get(name).copied().unwrap_or(0) as usize;
    let kv = problem.dtypes.get("kv").copied().unwrap_or(Dtype::F32);
    let n_rows = dim("num_key_value_heads");
    let seen = positions_seen(slot, position, dim("window"));
    let of_elements = kv.len_bytes(n_rows * 2 * dim("half_head_dim"));
    let of_position = [("cache", of_elements), ("scale", Dtype::F32.len_bytes(n_rows))];
    for (name, of_position) in of_position.iter().flat_map(|(what, n)| ["k", "v"].map(|of| (format!("{of}_{what}"), n)))
    {
        if let Some(bytes) = bytes.get_mut(&name) {
            *bytes = bytes.min((seen * of_position) as f64);
        }
    }
}

/// Positions of all slots that any row sees; a window of 0 is all.
fn positions_seen(slot: &[i64], position: &[i64], window: usize) -> usize {
    let mut seen: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (&slot, &position) in slot.iter().zip(position) {
        let end = position as usize + 1;
        let begin = if window == 0 { 0 } else { end.saturating_sub(window) };
        seen.entry(slot as usize).or_default().push((begin, end));
    }
    let union = |mut spans: Vec<(usize, usize)>| {
        spans.sort_unstable();
        let add = |(total, last): (usize, usize), (begin, end): (usize, usize)| {
            (total + end.saturating_sub(begin.max(last)), end.max(last))
        };
        spans.into_iter().fold((0, 0), add).0
    };
    seen.into_values().map(union).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_that_several_rows_of_a_slot_see_count_once() {
        assert_eq!(positions_seen(&[0, 0, 1], &[4, 5, 2], 0), 6 + 3);
        assert_eq!(positions_seen(&[0, 0, 0], &[10, 11, 90], 4), 5 + 4);
        assert_eq!(positions_seen(&[3], &[0], 128), 1);
    }

    #[test]
    fn keys_and_values_are_not_read_twice_for_a_chunk() {
        let problem = Problem {
            ops: vec!["attention".into()],
            dims: [("num_key_value_heads", 3), ("half_head_dim", 4), ("window", 0)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            constants: BTreeMap::new(),
            flags: BTreeMap::new(),
            dtypes: [("kv".to_owned(), Dtype::Bf16)].into(),
            keeps: Default::default(),
            precision: kernel::template::Precision::Bf16,
        };
        let rows: Elements = [("slot".to_owned(), vec![0, 0]), ("position".to_owned(), vec![8, 9])].into();
        let mut bytes: BTreeMap<String, f64> = [("k_cache".to_owned(), 1e9), ("v_cache".to_owned(), 100.0)].into();
        cap_cache(&mut bytes, &problem, &rows);
        assert_eq!((bytes["k_cache"], bytes["v_cache"]), (10.0 * 3.0 * 8.0 * 2.0, 100.0));
    }
}
