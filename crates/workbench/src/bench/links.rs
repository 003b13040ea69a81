//! The links between devices of `--tp`: reads of another device's memory, and sums of all parts.

use std::collections::BTreeMap;
use std::thread;

use gpu::{ALIGNMENT_BYTES, Argument, BufferView, Graph, Launch};
use serde_json::json;

use super::limits::LimitsError;
use engine::exchange::{Exchange, ExchangeSizes};
use engine::graph::forward::Strides;
use engine::watchdog::Watchdog;
use kernel::choice::KernelRequest;
use kernel::pipeline::{LoadedKernel, Pipeline};
use kernel::step::StepKind;
use kernel::template::{Precision, Problem};
use system::units::counted;

/// Speed of copies and sums between devices.
#[derive(Clone, Debug)]
pub struct Links {
    pub(crate) n_devices: usize,
    /// Bytes that the first device copies from the second one's memory in a second.
    pub(crate) copy_bytes_per_s: f64,
    /// One for each number of rows.
    pub(crate) sums: Vec<Summed>,
}

/// One number of rows, summed over all devices.
#[derive(Clone, Debug)]
pub(crate) struct Summed {
    /// Rows of a step.
    pub(crate) n_rows: usize,
    /// Of one device's part.
    pub(crate) len_bytes: usize,
    /// Of one `all_reduce` among many in a graph; the median of several graphs, the slowest device's.
    pub(crate) seconds: f64,
}

impl Links {
    /// Seconds in which the bytes that a device has to read from others come over its link, at the speed of the copy.
    pub(crate) fn limit_s(&self, summed: &Summed) -> f64 {
        ((self.n_devices - 1) * summed.len_bytes) as f64 / self.copy_bytes_per_s
    }

    /// All of it, for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} devices: one copies {:.1} GB/s from another's memory",
            self.n_devices,
            self.copy_bytes_per_s / 1e9
        )];
        lines.extend(self.sums.iter().map(|summed| {
            format!(
                "all_reduce of {}, {:.1} KB, in a graph: {:.2} us; over the link alone {:.2} us",
                counted(summed.n_rows, "row"),
                summed.len_bytes as f64 / 1e3,
                1e6 * summed.seconds,
                1e6 * self.limit_s(summed)
            )
        }));
        lines
    }

    /// All of it, for programs.
    pub fn json(&self) -> serde_json::Value {
        let sums = self.sums.iter().map(|summed| {
            json!({ "rows": summed.n_rows, "bytes": summed.len_bytes, "us": 1e6 * summed.seconds,
                    "limit_us": 1e6 * self.limit_s(summed) })
        });
        json!({ "devices": self.n_devices, "copy_gbps": self.copy_bytes_per_s / 1e9, "all_reduce": sums.collect::<Vec<_>>() })
    }
}

const SUMS: usize = 48;

/// Graphs whose times are taken, and some before.
const GRAPHS: usize = 12;

/// Measures devices that replay launches; `None` for others, which gain nothing by it.
///
/// - `hidden_size`: of a row
/// - `rows`: how many at a time, the most first
/// - `watchdog`: who notices that they wait for each other for ever
///
/// # Errors
/// If the devices do not see each other, or the kernel cannot be had.
pub fn measure(
    pipelines: &[Pipeline],
    hidden_size: usize,
    rows: &[usize],
    watchdog: Option<&Watchdog>,
) -> Result<Option<Links>, LimitsError> {
    let n_devices = pipelines.len();
    let devices: Vec<String> = pipelines.iter().map(|pipeline| pipeline.driver().describe()).collect();
    let drivers = pipelines.iter().map(Pipeline::shared_driver).collect();
    let most = rows.iter().copied().max().unwrap_or(1);
    let sizes = ExchangeSizes { n_meetings: SUMS, rows: most, row_len: hidden_size, logits: 0, logit_rows: 0 };
    let waiting = watchdog.map(|dog| dog.begin("a try of each other's memory", 0, &devices, None));
    let exchange = Exchange::new(drivers, sizes)?;
    drop(waiting);
    let mut sums = Vec::new();
    for &n_rows in rows {
        let device = |rank| Device { pipeline: &pipelines[rank], exchange: &exchange, rank, n_devices };
        let ready: Result<Option<Vec<_>>, LimitsError> =
            (0..n_devices).map(|rank| device(rank).capture(n_rows, hidden_size)).collect();
        let Some(ready) = ready? else { return Ok(None) };
        let _waiting = watchdog.map(|dog| dog.begin(format!("sums of {n_rows} rows"), 0, &devices, None));
        let steps: Vec<u32> = (0..GRAPHS + 2).map(|_| exchange.next_step()).collect();
        let times = thread::scope(|scope| {
            let begun: Vec<_> = ready.iter().map(|ready| scope.spawn(|| ready.replay(&steps, &exchange))).collect();
            let ended = begun.into_iter().map(|begun| begun.join().expect("it does not panic"));
            ended.collect::<Result<Vec<f64>, LimitsError>>()
        })?;
        let seconds = times.into_iter().fold(0.0, f64::max) / SUMS as f64;
        sums.push(Summed { n_rows, len_bytes: 4 * n_rows * hidden_size, seconds });
    }
    Ok(Some(Links { n_devices, copy_bytes_per_s: exchange.copy_bytes_per_s()?, sums }))
}

struct Device<'a> {
    pipeline: &'a Pipeline,
    exchange: &'a Exchange,
    rank: usize,
    n_devices: usize,
}

/// One of them with its sums captured.
struct ReadyLink<'a> {
    pipeline: &'a Pipeline,
    step: BufferView,
    graph: Graph,
    /// It is what the graph launches.
    _kernel: std::sync::Arc<LoadedKernel>,
}

impl<'a> Device<'a> {
    fn capture(&self, n_rows: usize, hidden_size: usize) -> Result<Option<ReadyLink<'a>>, LimitsError> {
        let driver = self.pipeline.driver();
        let mut problem = Problem::plain("all_reduce", Precision::Bf16);
        problem.dims.insert("hidden_size".into(), hidden_size as u32);
        problem.dims.insert("ranks".into(), self.n_devices as u32);
        problem.flags.insert("has_own".into(), false);
        let request = KernelRequest { problem, n_rows, step: StepKind::Decode };
        let kernel = self.pipeline.load_all(&[request], &()).map_err(|none| none.source)?.remove(0);

        let allocate = |len_bytes: usize| driver.allocate(len_bytes.next_multiple_of(ALIGNMENT_BYTES));
        let (step, y) = (allocate(4)?.view(), allocate(4 * n_rows * hidden_size)?.view());
        let views: BTreeMap<String, BufferView> = self.exchange.views(self.rank).into_iter().collect();
        let strides = self.exchange.strides();
        let scalars = |flag: usize| {
            let Strides { parts, arrived, sums, summed, .. } = strides;
            [n_rows, parts, arrived, sums, summed, SUMS, flag, self.rank].map(|value| Argument::U32(value as u32))
        };
        let memory = |view: &BufferView| Argument::Memory { view: view.clone(), required_bytes: view.len_bytes() };
        let args: Vec<Vec<Argument>> = (0..SUMS)
            .map(|flag| {
                let parts = &views[["parts.attn", "parts.mlp"][flag % 2]];
                let tensors = [parts, &views["arrived"], &views["sums"], &views["summed"], &step, &y].map(memory);
                tensors.into_iter().chain(scalars(flag)).collect()
            })
            .collect();
        let n_tokens = BTreeMap::from([("n_tokens".to_owned(), n_rows as u64)]);
        let grid = kernel.rendered.launch.grid(&n_tokens)?;
        let launches: Vec<_> =
            args.iter().map(|args| (&kernel.kernel, Launch { grid, scratch_bytes: 0, args })).collect();
        let graph = driver.capture(&launches)?;
        Ok(graph.map(|graph| ReadyLink { pipeline: self.pipeline, step, graph, _kernel: kernel }))
    }
}

impl ReadyLink<'_> {
    /// The median of a graph's seconds. A device that fails keeps no other waiting.
    fn replay(&self, steps: &[u32], exchange: &Exchange) -> Result<f64, LimitsError> {
        let driver = self.pipeline.driver();
        let mut times = Vec::new();
        for step in steps {
            let replayed = driver
                .write(&self.step, &step.to_ne_bytes())
                .and_then(|()| driver.replay_timed(&self.graph))
                .inspect_err(|_| exchange.lose())?;
            times.push(replayed.as_secs_f64());
        }
        let mut times = times.split_off(times.len() - GRAPHS);
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}
