//! Paths in environment variables, in which no shell has expanded `~`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The path that a variable holds: `~` at its beginning is the home folder. None if it is not set, or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(expanded(value, std::env::home_dir()))
}

fn expanded(value: OsString, home: Option<PathBuf>) -> PathBuf {
    let path = PathBuf::from(value);
    match (path.strip_prefix(OsStr::new("~")), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_folder_at_the_beginning_alone() {
        let of = |text: &str| expanded(text.into(), Some("/home/a".into()));
        assert_eq!(of("~/hf"), PathBuf::from("/home/a/hf"));
        assert_eq!(of("/x/~/hf"), PathBuf::from("/x/~/hf"));
        assert_eq!(of("~other/hf"), PathBuf::from("~other/hf"));
        assert_eq!(expanded("~/hf".into(), None), PathBuf::from("~/hf"));
    }
}
