//! The places of a plan: the device and the processor, each with its kernels and its memory.

use std::sync::Arc;

use gpu::{BufferView, Driver};

use super::workspace::Workspace;
use crate::graph::placement::Place;
use kernel::pipeline::Pipeline;

/// A place and its contents.
pub(super) struct Site {
    pub(crate) pipeline: Arc<Pipeline>,
    /// Where every tensor of the graph is that a node here uses; of the others, nothing.
    pub(crate) memory: Vec<BufferView>,
    pub(crate) workspace: Workspace,
}

/// All places of an executor.
pub(super) struct Sites {
    pub(crate) device: Site,
    /// None if the device computes everything.
    pub(crate) host: Option<Site>,
}

impl Site {
    pub(crate) fn driver(&self) -> &dyn Driver {
        self.pipeline.driver()
    }
}

impl Sites {
    /// The site of a place. Only a graph with nodes there asks for the processor's.
    pub(crate) fn of(&self, place: Place) -> &Site {
        match place {
            Place::Device | Place::Streamed => &self.device,
            Place::Host => self.host.as_ref().expect("nodes of the processor have a site"),
        }
    }

    /// Does the work of a step where launches are cheapest: with the processor's threads awake, if it has a part.
    pub(crate) fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        self.host.as_ref().unwrap_or(&self.device).driver().enter(work);
    }
}
