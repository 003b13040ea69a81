//! Memory, streams, modules and graphs: what exists, and the work that is still to be done.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use gpu::{Buffer, BufferView};

use crate::kernel::Launch;
use crate::kernel::Module;
use crate::orders::Orders;
use crate::simulator::Simulator;

/// Statuses that this runtime returns on its own.
pub mod status {
    use std::ffi::c_int;

    pub const SUCCESS: c_int = 0;
    pub const INVALID_VALUE: c_int = 1;
    pub const OUT_OF_MEMORY: c_int = 2;
    pub const NO_DEVICE: c_int = 100;
    pub const INVALID_DEVICE: c_int = 101;
    pub const INVALID_IMAGE: c_int = 200;
    pub const INVALID_CONTEXT: c_int = 201;
    pub const NO_BINARY_FOR_GPU: c_int = 209;
    pub const SHARED_OBJECT_INIT_FAILED: c_int = 303;
    pub const INVALID_HANDLE: c_int = 400;
    pub const NOT_FOUND: c_int = 500;
    pub const NOT_READY: c_int = 600;
    pub const LAUNCH_FAILURE: c_int = 719;
}

/// Everything; one per loaded copy of this library.
pub struct State {
    pub orders: Orders,
    pub sim: Simulator,
    /// Allocations by address.
    pub memory: BTreeMap<u64, Memory>,
    /// Memory that somebody else allocated and that is pinned, by address: bytes.
    pub registered: BTreeMap<u64, usize>,
    /// Memory without an address: whose, and how many bytes.
    pub created: HashMap<u64, (c_int, usize)>,
    /// What is mapped, by address.
    pub mapped: BTreeMap<u64, Mapped>,
    pub streams: HashMap<u64, Stream>,
    /// When an event was come to; none before.
    pub events: HashMap<u64, Option<Instant>>,
    pub modules: HashMap<u64, Arc<Module>>,
    /// Kernels by handle: the module's and which.
    pub functions: HashMap<u64, (u64, usize)>,
    pub graphs: HashMap<u64, Vec<Launch>>,
    pub executables: HashMap<u64, Vec<Launch>>,
    /// What a kernel left behind; every call that waits returns it from then on.
    pub sticky: c_int,
    next_handle: u64,
    /// Marks that were put on streams.
    n_marks: u64,
}

pub struct Memory {
    pub len_bytes: usize,
    pub kind: Kind,
    pub buffer: Buffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device(c_int),
    /// Pinned, of the host.
    Pinned,
    /// Nobody's: addresses, where memory of devices may be mapped.
    Addresses,
}

/// Memory at addresses of its own.
pub struct Mapped {
    pub len_bytes: usize,
    pub memory: u64,
    /// Devices that may touch it.
    pub allowed: Vec<c_int>,
}

/// Work that waits until somebody waits for it: a program that forgets to sees what was there before.
pub struct Stream {
    pub device: c_int,
    pub queue: VecDeque<StreamWork>,
    /// Launches of the capture that is going on.
    pub capture: Option<Vec<Launch>>,
    /// Whether a kernel of it runs.
    pub is_busy: bool,
}

impl Stream {
    /// Whether the event is still to come.
    pub fn comes_to(&self, event: u64) -> bool {
        self.queue.iter().any(|work| matches!(work, StreamWork::Mark { event: other, .. } if *other == event))
    }

    /// Whether a mark is still to come.
    pub fn comes_to_mark(&self, mark: u64) -> bool {
        self.queue.iter().any(|work| matches!(work, StreamWork::Mark { mark: other, .. } if *other == mark))
    }

    /// The mark that an event was recorded with last, if it is still to come.
    pub fn last_mark(&self, event: u64) -> Option<u64> {
        self.queue.iter().rev().find_map(|work| match work {
            StreamWork::Mark { event: other, mark } if *other == event => Some(*mark),
            _ => None,
        })
    }
}

/// One thing on a stream.
pub enum StreamWork {
    Copy {
        to: u64,
        from: u64,
        len_bytes: usize,
    },
    Set {
        to: u64,
        byte: u8,
        len_bytes: usize,
    },
    SetWords {
        to: u64,
        value: u32,
        n: usize,
    },
    Launch(Launch),
    /// An event that was recorded, and which of all records it is.
    Mark {
        event: u64,
        mark: u64,
    },
    /// What follows waits until such a mark was come to.
    Wait {
        mark: u64,
    },
}

impl State {
    /// The one of this library.
    pub fn the_one() -> &'static Mutex<Self> {
        static STATE: OnceLock<Mutex<State>> = OnceLock::new();
        STATE.get_or_init(|| Mutex::new(State::new(Orders::read())))
    }

    fn new(orders: Orders) -> Self {
        Self {
            sim: Simulator::new(),
            orders,
            memory: BTreeMap::new(),
            registered: BTreeMap::new(),
            created: HashMap::new(),
            mapped: BTreeMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            sticky: status::SUCCESS,
            next_handle: 0x1000,
            n_marks: 0,
        }
    }

    pub fn handle(&mut self) -> u64 {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// A mark that was never there.
    pub fn mark(&mut self) -> u64 {
        self.n_marks += 1;
        self.n_marks
    }

    /// Bytes of a device that are in use.
    pub fn used_bytes(&self, device: c_int) -> usize {
        let own =
            self.memory.values().filter(|memory| memory.kind == Kind::Device(device)).map(|memory| memory.len_bytes);
        own.chain(self.created.values().filter(|(of, _)| *of == device).map(|(_, len_bytes)| *len_bytes)).sum()
    }

    /// The memory that all of a range is in.
    pub fn kind_of(&self, address: u64, len_bytes: usize) -> Option<Kind> {
        let is_within = |start: u64, all_bytes: usize| address - start + len_bytes as u64 <= all_bytes as u64;
        let of_own = self.memory.range(..=address).next_back();
        let of_own =
            of_own.filter(|(start, memory)| is_within(**start, memory.len_bytes)).map(|(_, memory)| memory.kind);
        let registered = self.registered.range(..=address).next_back();
        let is_registered = registered.is_some_and(|(start, all_bytes)| is_within(*start, *all_bytes));
        of_own.or(is_registered.then_some(Kind::Pinned))
    }

    /// The same as a device sees it: what is mapped for it, from one piece to the next, is its own.
    pub fn kind_for(&self, device: c_int, address: u64, len_bytes: usize) -> Option<Kind> {
        let kind = self.kind_of(address, len_bytes)?;
        if kind != Kind::Addresses {
            return Some(kind);
        }
        let (mut at, end) = (address, address + len_bytes.max(1) as u64);
        while at < end {
            let (start, mapped) = self.mapped.range(..=at).next_back()?;
            if at >= start + mapped.len_bytes as u64 || !mapped.allowed.contains(&device) {
                return None;
            }
            at = start + mapped.len_bytes as u64;
        }
        Some(Kind::Device(device))
    }

    /// From `address` to the end of its allocation.
    pub fn view_from(&self, address: u64) -> Option<BufferView> {
        let (start, memory) = self.memory.range(..=address).next_back()?;
        let offset = (address - start) as usize;
        memory.buffer.view().slice(offset, memory.len_bytes.checked_sub(offset)?)
    }

    /// Does what is no launch.
    pub fn perform_at_once(&mut self, work: StreamWork) {
        match work {
            StreamWork::Mark { event, .. } => {
                if let Some(reached) = self.events.get_mut(&event) {
                    *reached = Some(Instant::now());
                }
            }
            // A kernel that failed takes the rest of the stream with it.
            _ if self.sticky != status::SUCCESS => {}
            StreamWork::Copy { to, from, len_bytes } => {
                if self.kind_of(to, len_bytes).is_none() || self.kind_of(from, len_bytes).is_none() {
                    self.sticky = status::LAUNCH_FAILURE;
                    return;
                }
                // SAFETY: both ranges are in memory that is still allocated, and do not overlap: of one allocation,
                // that was checked, and others are apart.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len_bytes) };
            }
            StreamWork::Set { to, byte, len_bytes } => {
                if self.kind_of(to, len_bytes).is_none() {
                    self.sticky = status::LAUNCH_FAILURE;
                    return;
                }
                // SAFETY: the range is in memory that is still allocated.
                unsafe { std::ptr::write_bytes(to as *mut u8, byte, len_bytes) };
            }
            StreamWork::SetWords { to, value, n } => {
                if self.kind_of(to, 4 * n).is_none() {
                    self.sticky = status::LAUNCH_FAILURE;
                    return;
                }
                // SAFETY: the range is in memory that is still allocated; it need not be aligned.
                (0..n).for_each(|i| unsafe { (to as *mut u32).add(i).write_unaligned(value) });
            }
            StreamWork::Launch(_) | StreamWork::Wait { .. } => unreachable!("it takes its time"),
        }
    }
}
