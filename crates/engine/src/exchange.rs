//! Memory shared by several devices: flags that tell the others how far each is, and parts of sums.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::{BufferView, Driver, GpuError};

use crate::graph::forward::Strides;

/// Memory that all devices see, a piece of it on each: which of them have come how far, and their parts of what they
/// put together.
#[derive(Clone)]
pub struct Exchange {
    drivers: Vec<Arc<dyn Driver>>,
    /// For each device, as it sees it.
    arrived: Vec<BufferView>,
    /// For each device, as it sees them: the shares of a sum, and which slices of them are there. A share has as many
    /// whole rows as a device may have, so that sums can be shared out by rows or by elements.
    shares: Vec<BufferView>,
    summed: Vec<BufferView>,
    /// By its name, each for every device as it sees it.
    parts: Vec<(&'static str, Vec<BufferView>)>,
    /// How often the devices met, as they count it themselves.
    step: Arc<AtomicU32>,
    n_meetings: usize,
}

/// How much devices exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeSizes {
    /// Exchanges in a step.
    pub n_meetings: usize,
    /// Most rows of a sum, and elements of a row.
    pub rows: usize,
    pub row_len: usize,
    /// Elements of a device's logits; 0 where each computes all of them.
    pub logits: usize,
    pub logit_rows: usize,
}

/// Copies whose times are taken.
const COPIES: usize = 5;

/// Most slices of a share: the largest `n_slices` of `templates/all_reduce/two_shot.hip.j2`.
const MAX_SLICES: usize = 512;

/// How far ahead `arrived` is set for all devices when one is lost, so that no device waits for it.
const LOST_AHEAD: u32 = 1 << 30;

impl Exchange {
    /// Memory of these devices, which was tried: every device sees what every other one writes.
    ///
    /// # Errors
    /// [`GpuError::Unreachable`], or a driver's.
    pub fn new(drivers: Vec<Arc<dyn Driver>>, sizes: ExchangeSizes) -> Result<Self, GpuError> {
        let (first, others) = drivers.split_first().expect("there is a device");
        let others: Vec<&dyn Driver> = others.iter().map(|other| &**other).collect();
        let shared = |len_elements| first.shared(&others, 4 * len_elements);
        let n_devices = drivers.len();
        let arrived = shared(n_devices * sizes.n_meetings)?;
        let summed = shared(n_devices * MAX_SLICES)?;
        let sum = sizes.rows * sizes.row_len;
        let shares = shared((sizes.rows.div_ceil(n_devices) * sizes.row_len).next_multiple_of(64))?;
        // Of two sums that follow each other, one is after attention and one after the experts.
        let mut parts = vec![("attn", shared(sum)?), ("mlp", shared(sum)?)];
        if sizes.logits > 0 {
            parts.extend([("logits", shared(sizes.logits)?), ("candidate", shared(sizes.logit_rows)?)]);
        }
        let n_meetings = sizes.n_meetings;
        let exchange = Self { drivers, arrived, shares, summed, parts, step: Arc::default(), n_meetings };
        exchange.try_out()?;
        Ok(exchange)
    }

    /// Has every device write to the memory of all, and read what the others wrote.
    fn try_out(&self) -> Result<(), GpuError> {
        let n_devices = self.drivers.len();
        let mark = |of: usize, at: usize| (0x5eed_0000 + of * n_devices + at) as u32;
        let piece = |view: &BufferView, at| {
            let len_bytes = view.len_bytes() / n_devices;
            view.slice(at * len_bytes, 4 * n_devices).expect("a piece has a word for every device")
        };
        for (of, (driver, view)) in self.drivers.iter().zip(&self.arrived).enumerate() {
            for at in 0..n_devices {
                let word = piece(view, at).slice(4 * of, 4).expect("one of those words");
                driver.write(&word, &mark(of, at).to_ne_bytes())?;
            }
            driver.wait()?;
        }
        for (reader, (driver, view)) in self.drivers.iter().zip(&self.arrived).enumerate() {
            for at in 0..n_devices {
                let mut found = vec![0_u32; n_devices];
                driver.read(&piece(view, at), bytemuck::cast_slice_mut(&mut found))?;
                if let Some(of) = (0..n_devices).find(|&of| found[of] != mark(of, at)) {
                    let other = if of == reader { at } else { of };
                    let [device, other] = [reader, other].map(|i| self.drivers[i].describe());
                    return Err(GpuError::Unreachable { device, other });
                }
            }
        }
        for view in [&self.arrived[0], &self.summed[0]] {
            self.drivers[0].write(view, &vec![0; view.len_bytes()])?;
        }
        self.drivers[0].wait() // before another device says that it has arrived
    }

    /// Bytes that the first device copies from the second one's part of a sum in a second: the fastest of a few copies.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// Without a second device.
    pub fn copy_bytes_per_s(&self) -> Result<f64, GpuError> {
        let (driver, (_, views)) = (&self.drivers[0], &self.parts[0]);
        let part_bytes = 4 * self.strides().parts;
        let part = |i: usize| views[0].slice(i * part_bytes, part_bytes).expect("each device has a part");
        let mut best = Duration::MAX;
        for _ in 0..COPIES {
            driver.wait()?;
            let start = Instant::now();
            driver.copy(&part(1), &part(0))?;
            driver.wait()?;
            best = best.min(start.elapsed());
        }
        Ok(part_bytes as f64 / best.as_secs_f64())
    }

    /// The layout of that memory.
    pub fn strides(&self) -> Strides {
        let stride = |views: &[BufferView]| views[0].len_bytes() / 4 / self.drivers.len();
        let of = |name| self.parts.iter().find(|(other, _)| *other == name).map_or(0, |(_, views)| stride(views));
        Strides {
            parts: of("attn"),
            sums: stride(&self.shares),
            summed: stride(&self.summed),
            logits: of("logits"),
            candidates: of("candidate"),
            arrived: stride(&self.arrived),
        }
    }

    /// The tensors of a device that lie there, as it sees them.
    pub fn views(&self, rank: usize) -> Vec<(String, BufferView)> {
        let whole = [("arrived", &self.arrived), ("sums", &self.shares), ("summed", &self.summed)];
        let mut views = whole.map(|(name, of_all)| (name.to_owned(), of_all[rank].clone())).to_vec();
        for (name, of_all) in &self.parts {
            let whole = of_all[rank].clone();
            let part_bytes = whole.len_bytes() / self.drivers.len();
            let part = whole.slice(rank * part_bytes, part_bytes).expect("each has a part");
            views.push((format!("part.{name}"), part));
            views.push((format!("parts.{name}"), whole));
        }
        views
    }

    /// The number of the next step.
    pub fn next_step(&self) -> u32 {
        self.step.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The slowest device, which others wait for, and how far it is; none if unknown.
    pub(crate) fn behind(&self) -> Option<String> {
        let n_devices = self.drivers.len();
        // What all told a device, as it lies in its own memory; one that still answers is enough.
        let told = |at: usize| {
            let mut words = vec![0_u32; n_devices * self.n_meetings];
            let piece = self.arrived[at].slice(4 * at * self.strides().arrived, 4 * words.len())?;
            self.drivers[at].read_now(&piece, &mut words).ok().map(|()| words)
        };
        let words = (0..n_devices).find_map(told)?;
        let flags = |of: usize| &words[of * self.n_meetings..][..self.n_meetings];
        let later = |a: u32, b: u32| if b.wrapping_sub(a) < 1 << 31 { b } else { a };
        let latest = words.iter().copied().reduce(later)?;
        // How often each was there in the latest step that anybody has begun.
        let came = |of: usize| flags(of).iter().filter(|&&flag| flag == latest).count();
        let (least, most) = ((0..n_devices).min_by_key(|&of| came(of))?, (0..n_devices).map(came).max()?);
        let device = self.drivers[least].describe();
        (came(least) < most).then(|| {
            format!(
                "{device} came to {} of the {} meetings of that step, another to {most}",
                came(least),
                self.n_meetings
            )
        })
    }

    /// Stops all waiting between devices: later sums are nonsense, and an error follows. One working device is enough.
    pub fn lose(&self) {
        let step = self.step.load(Ordering::Relaxed);
        let (arrived, summed) = (step, step.wrapping_mul(self.n_meetings as u32));
        let [arrived, summed] = [arrived, summed].map(|latest| latest.wrapping_add(LOST_AHEAD));
        let told = |(at, driver): (usize, &Arc<dyn Driver>)| {
            let first = driver.fill_now(&self.arrived[at], arrived);
            first.and_then(|()| driver.fill_now(&self.summed[at], summed)).is_ok()
        };
        if !self.drivers.iter().enumerate().any(told) {
            tracing::debug!("no device could tell the others that one is lost");
        }
    }
}
