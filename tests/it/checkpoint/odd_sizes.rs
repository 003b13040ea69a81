//! MXFP4 models whose sizes no tile divides (`tests/fixtures/odd_sizes`), on the processor, in the simulator of GPUs,
//! and on any device that `GPTOSS_JIT_TEST_DEVICE` names.
//!
//! In f32 a logit is within 2e-4 of transformers'. In bf16 it is as near as roundings leave it: how far they move a
//! logit of each position comes with the fixture (`rounding.npy`, a root mean square; `make_odd_sizes_fixtures.py`
//! states the model), and neither is one further off than [`MARGIN`] of these, nor are all together further off than
//! [`TOGETHER`].

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

use crate::fixtures::models::{letters, letters_tokenizer, prompt_file};
use crate::fixtures::program::{Ran, argument, command, file, parse_ids, repository, shared_cache};
use crate::fixtures::{say, skipped};

const MODELS: [&str; 2] = ["hidden128", "hidden96"];

/// The largest difference of a logit in f32.
const F32_ATOL: f64 = 2e-4;

/// The largest difference of a logit in bf16, in root mean squares of what roundings do to its position.
const MARGIN: f64 = 8.0;

/// The root mean square of all differences in bf16, each in root mean squares of what roundings do to its position.
/// Where every rounding that the model of errors has is made, it is about 1; with numbers cut off instead of rounded,
/// above 2.
const TOGETHER: f64 = 1.5;

/// A folder of `tests/fixtures/odd_sizes`.
struct OddSizes {
    name: &'static str,
    folder: PathBuf,
    vocab_size: usize,
    prompts: Vec<Vec<u32>>,
    /// What argmax appends to each prompt, as far as roundings cannot change it.
    greedy: Vec<Vec<u32>>,
    /// (tokens of all prompts, vocab_size)
    logits: Vec<f32>,
    /// (tokens of all prompts)
    rounding: Vec<f32>,
}

/// How far logits are from those of transformers.
#[derive(Debug)]
struct Distance {
    /// As a number, of any logit.
    largest: f64,
    /// In what roundings do to a logit of its position, of any logit.
    largest_in_roundings: f64,
    /// The position of that one: the number of a token, from 0.
    at: usize,
    /// Root mean square of all, in what roundings do to a logit of its position.
    together: f64,
}

impl OddSizes {
    fn open(name: &'static str) -> Self {
        let folder = repository().join("tests/fixtures/odd_sizes").join(name);
        let text = |file: &str| fs::read_to_string(folder.join(file)).expect("a fixture");
        let json: Value = serde_json::from_str(&text("fixture.json")).expect("JSON");
        let vocab_size = json["header"]["vocab_size"].as_u64().expect("a number") as usize;
        let (prompts, greedy) = (parse_ids(&text("ids.txt")), parse_ids(&text("greedy.txt")));
        let [logits, rounding] = ["logits.npy", "rounding.npy"].map(|file| read_npy(&folder.join(file)));
        let n_tokens = prompts.iter().map(Vec::len).sum::<usize>();
        assert_eq!((logits.len(), rounding.len()), (n_tokens * vocab_size, n_tokens));
        Self { name, folder, vocab_size, prompts, greedy, logits, rounding }
    }

    fn all() -> [Self; 2] {
        MODELS.map(Self::open)
    }

    fn path(&self, file: &str) -> String {
        argument(&self.folder.join(file))
    }

    /// The logits of all prompts that the model in `folder` has on a device.
    fn logits_of(&self, folder: &Path, device: &str, precision: &str) -> Vec<f32> {
        let out = tempfile::tempdir().expect("a temporary folder");
        let npy = out.path().join("logits.npy");
        let args = ["logits", &argument(folder), "--ids", &self.path("ids.txt"), "-o", &argument(&npy)];
        run_on(device, &[&args[..], &["--precision", precision]].concat());
        read_npy(&npy)
    }

    /// Of logits of all prompts. A NaN is further off than anything.
    fn distance(&self, got: &[f32]) -> Distance {
        assert_eq!(got.len(), self.logits.len(), "{}", self.name);
        let mut distance = Distance { largest: 0.0, largest_in_roundings: 0.0, at: 0, together: 0.0 };
        for (i, (got, want)) in got.iter().zip(&self.logits).enumerate() {
            let at = i / self.vocab_size;
            let difference = (f64::from(*got) - f64::from(*want)).abs();
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            let in_roundings = difference / f64::from(self.rounding[at]);
            distance.largest = distance.largest.max(difference);
            distance.together += in_roundings * in_roundings;
            if in_roundings > distance.largest_in_roundings {
                (distance.largest_in_roundings, distance.at) = (in_roundings, at);
            }
        }
        distance.together = (distance.together / got.len() as f64).sqrt();
        distance
    }

    /// The logits of a device are those of transformers, as near as its precision leaves them.
    fn check_logits(&self, device: &str, precision: &str) {
        let distance = self.distance(&self.logits_of(&self.folder, device, precision));
        let told = format!("{} on {device} in {precision}: {}", self.name, distance.told());
        say(&told);
        assert!(distance.is_right(precision), "{told}");
    }

    /// Prompts of all lengths beside each other, in pieces, are continued as transformers does.
    fn check_greedy(&self, device: &str, precision: &str, how: &[&str]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let texts: Vec<String> = self.prompts.iter().map(|prompt| letters(prompt)).collect();
        let input = file(folder.path(), "input.txt", &prompt_file(&texts));
        let tokenizer = file(folder.path(), "tokenizer.bin", &letters_tokenizer(self.vocab_size));
        let args = ["run", &argument(&self.folder), "-z", &tokenizer, "-m", "getp", "-i", &input];
        let length = ["--max-new-tokens", "16", "--precision", precision];
        let answers = run_on(device, &[&args[..], &length, how].concat()).ids();
        assert_eq!(answers.len(), self.greedy.len());
        for ((prompt, answer), expected) in self.prompts.iter().zip(&answers).zip(&self.greedy) {
            let what = format!("{} on {device} in {precision} {how:?}, {} tokens", self.name, prompt.len());
            assert!(!expected.is_empty() && answer.starts_with(expected), "{what}: {answer:?}, expected {expected:?}");
        }
    }
}

impl Distance {
    fn is_right(&self, precision: &str) -> bool {
        match precision {
            "f32" => self.largest <= F32_ATOL,
            _ => self.largest_in_roundings <= MARGIN && self.together <= TOGETHER,
        }
    }

    fn told(&self) -> String {
        format!(
            "largest difference {:.3e}; in root mean squares of roundings {:.2} at token {}, all together {:.3}",
            self.largest, self.largest_in_roundings, self.at, self.together
        )
    }
}

pub fn read_npy(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).expect("an array");
    npyz::NpyFile::new(&bytes[..]).expect("an array").into_vec().expect("f32")
}

/// The device that is named by hand.
const DEVICE_VARIABLE: &str = "GPTOSS_JIT_TEST_DEVICE";

/// The program on a device; on one that is named by hand with what the user has set, for that says where the device's
/// libraries are.
fn run_on(device: &str, args: &[&str]) -> Ran {
    let args = [args, &["--device", device]].concat();
    let mut command = command(shared_cache(), &args);
    if env::var(DEVICE_VARIABLE).is_ok_and(|named| named == device) {
        let is_set = |name: &str| name.starts_with("GPTOSS_JIT_") && name != "GPTOSS_JIT_CACHE";
        command.envs(env::vars().filter(|(name, _)| is_set(name)));
    }
    Ran::new(&args, command.output().expect("started")).ok()
}

#[test]
fn logits_of_odd_sizes_are_those_of_transformers_on_the_processor() {
    for fixture in OddSizes::all() {
        for precision in ["f32", "bf16"] {
            fixture.check_logits("cpu", precision);
        }
    }
}

/// The tuned rows of Hopper have kernels for few rows, some and many, and none is made for these sizes.
#[test]
fn logits_of_odd_sizes_are_those_of_transformers_on_a_simulated_hopper() {
    for fixture in OddSizes::all() {
        fixture.check_logits("sim:sm_90", "bf16");
    }
}

/// In waves of 32 and of 64; every device compiles its own kernels for every model, so not all with all.
#[test]
fn logits_of_odd_sizes_are_those_of_transformers_on_simulated_amd_gpus() {
    let [hidden128, hidden96] = OddSizes::all();
    hidden128.check_logits("sim:gfx1100", "bf16");
    hidden96.check_logits("sim:gfx942", "f32");
}

/// Prompts whole and continued ones beside each other, in pieces of few and of some rows.
const MIXED: [&[&str]; 3] = [&["-b", "7"], &["-b", "3", "--chunk", "9"], &["-b", "2", "--chunk", "4"]];

#[test]
fn prompts_of_all_lengths_beside_each_other_are_continued_as_transformers_does() {
    // Of models, mixtures and precisions any two meet, not all three.
    let fixtures = OddSizes::all();
    for (i, how) in MIXED.into_iter().enumerate() {
        for (k, precision) in ["f32", "bf16"].into_iter().enumerate() {
            fixtures[(i + k) % 2].check_greedy("cpu", precision, how);
        }
    }
    fixtures[0].check_greedy("sim:sm_90", "bf16", MIXED[1]);
}

/// So there is no position whose experts may be others in bf16, and none has to be left out.
#[test]
fn no_choice_of_experts_is_so_near_that_roundings_could_change_it() {
    for fixture in OddSizes::all() {
        // (tokens of all prompts, layers, 2): by how much the last one chosen wins, and what roundings do to that.
        let router = read_npy(&fixture.folder.join("router.npy"));
        assert_eq!(router.len(), 2 * 2 * fixture.rounding.len());
        let margins = router.chunks(2).map(|gap| gap[0] / gap[1]).collect::<Vec<_>>();
        let n_near = margins.iter().filter(|margin| f64::from(**margin) < MARGIN).count();
        let nearest = margins.iter().copied().fold(f32::INFINITY, f32::min);
        say(&format!("{}: {n_near} of {} choices are near, the nearest by {nearest:.1}", fixture.name, margins.len()));
        assert_eq!(n_near, 0);
    }
}

/// A copy of the model in which something is changed in the tensor of a layer's file.
fn changed(fixture: &OddSizes, tensor: &str, change: impl Fn(&mut [u8])) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(&fixture.folder).expect("listed").flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    let path = folder.path().join("model-00002-of-00002.safetensors");
    let mut bytes = fs::read(&path).expect("a file");
    let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..header_end]).expect("JSON");
    let [begin, end] = [0, 1].map(|i| header[tensor]["data_offsets"][i].as_u64().expect("a number") as usize);
    change(&mut bytes[header_end + begin..header_end + end]);
    fs::write(&path, bytes).expect("written");
    folder
}

#[test]
fn exchanged_experts_a_lost_tile_and_a_nan_are_seen_in_bf16() {
    let fixture = OddSizes::open("hidden128");
    let down = "model.layers.1.mlp.experts.down_proj_blocks";
    let own = fixture.logits_of(&fixture.folder, "cpu", "bf16");
    assert!(fixture.distance(&own).is_right("bf16"));
    // Two of eight experts have each other's second matrix.
    let exchanged = changed(&fixture, down, |blocks| {
        let n = blocks.len() / 8;
        let (before, after) = blocks.split_at_mut(n);
        before.swap_with_slice(&mut after[..n]);
    });
    // One expert lacks 8 of its 128 outputs.
    let lost = changed(&fixture, down, |blocks| {
        let n = blocks.len() / 8;
        blocks[3 * n..3 * n + n / 16].fill(0);
    });
    for folder in [&exchanged, &lost] {
        let distance = fixture.distance(&fixture.logits_of(folder.path(), "cpu", "bf16"));
        assert!(!distance.is_right("bf16"), "{}", distance.told());
    }
    let mut one_nan = own;
    one_nan[5000] = f32::NAN;
    for precision in ["f32", "bf16"] {
        assert!(!fixture.distance(&one_nan).is_right(precision));
    }
}

/// By hand, on a GPU: `GPTOSS_JIT_TEST_DEVICE=cuda cargo test --test it odd_sizes -- --nocapture`.
#[test]
fn odd_sizes_are_right_on_the_device_that_is_named_by_hand() {
    let Ok(device) = env::var(DEVICE_VARIABLE) else {
        return skipped("no device is named (GPTOSS_JIT_TEST_DEVICE=cuda, for one)");
    };
    for fixture in OddSizes::all() {
        for precision in ["f32", "bf16"] {
            fixture.check_logits(&device, precision);
            MIXED.iter().for_each(|how| fixture.check_greedy(&device, precision, how));
        }
    }
}
