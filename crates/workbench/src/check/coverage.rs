//! Which lines of a template's kernels ran in the simulator: its text gets a mark before each statement that begins a
//! line, behind which the line is known to run. Code that nothing ran is not known to be right, whatever came out.

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

/// Of a template's own lines with statements, whether each ran.
pub(super) type Lines = BTreeMap<usize, bool>;

/// A kernel whose text is marked.
pub(super) struct Marked {
    pub(crate) kernel: Rendered,
    /// Of each mark, in their order, the line of the template; none where it is a library's.
    lines: Vec<usize>,
}

impl Marked {
    /// None where the text cannot be told for sure.
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
        let marked: Vec<(usize, usize)> =
            statements.iter().filter_map(|line| Some((*line, of_template(line)?))).collect();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (i, (line, _)) in marked.iter().enumerate() {
            lines[*line].insert_str(0, &format!("SIM_RAN({i}) "));
        }
        let (entry, n) = (&kernel.entry, marked.len().max(1));
        let before = before.replacen(BEHIND_SIMULATOR, &format!("\n{}{BEHIND_SIMULATOR}", declared(entry, n)), 1);
        let mut kernel = kernel.clone();
        kernel.source = format!("{before}{}\n", lines.join("\n"));
        Some(Self { kernel, lines: marked.into_iter().map(|(_, line)| line).collect() })
    }

    /// Adds which lines ran.
    pub(super) fn add(&self, ran: &[bool], to: &mut Lines) {
        for (line, ran) in self.lines.iter().zip(ran) {
            *to.entry(*line).or_default() |= ran;
        }
    }
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

#[derive(Clone, Debug)]
struct Open {
    braces: Braces,
    /// Brackets and parentheses that are open within.
    depth: usize,
    /// What stands since the last statement.
    head: String,
    /// Whether a statement goes on behind the closing brace.
    is_expression: bool,
}

/// The lines, from 0, whose first word begins a statement in the body of a function; none if braces do not go together.
fn statements(text: &str) -> Option<Vec<usize>> {
    let top = Open { braces: Braces::Outer, depth: 0, head: String::new(), is_expression: false };
    let mut stack = vec![top];
    let mut saved: Vec<Vec<Open>> = Vec::new();
    let mut found = Vec::new();
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
            if is_first && open.braces == Braces::Body && open.depth == 0 && open.head.trim().is_empty() {
                let rest = &line[at..];
                let word = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
                if !NO_STATEMENTS.contains(&word) && c != '}' && c != '{' && c != ';' {
                    found.push(number);
                }
            }
            is_first = false;
            match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' => open.depth += 1,
                ')' | ']' => open.depth = open.depth.checked_sub(1)?,
                ';' if open.depth == 0 => {
                    open.head.clear();
                    continue;
                }
                '{' => {
                    let (braces, is_expression) = braces_of(open);
                    stack.push(Open { braces, depth: 0, head: String::new(), is_expression });
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

/// What braces hold that open behind this, and whether the statement goes on behind them.
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

/// `3 of 40 lines never ran: 12-14`; none if all did.
pub fn told(lines: &Lines) -> Option<String> {
    let idle: Vec<usize> = lines.iter().filter(|(_, ran)| !**ran).map(|(line, _)| *line).collect();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &line in &idle {
        // Lines between that have no statement belong to either.
        let before = lines.range(..line).next_back().map(|(line, _)| *line);
        match ranges.last_mut() {
            Some((_, last)) if before == Some(*last) => *last = line,
            _ => ranges.push((line, line)),
        }
    }
    let range = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let ranges: Vec<String> = ranges.iter().map(range).collect();
    (!idle.is_empty()).then(|| format!("{} of {} lines never ran: {}", idle.len(), lines.len(), ranges.join(", ")))
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
}
"#;
        let lines: Vec<&str> = text.lines().collect();
        let found: Vec<&str> = statements(text).expect("braces go together").iter().map(|&i| lines[i].trim()).collect();
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
        ];
        assert_eq!(found, expected);
        assert_eq!(statements("void f() {"), None);
    }

    #[test]
    fn what_never_ran_is_told_in_ranges() {
        let lines = |ran: &[(usize, bool)]| ran.iter().copied().collect::<Lines>();
        assert_eq!(told(&lines(&[(1, true), (3, true)])), None);
        let some = lines(&[(1, false), (3, false), (4, true), (9, false)]);
        assert_eq!(told(&some).as_deref(), Some("3 of 4 lines never ran: 1-3, 9"));
    }
}
