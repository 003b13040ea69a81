//! Parameters of both runtimes for manually mapped memory: HIP's structures have the layout of CUDA's.

use std::ffi::{c_int, c_void};

/// What memory is: `CUmemAllocationProp`, `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryProperties {
    /// [`Self::PINNED`], or another kind that the runtime has.
    pub kind: c_int,
    /// How other processes may get it: 0, not at all.
    pub(crate) handle_types: c_int,
    pub location: Location,
    pub(crate) windows: *mut c_void,
    /// Compression, remote access, usage: none.
    pub(crate) flags: [u8; 8],
}

/// `CUmemLocation`, `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    /// 1: on a device.
    pub kind: c_int,
    pub id: c_int,
}

/// Access rights to mapped memory: `CUmemAccessDesc`, `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    pub location: Location,
    /// 3: reading and writing.
    pub flags: c_int,
}

impl MemoryProperties {
    /// Memory of a device as any other.
    pub const PINNED: c_int = 1;

    /// Memory of this kind on a device, for this process alone.
    pub fn on_device(device: c_int, kind: c_int) -> Self {
        let location = Location::of_device(device);
        Self { kind, handle_types: 0, location, windows: std::ptr::null_mut(), flags: [0; 8] }
    }
}

impl Location {
    fn of_device(device: c_int) -> Self {
        Self { kind: 1, id: device }
    }
}

impl Access {
    /// All that there is, for a device.
    pub fn from_device(device: c_int) -> Self {
        Self { location: Location::of_device(device), flags: 3 }
    }
}
