//! Launches that were captured once and are replayed as one.

use std::ptr;
use std::sync::Arc;

use hip_runtime_sys::sys::{self, GraphApi, Handle};

use super::device::Device;
use crate::GpuError;
use crate::launch::{Argument, Kernel};

/// What a graph uses: it holds bare addresses, so these keep what they mean alive.
pub(super) type Recorded = Vec<(Kernel, Vec<Argument>)>;

/// A graph that can be launched.
pub(super) struct Executable {
    device: Arc<Device>,
    executable: Handle,
    _recorded: Recorded,
}

// SAFETY: a handle that only the runtime looks into, from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Captures what `launch` puts on the stream, which the caller keeps everybody else off; none where the runtime
    /// has no graphs.
    pub fn capture(
        device: &Arc<Device>,
        launch: impl FnOnce() -> Result<Recorded, GpuError>,
    ) -> Result<Option<Self>, GpuError> {
        let hip = device.enter()?;
        let Some(graphs) = &hip.graphs else { return Ok(None) };
        // SAFETY: the stream is alive, and nothing is being captured on it.
        let code = unsafe { (graphs.stream_begin_capture)(device.stream, sys::CAPTURE_THREAD_LOCAL) };
        device.check("begin to capture launches", "hipStreamBeginCapture", code)?;
        let launched = launch();
        let mut graph = ptr::null_mut();
        // SAFETY: the capture that began above, which must end whatever came of the launches.
        let code = unsafe { (graphs.stream_end_capture)(device.stream, &mut graph) };
        let ended = device.check("capture launches", "hipStreamEndCapture", code);
        let graph = Captured { device, graphs, graph };
        // A launch that failed says more than the capture that it spoilt.
        let recorded = launched?;
        ended?;
        let executable = graph.instantiate()?;
        Ok(Some(Self { device: Arc::clone(device), executable, _recorded: recorded }))
    }

    /// Whether it was captured on this device.
    pub fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Puts all of it on the stream.
    pub fn launch(&self) -> Result<(), GpuError> {
        let hip = self.device.enter()?;
        let graphs = hip.graphs.as_ref().expect("it was captured by them");
        // SAFETY: graph and stream are alive, and so is everything that the graph uses.
        let code = unsafe { (graphs.graph_launch)(self.executable, self.device.stream) };
        self.device.check("launch a graph", "hipGraphLaunch", code)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.device.release_after_use("destroy a graph", "hipGraphExecDestroy", |hip| {
            let graphs = hip.graphs.as_ref().expect("it was captured by them");
            // SAFETY: instantiated by `capture`, destroyed nowhere else, and not running.
            unsafe { (graphs.graph_exec_destroy)(self.executable) }
        });
    }
}

/// A graph as it was captured; of no use once it was instantiated.
struct Captured<'a> {
    device: &'a Device,
    graphs: &'a GraphApi,
    graph: Handle,
}

impl Captured<'_> {
    fn instantiate(&self) -> Result<Handle, GpuError> {
        let mut executable = ptr::null_mut();
        // SAFETY: the graph is alive, `executable` is valid for writes, and no log is asked for.
        let code = unsafe {
            (self.graphs.graph_instantiate)(&mut executable, self.graph, ptr::null_mut(), ptr::null_mut(), 0)
        };
        self.device.check("make a graph of captured launches", "hipGraphInstantiate", code)?;
        Ok(executable)
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            // SAFETY: from the capture, destroyed nowhere else.
            self.device.release("destroy a captured graph", "hipGraphDestroy", |_| unsafe {
                (self.graphs.graph_destroy)(self.graph)
            });
        }
    }
}
