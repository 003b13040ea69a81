//! The C functions of the HIP runtime: types, constants, and pointers looked up once.
//!
//! Types and numbers are those of `hip/hip_runtime_api.h`; enumerations are integers, because a newer library may know
//! more of them. Numbers were compared between the headers of HIP 5.2, 6.0 and 6.2: none of those below changed.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;
pub use vendor_library::mapping::{Access, MemoryProperties};

/// `hipError_t`.
pub type Status = c_int;
/// `hipStream_t`, `hipEvent_t`, `hipModule_t`, `hipFunction_t`, `hipGraph_t`, `hipGraphExec_t`: opaque pointers.
pub type Handle = *mut c_void;
/// Memory of the device, `hipDeviceptr_t`.
pub type DevicePointer = *mut c_void;

/// Statuses that callers distinguish.
pub mod status {
    use super::Status;

    /// `hipSuccess`.
    pub const SUCCESS: Status = 0;
    /// `hipErrorOutOfMemory`.
    pub const OUT_OF_MEMORY: Status = 2;
    /// `hipErrorNoDevice`.
    pub const NO_DEVICE: Status = 100;
    /// `hipErrorInvalidDevice`.
    pub const INVALID_DEVICE: Status = 101;
    /// `hipErrorNoBinaryForGpu`: a code object for another arch.
    pub const NO_BINARY_FOR_GPU: Status = 209;
    /// `hipErrorNotFound`: no such kernel in the module.
    pub const NOT_FOUND: Status = 500;
    /// `hipErrorNotSupported`.
    pub const NOT_SUPPORTED: Status = 801;
}

/// `hipDeviceAttribute_t`: numbers that have the same place in every version, unlike the fields of `hipDeviceProp_t`.
pub mod attribute {
    use std::ffi::c_int;

    /// 1 if the device shares the memory of the host.
    pub const INTEGRATED: c_int = 16;
    /// Most threads of a block.
    pub const MAX_THREADS_PER_BLOCK: c_int = 56;
    /// Compute units; on RDNA WGPs, of two compute units each.
    pub const MULTIPROCESSOR_COUNT: c_int = 63;
    /// Where the device is on the PCI bus: bus, device, domain.
    pub const PCI_BUS_ID: c_int = 67;
    pub const PCI_DEVICE_ID: c_int = 68;
    pub const PCI_DOMAIN_ID: c_int = 69;
    /// LDS that one block may use, in bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 74;
    /// Lanes of a wave.
    pub const WARP_SIZE: c_int = 87;
}

/// `hipMemcpyKind`: host to device.
pub const MEMCPY_HOST_TO_DEVICE: c_int = 1;
/// `hipMemcpyKind`: device to host.
pub const MEMCPY_DEVICE_TO_HOST: c_int = 2;
/// `hipMemcpyKind`: device to device.
pub const MEMCPY_DEVICE_TO_DEVICE: c_int = 3;
/// A stream that does not wait for the default stream, nor that one for it.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipHostMalloc` with no special wishes: pinned, and visible to every device.
pub const HOST_MALLOC_DEFAULT: c_uint = 0;
/// `hipHostRegister` with no special wishes.
pub const HOST_REGISTER_DEFAULT: c_uint = 0;
/// `hipEventDefault`: takes times, and waiting for it spins.
pub const EVENT_DEFAULT: c_uint = 0;
/// While a stream is captured, other threads may do what they like.
pub const CAPTURE_THREAD_LOCAL: c_int = 1;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident, $symbol:literal: fn($($name:ident: $type:ty),* $(,)?);)*) => {
        /// The functions that nothing works without, valid as long as this lives.
        pub struct Api {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($name: $type),*) -> Status,)*
            pub get_error_name: unsafe extern "C" fn(status: Status) -> *const c_char,
            pub get_error_string: unsafe extern "C" fn(status: Status) -> *const c_char,
            /// Fills a `hipDeviceProp_t`.
            pub get_device_properties: DeviceProperties,
            /// None in a runtime without graphs.
            pub graphs: Option<GraphApi>,
            /// None in a runtime that maps no memory.
            pub mapping: Option<MappingApi>,
            // Never closed: the runtime has threads of its own, and its destructors wait for the devices.
            _library: ManuallyDrop<Library>,
        }

        impl Api {
            /// Opens `path` and looks every function up.
            ///
            /// # Errors
            /// The loader's own words: no such file, a missing dependency, a missing symbol.
            pub fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: opening a library runs its constructors. The caller chose the file to be his HIP runtime;
                // that one only registers itself, devices are touched by `hipInit`.
                let library = unsafe { Library::new(path) }?;
                // SAFETY: the types are those of `hip/hip_runtime_api.h`, the same from ROCm 5 to 7, and the library
                // stays loaded for the life of the process, so the pointers stay valid.
                unsafe {
                    Ok(Self {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        get_error_name: *library.get(b"hipGetErrorName\0")?,
                        get_error_string: *library.get(b"hipGetErrorString\0")?,
                        get_device_properties: DeviceProperties::load(&library)?,
                        graphs: GraphApi::load(&library).ok(),
                        mapping: MappingApi::load(&library).ok(),
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

functions! {
    init, "hipInit": fn(flags: c_uint);
    runtime_get_version, "hipRuntimeGetVersion": fn(version: *mut c_int);
    driver_get_version, "hipDriverGetVersion": fn(version: *mut c_int);
    get_device_count, "hipGetDeviceCount": fn(count: *mut c_int);
    set_device, "hipSetDevice": fn(device: c_int);
    device_get_attribute, "hipDeviceGetAttribute": fn(value: *mut c_int, attribute: c_int, device: c_int);
    device_get_name, "hipDeviceGetName": fn(name: *mut c_char, len_bytes: c_int, device: c_int);
    mem_get_info, "hipMemGetInfo": fn(free_bytes: *mut usize, total_bytes: *mut usize);
    malloc, "hipMalloc": fn(pointer: *mut DevicePointer, len_bytes: usize);
    free, "hipFree": fn(pointer: DevicePointer);
    host_malloc, "hipHostMalloc": fn(pointer: *mut *mut c_void, len_bytes: usize, flags: c_uint);
    host_free, "hipHostFree": fn(pointer: *mut c_void);
    host_register, "hipHostRegister": fn(pointer: *mut c_void, len_bytes: usize, flags: c_uint);
    host_unregister, "hipHostUnregister": fn(pointer: *mut c_void);
    memcpy_async, "hipMemcpyAsync":
        fn(to: *mut c_void, from: *const c_void, len_bytes: usize, kind: c_int, stream: Handle);
    memset_async, "hipMemsetAsync": fn(to: DevicePointer, byte: c_int, len_bytes: usize, stream: Handle);
    stream_create_with_flags, "hipStreamCreateWithFlags": fn(stream: *mut Handle, flags: c_uint);
    stream_destroy, "hipStreamDestroy": fn(stream: Handle);
    stream_synchronize, "hipStreamSynchronize": fn(stream: Handle);
    stream_wait_event, "hipStreamWaitEvent": fn(stream: Handle, event: Handle, flags: c_uint);
    event_create_with_flags, "hipEventCreateWithFlags": fn(event: *mut Handle, flags: c_uint);
    event_destroy, "hipEventDestroy": fn(event: Handle);
    event_record, "hipEventRecord": fn(event: Handle, stream: Handle);
    event_synchronize, "hipEventSynchronize": fn(event: Handle);
    event_elapsed_time, "hipEventElapsedTime": fn(milliseconds: *mut f32, start: Handle, stop: Handle);
    module_load_data, "hipModuleLoadData": fn(module: *mut Handle, image: *const c_void);
    module_unload, "hipModuleUnload": fn(module: Handle);
    module_get_function, "hipModuleGetFunction": fn(function: *mut Handle, module: Handle, name: *const c_char);
    module_launch_kernel, "hipModuleLaunchKernel":
        fn(
            function: Handle,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            dynamic_lds_bytes: c_uint,
            stream: Handle,
            arguments: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
}

/// Stream capture and graphs: a runtime may lack them.
pub struct GraphApi {
    pub stream_begin_capture: unsafe extern "C" fn(stream: Handle, mode: c_int) -> Status,
    pub stream_end_capture: unsafe extern "C" fn(stream: Handle, graph: *mut Handle) -> Status,
    pub graph_instantiate: unsafe extern "C" fn(
        executable: *mut Handle,
        graph: Handle,
        error_node: *mut Handle,
        log: *mut c_char,
        log_bytes: usize,
    ) -> Status,
    pub graph_launch: unsafe extern "C" fn(executable: Handle, stream: Handle) -> Status,
    pub graph_exec_destroy: unsafe extern "C" fn(executable: Handle) -> Status,
    pub graph_destroy: unsafe extern "C" fn(graph: Handle) -> Status,
}

impl GraphApi {
    /// # Safety
    /// The library must be a HIP runtime that stays loaded as long as the pointers are used.
    unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: types as in the header, see `Api::load`; the rest is the caller's.
        unsafe {
            Ok(Self {
                stream_begin_capture: *library.get(b"hipStreamBeginCapture\0")?,
                stream_end_capture: *library.get(b"hipStreamEndCapture\0")?,
                graph_instantiate: *library.get(b"hipGraphInstantiate\0")?,
                graph_launch: *library.get(b"hipGraphLaunch\0")?,
                graph_exec_destroy: *library.get(b"hipGraphExecDestroy\0")?,
                graph_destroy: *library.get(b"hipGraphDestroy\0")?,
            })
        }
    }
}

/// `hipMemAllocationTypeUncached`: what a device writes, others see while its kernel runs. RCCL wants it since HIP 7.2.
pub const MEMORY_UNCACHED: c_int = 0x4000_0000;

/// Addresses and memory apart, so that memory of several devices lies side by side: a runtime may lack them.
pub struct MappingApi {
    pub memset_words: unsafe extern "C" fn(pointer: DevicePointer, value: c_int, n: usize, stream: Handle) -> Status,
    pub device_can_access_peer: unsafe extern "C" fn(can: *mut c_int, device: c_int, peer: c_int) -> Status,
    pub granularity: unsafe extern "C" fn(
        granularity_bytes: *mut usize,
        properties: *const MemoryProperties,
        option: c_int,
    ) -> Status,
    pub create: unsafe extern "C" fn(
        memory: *mut Handle,
        len_bytes: usize,
        properties: *const MemoryProperties,
        flags: u64,
    ) -> Status,
    pub release: unsafe extern "C" fn(memory: Handle) -> Status,
    pub reserve: unsafe extern "C" fn(
        pointer: *mut DevicePointer,
        len_bytes: usize,
        alignment_bytes: usize,
        wish: DevicePointer,
        flags: u64,
    ) -> Status,
    pub free: unsafe extern "C" fn(pointer: DevicePointer, len_bytes: usize) -> Status,
    pub map: unsafe extern "C" fn(
        pointer: DevicePointer,
        len_bytes: usize,
        offset_bytes: usize,
        memory: Handle,
        flags: u64,
    ) -> Status,
    pub unmap: unsafe extern "C" fn(pointer: DevicePointer, len_bytes: usize) -> Status,
    pub set_access: unsafe extern "C" fn(
        pointer: DevicePointer,
        len_bytes: usize,
        access: *const Access,
        n_access: usize,
    ) -> Status,
}

impl MappingApi {
    /// # Safety
    /// The library must be a HIP runtime that stays loaded as long as the pointers are used.
    unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: types as in the header, see `Api::load`; the rest is the caller's.
        unsafe {
            Ok(Self {
                memset_words: *library.get(b"hipMemsetD32Async\0")?,
                device_can_access_peer: *library.get(b"hipDeviceCanAccessPeer\0")?,
                granularity: *library.get(b"hipMemGetAllocationGranularity\0")?,
                create: *library.get(b"hipMemCreate\0")?,
                release: *library.get(b"hipMemRelease\0")?,
                reserve: *library.get(b"hipMemAddressReserve\0")?,
                free: *library.get(b"hipMemAddressFree\0")?,
                map: *library.get(b"hipMemMap\0")?,
                unmap: *library.get(b"hipMemUnmap\0")?,
                set_access: *library.get(b"hipMemSetAccess\0")?,
            })
        }
    }
}

/// `hipGetDeviceProperties` under whichever name there is. Headers since HIP 6 rename it in silence, and the plain
/// name still fills the old structure: reading one with the other's offsets gives garbage.
#[derive(Clone, Copy)]
pub struct DeviceProperties {
    pub(crate) call: unsafe extern "C" fn(properties: *mut u8, device: c_int) -> Status,
    /// The symbol that was found.
    pub symbol: &'static str,
    /// Where `gcnArchName`, 256 bytes, begins in the structure that this symbol fills.
    pub(crate) arch_name_at: usize,
}

/// More than any `hipDeviceProp_t` (792 bytes in HIP 5, 1472 in HIP 6).
pub(crate) const PROPERTIES_BYTES: usize = 8192;
/// Length of `gcnArchName`.
pub(crate) const ARCH_NAME_BYTES: usize = 256;

impl DeviceProperties {
    const LAYOUTS: [(&str, usize); 2] = [("hipGetDevicePropertiesR0600", 1160), ("hipGetDeviceProperties", 396)];

    /// # Safety
    /// The library must be a HIP runtime that stays loaded as long as the pointer is used.
    unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
        let [new, old] = Self::LAYOUTS;
        // SAFETY: the caller's; both symbols have this type.
        let load = |(symbol, arch_name_at): (&'static str, usize)| unsafe {
            Ok(Self { call: *library.get(symbol.as_bytes())?, symbol, arch_name_at })
        };
        load(new).or_else(|_: libloading::Error| load(old))
    }
}
