//! Input texts from stdin and files: removes a byte order mark, and refuses other encodings than UTF-8.

use std::fs;
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::Context;

use hint::Hint;
use system::foreign_text::{other_encoding, without_mark};

/// A text that is not in UTF-8, as its beginning tells.
#[derive(Debug, thiserror::Error)]
#[error("{what} is written in {encoding}, expected UTF-8")]
pub(crate) struct OtherEncoding {
    what: String,
    encoding: &'static str,
}

impl Hint for OtherEncoding {
    fn hint(&self) -> Option<String> {
        Some(format!("`iconv -f {} -t UTF-8` converts it", self.encoding))
    }
}

/// All of stdin; `what` is what it should be.
///
/// # Errors
/// It cannot be read, or is in another encoding.
pub(crate) fn from_stdin(what: &str) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    stdin().lock().read_to_end(&mut text).with_context(|| format!("could not read {what} from stdin"))?;
    Ok(plain(text, &format!("{what} on stdin"))?)
}

/// All of a file.
///
/// # Errors
/// As those of [`from_stdin`].
pub(crate) fn from_file(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    let named = format!("{what} `{}`", path.display());
    let text = fs::read(path).with_context(|| format!("could not read {named}"))?;
    Ok(plain(text, &named)?)
}

/// A text without its mark.
///
/// # Errors
/// It is in another encoding.
pub(crate) fn plain(mut text: Vec<u8>, what: &str) -> Result<Vec<u8>, OtherEncoding> {
    if let Some(encoding) = other_encoding(&text) {
        return Err(OtherEncoding { what: what.to_owned(), encoding });
    }
    let n_mark = text.len() - without_mark(&text).len();
    text.drain(..n_mark);
    Ok(text)
}
