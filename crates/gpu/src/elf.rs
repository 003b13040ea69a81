//! Checks that an object is complete. A loader maps what an ELF file's headers state; an access beyond the end of a
//! truncated file would crash the process.

use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

/// Why an object is not to be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// It is no ELF file of 64 bits, or its headers are beyond its end.
    #[error("it is not a complete ELF file: {0}")]
    Header(object::Error),
    /// Something that it states to hold is beyond its end.
    #[error("it is cut short: its {what} {index} ends at byte {end}, and it has {len_bytes} bytes")]
    CutShort {
        /// `segment` or `section`.
        what: &'static str,
        /// Which of them, from 0.
        index: usize,
        /// Where that should end.
        end: u64,
        /// Where the object ends.
        len_bytes: u64,
    },
}

/// Checks that all segments and sections of an ELF file lie within it.
///
/// # Errors
/// [`ElfError`], whatever the bytes are.
pub fn check_whole(bytes: &[u8]) -> Result<(), ElfError> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(ElfError::Header)?;
    let endian = header.endian().map_err(ElfError::Header)?;
    let len_bytes = bytes.len() as u64;
    let within = |what, index, (offset, len): (u64, u64)| match offset.saturating_add(len) {
        end if end > len_bytes => Err(ElfError::CutShort { what, index, end, len_bytes }),
        _ => Ok(()),
    };
    for (i, segment) in header.program_headers(endian, bytes).map_err(ElfError::Header)?.iter().enumerate() {
        within("segment", i, segment.file_range(endian))?;
    }
    for (i, section) in header.section_headers(endian, bytes).map_err(ElfError::Header)?.iter().enumerate() {
        within("section", i, section.file_range(endian).unwrap_or_default())?; // none: it has no bytes in the file
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE_OBJECT: &[u8] = include_bytes!("../../../tests/fixtures/objects/linear_tile.gfx90a.co");

    #[test]
    fn a_whole_object_is_whole_and_every_cut_is_seen() {
        assert_eq!(check_whole(CODE_OBJECT), Ok(()));
        for len in 0..CODE_OBJECT.len() {
            assert!(check_whole(&CODE_OBJECT[..len]).is_err(), "cut to {len} bytes");
        }
    }

    #[test]
    fn a_section_beyond_the_end_is_named() {
        let mut object = CODE_OBJECT.to_vec();
        let sections = u64::from_le_bytes(object[0x28..0x30].try_into().unwrap()) as usize;
        let size_of_first = sections + 64 + 32;
        object[size_of_first..size_of_first + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = check_whole(&object).unwrap_err().to_string();
        assert!(error.starts_with("it is cut short: its section 1 ends at byte"), "{error}");
    }
}
