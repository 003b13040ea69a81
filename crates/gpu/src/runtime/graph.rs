//! Launches that were captured once and are replayed as one.

use std::sync::Arc;

use super::calls::Handle;
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
    /// Captures what `launch` puts on the stream, which no other thread may use meanwhile; none if the runtime has no
    /// graphs.
    pub(crate) fn capture(
        device: &Arc<Device>,
        launch: impl FnOnce() -> Result<Recorded, GpuError>,
    ) -> Result<Option<Self>, GpuError> {
        if !device.enter()?.has_graphs() {
            return Ok(None);
        }
        // SAFETY: the stream is alive, and nothing is being captured on it.
        device.call("begin to capture launches", |calls| unsafe { calls.begin_capture(device.stream) })?;
        let launched = launch();
        // SAFETY: the capture that began above, which must end whatever came of the launches.
        let ended = device.call("capture launches", |calls| unsafe { calls.end_capture(device.stream) });
        let graph = ended.map(|graph| Captured { device, graph });
        // A launch that failed says more than the capture that it spoilt.
        let recorded = launched?;
        let executable = graph?.instantiate()?;
        Ok(Some(Self { device: Arc::clone(device), executable, _recorded: recorded }))
    }

    /// Whether it was captured on this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Puts all of it on the stream.
    pub(crate) fn launch(&self) -> Result<(), GpuError> {
        // SAFETY: graph and stream are alive, and so is everything that the graph uses.
        self.device.call("launch a graph", |calls| unsafe { calls.launch_graph(self.executable, self.device.stream) })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`, destroyed nowhere else, and not running.
        let destroy = |calls: &dyn super::calls::Calls| unsafe { calls.destroy_executable(self.executable) };
        self.device.release_after_use("destroy a graph", destroy);
    }
}

/// A graph as it was captured; of no use once it was instantiated.
struct Captured<'a> {
    device: &'a Device,
    graph: Handle,
}

impl Captured<'_> {
    fn instantiate(&self) -> Result<Handle, GpuError> {
        // SAFETY: the graph is alive.
        self.device.call("make a graph of captured launches", |calls| unsafe { calls.instantiate_graph(self.graph) })
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            // SAFETY: from the capture, destroyed nowhere else.
            self.device.release("destroy a captured graph", |calls| unsafe { calls.destroy_graph(self.graph) });
        }
    }
}
