//! A file's metadata: enough to notice that it was replaced.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use system::os::MetadataExt;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    path: PathBuf,
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified_ns: i64,
    changed_ns: i64,
}

impl Stamp {
    /// Follows links: what counts is the file that is run.
    pub(super) fn of_file(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether the file is still as it was.
    pub(super) fn holds(&self) -> bool {
        Self::of_file(&self.path).is_ok_and(|now| now == *self)
    }

    /// Whether the file was last touched well before `time`: file systems keep time in coarse steps.
    pub(super) fn is_older_than(&self, time: SystemTime) -> bool {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let limit = since_epoch.saturating_sub(Duration::from_secs(2)).as_nanos();
        u128::try_from(self.changed_ns).is_ok_and(|changed| changed < limit)
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_just_touched_is_not_well_older_than_now() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let stamp = Stamp::of_file(file.path()).expect("there");
        let now = SystemTime::now();
        assert!(!stamp.is_older_than(now) && stamp.is_older_than(now + Duration::from_secs(10)));
        assert!(stamp.holds());
        fs::write(file.path(), "x").expect("written");
        assert!(!stamp.holds(), "it is longer");
    }
}
