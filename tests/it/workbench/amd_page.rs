//! `docs/amd.md` has some lines for each card: what fits, the command, the predicted speed. They are written here, from
//! what `inspect` says of the weights and from the tables of that page. Where the page says something else, the test
//! prints what it should say.

use std::fs;

use regex::Regex;
use serde_json::Value;
use system::units::grouped;

use crate::fixtures::program::{repository, run};

const BEGIN: &str = "<!-- tests/it/workbench/amd_page.rs: begin -->\n";
const END: &str = "<!-- tests/it/workbench/amd_page.rs: end -->\n";

/// The bytes that a token of gpt-oss-20b and 120b takes in the layers that see everything: half of 24 and of 36 layers,
/// keys and values of 8 heads of 64 numbers in bf16.
const TOKEN_BYTES: [f64; 2] = [12.0 * 2.0 * 512.0 * 2.0, 18.0 * 2.0 * 512.0 * 2.0];

/// The longest context of both.
const CONTEXT: f64 = 131_072.0;

/// What activations and kernels ask for besides, at most.
const BESIDES_GB: f64 = 0.05;

struct Card {
    name: &'static str,
    arch: &'static str,
    memory_gib: u32,
    /// The first HIP that sees the chip.
    hip: &'static str,
    /// Its bandwidth over that of the card of the same chip of which the speed is predicted.
    bandwidth: f64,
    /// Its row of the table of gpt-oss-120b with experts in main memory.
    row: Option<&'static str>,
    more: &'static str,
}

const CARD: Card = Card { name: "", arch: "", memory_gib: 16, hip: "5.7", bandwidth: 1.0, row: None, more: "" };
const SMALL_16: &str = "A desktop takes 0.5 GB of what is left.";

const CARDS: [Card; 15] = [
    Card { name: "Radeon RX 7900 XTX", arch: "gfx1100", memory_gib: 24, row: Some("RX 7900 XTX"), ..CARD },
    Card {
        name: "Radeon RX 7900 XT",
        arch: "gfx1100",
        memory_gib: 20,
        bandwidth: 800.0 / 960.0,
        row: Some("RX 7900 XT"),
        ..CARD
    },
    Card {
        name: "Radeon Pro W7900",
        arch: "gfx1100",
        memory_gib: 48,
        bandwidth: 864.0 / 960.0,
        row: Some("Radeon Pro W7900"),
        ..CARD
    },
    Card { name: "Radeon RX 7800 XT", arch: "gfx1101", more: SMALL_16, ..CARD },
    Card {
        name: "Radeon RX 7700 XT",
        arch: "gfx1101",
        memory_gib: 12,
        bandwidth: 432.0 / 624.0,
        row: Some("RX 7700 XT"),
        ..CARD
    },
    Card { name: "Radeon RX 7600 XT", arch: "gfx1102", more: SMALL_16, ..CARD },
    Card {
        name: "Radeon RX 9070, 9070 XT",
        arch: "gfx1201",
        hip: "6.2",
        row: Some("RX 9070 XT"),
        more: SMALL_16,
        ..CARD
    },
    Card {
        name: "Radeon AI Pro R9700",
        arch: "gfx1201",
        hip: "6.2",
        memory_gib: 32,
        row: Some("Radeon AI Pro R9700"),
        ..CARD
    },
    Card {
        name: "Radeon RX 9060 XT, 16 GB",
        arch: "gfx1200",
        hip: "6.2",
        row: Some("RX 9060 XT"),
        more: SMALL_16,
        ..CARD
    },
    Card { name: "Radeon RX 6950 XT", arch: "gfx1030", more: "It has no matrix unit: prompts are slow.", ..CARD },
    Card {
        name: "Ryzen AI Max (Strix Halo), 128 GB",
        arch: "gfx1151",
        hip: "6.1",
        memory_gib: 104,
        more: "Assumes that the GPU has 104 GiB of its memory; see below. 20b fits from 16 GB on.",
        ..CARD
    },
    Card { name: "Radeon 780M", arch: "gfx1103", more: "Its memory is main memory, 16 GiB here.", ..CARD },
    Card {
        name: "Instinct MI210; a die of MI250",
        arch: "gfx90a",
        memory_gib: 64,
        more: "A MI250 is two devices: `-g 2` has a copy of 20b on each. `--tp` is refused.",
        ..CARD
    },
    Card { name: "Instinct MI300X", arch: "gfx942", memory_gib: 192, ..CARD },
    Card { name: "Instinct MI350X, MI355X", arch: "gfx950", memory_gib: 288, hip: "7.0", ..CARD },
];

/// What the program says of a shape.
fn inspect(shape: &str) -> Value {
    serde_json::from_str(run(&["inspect", "--shape", shape, "--json"]).ok().text()).expect("JSON")
}

/// Weights in GB, as published and with `--quantize q8_0`.
fn weights(told: &Value) -> [f64; 2] {
    [0, 1].map(|i| told["gain"]["tensor_bytes"][i].as_f64().expect("a number") / 1e9)
}

struct Page {
    text: String,
    /// Of gpt-oss-20b and 120b.
    weights: [[f64; 2]; 2],
    of_120b: Value,
}

impl Page {
    /// The predicted speeds of a chip with a model: `206, 183` of its row is `183 to 206`; in bf16 and in q8_0.
    fn speeds(&self, card: &Card, model: usize) -> Option<[String; 2]> {
        let name = match (model, card.arch) {
            (0, arch) => arch,
            (_, "gfx1151") => "8060S",
            (_, "gfx942") => "MI300X",
            _ => return None,
        };
        let row = format!(r"(?m)^\|[^|\n]*\b{name} \| (\d+), (\d+) \| [\d,]+ \| (\d+), (\d+) \|");
        let rows = Regex::new(&row).expect("a pattern");
        let found = rows.captures(&self.text)?;
        let speed = |i: usize| found[i].parse::<f64>().expect("a number") * card.bandwidth;
        let range = |slow: usize, fast: usize| match [speed(slow), speed(fast)].map(|speed| format!("{speed:.0}")) {
            [slow, fast] if slow == fast => slow,
            [slow, fast] => format!("{slow} to {fast}"),
        };
        Some([range(2, 1), range(4, 3)])
    }

    /// Layers' experts in main memory, GB there, and tok/s at most with two and with four channels.
    fn in_main_memory(&self, row: &str) -> [String; 4] {
        let line = self.text.lines().find(|line| line.starts_with("| ") && line.contains(&format!("({row}) |")));
        let cells: Vec<&str> = line.unwrap_or_else(|| panic!("no row of {row}")).split('|').map(str::trim).collect();
        [2, 3, 6, 7].map(|i| cells[i].to_owned())
    }

    fn lines(&self, card: &Card) -> String {
        let Card { name, arch, memory_gib, hip, more, .. } = card;
        let mut lines = vec![format!("### {name}\n\n{arch}, {memory_gib} GiB, HIP {hip} or newer.\n")];
        lines.extend((0..2).flat_map(|model| self.of_model(card, model)));
        lines.extend((!more.is_empty()).then(|| format!("- {more}")));
        lines.join("\n") + "\n\n"
    }

    fn of_model(&self, card: &Card, model: usize) -> Vec<String> {
        let what = ["gpt-oss-20b", "gpt-oss-120b"][model];
        let left = self.weights[model].map(|weights| f64::from(card.memory_gib) * 1.073_741_824 - weights);
        let begin = |flags: &str| format!("- **{what}**: `gptoss-jit serve openai/{what}{flags}`: ");
        let [bf16, q8_0] = match self.speeds(card, model) {
            Some([bf16, q8_0]) => [Some(bf16), Some(q8_0)],
            None => [None, None],
        };
        if left[0] > 1.0 {
            let mut lines = vec![begin("") + &room(left[0], card.memory_gib, model)];
            lines.extend(bf16.map(|speed| format!("- Predicted: {speed} tok/s.")));
            let quantized = |speed| format!("- With `--quantize q8_0`: {speed} tok/s, and {:.1} GB are left.", left[1]);
            lines.extend(q8_0.map(quantized));
            return lines;
        }
        if left[1] > 0.0 {
            let tight = format!("{:.1} GB are left, one short sequence, and no desktop.", left[1]);
            let speed = q8_0.map(|speed| format!("- Predicted: {speed} tok/s."));
            return std::iter::once(begin(" --quantize q8_0") + &tight).chain(speed).collect();
        }
        // As many layers as of any other card of 16 GiB; how fast is another matter.
        let [layers, gb, two, four] = self.in_main_memory(card.row.unwrap_or("RX 9070 XT"));
        let experts = format!("the experts of {layers} of 36 layers stay in main memory, {gb}.");
        let speed = card.row.map(|_| format!("- At most {two} tok/s with 80 GB/s there, {four} with 160."));
        std::iter::once(begin("") + &experts).chain(speed).collect()
    }
}

/// How much context what is left has room for.
fn room(left: f64, memory_gib: u32, model: usize) -> String {
    let (part, word) = if memory_gib < 64 { (0.5, "half") } else { (0.875, "seven eighths") };
    let tokens = (left - BESIDES_GB) * part * 1e9 / TOKEN_BYTES[model];
    let step = 10f64.powf(tokens.log10().floor() - 1.0);
    let rounded = (tokens / step).floor() * step;
    let longest = if tokens > CONTEXT { ", one sequence up to 131,072" } else { "" };
    format!("{left:.1} GB are left, {word} of it for some {} tokens of context{longest}.", grouped(rounded as u64))
}

#[test]
fn the_page_for_owners_of_amd_cards_says_what_the_program_says() {
    let path = repository().join("docs/amd.md");
    let text = fs::read_to_string(&path).expect("the page");
    let [of_20b, of_120b] = ["gpt-oss-20b", "gpt-oss-120b"].map(inspect);
    let page = Page { text, weights: [weights(&of_20b), weights(&of_120b)], of_120b };
    let wanted: String = CARDS.iter().map(|card| page.lines(card)).collect();
    let (_, rest) = page.text.split_once(BEGIN).expect("where it begins");
    let (written, _) = rest.split_once(END).expect("where it ends");
    assert!(written.trim() == wanted.trim(), "{} should have:\n{wanted}", path.display());

    // The table of experts in main memory: what so many layers' experts take.
    let tensors = page.of_120b["tensors"].as_array().expect("a list");
    let is_experts = |tensor: &&Value| tensor["name"].as_str().is_some_and(|name| name.contains(".mlp.mlp"));
    let all: f64 = tensors.iter().filter(is_experts).map(|tensor| tensor["bytes"].as_f64().expect("a number")).sum();
    let rows = Regex::new(r"(?m)^\| \d+ GiB, .* \| (\d+) \| (\d+) GB \|").expect("a pattern");
    let rows: Vec<[&str; 2]> = rows.captures_iter(&page.text).map(|row| row.extract().1).collect();
    assert_eq!(rows.len(), 8);
    for [layers, gb] in rows {
        let layers: f64 = layers.parse().expect("a number");
        assert_eq!(format!("{:.0}", all * layers / 36.0 / 1e9), gb, "of {layers} layers");
    }
}
