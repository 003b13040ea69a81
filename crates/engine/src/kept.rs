//! Copies the prefix cache's contents, as bytes, from the device and back to it.

use super::{Engine, EngineError};
use crate::scheduler::{BlockRange, PrefixBlock, PrefixPart};

/// A part of a cache tensor: its name, and which bytes of it.
struct Slice {
    name: String,
    offset_bytes: usize,
    len_bytes: usize,
}

impl Engine {
    /// Prefixes that are kept and that no sequence uses, the one that was used longest ago first.
    pub(crate) fn kept_prefixes(&self) -> Vec<PrefixBlock> {
        self.scheduler.kept()
    }

    /// Whether a sequence begins after a prefix only where its windows are there, too.
    pub(crate) fn needs_windows(&self) -> bool {
        self.scheduler.needs_windows()
    }

    /// Whether this part of a prefix is there.
    pub(crate) fn has_part(&self, name: &PrefixBlock, part: PrefixPart) -> bool {
        self.scheduler.part(name, part).is_some()
    }

    /// Bytes of a part of a prefix, whether it is there or not.
    pub(crate) fn part_bytes(&self, name: &PrefixBlock, part: PrefixPart) -> usize {
        let groups = self.layout.groups().iter();
        let of_part = groups.filter(|group| group.window.is_some() == (part == PrefixPart::Windows));
        let bytes = of_part.map(|group| {
            let n_blocks = if part == PrefixPart::Block { 1 } else { group.snapshot_blocks().min(name.index + 1) };
            n_blocks * group.block_bytes
        });
        bytes.sum()
    }

    /// Blocks and snapshots that nothing is kept in: how many, and whether there are any.
    pub(crate) fn room_for_prefixes(&self) -> (usize, bool) {
        self.scheduler.room()
    }

    /// The bytes of a part of a prefix; `None` where it is not there. Called while no sequence runs.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read_part(&mut self, name: &PrefixBlock, part: PrefixPart) -> Result<Option<Vec<u8>>, EngineError> {
        // Snapshots are copied before the next step, which may be long in coming.
        let copies = self.scheduler.take_copies();
        self.copy_blocks(&copies)?;
        let Some(ranges) = self.scheduler.part(name, part) else { return Ok(None) };
        let mut bytes = vec![0; self.part_bytes(name, part)];
        let mut rest = &mut bytes[..];
        for Slice { name, offset_bytes, len_bytes } in self.slices(&ranges) {
            let (own, behind) = rest.split_at_mut(len_bytes);
            self.executor.first().read(&name, offset_bytes, own)?;
            rest = behind;
        }
        assert!(rest.is_empty(), "a part is all of its slices");
        Ok(Some(bytes))
    }

    /// Brings a part of a prefix back, where there is free room for it. Whether there was.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn bring_part(
        &mut self,
        name: &PrefixBlock,
        part: PrefixPart,
        bytes: &[u8],
    ) -> Result<bool, EngineError> {
        assert_eq!(bytes.len(), self.part_bytes(name, part), "the bytes of a part");
        let Some(ranges) = self.scheduler.adopt(name, part) else { return Ok(false) };
        let mut rest = bytes;
        for Slice { name, offset_bytes, len_bytes } in self.slices(&ranges) {
            let (own, behind) = rest.split_at(len_bytes);
            self.executor.write_at(&name, offset_bytes, own)?;
            rest = behind;
        }
        Ok(true)
    }

    /// A prefix is to be the last to go.
    pub(crate) fn prefix_used(&mut self, name: &PrefixBlock) {
        self.scheduler.used(name);
    }

    /// What these blocks are of all layers' tensors.
    fn slices(&self, ranges: &[BlockRange]) -> Vec<Slice> {
        let of_range = |range: &BlockRange| {
            let BlockRange { group, first, n_blocks } = *range;
            self.layout.tensors_of_group(group).map(move |tensor| {
                let block_bytes = tensor.dtype.len_bytes(tensor.block_elements);
                Slice { name: tensor.name, offset_bytes: first * block_bytes, len_bytes: n_blocks * block_bytes }
            })
        };
        ranges.iter().flat_map(of_range).collect()
    }
}
