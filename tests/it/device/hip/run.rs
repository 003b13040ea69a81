//! `run --device hip`, whole: kernels compiled by real hipRTC, on a fake device that executes them in the simulator.

use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use tempfile::TempDir;

use super::Room;
use super::commands::text;
use crate::object::hiprtc;

const PROMPT: [&str; 3] = ["run", "-i", "Once upon a time"];

/// A cache for these tests, kept from run to run. No other tests' kernels: the fake device looks through all of it.
pub(super) fn cache() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/hip-kernels"))
}

impl Room {
    /// `run` on a device, with the shared cache and real hipRTC.
    pub(super) fn command(&self, device: &str, more: &[&str]) -> Command {
        let steps: &[&str] = if more.contains(&"--max-new-tokens") { &[] } else { &["-n", "14"] };
        self.compiling(&[&PROMPT, steps, &["--device", device], more].concat())
    }

    /// The program, with the shared cache and real hipRTC.
    pub(super) fn compiling(&self, words: &[&str]) -> Command {
        let mut command = self.program(words);
        command.env("GPTOSS_JIT_CACHE", cache());
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/hiprtc");
        if env::var_os("GPTOSS_JIT_HIPRTC").is_none() && fetched.join(".complete").exists() {
            command.env("GPTOSS_JIT_HIPRTC", fetched);
        }
        command
    }

    pub(super) fn on(&self, device: &str, more: &[&str]) -> Output {
        self.command(device, more).output().expect("the program starts")
    }

    /// A room whose device executes what `sim:<arch>` runs; what that says.
    pub(super) fn executing(arch: &str, more: &[&str], orders: &str) -> (Self, String) {
        let room = Self::new(&format!("arch = {arch}\nkernels = {}\n{orders}", cache().display()));
        let simulated = room.on(&format!("sim:{arch}"), more);
        assert!(simulated.status.success(), "{}", text(&simulated.stderr));
        (room, text(&simulated.stdout))
    }
}

#[test]
fn the_tiny_model_says_on_hip_what_it_says_on_the_cpu() {
    let Some(_) = hiprtc::compiler() else { return };
    for more in [&["--precision", "f32"][..], &[]] {
        let (room, simulated) = Room::executing("gfx1100", more, "");
        let output = room.on("hip", more);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), simulated);
        assert_eq!(text(&output.stdout), text(&room.on("cpu", more).stdout));
        // A step that came before is one copy in, one replay and one copy out, and is waited for when the next is on
        // its way.
        let calls = room.calls();
        let first = calls.iter().position(|line| line.starts_with("hipGraphLaunch")).expect("a replay");
        let last = calls.iter().rposition(|line| line.starts_with("hipGraphLaunch")).expect("a replay");
        let between = &calls[first..last];
        let count = |name: &str| between.iter().filter(|line| line.starts_with(name)).count();
        let n = count("hipGraphLaunch");
        assert!(n >= 3, "{between:?}");
        let made = (count("hipMemcpyAsync"), count("hipEventSynchronize"), count("hipStreamSynchronize"));
        assert_eq!(made, (2 * n, n, 0), "{between:?}");
        assert_eq!((count("hipMalloc"), count("hipFree"), count("hipModuleLaunchKernel")), (0, 0, 0));
        room.assert_all_given_back();
    }
}

#[test]
fn the_profile_takes_times_on_the_device() {
    let Some(_) = hiprtc::compiler() else { return };
    // Two steps, of which the second takes its token from the first: the fake runs each some thirty times over.
    let (room, simulated) = Room::executing("gfx1100", &["--max-new-tokens", "2"], "");
    let output = room.on("hip", &["--profile", "--max-new-tokens", "2"]);
    assert_eq!(text(&output.stdout), simulated, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("block.*.attn.qkv"), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("warning: the device's limits could not be measured"),
        "the fake has no such kernels"
    );
    // Every kernel on its own, then graphs of one node's: both between events.
    assert!(room.count("hipEventElapsedTime") > 50 && room.count("hipGraphLaunch") > 20, "{}", text(&output.stderr));
}

#[test]
fn a_runtime_without_graphs_or_a_capture_that_fails_launches_one_by_one() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &[], "fail = hipStreamBeginCapture:900");
    let output = room.on("hip", &[]);
    assert_eq!(text(&output.stdout), simulated);
    assert!(text(&output.stderr).contains("steps are launched kernel by kernel"), "{}", text(&output.stderr));
    assert_eq!((room.count("hipStreamBeginCapture"), room.count("hipGraphLaunch")), (1, 0));
    room.assert_all_given_back();
}

/// What is in the shared cache now: `v1/<two digits>/<digest>/<file>`. What another test is writing may be missing.
fn copy_of_the_cache() -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let entries = inside(&cache().join("v1")).flat_map(|digits| inside(&digits).collect::<Vec<_>>());
    for file in entries.flat_map(|entry| inside(&entry).collect::<Vec<_>>()) {
        let to = copy.path().join(file.strip_prefix(cache()).expect("it is inside"));
        fs::create_dir_all(to.parent().expect("it has a folder")).expect("made");
        let _ = fs::copy(&file, &to);
    }
    copy
}

#[test]
fn an_object_that_the_device_does_not_take_is_compiled_again_once() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &[], "");
    room.on("hip", &[]); // what is needed is in the cache
    // An object that is refused is thrown away, and others run meanwhile.
    let own = copy_of_the_cache();
    let on_hip = |room: &Room| room.command("hip", &[]).env("GPTOSS_JIT_CACHE", own.path()).output().expect("starts");
    // For another arch; and for another arch or of a newer version than the runtime knows.
    for (status, name) in [(209, "hipErrorNoBinaryForGpu (209)"), (303, "hipErrorSharedObjectInitFailed (303)")] {
        let orders = format!("kernels = {}\nfail = hipModuleLoadData:{status}:1", cache().display());
        let output = on_hip(&Room::new(&orders));
        let err = text(&output.stderr);
        assert_eq!(text(&output.stdout), simulated, "{err}");
        assert!(err.contains("is compiled again: kernel `") && err.contains("1 compiled"), "{err}");

        let output = on_hip(&Room::new(&format!("fail = hipModuleLoadData:{status}")));
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        let expected = "was compiled for gfx1100 (code object v5), and hip:0, a gfx1100, does not take it";
        assert!(err.contains(expected) && err.contains(name), "{err}");
        assert!(err.contains("hint: this HIP runtime may be older than what hipRTC makes"), "{err}");
    }
}

#[test]
fn a_runtime_gets_objects_of_a_version_that_it_loads() {
    let Some(_) = hiprtc::compiler() else { return };
    let more = ["--max-new-tokens", "2"];
    let (_, simulated) = Room::executing("gfx1100", &more, "");
    for release in ["5.7.31921", "6.2.41134", "7.2.26015"] {
        let room = Room::new(&format!("version = {release}\nkernels = {}", cache().display()));
        let output = room.on("hip", &more);
        assert_eq!(text(&output.stdout), simulated, "{release}: {}", text(&output.stderr));
        assert!(room.count("hipModuleLoadData") > 0 && room.count("hipModuleLoadData -> 303") == 0, "{release}");
    }
}

#[test]
fn what_a_kernel_does_wrong_is_told_with_what_to_do() {
    let Some(_) = hiprtc::compiler() else { return };
    let room = Room::new("fail = kernel:719");
    let output = room.on("hip", &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("hip:0: could not finish what was launched"), "{err}");
    assert!(err.contains("hipErrorLaunchFailure (719), unspecified launch failure"), "{err}");
    assert!(err.contains("hint: a kernel failed before, or the GPU was lost"), "{err}");
    room.assert_all_given_back();
    assert!(!err.contains("warning"), "once is enough: {err}");
    let named = text(&room.on("hip", &["--profile"]).stderr);
    assert!(named.contains("could not run `take_token`") && !named.contains("hint"), "{named}");
}

#[test]
fn a_gpu_that_hangs_ends_the_run_with_a_sentence_wherever_it_does() {
    let Some(_) = hiprtc::compiler() else { return };
    let more = ["--max-new-tokens", "4"];
    let (_, simulated) = Room::executing("gfx1100", &more, "");
    // The first of all, and one of a step that is replayed.
    for n in [1, 100] {
        let room = Room::new(&format!("hang = {n}\nkernels = {}", cache().display()));
        let output = room.command("hip", &more).env("GPTOSS_JIT_STEP_TIMEOUT", "3").output().expect("it starts");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "kernel {n}: {err}");
        assert!(err.contains("error: hip:0 (Fake gfx1100") && err.contains("not done with a step of "), "{err}");
        assert!(err.contains("If the device is only slow, raise GPTOSS_JIT_STEP_TIMEOUT"), "{err}");
        assert!(simulated.starts_with(&text(&output.stdout)), "what was said is right");
    }
    let output = Room::new("").command("hip", &more).env("GPTOSS_JIT_STEP_TIMEOUT", "soon").output().expect("started");
    assert!(text(&output.stderr).contains("is soon, which is no number of seconds"), "{}", text(&output.stderr));
}

#[test]
fn memory_that_does_not_suffice_says_how_much_was_wanted_and_is_there() {
    let room = Room::new("memory = 100000");
    let output = room.on("hip", &[]);
    assert_eq!(output.status.code(), Some(1));
    let err = text(&output.stderr);
    assert!(
        err.contains("could not fit the model into the memory of hip:0") && err.contains("of 0.000 GB free"),
        "{err}"
    );
    assert!(err.contains("hint: the weights alone are too large"), "{err}");
    room.assert_all_given_back();
}

#[test]
fn devices_that_are_not_there_say_so() {
    let room = Room::new("arch =");
    let said = |device: &str| {
        let output = room.on(device, &[]);
        assert_eq!(output.status.code(), Some(1), "{device}");
        text(&output.stderr)
    };
    assert!(said("hip").contains("there is no device hip:0: the HIP runtime finds 0"), "{}", said("hip"));
    assert!(said("hip:3").contains("hint: `gptoss-jit doctor` says why"), "{}", said("hip:3"));
    let output = room.command("hip", &[]).env("GPTOSS_JIT_HIP", "/nowhere").output().expect("it starts");
    let err = text(&output.stderr);
    assert!(err.contains("there is no HIP runtime: looked in `/nowhere`"), "{err}");
    assert!(err.contains("hint: install ROCm's HIP runtime"), "{err}");
    assert_eq!(room.on("hip:x", &[]).status.code(), Some(2));

    let room = Room::new("arch = gfx803");
    let err = text(&room.on("hip", &[]).stderr);
    assert!(err.contains("nothing is known about the arch `gfx803`"), "{err}");
}

#[test]
fn auto_takes_the_gpu_and_without_one_that_works_the_cpu() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &[], "");
    assert_eq!(text(&room.on("auto", &[]).stdout), simulated);
    assert!(room.count("hipModuleLaunchKernel") > 0);

    let on_cpu = text(&room.on("cpu", &[]).stdout);
    let none = Room::new("arch =");
    let output = none.on("auto", &[]);
    assert_eq!((text(&output.stdout), text(&output.stderr).contains("warning")), (on_cpu.clone(), false));
    let strange = Room::new("arch = gfx803");
    let output = strange.on("auto", &[]);
    assert_eq!(text(&output.stdout), on_cpu);
    assert!(text(&output.stderr).contains("hip:0 is not used: nothing is known about the arch `gfx803`"));
}

/// A few rows show it, whose kernels are compiled for this test alone; for a chip that is known others have them.
#[test]
fn a_chip_that_nobody_knows_is_compiled_for_by_its_own_name() {
    let Some(_) = hiprtc::compiler() else { return };
    let more = ["--max-new-tokens", "2", "--chunk", "4"];
    let (room, simulated) = Room::executing("gfx1152", &more, "");
    let output = room.command("hip", &more).env("HSA_OVERRIDE_GFX_VERSION", "11.5.2").output().expect("it starts");
    let err = text(&output.stderr);
    assert_eq!(text(&output.stdout), simulated, "{err}");
    assert!(err.contains("nothing is known about gfx1152: assumed to be like gfx1151"), "{err}");
    assert!(err.contains("HSA_OVERRIDE_GFX_VERSION=11.5.2 is set: hip:0 says that it is a gfx1152"), "{err}");

    let output = room.on("hip:0@gfx1100", &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("kernels are compiled for gfx1100, as you asked"), "{err}");
    assert!(err.contains("was compiled for gfx1100 (code object v5), and hip:0, a gfx1152, does not take it"), "{err}");
    assert!(err.contains("hint: `--device hip:0@ARCH`"), "{err}");
}

/// Two of four layers: a step is in three parts on the device, each captured by itself, and two hand-overs.
#[test]
fn experts_that_the_processor_computes_change_no_word_on_hip() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &["--precision", "f32"], "");
    let output = room.on("hip", &["--precision", "f32", "--n-cpu-moe", "2", "--chunk", "512"]);
    let err = text(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("the processor computes the experts of the last 2 of 4 layers"), "{err}");
    assert_eq!(text(&output.stdout), simulated);
    let calls = room.calls();
    let launches: Vec<usize> = (0..calls.len()).filter(|&i| calls[i].starts_with("hipGraphLaunch")).collect();
    assert!(launches.len() >= 6, "{calls:?}");
    // From the last step's first part to its last one: what crosses is brought, waited for, and sent back.
    let last: Vec<usize> = launches[launches.len() - 3..].to_vec();
    for pair in last.windows(2) {
        let between = &calls[pair[0]..pair[1]];
        let count = |name: &str| between.iter().filter(|line| line.starts_with(name)).count();
        assert_eq!(
            (count("hipStreamSynchronize"), count("hipMalloc"), count("hipHostMalloc")),
            (1, 0, 0),
            "{between:?}"
        );
        let copies = |to: &'static str| move |line: &String| line.starts_with("hipMemcpyAsync") && line.contains(to);
        let brought = between.iter().position(copies("from the device"));
        let waited = between.iter().position(|line| line.starts_with("hipStreamSynchronize"));
        let sent = between.iter().rposition(copies("to the device"));
        assert!(brought.is_some() && brought < waited && waited < sent, "{between:?}");
    }
}

/// All four layers on the host, and a prompt of more tokens than the threshold: each layer's experts are asked for
/// before the kernels of the layer before it are launched, on a stream of their own, and the program waits for none.
/// The fake copies as late as it may, and as early.
#[test]
fn experts_of_the_next_layer_come_beside_the_kernels_of_this_one() {
    let Some(_) = hiprtc::compiler() else { return };
    let prompt = "Once upon a time there was a little girl who had a cat and a dog";
    let words = ["run", "-i", prompt, "--max-new-tokens", "2", "--precision", "f32", "--chunk", "64", "--device"];
    let streamed = ["--n-cpu-moe", "4", "--stream-experts", "16"];
    let run = |room: &Room, words: &[&str]| room.compiling(words).output().expect("the program starts");
    let (mut compiled, mut expected) = (false, String::new());
    for orders in ["", "copies = early"] {
        let room = Room::new(&format!("arch = gfx1100\nkernels = {}\n{orders}", cache().display()));
        if !compiled {
            expected = text(&run(&room, &[&words[..], &["sim:gfx1100"]].concat()).stdout);
            // What the fake executes.
            run(&room, &[&words[..], &["sim:gfx1100"], &streamed].concat());
            compiled = true;
        }
        let output = run(&room, &[&words[..], &["hip"], &streamed].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), expected, "{orders}");
        room.assert_all_given_back();
        let calls = room.calls();
        let of_step = calls.iter().filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            ["hipMemcpyAsync", _, "to", ..] => Some('c'),
            ["hipEventRecord"] => Some('r'),
            ["hipStreamWaitEvent", ..] => Some('w'),
            ["hipModuleLaunchKernel", ..] => Some('k'),
            ["hipStreamSynchronize" | "hipEventSynchronize"] => Some('s'),
            _ => None,
        });
        let mut letters: Vec<char> = of_step.collect();
        letters.dedup();
        let letters: String = letters.into_iter().collect();
        // Copies for two layers; then for each layer kernels, a wait for its copies, kernels, and what is behind them
        // waited for by the copies for the layer after the next. Both waits are the streams'.
        let step = ["crcr", "kwkr", "wcr", "kwkr", "wcr", "kwkr", "kwkr"].concat();
        assert!(letters.contains(&step), "{letters}");
    }
}
