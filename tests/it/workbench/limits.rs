//! A device's limits are found in a time that suits it: on one whose launches take as long as its clock is told to say.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use gpu::host::HostDriver;
use gpu::{Argument, Buffer, BufferView, Driver, GpuError, Kernel, KernelSpec, Launch};
use workbench::bench::limits::{self, Care, MachineLimits};

use crate::graph::forward::pipeline;

const LAUNCH_S: f64 = 10e-6;

/// Launches nothing, and says how long that took with so many bytes and operations a second.
struct Clocked {
    cores: HostDriver,
    bytes_per_s: f64,
    flop_per_s: f64,
    /// Seconds of all launches, and the most bytes that one of them touched.
    spent: Mutex<(f64, usize)>,
}

impl Driver for Clocked {
    fn describe(&self) -> String {
        "a clock".into()
    }

    fn parallelism(&self) -> usize {
        self.cores.parallelism()
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        self.cores.allocate(len_bytes)
    }

    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError> {
        self.cores.upload(bytes)
    }

    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError> {
        self.cores.load(object, spec)
    }

    fn launch(&self, _: &Kernel, _: &Launch<'_>) -> Result<(), GpuError> {
        panic!("not timed")
    }

    fn launch_timed(&self, _: &Kernel, launch: &Launch<'_>) -> Result<Duration, GpuError> {
        let bytes: usize =
            launch.args.iter().map(|a| if let Argument::Memory { view, .. } = a { view.len_bytes() } else { 0 }).sum();
        let seconds = match launch.args {
            [_, Argument::U32(n_rounds), Argument::U32(n_blocks)] => {
                2.0 * 256.0 * f64::from(*n_rounds) * f64::from(*n_blocks) / self.flop_per_s
            }
            _ => bytes as f64 / self.bytes_per_s,
        };
        let mut spent = self.spent.lock().expect("nobody panics with it");
        *spent = (spent.0 + seconds + LAUNCH_S, spent.1.max(bytes));
        Ok(Duration::from_secs_f64(seconds + LAUNCH_S))
    }

    fn write(&self, _: &BufferView, _: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }

    fn read(&self, _: &BufferView, _: &mut [u8]) -> Result<(), GpuError> {
        Ok(())
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        self.cores.enter(work);
    }
}

/// What is measured of a device with such rates, how long its launches take together, and the most MiB that one
/// touches.
fn measured(bytes_per_s: f64, flop_per_s: f64, care: Care) -> (MachineLimits, f64, usize) {
    let cores = HostDriver::new(2).expect("threads");
    let driver = Arc::new(Clocked { cores, bytes_per_s, flop_per_s, spent: Mutex::default() });
    let limits = limits::measure(&pipeline(driver.clone()), care).expect("nothing fails");
    let (seconds, most_bytes) = *driver.spent.lock().expect("nobody panics with it");
    (limits, seconds, most_bytes >> 20)
}

/// Right in every case, and ten runs of a GiB only where that is done in seconds.
#[test]
fn slow_devices_are_measured_with_less_memory_and_fewer_runs() {
    for (bytes_per_s, flop_per_s, care, mib, most_s) in [
        (100e9, 1e12, Care::Usual, 1024, 1.0),
        (2e9, 1e9, Care::Usual, 320, 5.0),
        (2e9, 1e9, Care::Little, 256, 1.2),
        (40e6, 1e6, Care::Usual, 64, 12.0),
        (40e6, 1e6, Care::Little, 64, 6.0),
        (1e6, 1e3, Care::Usual, 64, 220.0),
    ] {
        let (limits, seconds, most_mib) = measured(bytes_per_s, flop_per_s, care);
        let what = format!("{bytes_per_s:e} bytes/s, {care:?}: {seconds} s, {most_mib} MiB, {limits:?}");
        for (got, want) in [
            (limits.read_bytes_per_s, bytes_per_s),
            (limits.copy_bytes_per_s, bytes_per_s),
            (limits.multiply_add_flop_per_s, flop_per_s),
        ] {
            assert!((got / want - 1.0).abs() < 0.01, "{what}");
        }
        assert_eq!(most_mib, mib, "{what}");
        assert!(seconds < most_s, "{what}");
    }
}
