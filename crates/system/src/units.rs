//! Numbers with units, for people.

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
