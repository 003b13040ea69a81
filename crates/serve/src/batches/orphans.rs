//! Leftovers of a killed program in the folder, to which nothing refers: a file's bytes without its description,
//! answers without their batch or of a finished batch.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use system::units::human_bytes;

/// Removes files with such names that nothing refers to, and logs it. Files with other names stay.
///
/// - `prefix`, `ending`: of the names, with an id between them: `file-ID.data`
/// - `over`: ids of which only the description should be there
pub(super) fn remove(folder: &Path, prefix: &str, ending: &str, over: &BTreeSet<&str>) -> io::Result<()> {
    let (mut n, mut bytes) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_suffix(ending)?.strip_suffix('.')) else { continue };
        let is_ours = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !id.strip_prefix(prefix).is_some_and(is_ours) {
            continue;
        }
        // One that cannot be read is there all the same.
        let is_described = folder.join(format!("{id}.json")).try_exists()?;
        if is_described && !over.contains(id) {
            continue;
        }
        let len = entry.metadata().map_or(0, |found| found.len());
        match fs::remove_file(entry.path()) {
            Ok(()) => (n, bytes) = (n + 1, bytes + len),
            Err(error) => tracing::warn!("could not remove the leftover `{}`: {error}", entry.path().display()),
        }
    }
    if n > 0 {
        let folder = folder.display();
        tracing::info!(
            "removed {n} leftover files from `{folder}` ({}): no file or batch refers to them",
            human_bytes(bytes)
        );
    }
    Ok(())
}
