//! Machines as folders of files, each with something in the way.

use std::fs;
use std::io::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A machine with one GPU per gfx version, each with its render node, and everything in order.
fn machine(versions: &[u32]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/sys/kernel/osrelease", "6.8.0-60-generic\n");
    write("sys/module/amdgpu/version", "6.12.12\n");
    write("dev/kfd", "");
    let gid = fs::metadata(root.path().join("dev/kfd")).unwrap().gid();
    write("etc/group", &format!("wheel:x:123456:\nrender:x:{gid}:\n"));
    write(&format!("{NODES}/0/properties"), "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n");
    for (i, version) in versions.iter().enumerate() {
        let (minor, bus) = (128 + i, i + 3);
        let location = bus << 8;
        write(
            &format!("{NODES}/{}/properties", i + 1),
            &format!(
                "cpu_cores_count 0\nsimd_count 192\nsimd_per_cu 2\nwave_front_size 32\ngfx_target_version {version}\n\
                 vendor_id 4098\ndevice_id 29772\nlocation_id {location}\ndomain 0\ndrm_render_minor {minor}\n\
                 unique_id {}\nnot a number\n",
                0x8e15_aa0a_fc2c_4e25_u64 + i as u64
            ),
        );
        write(&format!("dev/dri/renderD{minor}"), "");
        write(&format!("sys/class/drm/renderD{minor}/device/mem_info_vram_total"), "25753026560\n");
        write(&format!("sys/class/drm/renderD{minor}/device/mem_info_gtt_total"), "33554432000\n");
        let device = format!("{PCI}/0000:0{bus}:00.0");
        write(&format!("{device}/class"), "0x030000\n");
        write(&format!("{device}/vendor"), "0x1002\n");
        write(&format!("{device}/device"), "0x744c\n");
    }
    root
}

fn texts(findings: &[DriverFinding]) -> Vec<(&str, &str)> {
    findings.iter().map(|finding| (finding.what.as_str(), finding.hint.as_str())).collect()
}

/// What is found with a runtime of a release that finds so many devices, and these variables.
fn with_runtime(
    root: &TempDir,
    release: (u32, u32),
    n_devices: usize,
    variables: &[(&str, &str)],
) -> Vec<DriverFinding> {
    let seen = RuntimeSeen { release: Some(release), n_devices, knows: &|_| None };
    let variable = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    KernelDriver::read(root.path()).findings_of(&seen, &variable)
}

#[test]
fn a_machine_that_is_in_order_is_described_and_nothing_is_wrong() {
    let root = machine(&[110_000]);
    let driver = KernelDriver::read(root.path());
    assert_eq!(driver.describe(), "amdgpu 6.12.12 on Linux 6.8.0-60-generic");
    let expected = "node 1: gfx1100, 0x744c at 0000:03:00.0, 96 CUs, waves of 32, 25.8 GB of memory, 33.6 GB of the \
                    host's, /dev/dri/renderD128";
    assert_eq!(driver.gpus.iter().map(Gpu::describe).collect::<Vec<_>>(), [expected]);
    assert_eq!(driver.on_bus, ["0000:03:00.0 (1002:744c)"]);
    assert_eq!((driver.findings(), with_runtime(&root, (6, 4), 1, &[])), (vec![], vec![]));
    assert_eq!(driver.needs(), Vec::<String>::new());
}

#[test]
fn a_machine_without_an_amd_gpu_has_nothing_wrong() {
    let root = tempfile::tempdir().unwrap();
    let device = root.path().join(PCI).join("0000:01:00.0");
    fs::create_dir_all(&device).unwrap();
    for (name, text) in [("class", "0x030000"), ("vendor", "0x10de"), ("device", "0x2330")] {
        fs::write(device.join(name), text).unwrap();
    }
    let driver = KernelDriver::read(root.path());
    assert!(!driver.is_there() && driver.findings().is_empty() && driver.on_bus.is_empty(), "{driver:?}");
}

#[test]
fn a_gpu_on_the_bus_without_a_driver_is_told_of() {
    let root = machine(&[110_000]);
    for path in ["sys/module", "sys/class", "dev"] {
        fs::remove_dir_all(root.path().join(path)).unwrap();
    }
    let findings = KernelDriver::read(root.path()).findings();
    let [(what, hint)] = texts(&findings)[..] else { panic!("{findings:?}") };
    assert_eq!(what, "0000:03:00.0 (1002:744c): amdgpu is not loaded");
    assert!(hint.contains("modprobe amdgpu"), "{hint}");
}

#[test]
fn a_user_outside_of_the_groups_is_told_which_and_how_to_join() {
    let root = machine(&[110_000]);
    let closed = |_: &Path| -> Result<()> { Err(Error::from_raw_os_error(13)) };
    let findings = KernelDriver::read_with(root.path(), &closed).findings();
    let [(kfd, join), (render, _)] = texts(&findings)[..] else { panic!("{findings:?}") };
    assert!(kfd.contains("`/dev/kfd`") && kfd.contains("it belongs to the group `render`"), "{kfd}");
    assert!(render.contains("`/dev/dri/renderD128`, the render node of node 1, a gfx1100"), "{render}");
    assert_eq!(join, "`sudo usermod -a -G render,video $USER`, then log in again");

    // Nobody joins a group in a container.
    fs::write(root.path().join(".dockerenv"), "").unwrap();
    let findings = KernelDriver::read_with(root.path(), &closed).findings();
    assert!(findings[0].hint.starts_with("start the container with `--group-add render`"), "{findings:?}");
    fs::remove_file(root.path().join(".dockerenv")).unwrap();

    // A group that is not among the system's names is told by its number.
    fs::remove_file(root.path().join("etc/group")).unwrap();
    let gid = fs::metadata(root.path().join("dev/kfd")).unwrap().gid();
    let findings = KernelDriver::read_with(root.path(), &closed).findings();
    assert!(findings[0].hint.ends_with(&format!("; here the group is `{gid}`")), "{findings:?}");
}

#[test]
fn what_a_container_was_not_given_is_told() {
    let root = machine(&[110_000, 110_000]);
    fs::remove_file(root.path().join("dev/dri/renderD129")).unwrap();
    let findings = KernelDriver::read(root.path()).findings();
    let [(what, hint)] = texts(&findings)[..] else { panic!("{findings:?}") };
    assert_eq!(what, "`/dev/dri/renderD129`, the render node of node 2, a gfx1100, is not there");
    assert!(hint.contains("--device=/dev/kfd --device=/dev/dri"), "{hint}");

    let not_ours = |path: &Path| {
        if path.ends_with("kfd") { Err(Error::from_raw_os_error(1)) } else { Ok(()) }
    };
    let findings = KernelDriver::read_with(root.path(), &not_ours).findings();
    assert!(findings[0].what.contains("`/dev/kfd`") && findings[0].what.contains("in this container"), "{findings:?}");

    fs::remove_dir_all(root.path().join("dev")).unwrap();
    let findings = KernelDriver::read(root.path()).findings();
    assert_eq!(findings.len(), 3, "{findings:?}");
}

#[test]
fn a_driver_that_computes_on_no_gpu_is_told_of() {
    let root = machine(&[]);
    let findings = KernelDriver::read(root.path()).findings();
    let [(what, hint)] = texts(&findings)[..] else { panic!("{findings:?}") };
    assert!(what.contains("computes on no GPU") && hint.contains("newer kernel"), "{findings:?}");
    // Nodes whose properties are no text cannot be read either: as those of GPUs that a container was not given.
    fs::create_dir_all(root.path().join(NODES).join("7/properties")).unwrap();
    let findings = KernelDriver::read(root.path()).findings();
    assert_eq!(findings[0].what, "1 node of the driver may not be read");
}

#[test]
fn a_runtime_that_is_older_than_a_chip_is_told_with_one_that_is_not() {
    let root = machine(&[90_500]);
    let findings = with_runtime(&root, (6, 4), 0, &[]);
    let expected = [("HIP 6.4 does not know node 1, a gfx950", "install ROCm 7.0 or newer: it knows gfx950")];
    assert_eq!(texts(&findings), expected);
    assert_eq!(with_runtime(&root, (7, 2), 1, &[]), []);
    assert_eq!(KernelDriver::read(root.path()).needs(), ["HIP 7.0 and newer know node 1, a gfx950"]);

    // The runtime's own list counts before ours.
    let listed = RuntimeSeen { release: Some((6, 4)), n_devices: 0, knows: &|_| Some(true) };
    let findings = KernelDriver::read(root.path()).findings_of(&listed, &|_| None);
    assert_eq!(findings[0].what, "the driver has 1 GPU, and this runtime finds none");
    let unlisted = RuntimeSeen { release: Some((9, 0)), n_devices: 0, knows: &|_| Some(false) };
    let findings = KernelDriver::read(root.path()).findings_of(&unlisted, &|_| None);
    assert_eq!(findings[0].what, "HIP 9.0 does not know node 1, a gfx950");
}

#[test]
fn variables_that_hide_a_gpu_are_named_with_the_gpu() {
    let root = machine(&[110_000, 110_003]);
    for (n_devices, variables, expected) in [
        (0, &[("ROCR_VISIBLE_DEVICES", "")][..], "`ROCR_VISIBLE_DEVICES=` leaves out node 1, a gfx1100"),
        (1, &[("ROCR_VISIBLE_DEVICES", "0")], "`ROCR_VISIBLE_DEVICES=0` leaves out node 2, a gfx1103"),
        (
            1,
            &[("ROCR_VISIBLE_DEVICES", "GPU-8e15aa0afc2c4e26")],
            "`ROCR_VISIBLE_DEVICES=GPU-8e15aa0afc2c4e26` leaves out node 1",
        ),
        (1, &[("HIP_VISIBLE_DEVICES", "1")], "`HIP_VISIBLE_DEVICES=1` leaves out node 1, a gfx1100"),
        (0, &[("HIP_VISIBLE_DEVICES", "-1")], "`HIP_VISIBLE_DEVICES=-1` leaves out node 1, a gfx1100"),
        (
            0,
            &[("CUDA_VISIBLE_DEVICES", "0"), ("HIP_VISIBLE_DEVICES", "")],
            "`HIP_VISIBLE_DEVICES=` leaves out node 1, a gfx1100",
        ),
        (0, &[("CUDA_VISIBLE_DEVICES", "")], "`CUDA_VISIBLE_DEVICES=` leaves out node 1, a gfx1100"),
        // HIP counts what ROCR leaves.
        (
            0,
            &[("ROCR_VISIBLE_DEVICES", "1"), ("HIP_VISIBLE_DEVICES", "1")],
            "`ROCR_VISIBLE_DEVICES=1` leaves out node 1",
        ),
        (1, &[("ROCR_VISIBLE_DEVICES", "0,7,1")], "`ROCR_VISIBLE_DEVICES=0,7,1` leaves out node 2"),
    ] {
        let findings = with_runtime(&root, (6, 4), n_devices, variables);
        assert!(findings[0].what.starts_with(expected), "{variables:?}: {findings:?}");
        assert_eq!(findings.len(), 2 - n_devices, "{variables:?}: {findings:?}");
        assert!(findings[0].hint.starts_with("unset `"), "{findings:?}");
    }
    let findings = with_runtime(&root, (6, 4), 1, &[("GPU_DEVICE_ORDINAL", "0")]);
    assert_eq!(texts(&findings), [("`GPU_DEVICE_ORDINAL=0` may leave GPUs out", "unset `GPU_DEVICE_ORDINAL`")]);
    // What names all of them hides none, and HIP reads the other variable where the first is not set.
    let all = [("ROCR_VISIBLE_DEVICES", "1,0"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    assert_eq!(with_runtime(&root, (6, 4), 2, &all), []);
}

#[test]
fn overrides_that_hide_a_chip_are_found_and_told_with_the_chip() {
    let root = machine(&[110_501, 110_000]);
    let driver = KernelDriver::read(root.path());
    let ignored = |set: &[(&str, &str)]| {
        let set: Vec<(String, String)> = set.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        driver.false_overrides(&set)
    };
    let all = ("HSA_OVERRIDE_GFX_VERSION", "11.0.0");
    assert_eq!(ignored(&[all]), ["HSA_OVERRIDE_GFX_VERSION=11.0.0"], "node 1 is no gfx1100");
    assert_eq!(ignored(&[("HSA_OVERRIDE_GFX_VERSION_1", "11.5.1"), ("HSA_OVERRIDE_GFX_VERSION_2", "11.0.0")]).len(), 0);
    assert_eq!(ignored(&[("HSA_OVERRIDE_GFX_VERSION_2", "10.3.0")]), ["HSA_OVERRIDE_GFX_VERSION_2=10.3.0"]);
    for nothing in [("HSA_OVERRIDE_GFX_VERSION", ""), ("HSA_OVERRIDE_GFX_VERSION_9", "1.2.3"), ("OTHER", "11.0.0")] {
        assert_eq!(ignored(&[nothing]).len(), 0, "{nothing:?}");
    }
    let root = machine(&[110_000]);
    let alone = KernelDriver::read(root.path());
    assert_eq!(alone.false_overrides(&[("HSA_OVERRIDE_GFX_VERSION".into(), "11.0.0".into())]).len(), 0);
    let told = driver.ignored_overrides(Some("HSA_OVERRIDE_GFX_VERSION=11.0.0"));
    assert_eq!(
        told,
        [
            "`HSA_OVERRIDE_GFX_VERSION=11.0.0` is ignored: node 1 is a gfx1151 and node 2 is a gfx1100, and kernels are compiled for the actual chip; unset it"
        ]
    );
    assert_eq!(driver.ignored_overrides(None), Vec::<String>::new());
}

#[test]
fn windows_door_for_gpus_is_told_with_what_goes_through_it() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("dev")).unwrap();
    fs::write(root.path().join("dev/dxg"), "").unwrap();
    let driver = KernelDriver::read(root.path());
    assert!(!driver.is_there(), "it may be of anybody's GPU");
    let found = driver.windows().unwrap();
    assert!(found.what.contains("`/dev/dxg`") && found.hint.contains("HSA_ENABLE_DXG_DETECTION=1"), "{found:?}");
    assert_eq!(KernelDriver::read(machine(&[110_000]).path()).windows(), None);
}

#[test]
fn chips_are_looked_up_in_a_list_that_is_one() {
    let library = b"\x7fELF gfx950 \0gfx90a\0gfx906:sramecc+\0gfx1100\0 gfx1201";
    assert_eq!(chips::lists(library, "gfx1100"), Some(true));
    for not_of_its_own in ["gfx950", "gfx1201", "gfx906", "gfx110"] {
        assert_eq!(chips::lists(library, not_of_its_own), Some(false), "{not_of_its_own}");
    }
    assert_eq!(chips::lists(b"gfx1100\0", "gfx1100"), None);
}
