//! Numbers with units, for people.

use std::time::Duration;

/// Bytes for people: `1.2 GB`, powers of ten.
pub fn human_bytes(len_bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = len_bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{len_bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `1 request`, `2 requests`.
pub fn counted(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// `90s`, `1.5min`, `10m`, `2h`; a number alone is seconds.
///
/// # Errors
/// A sentence, if it is no such time.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}`: expected a time like 90s, 20min or 2h");
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let seconds = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.trim().parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| expected())
}

/// Thousands set apart by commas.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text: &str| parse_duration(text).map(|time| time.as_secs_f64()).ok();
        let times = ["90", "0.5s", "1.5min", "10m", "2h", "0s"].map(seconds);
        assert_eq!(times, [90.0, 0.5, 90.0, 600.0, 7200.0, 0.0].map(Some));
        for bad in ["", "s", "m", "x", "-1", "-1m", "2d", "1e30h", "NaN", "inf"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "GPU")), ["0 GPUs", "1 GPU", "2 GPUs"]);
    }

    #[test]
    fn bytes_are_told_with_their_unit() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1_234), "1.2 kB");
        assert_eq!(human_bytes(41_829_514_428), "41.8 GB");
    }
}
