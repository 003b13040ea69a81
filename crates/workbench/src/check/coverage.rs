//! Marks the lines of a template's kernels that ran in the simulator: the text gets a mark before each statement that
//! begins a line. Code that never ran is not known to be right.

use std::collections::BTreeMap;

use super::trial::Trial;
use kernel::target::Target;
use kernel::template::Template;
use kernel::template::library::Library;
use kernel::template::origins::{BEHIND_SIMULATOR, Origins};
use kernel::template::render::Rendered;

/// Words with which a line begins that is no statement of its own, or none that runs.
const NO_STATEMENTS: [&str; 14] = [
    "else",
    "while",
    "case",
    "default",
    "typedef",
    "using",
    "static_assert",
    "template",
    "struct",
    "union",
    "enum",
    "public",
    "private",
    "friend",
];

/// Of a template's own lines with statements, whether each ran: what begins the line as 0, then what its conditions and
/// braces guard, counted from 1.
pub(super) type Lines = BTreeMap<usize, BTreeMap<usize, bool>>;

/// A kernel whose text is marked.
pub(super) struct Marked {
    pub(crate) kernel: Rendered,
    /// Of each mark, in their order, the line of the template, and which part of the line.
    places: Vec<(usize, usize)>,
}

impl Marked {
    /// None if the text cannot be told for sure.
    pub(super) fn new(
        library: &Library,
        template: &Template,
        trial: &Trial,
        kernel: &Rendered,
        target: &Target,
    ) -> Option<Self> {
        let at = kernel.source.rfind(BEHIND_SIMULATOR)? + BEHIND_SIMULATOR.len();
        let (before, text) = kernel.source.split_at(at);
        let statements = statements(text)?;
        let origins = Origins::trace(library, template, &trial.problem, &trial.params, target, kernel)?;
        let file = template.file.place(1).file;
        let of_template = |line: &usize| {
            let place = origins.of_line(line + 2).filter(|place| place.file == file)?;
            Some(place.line)
        };
        let marked: Vec<(Statement, usize)> = statements
            .into_iter()
            .filter_map(|one| {
                let line = of_template(&one.at.0)?;
                Some((one, line))
            })
            .collect();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut texts: Vec<((usize, usize), String)> = Vec::new();
        for (i, (one, _)) in marked.iter().enumerate() {
            let open = if one.ends.is_empty() { "" } else { "{ " };
            texts.push((one.at, format!("{open}SIM_RAN({i}) ")));
            texts.extend(one.ends.iter().map(|end| (*end, " }".to_owned())));
        }
        texts.sort_by_key(|(at, _)| *at);
        for ((line, column), text) in texts.into_iter().rev() {
            lines[line].insert_str(column, &text);
        }
        let (entry, n) = (&kernel.entry, marked.len().max(1));
        let before = before.replacen(BEHIND_SIMULATOR, &format!("\n{}{BEHIND_SIMULATOR}", declared(entry, n)), 1);
        let mut kernel = kernel.clone();
        kernel.source = format!("{before}{}\n", lines.join("\n"));
        Some(Self { kernel, places: marked.into_iter().map(|(one, line)| (line, one.part)).collect() })
    }

    /// Notes in `to` what ran: `ran[i]` says whether mark `i` was passed.
    pub(super) fn add(&self, ran: &[bool], to: &mut Lines) {
        for (&(line, part), ran) in self.places.iter().zip(ran) {
            *to.entry(line).or_default().entry(part).or_default() |= ran;
        }
    }
}

/// Adds what ran elsewhere.
pub(super) fn add_all(more: Lines, to: &mut Lines) {
    for (line, parts) in more {
        let own = to.entry(line).or_default();
        parts.into_iter().for_each(|(part, ran)| *own.entry(part).or_default() |= ran);
    }
}

/// The lines with parts that never ran.
pub fn idle(lines: &Lines) -> Vec<usize> {
    lines.iter().filter(|(_, parts)| parts.values().any(|ran| !ran)).map(|(line, _)| *line).collect()
}

/// The array of marks, and the mark: a store that the compiler does not watch.
fn declared(entry: &str, n: usize) -> String {
    format!(
        "namespace sim {{ static unsigned char ran[{n}] __attribute__((used)); }}\n\
         #if defined(__x86_64__)\n\
         #define SIM_RAN(i) asm volatile(\"movb $1, %0\" : \"=m\"(sim::ran[i]));\n\
         #else\n\
         SIM_PLAIN static void sim_ran(int i) {{ sim::ran[i] = 1; }}\n\
         #define SIM_RAN(i) sim_ran(i);\n\
         #endif\n\
         extern \"C\" __attribute__((visibility(\"default\"))) SIM_PLAIN unsigned long {entry}_ran(unsigned end)\n\
         \x20   {{ return (unsigned long)(sim::ran + (end ? {n} : 0)); }}"
    )
}

/// What a pair of braces holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Braces {
    /// Statements.
    Body,
    /// Declarations: of a namespace or a type.
    Outer,
    /// Anything else: values, or statements that a mark would spoil.
    Other,
}

/// A statement that gets a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Statement {
    /// Line and byte, both from 0.
    at: (usize, usize),
    /// Of its line: 0 if it begins the line.
    part: usize,
    /// Where it ends, if it needs braces to have a mark: it stands alone after a condition. By each branch of the
    /// preprocessor it may end elsewhere.
    ends: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Open {
    braces: Braces,
    /// Brackets and parentheses that are open within.
    depth: usize,
    /// What stands since the last statement.
    head: String,
    /// Whether a statement goes on after the closing brace.
    is_expression: bool,
    /// Whether nothing follows the opening brace yet.
    is_empty: bool,
    /// Whether what a condition guards comes next.
    is_guard: bool,
    /// Of the marked statements, the one without braces that goes on.
    guarded: Option<usize>,
}

impl Open {
    fn new(braces: Braces, is_expression: bool) -> Self {
        let head = String::new();
        Self { braces, depth: 0, head, is_expression, is_empty: true, is_guard: false, guarded: None }
    }

    /// Whether the next statement is guarded by the text before: by a condition in parentheses, or by `else`.
    fn guards(&self, c: char) -> bool {
        let is_else = self.head.trim() == "else" && (self.head.ends_with(' ') || !c.is_alphanumeric());
        self.braces == Braces::Body && self.depth == 0 && (self.is_guard || is_else)
    }
}

fn is_control(word: &str) -> bool {
    ["if", "for", "while", "switch", "do"].contains(&word)
}

/// The statements in the bodies of functions that begin a line, or that something in their line guards; none if braces
/// do not go together.
fn statements(text: &str) -> Option<Vec<Statement>> {
    let mut stack = vec![Open::new(Braces::Outer, false)];
    let mut saved: Vec<Vec<Open>> = Vec::new();
    let mut found: Vec<Statement> = Vec::new();
    let mut in_comment = false;
    let mut goes_on = false; // the line before was a directive that goes on
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if goes_on || !in_comment && trimmed.starts_with('#') {
            if !goes_on {
                let word = trimmed[1..].trim_start();
                match word {
                    _ if word.starts_with("if") => saved.push(stack.clone()),
                    _ if word.starts_with("el") => stack = saved.last()?.clone(),
                    _ if word.starts_with("endif") => drop(saved.pop()?),
                    _ => {}
                }
            }
            goes_on = line.trim_end().ends_with('\\');
            continue;
        }
        let mut is_first = !in_comment; // a mark would be part of the comment
        let mut quote: Option<char> = None;
        let mut chars = line.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if in_comment {
                if c == '*' && next == Some('/') {
                    in_comment = false;
                    chars.next();
                }
                continue;
            }
            if let Some(open) = quote {
                match c {
                    '\\' => drop(chars.next()),
                    _ if c == open => quote = None,
                    _ => {}
                }
                continue;
            }
            match (c, next) {
                ('/', Some('/')) => break,
                ('/', Some('*')) => {
                    in_comment = true;
                    chars.next();
                    continue;
                }
                _ if c.is_whitespace() => {
                    stack.last_mut()?.head.push(' ');
                    continue;
                }
                _ => {}
            }
            let open = stack.last_mut()?;
            let rest = &line[at..];
            let word = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
            let is_body = open.braces == Braces::Body && open.depth == 0;
            let is_guarded = open.guards(c) && !"{;[".contains(c) && !(word == "if" && open.head.trim() == "else");
            let begins = is_body && open.head.trim().is_empty() && (is_first || open.is_empty) && !"{};".contains(c);
            if is_guarded {
                open.head.clear();
            }
            // What is guarded and guards something itself has its marks there.
            if (begins || is_guarded && !is_control(word)) && !NO_STATEMENTS.contains(&word) {
                let before = found.iter().rev().take_while(|one| one.at.0 == number);
                let part = if is_first && begins { 0 } else { 1 + before.filter(|one| one.part > 0).count() };
                open.guarded = is_guarded.then_some(found.len());
                found.push(Statement { at: (number, at), part, ends: Vec::new() });
            }
            (open.is_guard, open.is_empty) = (false, false);
            is_first = false;
            match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' => open.depth += 1,
                ')' | ']' => {
                    open.depth = open.depth.checked_sub(1)?;
                    open.is_guard = c == ')' && open.depth == 0 && is_condition(&open.head);
                }
                ';' if open.depth == 0 => {
                    open.head.clear();
                    if let Some(i) = open.guarded.take() {
                        found[i].ends.push((number, at + 1));
                    }
                    continue;
                }
                '{' => {
                    let (braces, is_expression) = braces_of(open);
                    stack.push(Open::new(braces, is_expression));
                    continue;
                }
                '}' => {
                    let closed = stack.pop()?;
                    let outer = stack.last_mut()?;
                    match closed.is_expression {
                        true => outer.head.push('}'),
                        false => outer.head.clear(),
                    }
                    continue;
                }
                _ => {}
            }
            open.head.push(c);
        }
        if let Some(open) = stack.last_mut() {
            open.head.push(' ');
        }
    }
    (stack.len() == 1 && saved.is_empty()).then_some(found)
}

/// Whether this, with a closing parenthesis, is what decides if the statement after it runs.
fn is_condition(head: &str) -> bool {
    let head = head.trim_start();
    let head = head.strip_prefix("else ").unwrap_or(head).trim_start();
    let word = head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    ["if", "for", "while"].contains(&word)
}

/// What braces hold that open after this, and whether the statement goes on after them.
fn braces_of(open: &Open) -> (Braces, bool) {
    let head = open.head.trim();
    let has = |word: &str| head.split(|c: char| !c.is_alphanumeric() && c != '_').any(|one| one == word);
    let first = head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    let is_control = ["if", "for", "while", "switch", "else"].contains(&first);
    let is_within = open.depth > 0 || head.contains('=') && !is_control && !head.contains("operator");
    let is_lambda = [")", "mutable", "[&]", "[=]", "[]"].iter().any(|end| head.ends_with(end));
    match open.braces {
        Braces::Other => (Braces::Other, true),
        Braces::Outer | Braces::Body if head.is_empty() => {
            (if open.braces == Braces::Body { Braces::Body } else { Braces::Other }, false)
        }
        Braces::Outer => {
            let is_type = ["struct", "union", "class", "namespace", "extern"].iter().any(|word| has(word));
            match () {
                () if has("constexpr") || has("enum") => (Braces::Other, has("enum") || head.contains('=')),
                () if is_type && !head.ends_with(')') => (Braces::Outer, has("struct") || has("union") || has("class")),
                () if head.ends_with(')') || head.ends_with("const") || head.contains("->") && !is_within => {
                    (Braces::Body, false)
                }
                () => (Braces::Other, true),
            }
        }
        Braces::Body if ["struct", "union"].iter().any(|word| head.starts_with(word)) && !head.ends_with(')') => {
            (Braces::Outer, true)
        }
        Braces::Body if is_lambda && !is_within && !head.ends_with(']') => (Braces::Body, false),
        Braces::Body if is_lambda => (Braces::Body, true),
        Braces::Body if head == "else" || head == "do" => (Braces::Body, head == "do"),
        Braces::Body => (Braces::Other, true),
    }
}

/// `3 of 40 lines never ran: 12-13, 20 (a branch)`; none if all did.
pub fn told(lines: &Lines) -> Option<String> {
    let mut ranges: Vec<(usize, usize, bool)> = Vec::new(); // the last says that other parts of the line ran
    let mut last_idle = false; // lines between that have no statement belong to either
    for (&line, parts) in lines {
        let n_idle = parts.values().filter(|ran| !**ran).count();
        let is_whole = n_idle == parts.len();
        match ranges.last_mut() {
            Some((_, last, _)) if is_whole && last_idle => *last = line,
            _ if n_idle > 0 => ranges.push((line, line, !is_whole)),
            _ => {}
        }
        last_idle = n_idle > 0 && is_whole;
    }
    let range = |&(first, last, is_part): &(usize, usize, bool)| match (first == last, is_part) {
        (_, true) => format!("{first} (a branch)"),
        (true, false) => first.to_string(),
        (false, false) => format!("{first}-{last}"),
    };
    let n_idle = idle(lines).len();
    let ranges: Vec<String> = ranges.iter().map(range).collect();
    (n_idle > 0).then(|| format!("{n_idle} of {} lines never ran: {}", lines.len(), ranges.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_told_from_all_else() {
        let text = r#"
struct Row {
  float at[4];
  float sum() const {
    return at[0];
  }
};
constexpr int twice(int x) {
  return 2 * x;
}
extern "C" __global__ void k(const float* x,
    float* y) {
  const float a[2] = {
    1.0f,
    2.0f,
  };
  // a comment; with {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    y[i] = a[i]
        + 1.0f;
  }
#if defined(A)
  if (y[0] > 0.0f) {
#else
  if (x[0] > 0.0f) {
#endif
    y[1] = 0.0f; /* and
    more */ y[2] = 1.0f;
  } else {
    y[3] = "}"[0];
  }
  auto f = [&](int i) {
    y[i] = 0.0f;
  };
  do {
    f(1);
  } while (y[1] > 0.0f);
  f(0);
  if (x[0] > 1.0f) y[0] = 1.0f;
  if (x[0] > 2.0f)
    y[0] = twice(2);
  else if (x[0] > 3.0f) return;
  else elsewhere(y), y[1] = 1.0f;
  for (int i = 0; i < 2; ++i) if (x[i] > 0.0f) { y[i] = 0.0f; } else y[i] = 1.0f;
  while (x[0] > 4.0f) ;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#if defined(A)
    y[i] = 2.0f;
#else
    y[i] = 3.0f;
#endif
}
"#;
        let lines: Vec<&str> = text.lines().collect();
        let all = statements(text).expect("braces go together");
        let found: Vec<&str> = all.iter().filter(|one| one.part == 0).map(|one| lines[one.at.0].trim()).collect();
        let expected = [
            "return at[0];",
            "const float a[2] = {",
            "for (int i = 0; i < 2; ++i) {",
            "y[i] = a[i]",
            "if (y[0] > 0.0f) {",
            "if (x[0] > 0.0f) {",
            "y[1] = 0.0f; /* and",
            "y[3] = \"}\"[0];",
            "auto f = [&](int i) {",
            "y[i] = 0.0f;",
            "do {",
            "f(1);",
            "f(0);",
            "if (x[0] > 1.0f) y[0] = 1.0f;",
            "if (x[0] > 2.0f)",
            "for (int i = 0; i < 2; ++i) if (x[i] > 0.0f) { y[i] = 0.0f; } else y[i] = 1.0f;",
            "for (int i = 0; i < 2; ++i)",
        ];
        assert_eq!(found, expected);
        let of_part = |one: &Statement| {
            let text = &lines[one.at.0][one.at.1..];
            let ends = one.ends.iter().map(|(line, end)| &lines[*line][..*end]);
            (one.part, text, ends.map(|text| text.trim_start()).collect::<Vec<_>>())
        };
        let guarded: Vec<_> = all.iter().filter(|one| one.part > 0).map(of_part).collect();
        let expected = [
            (1, "y[0] = 1.0f;", vec!["if (x[0] > 1.0f) y[0] = 1.0f;"]),
            (1, "y[0] = twice(2);", vec!["y[0] = twice(2);"]),
            (1, "return;", vec!["else if (x[0] > 3.0f) return;"]),
            (1, "elsewhere(y), y[1] = 1.0f;", vec!["else elsewhere(y), y[1] = 1.0f;"]),
            (1, "y[i] = 0.0f; } else y[i] = 1.0f;", vec![]),
            (
                2,
                "y[i] = 1.0f;",
                vec!["for (int i = 0; i < 2; ++i) if (x[i] > 0.0f) { y[i] = 0.0f; } else y[i] = 1.0f;"],
            ),
            (1, "y[i] = 2.0f;", vec!["y[i] = 2.0f;"]),
            (1, "y[i] = 3.0f;", vec!["y[i] = 3.0f;"]),
        ];
        assert_eq!(guarded, expected);
        assert_eq!(statements("void f() {"), None);
    }

    #[test]
    fn what_never_ran_is_told_in_ranges() {
        let lines = |ran: &[(usize, &[bool])]| -> Lines {
            ran.iter().map(|(line, parts)| (*line, parts.iter().copied().enumerate().collect())).collect()
        };
        assert_eq!(told(&lines(&[(1, &[true]), (3, &[true])])), None);
        let some = lines(&[(1, &[false]), (3, &[false]), (4, &[true]), (9, &[false])]);
        assert_eq!(told(&some).as_deref(), Some("3 of 4 lines never ran: 1-3, 9"));
        let some = lines(&[(1, &[false]), (2, &[true, false]), (3, &[false, false]), (5, &[false])]);
        assert_eq!(told(&some).as_deref(), Some("4 of 4 lines never ran: 1, 2 (a branch), 3-5"));
        assert_eq!(idle(&lines(&[(1, &[true]), (2, &[true, false])])), [2]);
    }
}
