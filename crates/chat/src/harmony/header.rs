//! Reads a message's header word by word, however malformed it is.
//!
//! `{role} to={recipient}<|channel|>{channel} to={recipient} <|constrain|>{type}<|message|>`: everything but the role
//! is optional, the recipient may be in any part, and the mark before the type may be missing. Another word is either
//! superfluous or the beginning of the text of a message that lacks `<|message|>`; the words after it decide.

use super::{Channel, Role};

/// What may follow a channel's name without a mark, and be the type of what follows.
const TYPES: [&[u8]; 3] = [b"json", b"code", b"text"];

const CHANNELS: [&[u8]; 3] = [b"analysis", b"commentary", b"final"];

const ASSISTANT: &[u8] = b"assistant";

/// The special tokens inside of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Channel,
    Constrain,
    Message,
}

impl Mark {
    const ALL: [Self; 3] = [Self::Channel, Self::Constrain, Self::Message];

    fn name(self) -> &'static [u8] {
        match self {
            Self::Channel => b"<|channel|>",
            Self::Constrain => b"<|constrain|>",
            Self::Message => b"<|message|>",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// The prompt ends in `<|start|>assistant`.
    Prompt,
    /// With `<|start|>`: the first word is the role.
    Start,
    /// With something else; the role is not said.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// None is the assistant.
    pub(crate) role: Option<Role>,
    pub(crate) channel: Option<Channel>,
    pub(crate) recipient: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Its deviations from the format.
    pub(crate) oddities: Oddities,
}

/// What a header has that the format does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Oddities {
    pub(crate) channels: usize,
    pub(crate) channel_names: usize,
    pub(crate) recipients: usize,
    pub(crate) words: usize,
}

/// A header, as far as it came.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(crate) beginning: Beginning,
    section: Section,
    /// Of the sections before.
    fields: Fields,
    /// Of the current section.
    bytes: Vec<u8>,
}

/// Where words stand: after `<|start|>`, `<|channel|>` or `<|constrain|>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Role,
    Channel,
    Type,
}

/// The current section, and those before it, as words.
struct Reading {
    fields: Fields,
    /// The role's word may go on.
    is_role_open: bool,
    role_end: usize,
    /// A channel that may be the first word of a text.
    odd_channel_at: Option<usize>,
    /// The first word that no header has; the end if there is none.
    stray_at: usize,
}

impl Header {
    pub(crate) fn new(beginning: Beginning) -> Self {
        Self { beginning, section: Section::Role, fields: Fields::default(), bytes: Vec::new() }
    }

    /// Takes ordinary bytes. If a mark is spelled in them, this gives it, and the bytes after it; they are not taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<(Mark, Vec<u8>)> {
        self.bytes.extend_from_slice(bytes);
        let find = |mark: Mark| self.bytes.windows(mark.name().len()).position(|window| window == mark.name());
        let places = Mark::ALL.into_iter().filter_map(|mark| Some((find(mark)?, mark)));
        let (at, mark) = places.min_by_key(|&(at, _)| at)?;
        let behind = self.bytes.split_off(at + mark.name().len());
        self.bytes.truncate(at);
        Some((mark, behind))
    }

    /// Whether a speaker other than the assistant begins, as far as the header tells.
    pub(crate) fn is_from_others(&self, is_whole: bool) -> bool {
        const LONGEST_ROLE: usize = 64;
        let reading = self.read(is_whole);
        reading.fields.is_from_others() || (reading.is_role_open && self.bytes.len() > LONGEST_ROLE)
    }

    /// The fields and the text so far, once there are more words than a header has.
    pub(crate) fn text_so_far(&self) -> Option<(Fields, Vec<u8>)> {
        let reading = self.read(false);
        let stray = &self.bytes[reading.stray_at..];
        let is_text = if self.is_speech(&reading) {
            !could_become_word(stray)
        } else {
            // A word too many is common here; prose and JSON are none.
            stray.len() > 48 || stray.iter().any(|byte| b"\n{[".contains(byte))
        };
        (is_text && !stray.is_empty() && !reading.is_role_open).then(|| self.text(reading))
    }

    /// Text that a mark ends, which stood where there should have been a header.
    pub(crate) fn speech(&self) -> Option<(Fields, Vec<u8>)> {
        let reading = self.read(true);
        (self.is_speech(&reading) && reading.stray_at < self.bytes.len()).then(|| self.text(reading))
    }

    /// Ends a section, and with `<|message|>` the header.
    pub(crate) fn push_mark(&mut self, mark: Mark) {
        let reading = self.read(true);
        let stray = &self.bytes[reading.stray_at..];
        self.fields = reading.fields;
        let mut words = Vec::new();
        for word in stray.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            match recipient_in(word) {
                Some((_, recipient)) => self.fields.set_recipient(recipient),
                None => words.push(word),
            }
        }
        match words[..] {
            [] => {}
            [word] if self.fields.content_type.is_none() => self.fields.content_type = Some(lossy(word)),
            _ => self.fields.oddities.words += 1,
        }
        match mark {
            Mark::Channel => {
                if self.fields.channel.take().is_some() {
                    self.fields.oddities.channels += 1;
                }
                self.section = Section::Channel;
            }
            Mark::Constrain => self.section = Section::Type,
            Mark::Message => {}
        }
        self.bytes.clear();
    }

    /// What it says, after `<|message|>`.
    pub(crate) fn into_fields(self) -> Fields {
        self.fields
    }

    /// The end of a header without `<|message|>`: what it says, and the text after that. None if it says nothing.
    /// If the output `is_cut` here, what may be a piece of a header says nothing.
    pub(crate) fn end(&self, is_cut: bool) -> Option<(Fields, Vec<u8>)> {
        let reading = self.read(true);
        let stray = &self.bytes[reading.stray_at..];
        let is_speech = self.is_speech(&reading);
        if is_cut && (!is_speech || could_become_word(stray)) {
            return None;
        }
        let (fields, text) = self.text(reading);
        let says_something =
            !text.trim_ascii().is_empty() || (!is_speech && (fields.channel.is_some() || fields.recipient.is_some()));
        says_something.then_some((fields, text))
    }

    /// Whether words that no header has are text, rather than one superfluous word: they are if there was no mark and
    /// no recipient.
    fn is_speech(&self, reading: &Reading) -> bool {
        self.section == Section::Role && reading.fields.recipient.is_none()
    }

    /// What is left of a header whose last words are text.
    fn text(&self, reading: Reading) -> (Fields, Vec<u8>) {
        let is_speech = self.is_speech(&reading);
        let Reading { fields, role_end, odd_channel_at, stray_at, .. } = reading;
        let silent = Fields { role: fields.role.clone(), ..Fields::default() };
        let (fields, at) = match odd_channel_at {
            _ if is_speech => (silent, role_end),
            Some(at) if fields.recipient.is_none() => (silent, at),
            _ => (fields, stray_at),
        };
        (fields, self.bytes[at..].to_vec())
    }

    /// Reads the current section. Unless it `is_whole`, its last word may go on.
    fn read(&self, is_whole: bool) -> Reading {
        let bytes = &self.bytes[..];
        let mut reading = Reading {
            fields: self.fields.clone(),
            is_role_open: false,
            role_end: 0,
            odd_channel_at: None,
            stray_at: 0,
        };
        let is_role = self.section == Section::Role;
        let mut expects_role = is_role && self.beginning == Beginning::Start;
        // A model that forgets `<|start|>`, or that it stands there, may write what follows it.
        let mut may_be_assistant = is_role && self.beginning != Beginning::Start;
        let mut expects_channel = self.section == Section::Channel;
        let mut expects_type = self.section == Section::Type;
        let mut at = 0;
        loop {
            at += bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let word = &bytes[at..at + word_len(&bytes[at..])];
            let mut len = word.len();
            let fields = &mut reading.fields;
            let is_last = at + len == bytes.len();
            if word.is_empty() {
                break;
            } else if expects_role {
                if is_last && !is_whole {
                    reading.is_role_open = true;
                    break;
                }
                expects_role = false;
                if word.starts_with(ASSISTANT) {
                    len = ASSISTANT.len();
                    reading.role_end = at + len;
                } else if is_known(word) || recipient_in(word).is_some() {
                    continue;
                } else {
                    fields.role = Some(Role::from_name(&lossy(word)));
                }
            } else if let Some((before, recipient)) = recipient_in(word) {
                if !before.is_empty() {
                    fields.set_channel(before);
                }
                expects_channel = false;
                fields.set_recipient(recipient);
            } else if expects_channel {
                expects_channel = false;
                if !fields.set_channel(word) {
                    reading.odd_channel_at = Some(at);
                }
            } else if expects_type {
                expects_type = false;
                fields.content_type = Some(lossy(word));
            } else if may_be_assistant && word == ASSISTANT {
                reading.role_end = at + len;
            } else if is_role && CHANNELS.contains(&word) {
                fields.set_channel(word);
            } else if TYPES.contains(&word) {
                fields.content_type = Some(lossy(word));
            } else {
                break;
            }
            may_be_assistant = false;
            at += len;
        }
        reading.stray_at = at;
        reading
    }
}

impl Fields {
    pub(crate) fn is_from_others(&self) -> bool {
        self.role.as_ref().is_some_and(|role| *role != Role::Assistant)
    }

    fn set_recipient(&mut self, name: &[u8]) {
        self.oddities.recipients += usize::from(self.recipient.is_some());
        self.recipient = Some(lossy(name));
    }

    /// Whether it is one of the format's, or several in one word, of which the last counts.
    fn set_channel(&mut self, word: &[u8]) -> bool {
        let known = CHANNELS.iter().find(|name| word.ends_with(name));
        self.oddities.channel_names += usize::from(known.is_none_or(|name| *name != word));
        self.channel = Some(Channel::from_name(&lossy(known.map_or(word, |name| name))));
        known.is_some()
    }
}

/// Bytes up to where a word ends: at a blank, or where text begins.
fn word_len(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| !byte.is_ascii_whitespace() && !b"<{[\"".contains(byte)).count()
}

/// `to=NAME`, also where it sticks to the word before it: that word, and the name.
fn recipient_in(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = word.windows(3).position(|window| window == b"to=")?;
    let (before, name) = (&word[..at], &word[at + 3..]);
    (before.is_empty() || CHANNELS.contains(&before)).then_some((before, name))
}

/// Whether a header may have this word where no mark stands before it.
fn is_known(word: &[u8]) -> bool {
    word == ASSISTANT || CHANNELS.contains(&word) || TYPES.contains(&word)
}

/// Whether the last word of a header may yet come of these bytes.
fn could_become_word(bytes: &[u8]) -> bool {
    let words = CHANNELS.into_iter().chain(TYPES).chain([ASSISTANT, b"to="]).chain(Mark::ALL.map(Mark::name));
    words.into_iter().any(|word| word.starts_with(bytes))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
