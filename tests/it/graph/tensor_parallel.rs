//! A model that several devices compute together: what one device would have said, and the same bits on all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use engine::Engine;
use engine::plan::profile::Profiled;
use engine::scheduler::{Request, RequestId, Sampling};
use engine::watchdog::Watchdog;
use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::config::ModelConfig;
use model::family::named;

use super::forward::{How, ONE_BY_ONE, drain, greedy, load_on_all, load_watched};
use crate::fixtures::host::FaultyHost;
use crate::fixtures::models::{Fixture, gpt_oss};
use crate::fixtures::program::run;

/// Eight key and value heads, and experts of five blocks: four devices have 2, 2, 1 and none, eight have one or none.
/// Two and four devices divide the vocabulary, eight do not: each of them then has all of it.
fn checkpoint(encoding: Encoding) -> Checkpoint {
    checkpoint_of(100, encoding)
}

fn checkpoint_of(vocab_size: usize, encoding: Encoding) -> Checkpoint {
    let config = gpt_oss(&[
        ("vocab_size", vocab_size as f64),
        ("hidden_size", 64.0),
        ("num_experts", 4.0),
        ("experts_per_token", 2.0),
        ("intermediate_size", 160.0),
        ("num_hidden_layers", 2.0),
        ("head_dim", 8.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 8.0),
        ("max_seq_len", 256.0),
        ("initial_context_length", 4096.0),
        ("rope_theta", 150_000.0),
        ("rope_scaling_factor", 32.0),
        ("sliding_window", 16.0),
        ("swiglu_limit", 7.0),
    ]);
    Checkpoint::random(config, encoding, 5).expect("a model")
}

fn devices(n: usize) -> Vec<Arc<dyn Driver>> {
    (0..n).map(|_| Arc::new(HostDriver::new(1).expect("threads")) as Arc<dyn Driver>).collect()
}

fn engine(checkpoint: &Checkpoint, n: usize, how: How) -> Engine {
    load_on_all(devices(n), checkpoint, 64, how).expect("loads")
}

#[test]
fn several_devices_give_the_logits_of_one_and_all_of_them_the_same_bits() {
    let ids: Vec<u32> = (0..40).map(|i| i * 37 % 100).collect();
    for encoding in [Encoding::Mxfp4, Encoding::F32] {
        let checkpoint = checkpoint(encoding);
        let expected = engine(&checkpoint, 1, ONE_BY_ONE).teacher_force(&ids, None).expect("runs");
        let largest = expected.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
        for n in [2, 4, 8] {
            let mut engine = engine(&checkpoint, n, ONE_BY_ONE);
            let logits = engine.teacher_force(&ids, None).expect("runs");
            let off = expected.iter().zip(&logits).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
            // Sums in another order: 3e-7 was seen, five roundings of 2^-24.
            assert!(off <= 1.2e-6 * largest, "{n} devices, {encoding:?}: off by {off} of {largest}");
            let all = engine.logits_of_all_devices(1).expect("read");
            assert_eq!(all.len(), n);
            assert!(all.iter().all(|of_one| *of_one == all[0]), "{n} devices, {encoding:?}: not the same bits");
            assert!(all[0].iter().any(|&byte| byte != 0));
        }
    }
}

/// A dense model whose embedding is its unembedding: two devices have a part of it, three have all.
#[test]
fn a_model_with_tied_embeddings_is_cut_too() {
    let dims = [
        ("vocab_size", 100.0),
        ("hidden_size", 48.0),
        ("intermediate_size", 80.0),
        ("num_hidden_layers", 2.0),
        ("num_attention_heads", 12.0),
        ("num_key_value_heads", 6.0),
        ("head_dim", 8.0),
        ("max_seq_len", 256.0),
        ("tie_word_embeddings", 1.0),
    ];
    let config = ModelConfig::with_values(named("llama").expect("built in"), &dims);
    let checkpoint = Checkpoint::random(config, Encoding::F32, 5).expect("a model");
    assert!(!checkpoint.tensors.contains_key("unembedding.weight"));
    let ids: Vec<u32> = (0..40).map(|i| i * 37 % 100).collect();
    // Scales of a cache are of heads, and each device has heads of its own: where another sum rounds an element of
    // eight bits to its neighbour, logits are off by more.
    for (kv_dtype, most_off) in [(Dtype::F32, 1.2e-6), (Dtype::Int8, 1e-4)] {
        let how = How { kv_dtype, ..ONE_BY_ONE };
        let expected = engine(&checkpoint, 1, how).teacher_force(&ids, None).expect("runs");
        let largest = expected.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
        for n in [2, 3] {
            let logits = engine(&checkpoint, n, how).teacher_force(&ids, None).expect("runs");
            let off = expected.iter().zip(&logits).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
            assert!(off <= most_off * largest, "{n} devices, {kv_dtype}: off by {off} of {largest}");
        }
    }
}

#[test]
fn several_devices_take_the_tokens_of_one_whatever_is_in_a_step() {
    let checkpoint = checkpoint(Encoding::Mxfp4);
    // Prompts in pieces of five rows beside sequences that generate, in windows that go round.
    let how = How { n_slots: 3, max_rows: 5, n_snapshots: 2, ..ONE_BY_ONE };
    let prompts: Vec<Vec<u32>> = (1..8).map(|i| (0..5 * i).map(|j| (i * 13 + j * 7) % 100).collect()).collect();
    let answers = |n: usize| -> Vec<Vec<u32>> {
        let mut engine = engine(&checkpoint, n, how);
        let submit = |prompt: &Vec<u32>| engine.submit(greedy(prompt, 20, &[])).expect("fits");
        let requests: Vec<RequestId> = prompts.iter().map(submit).collect();
        let answers = drain(&mut engine);
        requests.iter().map(|request| answers[request].0.clone()).collect()
    };
    let expected = answers(1);
    assert!(expected.iter().all(|answer| answer.len() == 20));
    for n in [2, 4, 8] {
        assert_eq!(answers(n), expected, "{n} devices");
    }
}

/// Of eight sequences some draw, and one asks for log-probabilities: these are done after a few steps, and from then on
/// all take the best token.
#[test]
fn devices_that_share_the_vocabulary_gather_logits_only_where_somebody_draws() {
    let checkpoint = checkpoint_of(104, Encoding::Mxfp4);
    let how = How { n_slots: 8, max_rows: 16, ..ONE_BY_ONE };
    let request = |i: usize| {
        let sampling = match i {
            1 | 4 => Sampling { temperature: 1.0, top_k: 5 * i as u32, top_p: 0.9, min_p: 0.0, seed: 7 },
            _ => Sampling::GREEDY,
        };
        let prompt = (0..4 + i).map(|j| ((i * 31 + j * 7) % 104) as u32).collect();
        let n_new = if i % 3 == 1 { 4 } else { 20 };
        let n_logprobs = (i == 7).then_some(2);
        Request { n_logprobs, ..Request::new(prompt, n_new, vec![], sampling) }
    };
    let answers = |n: usize| {
        let mut engine = engine(&checkpoint, n, how);
        let requests: Vec<RequestId> = (0..8).map(|i| engine.submit(request(i)).expect("fits")).collect();
        engine.start_profile(Profiled::Every { rounds: 1 });
        let answers = drain(&mut engine);
        let profile = engine.take_profile().expect("begun");
        let steps = |op: &str| {
            let rows = profile.rows().into_iter().filter(|(node, ..)| *node == op);
            rows.map(|(.., entry)| entry.calls).sum::<usize>()
        };
        let tokens: Vec<Vec<u32>> = requests.iter().map(|request| answers[request].0.clone()).collect();
        (tokens, [steps("unembedding.all_gather"), steps("sample.all_argmax")])
    };
    let (expected, none) = answers(1);
    assert_eq!(none, [0, 0]);
    for n in [2, 4, 8] {
        let (tokens, [gathered, compared]) = answers(n);
        assert_eq!(tokens, expected, "{n} devices");
        assert!(gathered >= 2 && compared >= 12, "{n} devices: {gathered} steps gathered and {compared} compared");
    }
}

#[test]
fn a_model_of_transformers_has_its_logits_on_three_devices() {
    let fixture = Fixture::open("odd");
    let (model, ids, expect) = (fixture.path("model.bin"), fixture.path("ids.txt"), fixture.path("logits.npy"));
    let words = ["logits", &model, "--ids", &ids, "--precision", "f32", "--rtol", "0", "--atol", "2e-4"];
    run(&[&words[..], &["--expect", &expect, "--tp", "3"]].concat()).ok();
}

#[test]
fn devices_that_cannot_share_a_model_are_refused_before_anything_is_allocated() {
    for n in ["3", "5", "6", "16"] {
        let stderr = run(&["run", "--shape", "gpt-oss-20b", "-i", "x", "-n", "2", "--device", "cpu", "--tp", n]);
        let stderr = stderr.fails_with_hint(1);
        assert!(stderr.contains(&format!("for {n} devices: it has 8 key and value heads")), "{stderr}");
        assert!(stderr.contains("hint: `--tp` takes 2, 4, 8 here"), "{stderr}");
    }
}

#[test]
fn a_device_that_fails_keeps_no_other_waiting() {
    let checkpoint = checkpoint(Encoding::Mxfp4);
    // The weights take a launch each to make, or none; wherever it fails, all end.
    for (failing, n_launches) in [(0, 60), (1, 60), (2, 75), (1, 100)] {
        let device = |i| -> Arc<dyn Driver> {
            let n = if i == failing { n_launches } else { usize::MAX };
            Arc::new(FaultyHost::failing_after(n))
        };
        let loaded = load_on_all((0..4).map(device).collect(), &checkpoint, 64, ONE_BY_ONE);
        let mut engine = loaded.unwrap_or_else(|error| panic!("device {failing}: {error}"));
        let result = (0..8).try_for_each(|_| engine.teacher_force(&[1, 2, 3, 4, 5, 6, 7], None).map(drop));
        let error = result.expect_err("a launch failed");
        assert!(error.to_string().starts_with("could not run `"), "device {failing}: {error}");
    }
}

#[test]
fn a_device_that_hangs_is_named_while_all_others_wait_for_it() {
    let checkpoint = checkpoint(Encoding::Mxfp4);
    for hanging in [0, 2] {
        let (release, released) = mpsc::channel();
        let (said, heard) = mpsc::channel();
        let mut released = Some(released);
        let mut device = |i| -> Arc<dyn Driver> {
            if i == hanging {
                Arc::new(FaultyHost::hanging_after(90, released.take().expect("one hangs")))
            } else {
                Arc::new(HostDriver::new(1).expect("threads"))
            }
        };
        // Long enough that no other step takes it, on a busy machine too.
        let watchdog = Watchdog::new(Duration::from_secs(8), move |hang| {
            said.send(hang.to_string()).expect("the test waits");
            let _ = release.send(()); // it ends by an error, so that this process is rid of it
        });
        let drivers = (0..4).map(&mut device).collect();
        let watchdog = Some(watchdog.expect("a thread"));
        let loaded = load_watched(drivers, &checkpoint, 64, ONE_BY_ONE, watchdog);
        let mut engine = loaded.unwrap_or_else(|error| panic!("device {hanging}: {error}"));
        let result = (0..8).try_for_each(|_| engine.teacher_force(&[1, 2, 3, 4, 5, 6, 7], None).map(drop));
        assert!(result.is_err(), "device {hanging}");
        let words = heard.recv().expect("said");
        assert!(words.contains("are not done with a step of one row after 8 s: cores that hang came to "), "{words}");
        assert!(words.contains(" of the 5 meetings of that step, another to "), "{words}");
    }
}

#[test]
fn a_device_that_panics_keeps_no_other_waiting_whichever_it_is() {
    let checkpoint = checkpoint(Encoding::Mxfp4);
    for panicking in [0, 1] {
        let device = |i| -> Arc<dyn Driver> {
            let n = if i == panicking { 60 } else { usize::MAX };
            Arc::new(FaultyHost::panicking_after(n))
        };
        let loaded = load_on_all((0..2).map(device).collect(), &checkpoint, 64, ONE_BY_ONE);
        let mut engine = loaded.unwrap_or_else(|error| panic!("device {panicking}: {error}"));
        let force = || (0..8).try_for_each(|_| engine.teacher_force(&[1, 2, 3], None).map(drop));
        let ended = catch_unwind(AssertUnwindSafe(force));
        // The first device's thread is the caller's own; another one's panic is an error here.
        assert_eq!(ended.is_err(), panicking == 0, "device {panicking}");
        assert!(ended.is_err() || ended.is_ok_and(|result| result.is_err()), "device {panicking}");
        drop(engine); // which waits for all devices
    }
}
