//! Streams experts from main memory to the device in steps with many prompt tokens. Such a step uses all experts of a
//! layer, and copying them is faster than computing them on the processor.
//!
//! Two places on the device take turns: while the kernels of one layer use one of them, the experts of the next layer
//! that has any in main memory are copied to the other. Both kinds of kernels read the checkpoint's layout, so that
//! bytes are copied as they are, and main memory has them once. Random weights are pinned where they
//! are. The pages of a mapped file stay the system's, which could not reclaim them otherwise: they go through pinned
//! buffers, which several threads fill.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use bytemuck::cast_slice;
use gpu::{ALIGNMENT_BYTES, Buffer, BufferView, Driver, GpuError, PREFETCHES};

use super::error::PlanError;
use super::options::ExecutorOptions;
use super::segment::Segment;
use super::site::Sites;
use crate::graph::placement::{Place, Streaming};
use crate::graph::{Graph, Node, StepLimits, StepShape, Storage};
use kernel::step::StepKind;
use model::checkpoint::Checkpoint;

/// Steps of fewer rows leave experts to the processor, however slow it is: most experts would be copied without being
/// used.
pub(super) const LEAST_ROWS: usize = 16;

/// Where on the device the processor's weights go.
pub(super) struct Slots {
    /// Which place, first byte and length, by tensor.
    ranges: BTreeMap<usize, (usize, usize, usize)>,
    len_bytes: [usize; PREFETCHES],
}

impl Slots {
    /// Places for the weights that only the processor uses: each of its segments has the place that the one before the
    /// last had. None if no step brings any, or two segments share some.
    pub(crate) fn new(graph: &Graph, checkpoint: &Checkpoint, options: &ExecutorOptions) -> Option<Self> {
        let least = match options.streaming {
            Streaming::Measured => LEAST_ROWS,
            Streaming::From(n_rows) => n_rows.max(LEAST_ROWS),
            Streaming::Never => return None,
        };
        let runs = graph.nodes.chunk_by(|a, b| (a.place, a.rows) == (b.place, b.rows));
        let mut slots = Self { ranges: BTreeMap::new(), len_bytes: [0; PREFETCHES] };
        for (i, nodes) in runs.filter(|nodes| nodes[0].place == Place::Host).enumerate() {
            let mut end = 0;
            let mut own: BTreeMap<usize, (usize, usize, usize)> = BTreeMap::new();
            for id in nodes.iter().flat_map(|node| node.args.values()) {
                let Storage::Weight(name) = &graph.tensor_of(*id).storage else { continue };
                let len_bytes = checkpoint.tensors.get(name)?.len_bytes();
                own.entry(id.0).or_insert_with(|| {
                    let begin = end;
                    end += len_bytes.next_multiple_of(ALIGNMENT_BYTES);
                    (i % PREFETCHES, begin, len_bytes)
                });
            }
            let len_bytes = &mut slots.len_bytes[i % PREFETCHES];
            *len_bytes = end.max(*len_bytes);
            if own.keys().any(|id| slots.ranges.contains_key(id)) {
                return None;
            }
            slots.ranges.extend(own);
        }
        let of_device = graph.used_at(Place::Device);
        let is_apart = slots.ranges.keys().all(|&id| !of_device[id]);
        (is_apart && !slots.ranges.is_empty() && options.limits.max_rows >= least).then_some(slots)
    }

    /// Bytes of all places.
    pub(crate) fn total_bytes(&self) -> usize {
        self.len_bytes.iter().sum()
    }

    /// Memory of the device for each place.
    pub(crate) fn allocate(&self, driver: &dyn Driver) -> Result<Vec<Buffer>, GpuError> {
        self.len_bytes.iter().map(|&len_bytes| driver.allocate(len_bytes)).collect()
    }

    /// Whether a tensor has a place.
    pub(crate) fn has(&self, tensor: usize) -> bool {
        self.ranges.contains_key(&tensor)
    }

    /// A tensor's place in memory that was allocated for all.
    pub(crate) fn view(&self, tensor: usize, memory: &[Buffer]) -> Option<BufferView> {
        let &(slot, offset, len_bytes) = self.ranges.get(&tensor)?;
        memory.get(slot)?.view().slice(offset, len_bytes)
    }
}

/// A segment of the processor as the device computes it.
pub(super) struct Streamed {
    pub(crate) segment: Segment,
    label: String,
    /// Which of the places its weights go to.
    slot: usize,
    /// From main memory to the device.
    copies: Vec<(BufferView, BufferView)>,
    /// In steps of this many rows or more.
    from_rows: usize,
}

impl Streamed {
    /// Whether the device computes it in steps of this kind in which it has so many rows.
    pub(crate) fn is_for(&self, kind: StepKind, n_rows: usize) -> bool {
        kind == StepKind::Mixed && n_rows >= self.from_rows
    }

    /// Has its weights copied, as soon as nothing else needs their place.
    pub(crate) fn fetch(&self, sites: &Sites) -> Result<(), PlanError> {
        self.checked(sites.device.driver().prefetch(self.slot, &self.copies))
    }

    /// What is launched next has the weights.
    pub(crate) fn begin(&self, sites: &Sites) -> Result<(), PlanError> {
        self.checked(sites.device.driver().begin_use(self.slot))
    }

    /// What is launched next leaves the weights alone.
    pub(crate) fn end(&self, sites: &Sites) -> Result<(), PlanError> {
        self.checked(sites.device.driver().end_use(self.slot))
    }

    /// Bytes of its weights.
    pub(crate) fn len_bytes(&self) -> usize {
        self.copies.iter().map(|(from, _)| from.len_bytes()).sum()
    }

    fn checked(&self, result: Result<(), GpuError>) -> Result<(), PlanError> {
        result.map_err(|source| PlanError::Device { label: self.label.clone(), source })
    }
}

/// The segments of a step whose weights come from main memory, of which some have been asked for.
pub(super) struct Ahead<'a> {
    left: Box<dyn Iterator<Item = &'a Streamed> + 'a>,
}

impl<'a> Ahead<'a> {
    /// Asks for the weights of as many segments as there are places.
    pub(crate) fn begin(segments: &'a [Segment], shape: StepShape, sites: &Sites) -> Result<Self, PlanError> {
        let mut ahead = Self { left: Box::new(segments.iter().filter_map(move |one| one.streamed_in(shape))) };
        (0..PREFETCHES).try_for_each(|_| ahead.fetch(sites))?;
        Ok(ahead)
    }

    /// Asks for the weights of the next segment, if there is one.
    pub(crate) fn fetch(&mut self, sites: &Sites) -> Result<(), PlanError> {
        self.left.next().map_or(Ok(()), |streamed| streamed.fetch(sites))
    }
}

/// Which steps bring experts to the device, and why.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    /// From this many rows on, steps that take in prompts; `None` is none.
    pub from_rows: Option<usize>,
    /// Layers whose experts are in main memory.
    pub(crate) n_layers: usize,
    /// Bytes of a layer's experts.
    pub layer_bytes: usize,
    /// Whether the device copies them from where they are.
    pub is_pinned: bool,
    /// The time of the copies, and the processor's time for a number of rows; `None` if not measured.
    pub times: Option<(Duration, usize, Duration)>,
}

impl StreamPlan {
    /// Seconds to copy the experts to the device in a step that reads this many prompt tokens; `None` if they are not
    /// copied, or if this was not measured.
    pub fn copies_s(&self, n_rows: usize) -> Option<f64> {
        let (copy, ..) = self.times.filter(|_| self.from_rows.is_some_and(|from| from <= n_rows))?;
        Some(copy.as_secs_f64() * self.n_layers as f64)
    }
}

impl fmt::Display for StreamPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from_rows {
            Some(n_rows) => {
                write!(f, "steps that take in prompts bring experts to the device from {n_rows} tokens on")?
            }
            None => write!(f, "steps that take in prompts leave experts to the processor")?,
        }
        let way = if self.is_pinned { "from" } else { "by way of" };
        let gb = self.layer_bytes as f64 / 1e9;
        let Some((copy, n_rows, host)) = self.times else {
            return write!(f, ": {gb:.3} GB a layer, {way} pinned memory");
        };
        let [copy_ms, host_ms] = [copy, host].map(|time| 1e3 * time.as_secs_f64());
        let speed = gb / copy.as_secs_f64().max(1e-9);
        write!(
            f,
            ": {gb:.3} GB a layer in {copy_ms:.2} ms ({speed:.1} GB/s, {way} pinned memory), and the processor "
        )?;
        write!(f, "takes {host_ms:.2} ms for {n_rows} tokens")
    }
}

/// Gives the processor's segments what the device does in their place, and decides from how many rows on it does.
pub(super) fn attach(
    segments: &mut [Segment],
    streamed: Vec<Segment>,
    slots: &Slots,
    sites: &mut Sites,
    graph: &Graph,
    (streaming, limits): (Streaming, StepLimits),
) -> Result<StreamPlan, PlanError> {
    let is_pinned = pin(slots, sites);
    let n_layers = streamed.len();
    let mut plan = StreamPlan { from_rows: None, n_layers, layer_bytes: 0, is_pinned, times: None };
    for segment in streamed {
        let nodes = segment.nodes.clone();
        let of_segment = graph.nodes[nodes.clone()].iter().flat_map(|node| node.args.values());
        let mut ids: Vec<usize> = of_segment.map(|id| id.0).filter(|id| slots.has(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        let memory = |place: Place, id: usize| sites.of(place).memory[id].clone();
        let copies: Vec<_> = ids.iter().map(|&id| (memory(Place::Host, id), memory(Place::Device, id))).collect();
        let slot = ids.first().map_or(0, |id| slots.ranges[id].0);
        let label = format!("the weights of {}", graph.nodes[nodes.start].label);
        let own = Streamed { segment, label, slot, copies, from_rows: usize::MAX };
        plan.layer_bytes = plan.layer_bytes.max(own.len_bytes());
        let host = segments.iter_mut().find(|host| host.place == Place::Host && host.nodes == nodes);
        host.expect("the same runs of nodes").streamed = Some(Box::new(own));
    }
    plan.from_rows = match streaming {
        Streaming::From(n_rows) => Some(n_rows.max(LEAST_ROWS)),
        Streaming::Measured => {
            let (copy, host) = measure(segments, sites, graph, limits)?;
            plan.times = host.last().map(|&(n_rows, host)| (copy, n_rows, host));
            first_as_long(copy, &host)
        }
        Streaming::Never => None,
    };
    for segment in &mut *segments {
        match plan.from_rows {
            Some(n_rows) => segment.streamed.iter_mut().for_each(|streamed| streamed.from_rows = n_rows),
            None => segment.streamed = None,
        }
    }
    if plan.from_rows.is_none() {
        // The memory is free again when nothing has a view of it.
        let nothing = sites.device.driver().allocate(0);
        let nothing = nothing.map_err(|source| PlanError::Device { label: "nothing".into(), source })?.view();
        slots.ranges.keys().for_each(|&id| sites.device.memory[id] = nothing.clone());
    }
    Ok(plan)
}

/// Pins the weights that this program allocated; whether these are all. What cannot be pinned goes another way.
fn pin(slots: &Slots, sites: &mut Sites) -> bool {
    let Sites { device, host: Some(host) } = sites else { return false };
    let mut are_all = true;
    for &id in slots.ranges.keys() {
        match device.driver().pin(&host.memory[id]) {
            Ok(Some(pinned)) => host.memory[id] = pinned,
            Ok(None) => are_all = false,
            Err(error) => {
                tracing::warn!("experts are copied through pinned buffers: {error}");
                return false;
            }
        }
    }
    are_all
}

/// How long the first layer's experts take to come to the device; and how long the processor takes for numbers of rows
/// that double, up to the first for which it takes as long.
fn measure(
    segments: &mut [Segment],
    sites: &Sites,
    graph: &Graph,
    limits: StepLimits,
) -> Result<(Duration, Vec<(usize, Duration)>), PlanError> {
    let segment = segments.iter_mut().find(|segment| segment.streamed.is_some()).expect("one at least");
    let streamed = segment.streamed.as_ref().expect("just found");
    let mut copy = Duration::MAX;
    for _ in 0..2 {
        let begin = Instant::now();
        streamed.fetch(sites)?;
        streamed.begin(sites)?;
        streamed.end(sites)?;
        streamed.checked(sites.device.driver().wait())?;
        copy = copy.min(begin.elapsed());
    }
    let most_rows = limits.largest(StepKind::Mixed).most(segment.rows);
    let n_rows = LEAST_ROWS.min(most_rows);
    host_time(segment, n_rows, sites, graph)?; // threads and pages are cold
    let times = times_up_to(copy, [n_rows, most_rows], |n_rows| host_time(segment, n_rows, sites, graph))?;
    Ok((copy, times))
}

/// Times for numbers of rows that double from the first on, up to the first that takes as long as a copy, or the last.
fn times_up_to<E>(
    copy: Duration,
    [mut n_rows, most_rows]: [usize; 2],
    mut time: impl FnMut(usize) -> Result<Duration, E>,
) -> Result<Vec<(usize, Duration)>, E> {
    let mut times = Vec::new();
    loop {
        let host = time(n_rows)?;
        times.push((n_rows, host));
        if host >= copy || n_rows >= most_rows {
            return Ok(times);
        }
        n_rows = (2 * n_rows).min(most_rows);
    }
}

/// The first number of rows for which the processor takes as long as the copy, if any of those measured is: between two
/// of them by a straight line, in eighths, so that it is much the same each time.
fn first_as_long(copy: Duration, host: &[(usize, Duration)]) -> Option<usize> {
    let (&(n_rows, time), before) = host.split_last()?;
    if time < copy {
        return None;
    }
    let Some(&(fewer, less)) = before.last() else { return Some(n_rows) };
    let part = (copy - less).as_secs_f64() / (time - less).as_secs_f64();
    Some(fewer + ((8.0 * part).ceil() as usize * (n_rows - fewer)).div_ceil(8))
}

/// How long the processor takes for a segment with this many rows, which go to all experts alike.
fn host_time(segment: &mut Segment, n_rows: usize, sites: &Sites, graph: &Graph) -> Result<Duration, PlanError> {
    segment.prepare(StepKind::Mixed, n_rows, sites)?;
    let site = sites.of(Place::Host);
    let failed = |label: &str, source| PlanError::Device { label: label.to_owned(), source };
    for node in &graph.nodes[segment.nodes.clone()] {
        for (name, words) in routing(node, n_rows) {
            let Some(view) = node.args.get(name).map(|id| &site.memory[id.0]) else { continue };
            site.driver().write(view, cast_slice(&words)).map_err(|source| failed(&node.label, source))?;
        }
    }
    let begin = Instant::now();
    let mut result = Ok(());
    sites.enter(&mut || {
        result = segment.prepared_of(StepKind::Mixed, n_rows).try_for_each(|(planned, prepared)| {
            let launched = site.driver().launch(planned.kernel(), &prepared.launch());
            launched.map_err(|source| failed(&planned.label, source))
        });
    });
    result.map(|()| begin.elapsed())
}

/// Arguments of a node of experts as `moe_sort` writes them, for rows that go to all experts alike.
fn routing(node: &Node, n_rows: usize) -> Vec<(&'static str, Vec<u32>)> {
    let dim = |name: &str| node.problem.dims.get(name).copied();
    let Some((n_experts, per_token)) = dim("num_experts").zip(dim("experts_per_token")) else { return Vec::new() };
    let n_assignments = n_rows as u32 * per_token;
    let of_expert = |expert: u32| (expert..n_assignments).step_by(n_experts as usize);
    let mut begin = vec![0; n_experts as usize + 1];
    for expert in 0..n_experts {
        begin[expert as usize + 1] = begin[expert as usize] + of_expert(expert).count() as u32;
    }
    let active = (0..n_experts).map(|expert| if expert < n_assignments { expert } else { n_experts });
    vec![
        ("expert_begin", begin),
        ("assignment", (0..n_experts).flat_map(of_expert).collect()),
        ("active_expert", active.collect()),
    ]
}

#[cfg(test)]
mod tests;
