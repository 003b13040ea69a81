//! Rewrites patterns that begin with a look-ahead, as zod and pydantic write them: `^(?!A)B$` is everything that `B`
//! matches and that does not begin with `A`. The difference is computed as an automaton and written as a pattern again.

use std::collections::{BTreeMap, HashMap};

use derivre::{RegexAst, RegexBuilder, StateID};

/// Most states of an automaton, and most bytes of what is written.
const MAX_STATES: usize = 200;
const MAX_BYTES: usize = 1 << 15;

/// The work limit of one rewriting.
const MAX_FUEL: u64 = 1_000_000;

/// Characters beyond ASCII are all alike to a pattern that names none: some of two, three and four bytes stand for
/// them.
const OTHERS: [&str; 3] = ["é", "中", "😀"];

/// Whether a pattern looks around.
pub(super) fn looks_around(pattern: &str) -> bool {
    parentheses(pattern)
        .any(|(at, _)| ["(?!", "(?=", "(?<!", "(?<="].iter().any(|mark| pattern[at..].starts_with(mark)))
}

/// The parentheses of a pattern that group: those that are escaped or in a class are characters.
fn parentheses(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let mut in_class = false;
    pattern.char_indices().filter(move |&(at, c)| {
        if !matches!(c, '[' | ']' | '(' | ')') || is_escaped_at(pattern, at) {
            return false;
        }
        in_class = c == '[' || in_class && c != ']';
        !in_class && c != ']'
    })
}

fn is_escaped_at(pattern: &str, at: usize) -> bool {
    pattern[..at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// A pattern of the same texts that does not look around.
///
/// # Errors
/// Why there is none.
pub(super) fn without_look_around(pattern: &str) -> Result<String, String> {
    let beyond = |what: &str| Err(format!("{what} cannot be enforced together with look-around"));
    if !pattern.is_ascii() || [r"\u", r"\x", r"\p", r"\P"].iter().any(|escape| pattern.contains(escape)) {
        return beyond("characters beyond ASCII");
    }
    let Some(mut rest) = pattern.strip_prefix('^') else { return beyond("a beginning other than `^`") };
    let mut parts = Vec::new();
    while let Some((is_wanted, after)) =
        [("(?!", false), ("(?=", true)].iter().find_map(|(mark, is)| Some((*is, rest.strip_prefix(mark)?)))
    {
        let Some(end) = end_of_group(after) else { return beyond("an open group") };
        let ahead = RegexAst::Regex(whole(after[..end].strip_prefix('^').unwrap_or(&after[..end]))?);
        parts.push(if is_wanted { ahead } else { RegexAst::Not(Box::new(ahead)) });
        rest = &after[end + 1..];
    }
    if looks_around(rest) {
        return beyond("look-around after the beginning of a pattern");
    }
    parts.push(RegexAst::Regex(whole(rest)?));
    Automaton::of(&RegexAst::And(parts))?.written()
}

/// Where a group ends whose beginning was read.
fn end_of_group(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in parentheses(text) {
        match c {
            '(' => depth += 1,
            _ if depth == 0 => return Some(at),
            _ => depth -= 1,
        }
    }
    None
}

/// An expression of whole texts, with ASCII's digits, letters and blanks, as `ECMAScript` has them.
fn whole(pattern: &str) -> Result<String, String> {
    let has_end = pattern.ends_with('$') && !is_escaped_at(pattern, pattern.len() - 1);
    let pattern = if has_end { &pattern[..pattern.len() - 1] } else { pattern };
    let mut written = "(?:".to_owned();
    let (mut in_class, mut chars) = (false, pattern.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(class @ ('d' | 'w' | 's')) => {
                    let members = match class {
                        'd' => "0-9",
                        'w' => "A-Za-z0-9_",
                        _ => r" \t\n\r\x0b\x0c",
                    };
                    written += &if in_class { members.to_owned() } else { format!("[{members}]") };
                }
                Some(class @ ('D' | 'W' | 'S' | 'b' | 'B')) => {
                    return Err(format!("`\\{class}` cannot be enforced together with look-around"));
                }
                Some(c) => written.extend(['\\', c]),
                None => return Err("it ends in a backslash".to_owned()),
            },
            '^' | '$' if !in_class => {
                return Err(format!("`{c}` inside of a pattern cannot be enforced together with look-around"));
            }
            // Inside of a class other signs mean something to this engine than to others.
            '[' if in_class => written += "\\[",
            '&' | '~' if in_class => written.extend(['\\', c]),
            c => {
                in_class = (in_class || c == '[') && c != ']';
                written.push(c);
                if c == '[' && chars.as_str().starts_with('^') {
                    written.extend(chars.next());
                }
            }
        }
    }
    written += if has_end { ")" } else { r")(?s:.*)" };
    Ok(written)
}

/// States, and where each character leads: to none that is dead. The first is where texts begin.
struct Automaton {
    edges: Vec<BTreeMap<usize, Characters>>,
    ends: Vec<bool>,
}

/// A set of characters: ASCII's, and all others or none.
#[derive(Clone, Copy, Default)]
struct Characters {
    ascii: u128,
    others: bool,
}

impl Automaton {
    fn of(ast: &RegexAst) -> Result<Self, String> {
        let mut builder = RegexBuilder::new();
        let said = |error: &dyn std::fmt::Display| error.to_string().lines().last().unwrap_or_default().to_owned();
        let expression = builder.mk(ast).map_err(|error| said(&error))?;
        let mut regex = builder.into_regex_limited(expression, MAX_FUEL).map_err(|error| said(&error))?;
        let first = regex.initial_state();
        let (mut places, mut states) = (HashMap::from([(first, 0)]), vec![first]);
        let (mut edges, mut ends) = (Vec::new(), Vec::new());
        while let Some(&state) = states.get(edges.len()) {
            if states.len() > MAX_STATES {
                return Err(format!("its look-around takes more than {MAX_STATES} states"));
            }
            let mut own = BTreeMap::<usize, Characters>::new();
            let mut place = |to: StateID| {
                *places.entry(to).or_insert_with(|| {
                    states.push(to);
                    states.len() - 1
                })
            };
            for byte in 0..128_u8 {
                let to = regex.transition(state, byte);
                if !to.is_dead() {
                    own.entry(place(to)).or_default().ascii |= 1 << byte;
                }
            }
            let others = OTHERS.map(|other| regex.transition_bytes(state, other.as_bytes()));
            if others.iter().any(|to| *to != others[0]) {
                return Err("its look-around distinguishes characters beyond ASCII".to_owned());
            }
            if !others[0].is_dead() {
                own.entry(place(others[0])).or_default().others = true;
            }
            edges.push(own);
            ends.push(regex.is_accepting(state));
        }
        Ok(Self { edges, ends })
    }

    /// As a pattern: states are taken out one by one, and what led through them leads around them.
    fn written(&self) -> Result<String, String> {
        // The beginning is a state of its own, and so is the end.
        let n = self.edges.len();
        let (begin, end) = (n, n + 1);
        let mut ways: BTreeMap<(usize, usize), String> = BTreeMap::from([((begin, 0), String::new())]);
        for (from, edges) in self.edges.iter().enumerate() {
            ways.extend(edges.iter().map(|(to, characters)| ((from, *to), characters.class())));
            if self.ends[from] {
                ways.insert((from, end), String::new());
            }
        }
        let mut left: Vec<usize> = (0..n).collect();
        while !left.is_empty() {
            let cost = |state: usize| {
                let bytes = |is_way: &dyn Fn(&(usize, usize)) -> bool| {
                    ways.iter().filter(|(way, _)| is_way(way)).map(|(_, text)| text.len() + 1).sum::<usize>()
                };
                bytes(&|way| way.1 == state && way.0 != state) * bytes(&|way| way.0 == state && way.1 != state)
            };
            let cheapest = (0..left.len()).min_by_key(|&i| cost(left[i])).unwrap_or_default();
            let state = left.swap_remove(cheapest);
            let around = ways.remove(&(state, state)).map_or(String::new(), |text| repeated(&text));
            let (through, others): (Vec<_>, Vec<_>) =
                ways.into_iter().partition(|((from, to), _)| *from == state || *to == state);
            ways = others.into_iter().collect();
            for ((from, _), before) in through.iter().filter(|((_, to), _)| *to == state) {
                for ((_, to), behind) in through.iter().filter(|((from, _), _)| *from == state) {
                    let text = [before, &around, behind].map(String::as_str).concat();
                    let way = ways.entry((*from, *to));
                    way.and_modify(|other| *other = format!("(?:{other}|{text})")).or_insert(text);
                }
            }
            if ways.values().map(String::len).sum::<usize>() > MAX_BYTES {
                return Err(format!("without its look-around it has more than {MAX_BYTES} bytes"));
            }
        }
        let text = ways.remove(&(begin, end)).ok_or("it matches nothing")?;
        Ok(format!("^(?:{text})$"))
    }
}

/// A text any number of times.
fn repeated(text: &str) -> String {
    let is_class = text.starts_with('[') && text.find(']') == Some(text.len() - 1);
    if is_class { format!("{text}*") } else { format!("(?:{text})*") }
}

impl Characters {
    /// A class of a pattern.
    fn class(self) -> String {
        let set = if self.others { !self.ascii } else { self.ascii };
        let mut ranges = String::new();
        let mut at = 0;
        while at < 128 {
            let n = (set >> at).trailing_ones().min(128 - at);
            for end in [at, at + n - 1].into_iter().take(if n > 1 { 2 } else { n as usize }) {
                if end > at && n > 2 {
                    ranges.push('-');
                }
                let c = char::from(end as u8);
                ranges += &if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{end:02x}") };
            }
            at += n.max(1);
        }
        match (self.others, ranges.is_empty()) {
            (true, true) => r"[\s\S]".to_owned(),
            (true, false) => format!("[^{ranges}]"),
            (false, _) => format!("[{ranges}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of the characters that patterns look at, and others.
    fn texts() -> Vec<String> {
        let mut state = 7_u32;
        let mut next = |n: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % n
        };
        let alphabet = ["a", "Z", ".", "@", "-", "+", "0", "7", "co", "é", "_", "'", " ", "\n"];
        let mut texts: Vec<String> =
            (0..3000).map(|i| (0..i % 9).map(|_| alphabet[next(if i % 2 == 0 { 9 } else { 14 })]).collect()).collect();
        texts.extend(["a@a.co", "a.b@a.co", ".a@a.co", "a..b@a.co", "1.50", "-.", "+0.7"].map(str::to_owned));
        texts
    }

    #[test]
    fn the_texts_are_those_that_another_engine_finds() {
        for pattern in [
            r"^(?!\.)[a-z.]+@[a-z]+$",
            r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
            r"^(?=.*[0-9])(?=.*[a-z])[^ ]+$",
            r"^(?!a)",
            r"^(?!(a|b(c)?)@)[a-z$^.]+@[a-z]+$",
        ] {
            assert!(looks_around(pattern));
            let without = without_look_around(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            assert!(!looks_around(&without) && without.len() < 8000, "{pattern}: {} bytes", without.len());
            let [one, other] = [pattern, &without].map(|pattern| {
                jsonschema::validator_for(&serde_json::json!({ "pattern": pattern })).expect("a schema")
            });
            let mut n_valid = 0;
            for text in texts() {
                let value = serde_json::Value::from(text.as_str());
                assert_eq!(one.is_valid(&value), other.is_valid(&value), "{pattern}: {text:?}: {without}");
                n_valid += usize::from(one.is_valid(&value));
            }
            assert!(n_valid > 0, "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_translated_says_why() {
        let why = |pattern: &str| without_look_around(pattern).expect_err("is beyond it");
        assert!(why("a(?=b)").contains("other than `^`"));
        assert!(why("^a(?<!b)$").contains("after the beginning"));
        assert!(why("^(?!é)a$").contains("beyond ASCII"));
        assert!(!looks_around(r"\(?!a") && !looks_around("(?:a)") && looks_around(r"\\(?!a)"));
        for (pattern, looks) in [("^[(?!]+$", false), (r"[\](?=]", false), ("[(](?=a)", true), (r"[\[](?!a)", true)] {
            assert_eq!(looks_around(pattern), looks, "{pattern}");
        }
    }
}
