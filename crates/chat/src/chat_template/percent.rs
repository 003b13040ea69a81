//! Python's `"%s and %d" % (a, b)`, which this engine has as a filter: `"%s and %d"|format(a, b)`.

/// A template in which texts that are formatted by `%` are formatted by the filter.
pub(super) fn with_format(template: &str) -> String {
    let (mut written, mut rest) = (String::with_capacity(template.len()), template);
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        written += before;
        rest = match tag.get(..2) {
            Some("{#") => {
                let end = tag.find("#}").map_or(tag.len(), |end| end + 2);
                written += &tag[..end];
                &tag[end..]
            }
            Some(open @ ("{{" | "{%")) => {
                written += open;
                inside(&tag[2..], if open == "{{" { "}}" } else { "%}" }, &mut written)
            }
            _ => {
                written.push('{');
                &tag[1..]
            }
        };
    }
    written + rest
}

/// Writes a tag up to its end, and gives what follows it.
fn inside<'a>(mut rest: &'a str, close: &str, written: &mut String) -> &'a str {
    while let Some(c) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix(close) {
            written.push_str(close);
            return behind;
        }
        let n = if matches!(c, '"' | '\'') { literal(rest) } else { c.len_utf8() };
        let (text, behind) = rest.split_at(n);
        written.push_str(text);
        rest = behind;
        let operand = behind.trim_start().strip_prefix('%').filter(|operand| n > 1 && !operand.starts_with('}'));
        if let Some(operand) = operand.map(str::trim_start).filter(|_| matches!(c, '"' | '\''))
            && let Some(len) = operand_len(operand)
        {
            *written += &format!("|format({})", with_format_inside(arguments(&operand[..len])));
            rest = &operand[len..];
        }
    }
    rest
}

/// The same of an expression.
fn with_format_inside(expression: &str) -> String {
    let mut written = String::new();
    inside(expression, "\0", &mut written);
    written
}

/// Bytes of a text with its quotes.
fn literal(text: &str) -> usize {
    let quote = text.chars().next().unwrap_or('"');
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// Length in bytes of a bracketed text, brackets included.
fn bracketed(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(c) = text[at..].chars().next() {
        match c {
            '"' | '\'' => {
                at += literal(&text[at..]);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += c.len_utf8();
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Bytes of an operand: a name, a number, a text or brackets, with what binds closer than `%`.
fn operand_len(text: &str) -> Option<usize> {
    let mut at = match text.chars().next()? {
        '(' | '[' | '{' => bracketed(text)?,
        '"' | '\'' => literal(text),
        _ => word(text),
    };
    if at == 0 {
        return None;
    }
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start();
        let more = match rest.chars().next() {
            Some('.') => 1 + word(&rest[1..]),
            Some('(' | '[') => bracketed(rest)?,
            _ if trimmed.starts_with('|') => {
                let name = trimmed[1..].trim_start();
                rest.len() - name.len() + word(name)
            }
            _ => return Some(at),
        };
        at += more;
    }
}

/// The text inside the brackets of several operands, or the only operand.
fn arguments(operand: &str) -> &str {
    let inner = operand.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let inner = inner.filter(|_| bracketed(operand) == Some(operand.len()));
    match inner {
        Some(inner) => inner.trim_end().strip_suffix(',').unwrap_or(inner),
        None => operand,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_before_a_percent_sign_are_formatted_and_all_else_stays() {
        for (template, want) in [
            ("{{ '%s' % x.y[0] }}", "{{ '%s'|format(x.y[0]) }}"),
            ("{{ 'a' + \"%s %d\" % (x, f(1, 2)) + 'b' }}", "{{ 'a' + \"%s %d\"|format(x, f(1, 2)) + 'b' }}"),
            ("{% set a = '%s' % x|upper %}", "{% set a = '%s'|format(x|upper) %}"),
            ("{% if '%' in x %}50 % {% endif %}", "{% if '%' in x %}50 % {% endif %}"),
            ("{{ 7 % 2 }}{# '%s' % x #}{ '%s' % x", "{{ 7 % 2 }}{# '%s' % x #}{ '%s' % x"),
            ("{% if x == 'a' %}b{% endif %}", "{% if x == 'a' %}b{% endif %}"),
            ("{{ '%s' % ('%s' % x,) }}", "{{ '%s'|format('%s'|format(x)) }}"),
        ] {
            assert_eq!(with_format(template), want);
        }
    }
}
