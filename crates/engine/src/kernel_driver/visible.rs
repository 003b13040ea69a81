//! Environment variables that hide GPUs from a runtime: lists of numbers and UUIDs. A runtime reads a list up to the
//! first entry that names no GPU (ROCR, `amd_filter_device.cpp`; ROCclr, `rocdevice.cpp`).

use super::node::Gpu;

/// Read by ROCR, first of all. Empty, it takes all of them away.
pub(super) const ROCR: &str = "ROCR_VISIBLE_DEVICES";
/// Read by HIP, of what ROCR leaves: the first of these that is set, also to nothing, which takes all of them away
/// (seen with 5.7.1, 6.4.3 and 7.2.4).
pub(super) const HIP: [&str; 2] = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];

/// Those of the GPUs that a list names.
fn named<'a>(list: &str, gpus: &[&'a Gpu]) -> Vec<&'a Gpu> {
    let mut found: Vec<&Gpu> = Vec::new();
    for word in list.split(',').map(str::trim) {
        let of_uuid = |gpu: &&&Gpu| {
            word.len() >= 5 && gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(&word.replacen("gpu-", "GPU-", 1)))
        };
        let by_number = || gpus.get(word.parse::<usize>().ok()?);
        let Some(gpu) = gpus.iter().find(of_uuid).or_else(by_number) else { break };
        if !found.iter().any(|other| other.node == gpu.node) {
            found.push(gpu);
        }
    }
    found
}

/// The GPUs that a variable takes away, each with the variable and its value.
pub(super) fn taken_away<'a>(
    gpus: &[&'a Gpu],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<(&'a Gpu, &'static str, String)> {
    let mut left = gpus.to_vec();
    let mut taken = Vec::new();
    let of_rocr = variable(ROCR).map(|list| (ROCR, list));
    let of_hip = HIP.into_iter().find_map(|name| Some((name, variable(name)?)));
    for (name, list) in of_rocr.into_iter().chain(of_hip) {
        let stay = named(&list, &left);
        let goes = left.iter().filter(|gpu| !stay.iter().any(|other| other.node == gpu.node));
        taken.extend(goes.map(|gpu| (*gpu, name, list.clone())));
        left = stay;
    }
    taken
}
