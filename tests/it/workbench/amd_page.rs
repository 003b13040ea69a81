//! `docs/amd.md` has a line for each card: what fits, and the predicted speed. The lines are made here, from what
//! `inspect` says of the weights and from the tables of that page. Where the page differs, the test prints what it
//! should have.

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
    more: &'static str,
}

const CARD: Card = Card { name: "", arch: "", memory_gib: 16, hip: "5.7", bandwidth: 1.0, more: "" };

/// The heads of the tables of gpt-oss-20b and 120b.
const HEADS: [&str; 2] = [
    "| gpt-oss-20b on | chip | memory | HIP from | left, for tokens | tok/s | with `q8_0`: left | tok/s | |\n\
     |---|---|---:|---:|---:|---:|---:|---:|---|\n",
    "| gpt-oss-120b on | left, for tokens | tok/s | with `q8_0`: left | tok/s |\n|---|---:|---:|---:|---:|\n",
];

const CARDS: [Card; 15] = [
    Card { name: "Radeon RX 7900 XTX", arch: "gfx1100", memory_gib: 24, ..CARD },
    Card { name: "Radeon RX 7900 XT", arch: "gfx1100", memory_gib: 20, bandwidth: 800.0 / 960.0, ..CARD },
    Card { name: "Radeon Pro W7900", arch: "gfx1100", memory_gib: 48, bandwidth: 864.0 / 960.0, ..CARD },
    Card { name: "Radeon RX 7800 XT", arch: "gfx1101", ..CARD },
    Card {
        name: "Radeon RX 7700 XT",
        arch: "gfx1101",
        memory_gib: 12,
        bandwidth: 432.0 / 624.0,
        more: "one short sequence, no desktop",
        ..CARD
    },
    Card { name: "Radeon RX 7600 XT", arch: "gfx1102", ..CARD },
    Card { name: "Radeon RX 9070, 9070 XT", arch: "gfx1201", hip: "6.2", ..CARD },
    Card { name: "Radeon AI Pro R9700", arch: "gfx1201", hip: "6.2", memory_gib: 32, ..CARD },
    Card { name: "Radeon RX 9060 XT, 16 GB", arch: "gfx1200", hip: "6.2", ..CARD },
    Card { name: "Radeon RX 6950 XT", arch: "gfx1030", more: "no matrix unit: prompts are slow", ..CARD },
    Card {
        name: "Ryzen AI Max (Strix Halo), 128 GB",
        arch: "gfx1151",
        hip: "6.1",
        memory_gib: 104,
        more: "the GPU's part of main memory: see below",
        ..CARD
    },
    Card { name: "Radeon 780M", arch: "gfx1103", more: "16 GiB of main memory", ..CARD },
    Card {
        name: "Instinct MI210; a die of MI250",
        arch: "gfx90a",
        memory_gib: 64,
        more: "a MI250 is two devices: `-g 2`; no `--tp`",
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

    /// A line of a model's table; none where the weights do not fit, quantized or not.
    fn line(&self, card: &Card, model: usize) -> Option<String> {
        let left = self.weights[model].map(|weights| f64::from(card.memory_gib) * 1.073_741_824 - weights);
        if left[1] <= 0.0 {
            return None;
        }
        let [bf16, q8_0] = self.speeds(card, model).unwrap_or_default();
        let published = if left[0] > 1.0 {
            format!("{:.1} GB, {} | {bf16}", left[0], room(left[0], card.memory_gib, model))
        } else {
            "does not fit |".to_owned()
        };
        let Card { name, arch, memory_gib, hip, more, .. } = card;
        let cells = format!("{published} | {:.1} GB | {q8_0} |", left[1]);
        Some(match model {
            0 => format!("| {name} | {arch} | {memory_gib} GiB | {hip} | {cells} {more} |\n"),
            _ => format!("| {name} | {cells}\n"),
        })
    }

    fn table(&self, model: usize) -> String {
        HEADS[model].to_owned() + &CARDS.iter().filter_map(|card| self.line(card, model)).collect::<String>()
    }
}

/// How many tokens of context what is left has room for.
fn room(left: f64, memory_gib: u32, model: usize) -> String {
    let part = if memory_gib < 64 { 0.5 } else { 0.875 };
    let tokens = (left - BESIDES_GB) * part * 1e9 / TOKEN_BYTES[model];
    let step = 10f64.powf(tokens.log10().floor() - 1.0);
    grouped(((tokens / step).floor() * step) as u64)
}

#[test]
fn the_page_for_owners_of_amd_cards_says_what_the_program_says() {
    let path = repository().join("docs/amd.md");
    let text = fs::read_to_string(&path).expect("the page");
    let [of_20b, of_120b] = ["gpt-oss-20b", "gpt-oss-120b"].map(inspect);
    let page = Page { text, weights: [weights(&of_20b), weights(&of_120b)], of_120b };
    let wanted = [0, 1].map(|model| page.table(model)).join("\n");
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
