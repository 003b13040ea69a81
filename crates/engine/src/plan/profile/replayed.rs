//! Times the launches of one node in all layers as a graph, replayed between two events.
//!
//! Before each replay the whole step is replayed. This gives every input its value of the step, even where a kernel
//! works in place, and leaves no more weights in a cache than the step does. Activations that a real step would have
//! just written come from memory instead, unless they are few; so short kernels look up to a microsecond slower.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpu::{ALIGNMENT_BYTES, Argument, BufferView, Driver, GpuError, Graph, Kernel, Launch};

use super::{Profile, ProfileEntry, without_layer, work};
use crate::graph::{StepShape, Storage};
use crate::plan::error::PlanError;
use crate::plan::segment::Steps;
use crate::plan::segment::{PlannedLaunch, PreparedLaunch};
use kernel::template::contract::Access;

/// A graph of fewer launches makes them again and again: what a replay itself takes would else be seen.
const FEWEST_LAUNCHES: usize = 8;

/// Timing a step may take so long, in seconds, where that allows more than one round.
const BUDGET_S: f64 = 1.0;

/// A launch of the step.
struct Isolated<'a> {
    planned: &'a PlannedLaunch,
    prepared: PreparedLaunch,
    n_rows: usize,
}

/// The launches of one node, by their places in the step, and as a graph.
struct Group {
    launches: Vec<usize>,
    graph: Graph,
    /// Launches of the graph.
    n_captured: usize,
    times: Vec<Duration>,
}

/// Times a step whose inputs are in the external tensors; none if the device replays nothing. The caches and what
/// the step gives must be made anew by running it; what it takes from the step before is left as it was.
pub(super) fn profile(steps: &Steps<'_>, shape: StepShape, rounds: usize) -> Result<Option<Profile>, PlanError> {
    let launches = isolated(steps, shape)?;
    let driver = steps.sites.device.driver();
    let carried = carried(driver, &launches).map_err(failed)?;
    let profile = timed(steps, &launches, &carried, rounds.max(1))?;
    restore(driver, &carried).map_err(failed)?;
    Ok(profile)
}

fn failed(source: GpuError) -> PlanError {
    PlanError::Device { label: "the profile of a step".into(), source }
}

fn timed(
    steps: &Steps<'_>,
    launches: &[Isolated<'_>],
    carried: &[Carried],
    rounds: usize,
) -> Result<Option<Profile>, PlanError> {
    let driver = steps.sites.device.driver();
    // One by one first, so that what goes wrong is told by its node.
    for Isolated { planned, prepared, .. } in launches {
        let launched = driver.launch_timed(planned.kernel(), &prepared.launch());
        launched.map_err(|source| PlanError::Device { label: planned.label.clone(), source })?;
    }
    let all: Vec<usize> = (0..launches.len()).collect();
    let Some(whole) = capture(driver, launches, &all).map_err(failed)? else { return Ok(None) };
    let mut groups = BTreeMap::new();
    let labels = launches.iter().map(|Isolated { planned, .. }| (&*planned.label, &*planned.kernel.rendered.label));
    for (key, indices) in nodes(labels) {
        let captured = indices.repeat(FEWEST_LAUNCHES.div_ceil(indices.len()));
        let Some(graph) = capture(driver, launches, &captured).map_err(failed)? else { return Ok(None) };
        let (n_captured, times) = (captured.len(), Vec::new());
        groups.insert(key, Group { launches: indices, graph, n_captured, times });
    }
    let whole_times = time(driver, &whole, &mut groups, rounds).map_err(failed)?;
    // What the launches have to do is counted on the step's own data.
    restore(driver, carried).and_then(|()| driver.replay(&whole)).map_err(failed)?;
    let mut profile = Profile { steps: 1, step_time: median(whole_times), ..Profile::default() };
    for ((node, template), group) in groups {
        let each = median(group.times) / group.n_captured as u32;
        for launch in group.launches.iter().map(|&i| &launches[i]) {
            let counted = work::count(steps, driver, launch.planned, &launch.prepared.args, launch.n_rows)?;
            profile.add(&node, &template, ProfileEntry { time: each, ..counted });
        }
    }
    Ok(Some(profile))
}

/// Memory and its contents.
type Carried = (BufferView, Vec<u8>);

fn restore(driver: &dyn Driver, carried: &[Carried]) -> Result<(), GpuError> {
    carried.iter().try_for_each(|(view, bytes)| driver.write(view, bytes))
}

/// What the step takes from the one before it, tokens that were sampled: memory that it reads first and writes later.
fn carried(driver: &dyn Driver, launches: &[Isolated<'_>]) -> Result<Vec<Carried>, GpuError> {
    let accesses = launches.iter().flat_map(|Isolated { planned, prepared, .. }| {
        planned.kernel.rendered.all_args().zip(&prepared.args).filter_map(move |(spec, arg)| match arg {
            Argument::Memory { view, .. } => Some((*planned.args.get(&spec.name)?, spec.access, view)),
            _ => None,
        })
    });
    let carried = read_and_then_written(accesses);
    let save = |view: &&BufferView| {
        let mut bytes = vec![0; view.len_bytes()];
        driver.read(view, &mut bytes).map(|()| ((*view).clone(), bytes))
    };
    carried.iter().map(save).collect()
}

/// Of what is read before anything writes it, what is written later.
fn read_and_then_written<I: Ord + Copy, V: Copy>(accesses: impl Iterator<Item = (I, Access, V)>) -> Vec<V> {
    let (mut written, mut read) = (BTreeSet::new(), BTreeMap::new());
    let mut found = Vec::new();
    for (id, access, view) in accesses {
        if access == Access::Read && !written.contains(&id) {
            read.insert(id, view);
        } else if access == Access::Write && written.insert(id) {
            found.extend(read.get(&id));
        }
    }
    found
}

/// Times of the whole step; those of its nodes go to their groups.
fn time(
    driver: &dyn Driver,
    whole: &Graph,
    groups: &mut BTreeMap<(String, String), Group>,
    rounds: usize,
) -> Result<Vec<Duration>, GpuError> {
    driver.replay(whole)?; // what is done for the first time takes longer
    for group in groups.values() {
        driver.replay(&group.graph)?;
    }
    let mut whole_times = Vec::new();
    let round_s = (1 + groups.len()) as f64 * driver.replay_timed(whole)?.as_secs_f64();
    for _ in 0..rounds.min((BUDGET_S / round_s.max(1e-9)) as usize).max(1) {
        for group in groups.values_mut() {
            driver.replay(whole)?;
            group.times.push(driver.replay_timed(&group.graph)?);
        }
        driver.replay(whole)?;
        whole_times.push(driver.replay_timed(whole)?);
    }
    Ok(whole_times)
}

/// The launches of a step, with activations that live as long as the step.
fn isolated<'a>(steps: &Steps<'a>, shape: StepShape) -> Result<Vec<Isolated<'a>>, PlanError> {
    let shared = prepare(steps, shape, &steps.sites.device.memory)?;
    let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
    for Isolated { planned, prepared, .. } in &shared {
        for (spec, arg) in planned.kernel.rendered.all_args().zip(&prepared.args) {
            let (Argument::Memory { required_bytes, .. }, Some(id)) = (arg, planned.args.get(&spec.name)) else {
                continue;
            };
            if steps.graph.tensor_of(*id).storage == Storage::Arena {
                let length = lengths.entry(id.0).or_default();
                *length = (*length).max(*required_bytes);
            }
        }
    }
    let (places, total) = placed(lengths);
    let no_room = |source| PlanError::Device { label: "activations of a profile".into(), source };
    let own = steps.sites.device.driver().allocate(total).map_err(no_room)?.view();
    let mut memory = steps.sites.device.memory.clone();
    for (id, offset, length) in places {
        memory[id] = own.slice(offset, length).expect("the sum of all lengths");
    }
    prepare(steps, shape, &memory)
}

/// The beginning and length of each of these lengths, placed one after the other, and their sum.
fn placed(lengths: BTreeMap<usize, usize>) -> (Vec<(usize, usize, usize)>, usize) {
    let mut total = 0;
    let mut place = |(id, length): (usize, usize)| {
        let offset = total;
        total += length.next_multiple_of(ALIGNMENT_BYTES);
        (id, offset, length)
    };
    let places = lengths.into_iter().map(&mut place).collect();
    (places, total)
}

fn prepare<'a>(steps: &Steps<'a>, shape: StepShape, memory: &[BufferView]) -> Result<Vec<Isolated<'a>>, PlanError> {
    let mut launches = Vec::new();
    for segment in steps.segments {
        let n_rows = shape.count(segment.rows);
        for planned in segment.bucket(shape).into_iter().flat_map(|bucket| &bucket.launches) {
            let prepared = planned.prepare(n_rows, memory, &steps.sites.device.workspace)?;
            launches.push(Isolated { planned, prepared, n_rows });
        }
    }
    Ok(launches)
}

/// The places of each node's launches, by node (layers as `*`) and template.
fn nodes<'a>(launches: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<(String, String), Vec<usize>> {
    let mut nodes: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for (i, (node, template)) in launches.enumerate() {
        nodes.entry((without_layer(node), template.to_owned())).or_default().push(i);
    }
    nodes
}

fn capture(driver: &dyn Driver, launches: &[Isolated<'_>], which: &[usize]) -> Result<Option<Graph>, GpuError> {
    let launch = |&i: &usize| (launches[i].planned.kernel(), launches[i].prepared.launch());
    let launches: Vec<(&Kernel, Launch<'_>)> = which.iter().map(launch).collect();
    driver.capture(&launches)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_whatever_the_order() {
        let of = |times: &[u64]| median(times.iter().map(|&ms| Duration::from_millis(ms)).collect()).as_millis();
        assert_eq!([of(&[9, 1, 5]), of(&[7]), of(&[8, 2, 4, 6]), of(&[1, 1, 1, 9, 9])], [5, 7, 6, 1]);
    }

    #[test]
    fn what_a_step_takes_from_the_one_before_it_reads_before_it_writes_it() {
        use Access::{Read, Write};
        let found = |accesses: &[(u32, Access)]| {
            read_and_then_written(accesses.iter().map(|&(id, access)| (id, access, 10 * id)))
        };
        assert_eq!(found(&[(1, Read), (2, Write), (1, Write), (2, Read), (1, Write)]), [10]);
        assert_eq!(found(&[(3, Write), (3, Read), (3, Write), (4, Read), (4, Read)]), Vec::<u32>::new());
        assert_eq!(found(&[(1, Read), (2, Read), (2, Write), (1, Write)]), [20, 10]);
    }

    #[test]
    fn places_follow_each_other_and_begin_aligned() {
        let (places, total) = placed([(7, 1), (3, ALIGNMENT_BYTES), (9, ALIGNMENT_BYTES + 1), (8, 5)].into());
        let a = ALIGNMENT_BYTES;
        assert_eq!((places, total), (vec![(3, 0, a), (7, a, 1), (8, 2 * a, 5), (9, 3 * a, a + 1)], 5 * a));
    }

    #[test]
    fn launches_of_all_layers_are_one_nodes() {
        let launches = [
            ("embedding", "embedding/rows"),
            ("block.0.attn.qkv", "linear/gemv"),
            ("block.1.attn.qkv", "linear/gemv"),
            ("block.2.attn.qkv", "linear/tile"),
            ("block.2.attn.out", "linear/gemv"),
        ];
        let found: Vec<_> = nodes(launches.into_iter()).into_iter().collect();
        let node = |label: &str| without_layer(label);
        let key = |label: &str, template: &str| (node(label), template.to_owned());
        let mut expected = vec![
            (key("block.0.attn.out", "linear/gemv"), vec![4]),
            (key("block.0.attn.qkv", "linear/gemv"), vec![1, 2]),
            (key("block.0.attn.qkv", "linear/tile"), vec![3]),
            (key("embedding", "embedding/rows"), vec![0]),
        ];
        expected.sort();
        assert_eq!(found, expected);
        assert_ne!(node("block.1.attn.qkv"), "block.1.attn.qkv");
    }
}
