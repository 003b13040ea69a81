//! `--config`: flags of `serve` in a file, by their names. They precede the command line's flags: the last value of a
//! flag counts, and values of a repeatable flag are combined.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;

use crate::usage::UsageError;
use system::foreign_text::without_mark;

/// The flags before a command that take a value.
const WITH_VALUE: [&str; 2] = ["--color", "--model-def"];

/// The values that a flag has in the words of a command line, which are not understood yet.
pub(crate) fn values_of(flag: &str, words: &[OsString]) -> Vec<OsString> {
    let mut words = words.iter().take_while(|word| *word != "--");
    let mut values = Vec::new();
    while let Some(word) = words.next() {
        let behind = word.to_str().and_then(|word| word.strip_prefix(flag)?.strip_prefix('='));
        values.extend(if word == flag { words.next().cloned() } else { behind.map(OsString::from) });
    }
    values
}

/// Where the command is, after the flags of all commands.
fn command_at(words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while words.get(at)?.as_encoded_bytes().starts_with(b"-") {
        at += if WITH_VALUE.iter().any(|flag| words[at] == *flag) { 2 } else { 1 };
    }
    Some(at)
}

/// Whether a command line names one of the program's commands.
pub(crate) fn names_one_of(program: &clap::Command, words: &[OsString]) -> bool {
    command_at(words).is_some_and(|at| program.get_subcommands().any(|command| words[at] == command.get_name()))
}

/// The words of a command line, with those that its file stands for.
///
/// # Errors
/// The file cannot be read, is no TOML, or has a value that no flag has.
pub(crate) fn expanded(mut words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some(command) = command_at(&words).filter(|at| words[*at] == "serve") else { return Ok(words) };
    if let Some(file) = values_of("--config", &words[command..]).pop() {
        let own = flags(Path::new(&file))?;
        words.splice(command + 1..command + 1, own);
    }
    Ok(words)
}

fn flags(path: &Path) -> anyhow::Result<Vec<OsString>> {
    let what = || format!("could not read flags `{}`", path.display());
    let bytes = std::fs::read(path).with_context(what)?;
    let text = String::from_utf8(without_mark(&bytes).to_vec()).with_context(what)?;
    let table: toml::Table = text.parse().with_context(what)?;
    let mut words = Vec::new();
    for (name, value) in &table {
        let values = match value {
            toml::Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let text = match value {
                toml::Value::Boolean(true) => {
                    words.push(format!("--{name}").into());
                    continue;
                }
                toml::Value::Boolean(false) => continue,
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                other => {
                    let place = path.display();
                    let message = format!(
                        "`{name}` of `{place}` is {other}, expected a text, a number, true or false, or a list of such"
                    );
                    return Err(UsageError(message).into());
                }
            };
            words.push(format!("--{name}={text}").into());
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str], text: &str) -> anyhow::Result<Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, text).expect("written");
        let words = words.iter().map(|word| word.replace("FILE", &path.display().to_string()).into()).collect();
        let words = expanded(words)?;
        Ok(words
            .into_iter()
            .map(|word| word.into_string().expect("text").replace(&path.display().to_string(), "FILE"))
            .collect())
    }

    #[test]
    fn flags_of_a_file_stand_before_those_of_the_command_line() {
        let text =
            "\u{feff}port = 9000\nmodel-name = [\"a\", \"b\"]\nany-model = true\nlog-content = false\ndrain = 2.5\n";
        let found =
            of(&["gptoss-jit", "--quiet", "serve", "m", "--config", "FILE", "--port", "1"], text).expect("right");
        let own = ["--any-model", "--drain=2.5", "--model-name=a", "--model-name=b", "--port=9000"];
        let want = [&["gptoss-jit", "--quiet", "serve"][..], &own, &["m", "--config", "FILE", "--port", "1"]].concat();
        assert_eq!(found, want);
        let other = ["gptoss-jit", "run", "--config", "FILE"];
        assert_eq!(of(&other, text).expect("untouched"), other);
        assert_eq!(of(&["gptoss-jit", "serve", "--config=FILE"], "").expect("right").len(), 3);
    }

    #[test]
    fn flags_of_all_commands_may_stand_before_it() {
        for before in [&["--color", "never"][..], &["--model-def", "serve"], &["--json", "--color=never"]] {
            let words = [&["gptoss-jit"], before, &["serve", "--config", "FILE"]].concat();
            let want = [&["gptoss-jit"], before, &["serve", "--port=9", "--config", "FILE"]].concat();
            assert_eq!(of(&words, "port = 9\n").expect("right"), want);
        }
        for other in [&["gptoss-jit", "--color", "serve", "run"][..], &["gptoss-jit", "--color"], &["gptoss-jit"]] {
            assert_eq!(of(other, "").expect("untouched"), other);
        }
        let command = crate::command();
        let flags = command.get_arguments().filter(|flag| flag.get_action().takes_values());
        let mut flags: Vec<String> = flags.filter_map(|flag| flag.get_long()).map(|name| format!("--{name}")).collect();
        flags.sort();
        assert_eq!(flags, WITH_VALUE);
    }

    #[test]
    fn values_are_found_up_to_the_two_dashes() {
        let words = ["serve", "--model-def", "a", "--model-def=b", "--model-defs=c", "--", "--model-def=d"];
        assert_eq!(values_of("--model-def", &words.map(OsString::from)), ["a", "b"]);
        assert!(values_of("--model-def", &["--model-def".into()]).is_empty());
    }

    #[test]
    fn what_no_flag_has_is_an_error() {
        let error =
            |text: &str| format!("{:#}", of(&["gptoss-jit", "serve", "--config", "FILE"], text).expect_err("is wrong"));
        assert!(error("[port]\na = 1\n").contains("`port` of"));
        assert!(error("port = \n").contains("could not read flags"));
    }
}
