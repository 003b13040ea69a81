//! Limits: how large the cache may grow, and how long it may make a process wait.

use std::ffi::OsString;
use std::time::Duration;

use super::folder::CacheError;

/// The bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// What pruning shrinks the folder to, in bytes on the disk.
    pub max_bytes: u64,
    /// How long to wait for another process that may be compiling the same kernel.
    pub lock_wait: Duration,
}

impl Default for CacheLimits {
    /// 2 GiB, one minute.
    fn default() -> Self {
        Self { max_bytes: 2 << 30, lock_wait: Duration::from_secs(60) }
    }
}

impl CacheLimits {
    /// The defaults, with the size from `$GPTOSS_JIT_CACHE_SIZE` where that is set.
    ///
    /// # Errors
    /// [`CacheError::SizeVariable`] when the variable is not a size.
    pub fn from_env() -> Result<Self, CacheError> {
        Self::of(std::env::var_os("GPTOSS_JIT_CACHE_SIZE"))
    }

    fn of(size: Option<OsString>) -> Result<Self, CacheError> {
        let Some(size) = size.filter(|size| !size.is_empty()) else { return Ok(Self::default()) };
        let text = size.to_string_lossy();
        let max_bytes = parse_size(&text).map_err(|_| CacheError::SizeVariable { text: text.clone().into_owned() })?;
        Ok(Self { max_bytes, ..Self::default() })
    }
}

/// Reads a size in bytes: `1048576`, `500M` or `500MB` (powers of ten), `2GiB` (powers of two).
///
/// # Errors
/// [`CacheError::Size`] for anything else, and for more than `u64` holds.
pub fn parse_size(text: &str) -> Result<u64, CacheError> {
    let wrong = || CacheError::Size { text: text.into() };
    let number_len = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(number_len);
    let scale: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let sizes = [
            ("0", 0),
            ("17", 17),
            ("17 B", 17),
            ("3k", 3000),
            ("500MB", 500_000_000),
            ("5kib", 5120),
            ("3 MiB", 3_145_728),
            ("2GiB", 2_147_483_648),
            ("1TiB", 1_099_511_627_776),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text).ok(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        for text in ["", "G", "-1", "1.5G", "2 gigs", "99999999999T", "１"] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn the_variable_says_how_large_the_cache_gets_and_nothing_else() {
        let of = |size: &str| CacheLimits::of(Some(size.into()));
        let limits = CacheLimits { max_bytes: 3_145_728, ..CacheLimits::default() };
        assert_eq!(of("3MiB").expect("a size"), limits);
        assert_eq!(
            (of("").ok(), CacheLimits::of(None).ok()),
            (Some(CacheLimits::default()), Some(CacheLimits::default()))
        );
        assert!(matches!(of("much"), Err(CacheError::SizeVariable { text }) if text == "much"));
    }
}
