//! Maps lines of a rendered kernel to their template, or to a file that it includes.
//!
//! The kernel is rendered a second time, from templates whose lines begin with a marker of their file and number. If
//! that text without markers equals the rendered text, the markers give the origins. The compiled, keyed text never
//! has markers.

use super::Template;
use super::bounded::{self, compiled_text};
use super::environment::environment;
use super::library::Library;
use super::render::{Rendered, is_spare, words};
use super::{Params, Problem};
use crate::target::Target;
use data::Place;

/// A marker is the file's number, a colon and the line's between these, which no template holds: both are of no script.
const OPEN: char = '\u{e000}';
const CLOSE: char = '\u{e001}';

/// The text before a kernel's text in a source for the simulator.
pub const BEHIND_SIMULATOR: &str = "\n#line 2 \"kernel.hip\"\n";

/// Most lines of one log that are reported.
const MAX_TOLD: usize = 4;

/// What a compiler says of a line that is wrong, and of one that asks for a text of C++ or of a macro where that is
/// wrong: GCC's words, then clang's.
const BLAMES: [&str; 6] =
    ["error", "Error: ", "required from", "in expansion of macro", "requested here", "expanded from macro"];

/// What compilers call the text of a kernel in their messages, up to the line's number.
const NAMES: [&str; 4] = ["kernel.hip:", "kernel.hip(", "kernel.c:", "kernel.c("];

/// The origin of each line that the templates gave.
pub struct Origins(Vec<Place>);

impl Origins {
    /// The origins of a kernel that was rendered from these; none if they are not certain.
    pub fn trace(
        library: &Library,
        template: &Template,
        problem: &Problem,
        params: &Params,
        target: &Target,
        rendered: &Rendered,
    ) -> Option<Self> {
        // It was rendered within bounds before, and takes a little more now.
        bounded::with_large_stack(|| {
            let files: Vec<_> =
                library.texts().filter(|file| file.name == template.file.name || is_lib(&file.name)).collect();
            let mut environment = environment();
            for (i, file) in files.iter().enumerate() {
                let text = marked(&file.text, i);
                let text = compiled_text(&file.name, &text);
                environment.add_template_owned(file.name.clone(), text).ok()?;
            }
            let words = words(template, problem, params, target).ok()?;
            let text = environment.get_template(&template.file.name).ok()?.render(words).ok()?;
            let (text, origins) = unmarked(&text);
            // One empty line where several follow each other, as in what was rendered.
            let mut kept = (String::new(), Vec::new());
            for (line, origin) in text.split_inclusive('\n').zip(origins) {
                if !is_spare(&kept.0, line) {
                    kept.0 += line;
                    kept.1.push(origin);
                }
            }
            let (text, origins) = kept;
            // What the renderer writes before it is nobody's, and told as the first line that is somebody's.
            // Behind the simulator's own text lines are counted from 2, as where there is none.
            let own = rendered.source.rfind(BEHIND_SIMULATOR).map_or(0, |at| at + BEHIND_SIMULATOR.len());
            let at = own + rendered.source[own..].find(text.trim())?;
            let before = rendered.source[own..at].matches('\n').count() + usize::from(own > 0);
            let first = std::iter::repeat_n(*origins.first()?, before);
            let place = |(file, line): (usize, usize)| files.get(file).map(|file| file.place(line));
            first.chain(origins).map(place).collect::<Option<_>>().map(Self)
        })
        .ok()
        .flatten()
    }

    /// Where a line of the kernel comes from, by the number that compilers and the simulator give it.
    pub fn of_line(&self, line: usize) -> Option<&Place> {
        line.checked_sub(1).and_then(|i| self.0.get(i))
    }

    /// The lines that a compiler's log calls wrong, or that it was compiling at an error, each once, with their
    /// origins.
    pub fn of_errors(&self, log: &str) -> Vec<(usize, Place)> {
        let mut told: Vec<(usize, Place)> = Vec::new();
        for line in log.lines().filter(|line| BLAMES.iter().any(|word| line.contains(word))).filter_map(line_in) {
            let Some(place) = self.of_line(line) else { continue };
            if told.len() < MAX_TOLD && told.iter().all(|(other, _)| *other != line) {
                told.push((line, place.clone()));
            }
        }
        told
    }
}

fn is_lib(name: &str) -> bool {
    name.starts_with("lib/")
}

/// The number of the line that a message is about.
fn line_in(message: &str) -> Option<usize> {
    NAMES.iter().find_map(|name| {
        let rest = &message[message.find(name)? + name.len()..];
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    })
}

/// A template whose lines begin with markers, but for those that begin inside of a tag, or with one that prints
/// nothing.
fn marked(text: &str, file: usize) -> String {
    let mut marked = String::new();
    let mut within: Option<&str> = None; // the end of the tag that the line begins in
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let start = line.trim_start();
        if within.is_none() && !start.starts_with("{%") && !start.starts_with("{#") {
            marked += &format!("{OPEN}{file}:{}{CLOSE}", i + 1);
        }
        marked += line;
        let mut rest = line;
        loop {
            let tag = |(begin, end)| Some((rest.find(begin)?, end));
            match within {
                Some(end) => {
                    let Some(at) = rest.find(end) else { break };
                    (rest, within) = (&rest[at + end.len()..], None);
                }
                None => {
                    let tags = [("{{", "}}"), ("{%", "%}"), ("{#", "#}")];
                    let Some((at, end)) = tags.into_iter().filter_map(tag).min() else { break };
                    (rest, within) = (&rest[at + 2..], Some(end));
                }
            }
        }
    }
    marked
}

/// The text without markers, and the file and line of each of its lines: that of the marker before its first letter, or
/// of the last one before.
fn unmarked(text: &str) -> (String, Vec<(usize, usize)>) {
    let (mut plain, mut origins) = (String::new(), Vec::new());
    let (mut last, mut of_line) = ((0, 1), None);
    let mut is_blank = true;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, rest.split_once(CLOSE)) {
            (OPEN, Some((marker, after))) => {
                if let Some((file, line)) = marker.split_once(':')
                    && let (Ok(file), Ok(line)) = (file.parse(), line.parse())
                {
                    last = (file, line);
                    if is_blank {
                        of_line = Some(last);
                    }
                }
                rest = after;
            }
            _ => {
                let origin = *of_line.get_or_insert(last);
                plain.push(c);
                is_blank &= c.is_whitespace();
                if c == '\n' {
                    origins.push(origin);
                    (of_line, is_blank) = (None, true);
                }
            }
        }
    }
    origins.push(of_line.unwrap_or(last));
    (plain, origins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Language;
    use crate::template::Precision;
    use crate::template::library::Layer;
    use crate::template::render::render;
    use format::Dtype;

    #[test]
    fn markers_survive_tags_and_tell_lines() {
        let outer = "{#\nfront\n#}\n// head\n{% set n = 2 %}\n{% include \"lib/inner\" %}\n\nint a = {{ n }};\n  {% if n > 1 %}\nint b;\n  {% endif %}\nint c[{{ n\n   + 1 }}];\n";
        let inner = "{% for i in range(n) %}\nint x{{ i }};\n{% endfor %}\n";
        let render = |outer: &str, inner: &str| {
            let mut environment = environment();
            environment.add_template_owned("outer".to_owned(), outer.to_owned()).unwrap();
            environment.add_template_owned("lib/inner".to_owned(), inner.to_owned()).unwrap();
            environment.get_template("outer").unwrap().render(()).unwrap()
        };
        let plain = render(outer, inner);
        let (text, origins) = unmarked(&render(&marked(outer, 0), &marked(inner, 1)));
        assert_eq!(text, plain);
        let lines: Vec<&str> = plain.split('\n').collect();
        assert_eq!(lines.len(), origins.len());
        let of = |line: &str| origins[lines.iter().position(|other| *other == line).expect(line)];
        assert_eq!(of("// head"), (0, 4));
        assert_eq!(of("int x0;"), (1, 2));
        assert_eq!(of("int x1;"), (1, 2));
        assert_eq!(of("int a = 2;"), (0, 8));
        assert_eq!(of("int b;"), (0, 10));
        assert_eq!(of("int c[3];"), (0, 12));
    }

    #[test]
    fn a_line_behind_files_that_are_included_twice_is_told() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let template = library.template("rmsnorm/row", Language::Hip).unwrap();
        let problem = Problem {
            dims: [("hidden_size".to_owned(), 64)].into(),
            constants: [("eps".to_owned(), 1e-5)].into(),
            dtypes: [("scale".to_owned(), Dtype::Bf16)].into(),
            ..Problem::plain("rmsnorm", Precision::Bf16)
        };
        let target = Target::named("gfx1100").unwrap();
        let rendered = render(&library, template, &problem, &Params::new(), &target).unwrap();
        let origins = Origins::trace(&library, template, &problem, &rendered.params, &target, &rendered).unwrap();
        let number = |text: &str, words: &str| 1 + text.lines().position(|line| line.contains(words)).unwrap();
        let line = number(&rendered.source, "accum squares = 0");
        let told = origins.of_errors(&format!("kernel.hip:{line}:3: error: no"));
        let place = template.file.place(number(&template.file.text, "accum squares = 0"));
        assert_eq!(told.iter().map(|(_, place)| place.to_string()).collect::<Vec<_>>(), [place.to_string()]);
    }

    #[test]
    fn compilers_name_lines_in_their_ways() {
        assert_eq!(line_in("kernel.hip:366:3: error: x"), Some(366));
        assert_eq!(line_in("kernel.hip(12): error: x"), Some(12));
        assert_eq!(line_in("kernel.c:7:1: error: x"), Some(7));
        assert_eq!(line_in("error: x"), None);
    }

    #[test]
    fn a_line_that_asks_for_what_is_wrong_is_told_where_the_error_is_in_the_text_of_others() {
        let place = |line| Place { file: "op/mine.hip.j2".into(), line };
        let origins = Origins((1..=20).map(place).collect());
        let of_errors =
            |log: &str| -> Vec<usize> { origins.of_errors(log).into_iter().map(|(line, _)| line).collect() };
        let log = "words.h: In instantiation of 'T dpp(T)':\nkernel.hip:9:21:   required from 'f32 plus(f32)'\n\
            kernel.hip:12:22:   required from here\nwords.h:49:24: error: static assertion failed\n\
            kernel.hip:9:21: note: in expansion of macro 'update'\nkernel.hip:15:1: note: declared here";
        assert_eq!(of_errors(log), [9, 12]);
    }
}
