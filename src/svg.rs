//! Common parts of plots.

/// The beginning of a picture of this size, in pixels, on white; `</svg>` ends it.
pub(super) fn begin(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// Words that begin at, end at or lie around x: `start`, `end` or `middle`.
pub(super) fn label(x: f64, y: f64, anchor: &str, size: u32, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>\n")
}

/// The colour of the i-th of many.
pub(super) fn colour(i: usize) -> String {
    format!("hsl({}, 65%, 42%)", (i * 137) % 360)
}
