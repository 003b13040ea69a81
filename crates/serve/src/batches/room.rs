//! The size limit of the folder: bytes for all files, answers and descriptions together.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ApiError;
use system::units::human_bytes;

/// Bytes counted for each description, and for what the file system needs for its name. With it the limit bounds the
/// number of files too.
pub(super) const ENTRY_BYTES: u64 = 4096;

/// The bytes of a folder that are taken, and their limit.
#[derive(Debug)]
pub(super) struct Room {
    max_bytes: u64,
    taken: AtomicU64,
}

/// A part of the room; dropping it frees the part.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

/// There is too little room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("files and batches would take more than {} (`--batch-dir-size`); delete files to make room", human_bytes(*max_bytes))]
pub(super) struct NoRoom {
    max_bytes: u64,
}

impl From<NoRoom> for ApiError {
    /// 400, as from OpenAI.
    fn from(error: NoRoom) -> Self {
        Self::bad_request("storage_quota_exceeded", error.to_string())
    }
}

impl From<NoRoom> for io::Error {
    fn from(error: NoRoom) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, error)
    }
}

impl Room {
    pub(super) fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { max_bytes, taken: AtomicU64::new(0) })
    }

    /// A part of the room that has no bytes yet.
    pub(super) fn part(self: &Arc<Self>) -> Taken {
        Taken { room: self.clone(), bytes: 0 }
    }
}

impl Taken {
    /// Takes more bytes.
    ///
    /// # Errors
    /// There is too little room left; nothing was taken.
    pub(super) fn more(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let Room { max_bytes, taken } = &*self.room;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| sum <= max_bytes);
        let taken = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map_err(|_| NoRoom { max_bytes: *max_bytes })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts bytes that are on the disk already, even beyond the limit.
    pub(super) fn found(&mut self, bytes: u64) {
        self.room.taken.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Frees all but `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.room.taken.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_what_is_given_back_is_free() {
        let room = Room::new(10);
        let full = Err(NoRoom { max_bytes: 10 });
        let (mut one, mut other) = (room.part(), room.part());
        assert_eq!((one.more(6), other.more(5), other.more(4)), (Ok(()), full, Ok(())));
        one.shrink(2);
        assert_eq!((other.more(u64::MAX), other.more(5), other.more(4)), (full, full, Ok(())));
        drop((one, other));
        // What is found may be more than there is room for, and is not forgotten.
        let mut found = room.part();
        found.found(12);
        assert_eq!(room.part().more(0), full);
        drop(found);
        assert_eq!(room.part().more(10), Ok(()));
    }
}
