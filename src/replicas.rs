//! `-g N`: the model on N devices of this machine, each in its own process of this program.

use std::ffi::OsString;

use crate::args::DeviceArgs;
use crate::usage::UsageError;
use engine::device::{Device, auto, open_runtime};
use hint::Hint;
use model::checkpoint::Checkpoint;
use replica::Start;
use system::bounded_process::this_program;

/// There are fewer GPUs than replicas want.
#[derive(Debug, thiserror::Error)]
#[error("could not run on {asked} GPUs: {} there: {}", if here.len() == 1 { "one is" } else { "these are" }, here.join(", "))]
pub(super) struct TooFewDevices {
    asked: usize,
    /// GPUs of one replica.
    each: usize,
    here: Vec<String>,
}

impl Hint for TooFewDevices {
    fn hint(&self) -> Option<String> {
        let most = (self.here.len() / self.each).max(1);
        Some(format!("`-g {most}` uses all of them; `gptoss-jit devices` lists what there is"))
    }
}

/// Where copies of a model can run, if the flags say `device`: each of the GPUs from that one on; of all that the
/// model fits on the one with the most compute first; or the cores, which are one device however many use them. At
/// least one.
pub(super) fn here(args: &DeviceArgs, checkpoint: &Checkpoint) -> anyhow::Result<Vec<Device>> {
    let devices = match &args.device {
        Device::Auto => auto::choose(&args.source.tables()?, args.wanted(checkpoint)).devices(),
        Device::Gpu { runtime, ordinal, arch } => {
            let n = open_runtime(*runtime)?.n_devices();
            let gpu = |ordinal| Device::Gpu { runtime: *runtime, ordinal, arch: arch.clone() };
            // One that is not there says so when it is opened.
            (*ordinal..n.max(ordinal + 1)).map(gpu).collect()
        }
        Device::Cpu | Device::Sim(_) => vec![args.device.clone()],
    };
    Ok(if devices.is_empty() { vec![Device::Cpu] } else { devices })
}

/// The first device of each replica, where one takes `tp` that follow each other.
fn firsts(mut here: Vec<Device>, tp: usize) -> Vec<Device> {
    if tp == 1 {
        return here;
    }
    here.sort_by_key(|device| match device {
        Device::Gpu { runtime, ordinal, .. } => (format!("{runtime:?}"), *ordinal),
        _ => (String::new(), 0),
    });
    let (mut firsts, mut rest) = (Vec::new(), &here[..]);
    while let Some(run) = rest.get(..tp) {
        let is_run = (0..tp).all(|i| run[i] == run[0].next(i));
        if is_run {
            firsts.push(run[0].clone());
        }
        rest = &rest[if is_run { tp } else { 1 }..];
    }
    firsts
}

/// How `n` replicas are started: by the words of this process, and these flags besides.
pub(super) fn starts(
    args: &DeviceArgs,
    checkpoint: &Checkpoint,
    n: usize,
    more: &[OsString],
) -> anyhow::Result<Vec<Start>> {
    if args.placement.asked_layers() > 0 {
        let why = "each of several GPUs has all of the model, and the processor would compute for all of them";
        return Err(UsageError(format!("`--n-cpu-moe` does not go with `-g`: {why}")).into());
    }
    let (mut here, tp) = (here(args, checkpoint)?, args.tp as usize);
    let n_threads = match &here[..] {
        // Cores are shared out.
        [only @ (Device::Cpu | Device::Sim(_))] => {
            here = vec![only.clone(); n];
            let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
            let n_threads = if args.threads == 0 { n_cores } else { args.threads as usize };
            (n_threads / n).max(1)
        }
        _ => {
            let all = here.iter().map(ToString::to_string).collect();
            here = firsts(here, tp);
            if here.len() < n {
                return Err(TooFewDevices { asked: n * tp, each: tp, here: all }.into());
            }
            args.threads as usize
        }
    };
    let words = |device: &Device| {
        let own = ["--device", &device.to_string(), "--threads", &n_threads.to_string(), "--n-cpu-moe", "0"];
        let more = more.iter().cloned().chain(own.map(OsString::from)).chain(["--ranks", "1"].map(OsString::from));
        // The last of two flags counts, and what follows `--` is none.
        let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        words.splice(end..end, more);
        words
    };
    let start = |(i, device): (usize, &Device)| Start {
        program: this_program(),
        words: words(device),
        device: format!("{device} ({i} of {n})"),
        speaks: i == 0,
    };
    Ok(here.iter().take(n).enumerate().map(start).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_of_several_devices_takes_those_behind_its_first() {
        let devices =
            |names: &[&str]| names.iter().map(|name| name.parse().expect("a device")).collect::<Vec<Device>>();
        let here = || devices(&["cuda:3", "cuda:0", "cuda:1", "cuda:2", "cuda:5", "cuda:6", "hip:0", "hip:1"]);
        assert_eq!(firsts(here(), 1), here());
        assert_eq!(firsts(here(), 2), devices(&["cuda:0", "cuda:2", "cuda:5", "hip:0"]));
        assert_eq!(firsts(here(), 4), devices(&["cuda:0"]));
        assert_eq!(firsts(here(), 8), []);
    }
}
