//! The machine code of one kernel in an object of AMD's.

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

use crate::code_object::CodeObjectError;

/// A kernel's machine code, and its address.
///
/// # Errors
/// [`CodeObjectError`]: the bytes are no such object, or it has no such kernel.
pub fn code<'a>(bytes: &'a [u8], kernel: &str) -> Result<(u64, &'a [u8]), CodeObjectError> {
    let missing = |found: &str| CodeObjectError::Value {
        key: kernel.to_owned(),
        expected: "its machine code",
        found: found.to_owned(),
    };
    let header = FileHeader64::<LittleEndian>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let is_named = |name: object::Result<&[u8]>| name.is_ok_and(|name| name == kernel.as_bytes());
    let mut named = symbols.enumerate().filter(|(_, symbol)| is_named(symbol.name(endian, symbols.strings())));
    let (index, symbol) = named.next().ok_or_else(|| missing("no such symbol"))?;
    let section = symbols.symbol_section(endian, symbol, index)?.ok_or_else(|| missing("no section of it"))?;
    let section = sections.section(section)?;
    let (address, len_bytes) = (symbol.st_value(endian), symbol.st_size(endian));
    let start = address.checked_sub(section.sh_addr(endian)).and_then(|start| usize::try_from(start).ok());
    let all = section.data(endian, bytes)?;
    let code = start.and_then(|start| all.get(start..)).and_then(|rest| rest.get(..usize::try_from(len_bytes).ok()?));
    Ok((address, code.ok_or_else(|| missing("fewer bytes than it states"))?))
}
