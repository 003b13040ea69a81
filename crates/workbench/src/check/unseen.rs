//! Lines that a GPU's compiler may see and the simulator never does, such as those after `#if defined(__AMDGCN__)`:
//! they did not run. Of the built-in files only templates count, because `lib/` defines stand-ins for vendors' words.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::trial::Trial;
use kernel::target::{Platform, Target};
use kernel::template::Template;
use kernel::template::library::Library;
use kernel::template::origins::{BEHIND_SIMULATOR, Origins};
use kernel::template::render::Rendered;

/// Those lines, by the file; the template's own has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen(BTreeMap<String, BTreeSet<usize>>);

/// Whether any file that counts has conditions of the preprocessor.
pub(super) fn may_be(library: &Library, template: &Template) -> bool {
    let counts = |name: &str, is_own: bool| name == template.file.name || is_own && name.starts_with("lib/");
    library.texts().any(|file| counts(&file.name, file.is_own()) && file.text.contains("#if"))
}

impl Unseen {
    /// One line; `file` is empty for the template's own.
    pub(super) fn of(file: &str, line: usize) -> Self {
        Self(BTreeMap::from([(file.to_owned(), BTreeSet::from([line]))]))
    }

    /// Those of one kernel.
    pub(super) fn find(
        library: &Library,
        template: &Template,
        trial: &Trial,
        kernel: &Rendered,
        target: &Target,
    ) -> Self {
        let mut found = Self::default();
        let own = kernel.source.rfind(BEHIND_SIMULATOR).map_or(0, |at| at + BEHIND_SIMULATOR.len());
        let lines = gpus_alone(&kernel.source[own..], target);
        if lines.is_empty() {
            return found;
        }
        let origins = Origins::trace(library, template, &trial.problem, &trial.params, target, kernel);
        let Some(origins) = origins else { return found };
        let own = template.file.place(1).file;
        let others: BTreeSet<String> =
            library.texts().filter(|file| file.is_own()).map(|file| file.place(1).file).collect();
        for place in lines.iter().filter_map(|line| origins.of_line(line + 2)) {
            if place.file == own {
                found.extend(Self::of("", place.line));
            } else if others.contains(&place.file) {
                found.extend(Self::of(&place.file, place.line));
            }
        }
        found
    }

    /// Whether a line of the template is one of them.
    pub fn has(&self, line: usize) -> bool {
        self.0.get("").is_some_and(|lines| lines.contains(&line))
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend(&mut self, more: Self) {
        for (file, lines) in more.0 {
            self.0.entry(file).or_default().extend(lines);
        }
    }

    /// The message about them; none if there are none.
    pub fn told(&self) -> Option<String> {
        (!self.is_empty())
            .then(|| format!("the simulator does not compile {}, which a GPU's compiler sees", self.lines()))
    }

    /// `line 7, lines 1-2 of lib/a.hip.j2`.
    fn lines(&self) -> String {
        let of_file = |(file, lines): (&String, &BTreeSet<usize>)| {
            let mut ranges: Vec<(usize, usize)> = Vec::new();
            for &line in lines {
                match ranges.last_mut() {
                    Some((_, last)) if *last + 1 == line => *last = line,
                    _ => ranges.push((line, line)),
                }
            }
            let range = |(first, last): &(usize, usize)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            };
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            let (word, of) =
                (if lines.len() == 1 { "line" } else { "lines" }, if file.is_empty() { "" } else { " of " });
            format!("{word} {}{of}{file}", ranges.join(", "))
        };
        self.0.iter().map(of_file).collect::<Vec<_>>().join(", ")
    }
}

/// Which compiler reads the text: the GPU's or the simulator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Gpu,
    Simulator,
}

/// Words that compilers for AMD's GPUs define, whatever the chip.
const AMD: [&str; 8] = [
    "__AMDGCN__",
    "__AMDGPU__",
    "__AMD__",
    "__HIP__",
    "__HIPCC__",
    "__HIPCC_RTC__",
    "__HIP_DEVICE_COMPILE__",
    "__HIP_PLATFORM_AMD__",
];

/// The same of NVIDIA's.
const NVIDIA: [&str; 4] = ["__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__NVCC__"];

/// The known macros of a preprocessor: values, none if a word is not defined; and nothing if the definitions are
/// unknown.
struct Words<'a> {
    who: Who,
    target: &'a Target,
    /// Macros that the text defines. The outer `None`: it is unknown whether it does; the inner: its value is unknown.
    own: BTreeMap<String, Option<Option<i64>>>,
}

/// Of a word's value: unknown, or none that is defined, or a number that may be unknown.
enum Word {
    Unknown,
    Undefined,
    Defined(Option<i64>),
}

impl Words<'_> {
    fn get(&self, name: &str) -> Word {
        if let Some(own) = self.own.get(name) {
            return own.map_or(Word::Unknown, Word::Defined);
        }
        let known = |is_defined: bool| if is_defined { Word::Defined(Some(1)) } else { Word::Undefined };
        let is_gpu = self.who == Who::Gpu;
        let is_of = |platform: Platform| is_gpu && self.target.platform == platform;
        let arch = self.target.arch.split(':').next().unwrap_or_default();
        let chip = name.strip_prefix("__").and_then(|name| name.strip_suffix("__")).unwrap_or_default();
        match name {
            "GPTOSS_JIT_SIM" => known(!is_gpu),
            "__CUDA_ARCH__" if is_of(Platform::Nvidia) => {
                let digits: String = arch.chars().filter(char::is_ascii_digit).collect();
                Word::Defined(digits.parse::<i64>().ok().map(|number| 10 * number))
            }
            _ if AMD.contains(&name) => known(is_of(Platform::Amd)),
            _ if NVIDIA.contains(&name) => known(is_of(Platform::Nvidia)),
            _ if chip.starts_with("gfx") => known(is_of(Platform::Amd) && chip == arch),
            // `__GFX11__` of gfx1100, `__GFX9__` of gfx942.
            _ if chip.starts_with("GFX") => {
                let family = arch.get(..arch.len().saturating_sub(2)).unwrap_or_default();
                known(is_of(Platform::Amd) && chip.eq_ignore_ascii_case(family))
            }
            _ if name.starts_with("__") => Word::Unknown,
            _ if is_gpu && ["HIP", "CUDA"].iter().any(|start| name.starts_with(start)) => Word::Unknown,
            _ => Word::Undefined,
        }
    }
}

/// An open `#if`. For each part: whether it holds; none if unknown.
struct Branch {
    /// Where it stands is compiled.
    outer: Option<bool>,
    /// An earlier branch of it was taken.
    was: Option<bool>,
    /// The part that is being read is taken.
    is: Option<bool>,
}

fn and(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn not(a: Option<bool>) -> Option<bool> {
    a.map(|a| !a)
}

fn or(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    not(and(not(a), not(b)))
}

/// What one compiler sees of a text.
struct Reader<'a> {
    words: Words<'a>,
    open: Vec<Branch>,
}

impl Reader<'_> {
    fn sees(&self) -> Option<bool> {
        self.open.last().map_or(Some(true), |branch| and(branch.outer, branch.is))
    }

    /// Takes a directive: what follows its `#`.
    fn read(&mut self, directive: &str) {
        let end = directive.find(|c: char| !c.is_alphabetic()).unwrap_or(directive.len());
        let (word, rest) = (&directive[..end], directive[end..].trim());
        let holds = |text: &str| Condition::of(text, &self.words).map(|value| value != 0);
        let defined = |name: &str| holds(&format!("defined({name})"));
        let outer = self.sees();
        match word {
            "if" | "ifdef" | "ifndef" => {
                let is = match word {
                    "if" => holds(rest),
                    "ifdef" => defined(rest),
                    _ => not(defined(rest)),
                };
                self.open.push(Branch { outer, was: is, is });
            }
            "elif" | "else" => {
                let condition = if word == "else" { Some(true) } else { holds(rest) };
                if let Some(branch) = self.open.last_mut() {
                    branch.is = and(not(branch.was), condition);
                    branch.was = or(branch.was, branch.is);
                }
            }
            "endif" => drop(self.open.pop()),
            "define" if outer != Some(false) => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let value = Condition::of(&rest[end..], &self.words).filter(|_| rest[end..].starts_with(' '));
                self.words.own.insert(rest[..end].to_owned(), outer.map(|_| value));
            }
            "undef" if outer != Some(false) => drop(self.words.own.remove(rest)),
            _ => {}
        }
    }
}

/// The lines, from 0, that the GPU's compiler may see and the simulator's may not.
fn gpus_alone(text: &str, target: &Target) -> Vec<usize> {
    let reader = |who| Reader { words: Words { who, target, own: BTreeMap::new() }, open: Vec::new() };
    let [mut gpu, mut simulator] = [Who::Gpu, Who::Simulator].map(reader);
    let mut found = Vec::new();
    let mut directive = String::new(); // one that goes on in the next line
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let is_directive = !directive.is_empty() || trimmed.starts_with('#');
        let is_condition =
            ["if", "el", "endif"].iter().any(|word| trimmed[1.min(trimmed.len())..].trim_start().starts_with(word));
        let says_nothing = trimmed.is_empty() || trimmed.starts_with("//") || is_directive && is_condition;
        if !says_nothing && gpu.sees() != Some(false) && simulator.sees() != Some(true) {
            found.push(number);
        }
        if is_directive {
            directive += trimmed.trim_end_matches('\\');
            if !trimmed.ends_with('\\') {
                let whole = directive.trim_start_matches('#').split("//").next().unwrap_or_default().trim().to_owned();
                gpu.read(&whole);
                simulator.read(&whole);
                directive.clear();
            }
        }
    }
    found
}

/// A condition of the preprocessor, read from left to right.
struct Condition<'a> {
    words: &'a Words<'a>,
    tokens: Vec<&'a str>,
    at: usize,
}

/// Operators by how tightly they bind, the loosest first.
const OPERATORS: [&[&str]; 6] =
    [&["||"], &["&&"], &["==", "!="], &["<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"]];

impl<'a> Condition<'a> {
    /// Its value; none if unknown.
    fn of(text: &'a str, words: &'a Words<'a>) -> Option<i64> {
        let mut condition = Self { words, tokens: tokens(text), at: 0 };
        let value = condition.level(0);
        (condition.at == condition.tokens.len()).then_some(value).flatten()
    }

    fn take(&mut self, token: &str) -> bool {
        let is_there = self.tokens.get(self.at) == Some(&token);
        self.at += usize::from(is_there);
        is_there
    }

    fn level(&mut self, level: usize) -> Option<i64> {
        let Some(operators) = OPERATORS.get(level) else { return self.one() };
        let mut value = self.level(level + 1);
        while let Some(operator) = operators.iter().find(|operator| self.take(operator)) {
            let other = self.level(level + 1);
            let holds = |value: Option<i64>| value.map(|value| value != 0);
            let number = |of: fn(i64, i64) -> Option<i64>| value.zip(other).and_then(|(a, b)| of(a, b));
            value = match *operator {
                "||" => or(holds(value), holds(other)).map(i64::from),
                "&&" => and(holds(value), holds(other)).map(i64::from),
                "==" => number(|a, b| Some((a == b).into())),
                "!=" => number(|a, b| Some((a != b).into())),
                "<=" => number(|a, b| Some((a <= b).into())),
                ">=" => number(|a, b| Some((a >= b).into())),
                "<" => number(|a, b| Some((a < b).into())),
                ">" => number(|a, b| Some((a > b).into())),
                "+" => number(i64::checked_add),
                "-" => number(i64::checked_sub),
                "*" => number(i64::checked_mul),
                "/" => number(i64::checked_div),
                _ => number(i64::checked_rem),
            };
        }
        value
    }

    fn one(&mut self) -> Option<i64> {
        if self.take("!") {
            return self.one().map(|value| (value == 0).into());
        }
        if self.take("(") {
            let value = self.level(0);
            self.take(")");
            return value;
        }
        let token = *self.tokens.get(self.at)?;
        self.at += 1;
        if token == "defined" {
            let in_parentheses = self.take("(");
            let name = *self.tokens.get(self.at)?;
            self.at += 1;
            if in_parentheses {
                self.take(")");
            }
            return match self.words.get(name) {
                Word::Unknown => None,
                Word::Undefined => Some(0),
                Word::Defined(_) => Some(1),
            };
        }
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = token.trim_end_matches(['u', 'U', 'l', 'L']);
            let of_hex = digits.strip_prefix("0x").map(|digits| i64::from_str_radix(digits, 16));
            return of_hex.unwrap_or_else(|| digits.parse()).ok();
        }
        match self.words.get(token) {
            Word::Undefined => Some(0),
            Word::Defined(value) => value,
            Word::Unknown => None,
        }
    }
}

fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = match first {
            _ if is_word(first) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            _ if ["||", "&&", "==", "!=", "<=", ">="].iter().any(|operator| rest.starts_with(operator)) => 2,
            _ => first.len_utf8(),
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(arch: &str, text: &str) -> Vec<usize> {
        gpus_alone(text, &Target::gpu(arch).expect("known"))
    }

    /// Whether a line after this condition is the GPU's alone.
    fn is_alone(arch: &str, condition: &str) -> bool {
        !alone(arch, &format!("#if {condition}\nx\n#endif\ny")).is_empty()
    }

    #[test]
    fn what_only_the_chips_compiler_sees_is_found_by_the_condition() {
        let of_gfx1100 = [
            ("defined(__AMDGCN__)", true),
            ("defined __gfx1100__ && !defined(GPTOSS_JIT_SIM)", true),
            ("defined(__GFX11__) || defined(__GFX12__)", true),
            ("!defined(GPTOSS_JIT_SIM)", true),
            ("__has_builtin(__builtin_amdgcn_x)", true),
            ("HIP_VERSION > 6", true),
            ("1", false),
            ("0", false),
            ("1 + 1 == 2 && (0x10 > 15u)", false),
            ("defined(GPTOSS_JIT_SIM)", false),
            ("defined(__gfx942__) || __GFX9__", false),
            ("defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800", false),
            ("DEBUG", false),
        ];
        for (condition, expected) in of_gfx1100 {
            assert_eq!(is_alone("gfx1100", condition), expected, "{condition}");
        }
        assert!(is_alone("gfx942", "defined(__gfx942__) && __GFX9__"));
        assert!(is_alone("sm_90", "__CUDA_ARCH__ >= 900") && !is_alone("sm_90", "__CUDA_ARCH__ > 900"));
        assert!(!is_alone("sm_90", "defined(__AMDGCN__)"));
    }

    #[test]
    fn branches_are_taken_one_by_one_and_words_of_the_text_count() {
        let text = "#define WIDE 2\n#ifdef __AMDGCN__\n  a\n# if WIDE == 2\n  b // c\n# else\n  c\n# endif\n\n  // d\n\
                    #elif defined(__CUDACC__)\n  e\n#else\n  f\n#endif\n#ifndef __HIP__\n  g\n#else\n#define H \\\n  h\n#endif\n";
        assert_eq!(alone("gfx1100", text), [2, 4, 18, 19]);
        assert_eq!(alone("sm_90", text), [11]);
        assert_eq!(alone("gfx1100", "#if defined(__AMDGCN__)\n#define X\n#endif\n#ifdef X\n  a\n#endif"), [1, 4]);
        let text = "#if 1\na\n#elif defined(__AMDGCN__)\nb\n#endif\n#undef A\n#if A\nc\n#endif";
        assert_eq!(alone("gfx1100", text), [0; 0]);
    }

    #[test]
    fn lines_are_told_by_the_file() {
        let mut all = Unseen::default();
        assert!(all.is_empty() && all.told().is_none());
        for (file, line) in [("", 7), ("mine/lib/a.hip.j2", 2), ("mine/lib/a.hip.j2", 1), ("mine/lib/a.hip.j2", 9)] {
            all.extend(Unseen::of(file, line));
        }
        assert_eq!(all.lines(), "line 7, lines 1-2, 9 of mine/lib/a.hip.j2");
    }
}
