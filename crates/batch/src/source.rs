//! Sources of prompts: files, a pipe, the files that match a pattern, or one text. Lines are located once and read
//! again when their turn comes, so only a prompt's place is kept.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::pattern;
use super::request_line;
use hint::Hint;
use system::foreign_text::{self, BYTE_ORDER_MARK};
use system::os::FileExt;

/// How prompts are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PromptFormat {
    /// The number of prompts on the first line, then one prompt per line
    Counted,
    /// One prompt per line
    Lines,
    /// A JSON object per line: `prompt`, `messages` or `ids`, and optional settings
    Jsonl,
    /// OpenAI's batch files: `custom_id`, `method`, `url` and `body` per line
    Batch,
}

/// Bytes of the longest line that is read.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Prompts, not read yet.
#[derive(Debug)]
pub struct Source {
    parts: Vec<PromptFile>,
    lines: Vec<LinePlace>,
    format: PromptFormat,
    findings: Vec<String>,
}

#[derive(Debug)]
struct PromptFile {
    name: String,
    text: Text,
    /// Its lines end as Windows ends them: the line of its count does.
    has_returns: bool,
}

#[derive(Debug)]
enum Text {
    File(File),
    Memory(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
struct LinePlace {
    part: u32,
    /// Counted from 1.
    number: u32,
    offset: u64,
    len_bytes: u32,
}

/// Errors of sources of prompts.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system does not let us have them.
    #[error("could not read prompts `{name}`")]
    Read {
        name: String,
        #[source]
        source: io::Error,
    },
    /// The first line is no number.
    #[error("could not read prompts `{name}`: line 1 is the number of prompts, found `{found}`")]
    NoCount {
        name: String,
        /// The beginning of its first line.
        found: String,
    },
    /// A text in another encoding than UTF-8.
    #[error("could not read prompts `{name}`: it is written in {encoding}, expected UTF-8")]
    Encoding { name: String, encoding: &'static str },
    /// A line too long to be a prompt.
    #[error("could not read prompts `{name}`: line {line} has more than {MAX_LINE_BYTES} bytes")]
    LongLine {
        name: String,
        /// Counted from 1.
        line: u32,
    },
    /// No file has such a name.
    #[error("could not read prompts `{pattern}`: no file has such a name")]
    NoMatch { pattern: String },
    /// Several files, which are not alike.
    #[error("could not read prompts: `{name}` has another format than `{other}`")]
    Unlike { name: String, other: String },
}

impl Hint for SourceError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoCount { found, .. } if found.trim_start().starts_with('{') => {
                "`--in-format jsonl` reads a JSON object per line, `--in-format batch` OpenAI's batch files"
            }
            Self::NoCount { .. } => "put the number of prompts on the first line, or use `--in-format lines`",
            Self::Unlike { .. } => "`--in-format` sets the format of all files",
            Self::NoMatch { .. } => {
                "quote the pattern, so that the shell does not expand it; `*`, `?` and `[…]` match names"
            }
            Self::LongLine { .. } => "is this a file of prompts, one per line?",
            Self::Encoding { encoding, .. } => {
                return Some(format!("`iconv -f {encoding} -t UTF-8 FILE` writes it as UTF-8"));
            }
            Self::Read { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

impl Source {
    /// Finds all prompts.
    ///
    /// - `input`: a file; `-`, which is stdin; a pattern of names; or a text that does not look like any of these,
    ///   which   is the only prompt
    /// - `format`: without it, as the file's name and beginning say
    /// - `first`: only so many
    ///
    /// # Errors
    /// All of [`SourceError`].
    pub fn open(input: &OsStr, format: Option<PromptFormat>, first: Option<usize>) -> Result<Self, SourceError> {
        let path = Path::new(input);
        if input == "-" {
            return Self::read(vec![spooled("stdin", &mut io::stdin().lock())?], format, first);
        }
        let is_absent = matches!(
            path.metadata().map_err(|error| error.kind()),
            Err(ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
        );
        if !is_absent {
            return Self::read(vec![opened(path)?], format, first);
        }
        if !looks_like_a_path(input) {
            return Ok(Self::only(input.as_encoded_bytes().to_vec()));
        }
        if !pattern::is_pattern(input) {
            return Self::read(vec![opened(path)?], format, first); // which says why not
        }
        let name = path.display().to_string();
        let paths = pattern::matching(path).map_err(|source| SourceError::Read { name: name.clone(), source })?;
        if paths.is_empty() {
            return Err(SourceError::NoMatch { pattern: name });
        }
        let parts = paths.iter().map(|path: &PathBuf| opened(path)).collect::<Result<_, _>>()?;
        Self::read(parts, format, first)
    }

    /// A text that is the only prompt, line ends included.
    fn only(text: Vec<u8>) -> Self {
        let line =
            LinePlace { part: 0, number: 1, offset: 0, len_bytes: u32::try_from(text.len()).unwrap_or(u32::MAX) };
        let findings = vec!["there is no such file: what `-i` says is the only prompt".to_owned()];
        let parts = vec![PromptFile { name: "-i".into(), text: Text::Memory(text), has_returns: false }];
        Self { parts, lines: vec![line], format: PromptFormat::Lines, findings }
    }

    fn read(parts: Vec<PromptFile>, format: Option<PromptFormat>, first: Option<usize>) -> Result<Self, SourceError> {
        let mut source =
            Self { parts: Vec::new(), lines: Vec::new(), format: PromptFormat::Counted, findings: Vec::new() };
        for (i, part) in parts.into_iter().enumerate() {
            let found = format.map_or_else(|| part.format(), Ok)?;
            if i > 0 && found != source.format {
                return Err(SourceError::Unlike { name: part.name, other: source.parts[0].name.clone() });
            }
            source.format = found;
            source.parts.push(part);
            let most = first.map_or(usize::MAX, |first| first - source.lines.len());
            if most > 0 {
                source.find_lines(most)?;
            }
        }
        Ok(source)
    }

    /// Finds the lines of the part that came last, so many at most.
    fn find_lines(&mut self, most: usize) -> Result<(), SourceError> {
        let last = (self.parts.len() - 1) as u32;
        let part = self.parts.last_mut().expect("just pushed");
        let PromptFile { name, text, has_returns } = part;
        let mut lines = Lines { part: last, name, reader: text.reader(name)?, number: 0, offset: 0 };
        lines.check_encoding()?;
        let mut wanted = most;
        let mut count = None;
        if self.format == PromptFormat::Counted {
            let first = lines.next_line()?.map_or_else(Vec::new, |(_, bytes)| bytes);
            let n = leading_number(&first).ok_or_else(|| SourceError::NoCount {
                name: name.clone(),
                found: String::from_utf8_lossy(&first).chars().take(40).collect(),
            })?;
            (wanted, count) = (most.min(n), Some(n));
            *has_returns = first.ends_with(b"\r");
        }
        let (mut n_lines, mut n_returns) = (0, 0);
        while n_lines < wanted {
            let Some((line, bytes)) = lines.next_line()? else { break };
            let has_return = bytes.ends_with(b"\r");
            match self.format {
                PromptFormat::Counted => n_returns += usize::from(has_return && !*has_returns),
                PromptFormat::Jsonl | PromptFormat::Batch if bytes.trim_ascii().is_empty() => continue,
                _ => {}
            }
            n_lines += 1;
            self.lines.push(line);
        }
        if let Some(count) = count.filter(|_| n_lines < wanted) {
            self.findings.push(format!("`{name}` says {count} prompts and has {n_lines}"));
        }
        if n_returns > 0 {
            let what = "end in a carriage return, which is part of them: the line of the count has none";
            self.findings.push(format!("{n_returns} prompts of `{name}` {what}"));
        }
        Ok(())
    }

    /// Number of prompts.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How the prompts are written in the file.
    pub fn format(&self) -> PromptFormat {
        self.format
    }

    /// What is unusual about them, in sentences.
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// The number of prompt `i`, from 1, and its place, for messages.
    pub fn place(&self, i: usize) -> String {
        let LinePlace { part, number, .. } = self.lines[i];
        format!("{} (`{}`, line {number})", i + 1, self.parts[part as usize].name)
    }

    /// The bytes of prompt `i`'s line, without its end.
    ///
    /// # Errors
    /// [`SourceError::Read`].
    pub(crate) fn line(&self, i: usize) -> Result<Vec<u8>, SourceError> {
        let LinePlace { part, offset, len_bytes, .. } = self.lines[i];
        let PromptFile { name, text, has_returns } = &self.parts[part as usize];
        let mut bytes = vec![0; len_bytes as usize];
        match text {
            Text::File(file) => file
                .read_exact_at(&mut bytes, offset)
                .map_err(|source| SourceError::Read { name: name.clone(), source })?,
            Text::Memory(text) => bytes.copy_from_slice(&text[offset as usize..][..len_bytes as usize]),
        }
        let is_line = *has_returns || self.format == PromptFormat::Lines && matches!(text, Text::File(_));
        if is_line && bytes.ends_with(b"\r") {
            bytes.pop();
        }
        if matches!(self.format, PromptFormat::Jsonl | PromptFormat::Batch) {
            foreign_text::mend_json(&mut bytes);
        }
        Ok(bytes)
    }
}

impl PromptFile {
    /// As its name and its first line say: a name in `.jsonl` or `.ndjson` holds objects, one in `.lines` lines, and
    /// all others are counted as the seeds' are.
    fn format(&self) -> Result<PromptFormat, SourceError> {
        let extension = Path::new(&self.name).extension().and_then(OsStr::to_str).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "lines" => return Ok(PromptFormat::Lines),
            "jsonl" | "ndjson" => {}
            _ => return Ok(PromptFormat::Counted),
        }
        let mut lines =
            Lines { part: 0, name: &self.name, reader: self.text.reader(&self.name)?, number: 0, offset: 0 };
        while let Some((_, bytes)) = lines.next_line()? {
            if !bytes.trim_ascii().is_empty() {
                return Ok(if request_line::is_batch_line(bytes) { PromptFormat::Batch } else { PromptFormat::Jsonl });
            }
        }
        Ok(PromptFormat::Jsonl)
    }
}

impl Text {
    fn reader(&self, name: &str) -> Result<Box<dyn BufRead + '_>, SourceError> {
        Ok(match self {
            Self::Memory(text) => Box::new(text.as_slice()),
            Self::File(file) => {
                let mut file: &File = file;
                file.seek(SeekFrom::Start(0)).map_err(|source| SourceError::Read { name: name.to_owned(), source })?;
                Box::new(BufReader::new(file))
            }
        })
    }
}

/// Lines one by one, and where they are.
struct Lines<'a> {
    part: u32,
    name: &'a str,
    reader: Box<dyn BufRead + 'a>,
    number: u32,
    offset: u64,
}

impl Lines<'_> {
    /// Whether the text is UTF-8, as far as its beginning tells.
    fn check_encoding(&mut self) -> Result<(), SourceError> {
        let beginning = self.reader.fill_buf();
        let beginning = beginning.map_err(|source| SourceError::Read { name: self.name.to_owned(), source })?;
        match foreign_text::other_encoding(beginning) {
            Some(encoding) => Err(SourceError::Encoding { name: self.name.to_owned(), encoding }),
            None => Ok(()),
        }
    }

    /// The next one, without its end.
    fn next_line(&mut self) -> Result<Option<(LinePlace, Vec<u8>)>, SourceError> {
        let (mut bytes, n_read_before) = (Vec::new(), self.offset);
        let read = (&mut self.reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes);
        let n_read = read.map_err(|source| SourceError::Read { name: self.name.to_owned(), source })?;
        if n_read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if bytes.pop_if(|byte| *byte == b'\n').is_none() && n_read as u64 > MAX_LINE_BYTES {
            return Err(SourceError::LongLine { name: self.name.to_owned(), line: self.number });
        }
        if self.number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
            self.offset += BYTE_ORDER_MARK.len() as u64;
        }
        let Self { part, number, offset, .. } = *self;
        self.offset = n_read_before + n_read as u64;
        Ok(Some((LinePlace { part, number, offset, len_bytes: bytes.len() as u32 }, bytes)))
    }
}

fn opened(path: &Path) -> Result<PromptFile, SourceError> {
    let name = path.display().to_string();
    let could_not = |source| SourceError::Read { name: name.clone(), source };
    let mut file = File::open(path).map_err(could_not)?;
    let found = file.metadata().map_err(could_not)?;
    if found.is_dir() {
        return Err(could_not(ErrorKind::IsADirectory.into()));
    }
    if !found.is_file() {
        return spooled(&name, &mut file);
    }
    Ok(PromptFile { name, text: Text::File(file), has_returns: false })
}

/// What can be read once alone, in a file without a name.
fn spooled(name: &str, reader: &mut dyn Read) -> Result<PromptFile, SourceError> {
    let copied = tempfile::tempfile().and_then(|mut file| io::copy(reader, &mut file).map(|_| file));
    let file = copied.map_err(|source| SourceError::Read { name: name.to_owned(), source })?;
    Ok(PromptFile { name: name.to_owned(), text: Text::File(file), has_returns: false })
}

/// Whether a text was meant as the name of a file: one word, with a folder or an extension. A mistyped name is not to
/// be run as a prompt.
fn looks_like_a_path(text: &OsStr) -> bool {
    let is_one_word = !text.as_encoded_bytes().iter().any(u8::is_ascii_whitespace);
    let has_extension = Path::new(text).extension().is_some_and(|extension| !extension.is_empty());
    is_one_word && (has_extension || text.as_encoded_bytes().contains(&b'/'))
}

/// The number that a line begins with, as C's `atoi` reads it: `6 prompts` is 6.
fn leading_number(line: &[u8]) -> Option<usize> {
    let text = line.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn source(
        name: &str,
        text: &[u8],
        format: Option<PromptFormat>,
        first: Option<usize>,
    ) -> Result<Source, SourceError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        Source::open(path.as_os_str(), format, first)
    }

    fn lines(source: &Source) -> Vec<String> {
        assert_eq!(source.is_empty(), (0..source.len()).next().is_none());
        (0..source.len()).map(|i| String::from_utf8(source.line(i).expect("read")).expect("text")).collect()
    }

    #[test]
    fn the_count_is_read_as_c_reads_it() {
        assert_eq!(leading_number(b"6 prompts"), Some(6));
        assert_eq!(leading_number(b"  +12"), Some(12));
        assert_eq!(leading_number(b"0"), Some(0));
        assert_eq!(leading_number(b"Once upon a time"), None);
        assert_eq!(leading_number(b""), None);
        assert_eq!(leading_number(b"99999999999999999999999"), None);
    }

    #[test]
    fn a_word_with_a_folder_or_an_extension_was_meant_as_a_file() {
        for path in ["/nowhere/in.txt", "prompts.txt", "data/input", "../in"] {
            assert!(looks_like_a_path(OsStr::new(path)), "{path}");
        }
        for text in ["Once upon a time", "Once", "Hello.", "see a/b and c.txt", "a.txt\n", ""] {
            assert!(!looks_like_a_path(OsStr::new(text)), "{text}");
        }
    }

    #[test]
    fn names_say_how_files_are_written_and_flags_overrule_them() {
        let counted = source("in.txt", b"2\na\n\nb\n", None, None).expect("read");
        assert_eq!((counted.format(), lines(&counted)), (PromptFormat::Counted, vec!["a".into(), String::new()]));
        let plain = source("in.lines", b"2\r\na\n\nb", None, None).expect("read");
        assert_eq!(
            (plain.format(), lines(&plain)),
            (PromptFormat::Lines, ["2", "a", "", "b"].map(String::from).to_vec())
        );
        assert_eq!(lines(&source("in.txt", b"2\na\n", Some(PromptFormat::Lines), Some(1)).expect("read")), ["2"]);
        let objects = b"\n{\"prompt\": \"a\"}\n \n{}\n";
        let jsonl = source("in.jsonl", objects, None, None).expect("read");
        assert_eq!(
            (jsonl.format(), lines(&jsonl)),
            (PromptFormat::Jsonl, vec!["{\"prompt\": \"a\"}".into(), "{}".into()])
        );
        assert!(jsonl.place(1).ends_with("/in.jsonl`, line 4)"), "{}", jsonl.place(1));
        let batch = source("in.jsonl", b"{\"custom_id\": \"a\", \"body\": {}}\n", None, None).expect("read");
        assert_eq!(batch.format(), PromptFormat::Batch);

        let marked = source("in.lines", "\u{feff}a\nb\n".as_bytes(), None, None).expect("read");
        assert_eq!(lines(&marked), ["a", "b"]);
        let marked = source("in.jsonl", "\u{feff}{\"custom_id\": \"a\", \"body\": {}}\n{}\n".as_bytes(), None, None);
        let marked = marked.expect("read");
        assert_eq!((marked.format(), lines(&marked)[1].as_str()), (PromptFormat::Batch, "{}"));
        let windows = source("in.txt", "\u{feff}2\r\na\r\nb\r\n".as_bytes(), None, None).expect("read");
        assert_eq!((lines(&windows), windows.findings().len()), (vec!["a".into(), "b".into()], 0));
        let one_return = source("in.txt", b"2\na\r\nb\n", None, None).expect("read");
        assert_eq!((lines(&one_return)[0].as_str(), one_return.findings().len()), ("a\r", 1));
        let utf16: Vec<u8> = "\u{feff}1\nHello\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let error = source("in.txt", &utf16, None, None).expect_err("is no UTF-8");
        assert!(
            error.to_string().contains("written in UTF-16") && error.hint().is_some_and(|hint| hint.contains("iconv"))
        );

        let hint = |text: &[u8]| source("in.txt", text, None, None).expect_err("no count").hint().expect("a hint");
        assert!(hint(b"Hello\n").contains("`--in-format lines`"));
        assert!(hint(b"{\"prompt\": \"a\"}\n").contains("`--in-format jsonl`"));
    }

    #[test]
    fn a_pattern_names_files_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("b.lines", "b\n");
        write("a.lines", "a\nA\n");
        let open = |pattern: &str| Source::open(folder.path().join(pattern).as_os_str(), None, None);
        assert_eq!(lines(&open("*.lines").expect("read")), ["a", "A", "b"]);
        assert!(matches!(open("*.txt"), Err(SourceError::NoMatch { .. })));
        write("c.txt", "1\nc\n");
        assert!(matches!(open("*"), Err(SourceError::Unlike { .. })));
        assert_eq!(
            Source::open(folder.path().join("*").as_os_str(), Some(PromptFormat::Lines), Some(4)).expect("read").len(),
            4
        );
    }

    #[test]
    fn what_can_be_read_once_alone_is_read_as_a_file_is() {
        use std::io::Write;
        use std::os::fd::AsRawFd;

        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"one\ntwo\n").expect("it has room");
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let piped = Source::open(OsStr::new(&path), Some(PromptFormat::Lines), None).expect("read");
        assert_eq!([lines(&piped), lines(&piped)], [["one", "two"]; 2]);
    }
}
