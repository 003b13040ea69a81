//! Git LFS: the small text that a clone without it has where a large file should be.

use hint::Hint;

/// The line that every pointer begins with, up to its version.
const MARK: &[u8] = b"version https://git-lfs.github.com/spec/";

/// No pointer is longer: Git LFS itself takes larger files for what they are.
const MAX_BYTES: usize = 1024;

/// A file that is a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file is a Git-LFS pointer, and not the {} that it stands for", size.map_or_else(|| "file".into(), |n| format!("{n} bytes")))]
pub struct Pointer {
    /// Bytes of the file that it stands for, if it says so.
    pub(crate) size: Option<u64>,
}

impl Hint for Pointer {
    fn hint(&self) -> Option<String> {
        Some(
            "`git lfs pull` in its folder downloads all such files; after `git lfs install`, clones do so themselves"
                .into(),
        )
    }
}

/// The pointer that these bytes of a whole file are.
pub fn pointer(file: &[u8]) -> Option<Pointer> {
    if file.len() > MAX_BYTES || !file.starts_with(MARK) {
        return None;
    }
    let text = str::from_utf8(file).ok()?;
    let size = text.lines().find_map(|line| line.strip_prefix("size "));
    Some(Pointer { size: size.and_then(|size| size.trim().parse().ok()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_told_from_other_files() {
        let text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4792272488\n";
        assert_eq!(pointer(text.as_bytes()), Some(Pointer { size: Some(4_792_272_488) }));
        assert_eq!(pointer(&text.as_bytes()[..45]), Some(Pointer { size: None }));
        assert_eq!(pointer(b"version 1\n"), None);
        assert_eq!(pointer(format!("{text}{}", " ".repeat(MAX_BYTES)).as_bytes()), None);
    }
}
