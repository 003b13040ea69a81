//! What a program that was killed left in the folder, and nothing refers to: the bytes of a file without its
//! description, answers without their batch or of one that is over.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use system::units::human_bytes;

/// Removes what has such a name and no right to be there, and says so. A name that is none of ours stays.
///
/// - `prefix`, `ending`: of names, an id between them: `file-ID.data`
/// - `over`: ids of which nothing but the description is to be there
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
            Err(error) => tracing::warn!("could not remove `{}`, which nothing needs: {error}", entry.path().display()),
        }
    }
    if n > 0 {
        let folder = folder.display();
        tracing::info!("removed {n} files of `{folder}` that nothing refers to ({})", human_bytes(bytes));
    }
    Ok(())
}
