//! Removes private data from a report: home folders, and the names of the user and of the machine.

use std::{env, fs};

use regex::Regex;
use serde_json::Value;

/// Names that are no one's own, and words of the report: they stay.
const COMMON: [&str; 16] = [
    "root",
    "user",
    "admin",
    "ubuntu",
    "debian",
    "localhost",
    "host",
    "cpu",
    "gpu",
    "hip",
    "cuda",
    "amd",
    "nvidia",
    "rocm",
    "text",
    "name",
];

/// What is replaced, and by what.
pub(super) struct Private {
    rules: Vec<(Regex, String)>,
}

impl Private {
    /// Of the person and the machine that this process runs for.
    pub(crate) fn of_process() -> Self {
        let home = env::var("HOME").ok();
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| env::var(name).ok());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self::new(home.as_deref(), users, host.trim())
    }

    pub(super) fn new(home: Option<&str>, users: impl Iterator<Item = String>, host: &str) -> Self {
        let home = home.map(|home| home.trim_end_matches('/')).filter(|home| !home.is_empty());
        let of_home = home.and_then(|home| home.rsplit('/').next()).map(str::to_owned);
        let short_host = host.split('.').next().unwrap_or_default();
        let names = users.chain(of_home).map(|name| (name, "USER"));
        let hosts = [host, short_host].map(|name| (name.to_owned(), "HOST"));
        let is_told = |(name, _): &(String, &str)| name.len() > 1 && !COMMON.contains(&name.as_str());
        let words = names.chain(hosts).filter(is_told).map(|(name, instead)| {
            // Whole words alone: a name may be part of others. A line break that is spelled out is no letter before it.
            (format!(r"(^|\W|\\[nrt]){}($|\W)", regex::escape(&name)), format!("${{1}}{instead}${{2}}"))
        });
        let homes = home.map(|home| (format!(r"{}\b", regex::escape(home)), "~".to_owned()));
        let others = (r#"/(home|Users)/[^/\s"'`:,]+"#.to_owned(), "~".to_owned());
        let rules = homes.into_iter().chain([others]).chain(words);
        let rule = |(rule, instead): (String, String)| (Regex::new(&rule).expect("names are escaped"), instead);
        Self { rules: rules.map(rule).collect() }
    }

    /// The text without them.
    pub(crate) fn taken_out_of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (rule, instead) in &self.rules {
            // Twice: two names side by side share the character between them.
            for _ in 0..2 {
                text = rule.replace_all(&text, instead).into_owned();
            }
        }
        text
    }

    /// The value without them, wherever a text is in it. The names of its entries are the program's own, and stay.
    ///
    /// Searches values, never written JSON: there a line break before a name is a letter, and a user whose name is an
    /// entry's would be taken out of its name.
    pub(crate) fn taken_out_of_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.taken_out_of(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.taken_out_of_value(value)).collect(),
            Value::Object(entries) => {
                entries.into_iter().map(|(name, value)| (name, self.taken_out_of_value(value))).collect()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_taken_out_of_texts_and_never_out_of_what_holds_them() {
        let private = Private::new(Some("/home/reason"), ["reason".to_owned()].into_iter(), "state");
        let value = json!({
            "reason": "could not read:\nreason\t/home/reason/x\n\"/home/eve\"",
            "parts": [{"state": "of reason", "n": 3}, ["state", null]],
        });
        let expected = json!({
            "reason": "could not read:\nUSER\t~/x\n\"~\"",
            "parts": [{"state": "of USER", "n": 3}, ["HOST", null]],
        });
        assert_eq!(private.taken_out_of_value(value), expected);
        // An error may quote a text as programs do.
        assert_eq!(private.taken_out_of(r#"found "a\nreason\n""#), r#"found "a\nUSER\n""#);
    }

    #[test]
    fn no_name_and_no_home_is_left() {
        let private = Private::new(Some("/data/people/mary/"), ["mary".to_owned()].into_iter(), "frodo.shire.example");
        let text = "cache: /data/people/mary/.cache, `/home/bob/x`, mary@frodo, mary mary, frodo.shire.example: \
                    /data/mary/model \"/home/eve\"";
        let expected = "cache: ~/.cache, `~/x`, USER@HOST, USER USER, HOST: /data/USER/model \"~\"";
        assert_eq!(private.taken_out_of(text), expected);
        // Parts of words are no names.
        assert_eq!(private.taken_out_of("maryland frodos gfx1100"), "maryland frodos gfx1100");
    }

    #[test]
    fn names_that_say_nothing_of_anyone_stay() {
        let private = Private::new(Some("/root"), ["root".to_owned()].into_iter(), "gpu");
        assert_eq!(private.taken_out_of("/root/.cache root gpu"), "~/.cache root gpu");
        let nobody = Private::new(None, std::iter::empty(), "");
        assert_eq!(nobody.taken_out_of("hip:0 in /opt/rocm"), "hip:0 in /opt/rocm");
    }
}
