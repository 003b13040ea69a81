//! Workspaces: memory of kernels in addition to the graph's tensors, from `[[workspace]]` of their templates.
//!
//! Launches run one after another, so they share workspaces, and all start at the beginning of the memory. Memory that
//! must be zero before every launch is separate: it is zeroed once, and every kernel leaves it zero.

use std::collections::BTreeMap;

use gpu::{ALIGNMENT_BYTES, Argument, BufferView, Driver, GpuError};

use expression::ExpressionError;
use kernel::template::launch::ArgSpec;

/// Lengths of both kinds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkspaceBytes {
    /// Memory with undefined contents.
    pub(crate) open: usize,
    /// Memory that is zero between launches.
    pub(crate) zeroed: usize,
}

impl WorkspaceBytes {
    /// What one launch with these scalars needs.
    pub(crate) fn of_launch(workspace: &[ArgSpec], scalars: &BTreeMap<String, u64>) -> Result<Self, ExpressionError> {
        let mut needed = Self::default();
        for spec in workspace {
            let kind = if spec.is_zeroed { &mut needed.zeroed } else { &mut needed.open };
            *kind += spec.len_bytes(scalars)?.next_multiple_of(ALIGNMENT_BYTES);
        }
        Ok(needed)
    }

    /// Enough for either of two launches.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { open: self.open.max(other.open), zeroed: self.zeroed.max(other.zeroed) }
    }

    /// Both kinds together.
    pub(crate) fn total(self) -> usize {
        self.open + self.zeroed
    }
}

pub(super) struct Workspace {
    open: BufferView,
    zeroed: BufferView,
}

impl Workspace {
    /// Allocates it, and writes the zeros.
    pub(crate) fn new(driver: &dyn Driver, len: WorkspaceBytes) -> Result<Self, GpuError> {
        let (open, zeroed) = (driver.allocate(len.open)?.view(), driver.allocate(len.zeroed)?.view());
        driver.write(&zeroed, &vec![0; len.zeroed])?;
        Ok(Self { open, zeroed })
    }

    /// The memory for the arguments of one launch.
    pub(crate) fn for_launch(&self) -> LaunchWorkspace<'_> {
        LaunchWorkspace { workspace: self, taken: WorkspaceBytes::default() }
    }
}

/// Hands the memory out to the arguments of one launch.
pub(super) struct LaunchWorkspace<'w> {
    workspace: &'w Workspace,
    taken: WorkspaceBytes,
}

impl LaunchWorkspace<'_> {
    /// The next argument's.
    pub(crate) fn take(
        &mut self,
        spec: &ArgSpec,
        scalars: &BTreeMap<String, u64>,
    ) -> Result<Argument, ExpressionError> {
        let len_bytes = spec.len_bytes(scalars)?;
        let (memory, at) = if spec.is_zeroed {
            (&self.workspace.zeroed, &mut self.taken.zeroed)
        } else {
            (&self.workspace.open, &mut self.taken.open)
        };
        let view = memory.slice(*at, len_bytes).expect("the workspace is as long as the longest launch needs");
        *at += len_bytes.next_multiple_of(ALIGNMENT_BYTES);
        Ok(Argument::Memory { view, required_bytes: len_bytes })
    }
}
