//! A moment in UTC, as Python's `strftime` formats it without a locale.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::date;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// From the day on which 1970 began.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

const SECONDS_A_DAY: u64 = 86_400;

/// Seconds since 1970.
pub(super) struct Moment(u64);

impl Moment {
    /// The supported formats.
    pub(crate) const KNOWN: &str = "some of %Y %y %m %B %b %d %e %j %A %a %w %u %H %I %M %S %p %F %T %D %Z %z %%";

    pub(crate) fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// The format, filled in; `%-d` is `%d` without a zero in front.
    ///
    /// # Errors
    /// What in it is not known.
    pub(crate) fn spelled(&self, format: &str) -> Result<String, String> {
        let mut written = String::new();
        let mut parts = format.split('%');
        written += parts.next().unwrap_or_default();
        while let Some(part) = parts.next() {
            let is_bare = part.starts_with('-');
            let directive = part.trim_start_matches('-');
            let Some(letter) = directive.chars().next() else {
                // `%%` is cut in two.
                let rest = parts.next().filter(|_| !is_bare).ok_or_else(|| format!("%{part}"))?;
                written = written + "%" + rest;
                continue;
            };
            let field = self.field(letter).ok_or_else(|| format!("%{}{letter}", if is_bare { "-" } else { "" }))?;
            let bare = field.trim_start_matches(['0', ' ']);
            written += match (is_bare, bare.is_empty()) {
                (true, true) => "0",
                (true, false) => bare,
                (false, _) => &field,
            };
            written += &directive[letter.len_utf8()..];
        }
        Ok(written)
    }

    fn field(&self, letter: char) -> Option<String> {
        let (days, second) = (self.0 / SECONDS_A_DAY, self.0 % SECONDS_A_DAY);
        let today = date(days);
        let (year, month, day) = (&today[..4], &today[5..7], &today[8..]);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let month_name = MONTHS[month.parse::<usize>().map_or(0, |month| month - 1)];
        let weekday = (days % 7) as usize;
        Some(match letter {
            'Y' => year.to_owned(),
            'y' => year[2..].to_owned(),
            'm' => month.to_owned(),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'd' => day.to_owned(),
            'e' => format!("{:>2}", day.trim_start_matches('0')),
            'j' => format!("{:03}", (0..=days).rev().take_while(|&earlier| date(earlier)[..4] == *year).count()),
            'A' => WEEKDAYS[weekday].to_owned(),
            'a' => WEEKDAYS[weekday][..3].to_owned(),
            'w' => ((weekday + 4) % 7).to_string(),
            'u' => ((weekday + 3) % 7 + 1).to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => today,
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'D' => format!("{month}/{day}/{}", &year[2..]),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `datetime.fromtimestamp(n, timezone.utc).strftime(format)` of Python 3 writes it.
    #[test]
    fn moments_are_spelled_as_python_does() {
        let moment = Moment(1_709_251_384); // 2024-03-01 00:03:04, a Friday
        for (format, want) in [
            ("%d %b %Y", "01 Mar 2024"),
            ("%Y-%m-%d", "2024-03-01"),
            ("%A, %-d %B %y", "Friday, 1 March 24"),
            ("%H:%M:%S %I %p", "00:03:04 12 AM"),
            ("%j %w %u %e.", "061 5 5  1."),
            ("100%% of %a", "100% of Fri"),
            ("%F %T %D", "2024-03-01 00:03:04 03/01/24"),
            ("%-M%-H", "30"),
            ("é", "é"),
        ] {
            assert_eq!(moment.spelled(format).as_deref(), Ok(want), "{format}");
        }
        assert_eq!(Moment(1_735_689_599).spelled("%j %p").as_deref(), Ok("366 PM"));
        for (format, unknown) in [("%Q", "%Q"), ("a%", "%"), ("%-", "%-"), ("%Y%é", "%é")] {
            assert_eq!(moment.spelled(format), Err(unknown.to_owned()), "{format}");
        }
    }
}
