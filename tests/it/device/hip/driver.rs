//! The driver alone.

use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use gpu::hip::{HipDriver, HipRuntime};
use gpu::{Argument, ArgumentKind, ArgumentSpec, BufferView, Driver, GpuError, GpuRuntime, Kernel, KernelSpec, Launch};

use super::Room;

/// `linear/gemv` as hipRTC compiles it for gfx1100, wave 32.
const GEMV: &[u8] = include_bytes!("../../../fixtures/objects/linear_gemv.gfx1100.co");
/// `linear/tile` for gfx90a, wave 64.
const TILE: &[u8] = include_bytes!("../../../fixtures/objects/linear_tile.gfx90a.co");

fn spec(entry: &str, kinds: &[ArgumentKind]) -> KernelSpec {
    let arg = |(i, &kind)| ArgumentSpec::new(format!("a{i}"), kind);
    let args = kinds.iter().enumerate().map(arg).collect();
    KernelSpec { entry: entry.into(), args, block_size: 64, ..KernelSpec::default() }
}

fn gemv() -> KernelSpec {
    spec("linear_gemv", &[ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32])
}

fn arguments(x: &BufferView, y: &BufferView) -> Vec<Argument> {
    let memory = |view: &BufferView| Argument::Memory { view: view.clone(), required_bytes: view.len_bytes() };
    vec![memory(x), memory(x), memory(y), Argument::U32(1)]
}

fn on(grid: [u32; 3], args: &[Argument]) -> Launch<'_> {
    Launch { grid, scratch_bytes: 0, args }
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The message and those of its causes.
fn said(error: &GpuError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// What `gemv` needs, on a device.
struct Ready {
    driver: HipDriver,
    kernel: Kernel,
    args: Vec<Argument>,
}

fn ready(room: &Room) -> Ready {
    let driver = room.driver();
    let kernel = driver.load(GEMV, gemv()).expect("it fits");
    let x = driver.upload(bytes(64).into()).expect("there is room").view();
    let y = driver.allocate(64).expect("there is room").view();
    Ready { driver, kernel, args: arguments(&x, &y) }
}

#[test]
fn a_launch_and_its_copies_are_on_one_stream_in_order_and_all_is_given_back() {
    let room = Room::new("");
    {
        let Ready { driver, kernel, args } = ready(&room);
        driver.launch(&kernel, &on([3, 2, 1], &args)).unwrap();
        driver.launch(&kernel, &on([3, 0, 1], &args)).unwrap(); // nothing to do: no call
        let Argument::Memory { view, .. } = &args[0] else { unreachable!() };
        let mut back = vec![0; 64];
        driver.read(view, &mut back).unwrap();
        assert_eq!(back, bytes(64));
    }
    let calls: Vec<String> = room.calls();
    let start = calls.iter().position(|line| line.starts_with("hipStreamCreateWithFlags 1")).expect("a stream");
    assert_eq!(
        calls[start + 1..],
        [
            "hipModuleLoadData linear_gemv",
            "hipModuleGetFunction linear_gemv",
            "hipMalloc 64",
            "hipHostMalloc 33554432",
            "hipMemcpyAsync 64 to the device",
            "hipMalloc 64",
            "hipModuleLaunchKernel grid=[3, 2, 1] block=[64, 1, 1] linear_gemv",
            "hipMemcpyAsync 64 from the device",
            "hipStreamSynchronize",
            "hipStreamSynchronize",
            "hipFree live=2",
            "hipStreamSynchronize",
            "hipFree live=1",
            "hipStreamSynchronize",
            "hipModuleUnload modules=0",
            "hipStreamSynchronize",
            "hipHostFree live=0",
            "hipStreamSynchronize",
            "hipStreamDestroy live=0 streams=0",
        ]
    );
}

#[test]
fn the_newest_structure_is_asked_for_the_arch() {
    let room = Room::new("arch = gfx90a:sramecc+:xnack-, gfx1151");
    let runtime = room.runtime();
    let facts: Vec<_> = (0..runtime.n_devices()).map(|i| runtime.facts(i).unwrap()).collect();
    let told: Vec<_> = facts.iter().map(|f| (f.arch.as_str(), f.wave_size, f.compute_units, f.lds_bytes)).collect();
    assert_eq!(told, [("gfx90a:sramecc+:xnack-", 64, 4, 65_536), ("gfx1151", 32, 8, 65_536)]);
    assert_eq!(facts[1].name, "Fake gfx1151");
    assert_eq!(runtime.versions()[0], ("runtime_version", "6.4.43484".to_owned()));
    assert_eq!((room.count("hipGetDevicePropertiesR0600"), room.count("hipGetDeviceProperties ")), (2, 0));
    let error = said(&runtime.facts(2).unwrap_err());
    assert_eq!(error, "there is no device hip:2: the HIP runtime finds 2");
}

#[test]
fn long_copies_go_through_the_ring_in_chunks() {
    // Copies wait until somebody waits for them: a chunk that was filled too early would arrive wrong.
    let room = Room::new("");
    let n = 5 * (16 << 20) + 12_345;
    {
        let driver = room.driver();
        let view = driver.upload(Bytes::from(bytes(n))).unwrap().view();
        assert!(!view.is_writable());
        assert_eq!(room.count("hipMemcpyAsync 16777216 to the device"), 5);
        assert_eq!(room.count("hipMemcpyAsync 12345 to the device"), 1);
        assert_eq!((room.count("hipEventSynchronize"), room.count("hipStreamSynchronize")), (4, 0));
        let mut back = vec![0; n];
        driver.read(&view, &mut back).unwrap();
        assert!(back == bytes(n));
        assert!(matches!(driver.write(&view, &[1]), Err(GpuError::Range { available_bytes: 0, .. })));
    }
    room.assert_all_given_back();
}

#[test]
fn small_writes_wait_for_nobody_and_arrive_in_order() {
    let room = Room::new("");
    let driver = room.driver();
    let view = driver.allocate(1 << 20).unwrap().view();
    for round in 0..3_u8 {
        for i in 0..64 {
            driver.write(&view.slice(i * 1000, 1000).unwrap(), &[round * 64 + i as u8; 1000]).unwrap();
        }
    }
    assert_eq!((room.count("hipEventSynchronize"), room.count("hipStreamSynchronize")), (0, 0));
    let mut back = vec![0; 64_000];
    driver.read(&view, &mut back).unwrap();
    assert!(back.chunks(1000).enumerate().all(|(i, chunk)| chunk == [128 + i as u8; 1000]));
    assert!(matches!(driver.write(&view, &vec![0; (1 << 20) + 1]), Err(GpuError::Range { what: "write", .. })));
    assert!(matches!(driver.read(&view, &mut vec![0; (1 << 20) + 1]), Err(GpuError::Range { what: "read", .. })));
}

#[test]
fn a_copy_on_the_device_waits_for_nobody_and_is_in_order() {
    let room = Room::new("arch = gfx1100, gfx1100");
    {
        let driver = room.driver();
        let view = driver.allocate(100).unwrap().view();
        let part = |from: usize, len: usize| view.slice(from, len).unwrap();
        driver.write(&view, &bytes(100)).unwrap();
        driver.copy(&part(0, 40), &part(60, 40)).unwrap();
        driver.write(&view, &[9; 10]).unwrap();
        driver.copy(&part(0, 0), &part(60, 0)).unwrap(); // nothing to do: no call
        assert_eq!((room.count("hipMemcpyAsync 40 on the device"), room.count("hipStreamSynchronize")), (1, 0));
        let mut back = vec![0; 100];
        driver.read(&view, &mut back).unwrap();
        assert_eq!(back, [&[9; 10], &bytes(100)[10..60], &bytes(100)[..40]].concat());

        let too_long = driver.copy(&part(0, 41), &part(60, 40)).unwrap_err();
        assert!(matches!(too_long, GpuError::Range { what: "write", len_bytes: 41, available_bytes: 40 }));
        assert!(driver.copy(&part(0, 41), &part(40, 41)).is_err(), "the fake refuses what overlaps");
        let elsewhere = HipDriver::new(&room.runtime(), 1).unwrap().allocate(100).unwrap().view();
        assert!(matches!(driver.copy(&elsewhere, &view), Err(GpuError::ForeignMemory)));
    }
    room.assert_all_given_back();
}

#[test]
fn a_mailbox_keeps_what_was_there_when_it_was_posted() {
    let room = Room::new("arch = gfx1100, gfx1100");
    {
        let driver = room.driver();
        let view = driver.allocate(100).unwrap().view();
        let mut mailboxes = [(); 2].map(|()| driver.mailbox(64).unwrap().expect("a GPU runs later"));
        assert_eq!(mailboxes[0].wait().unwrap(), [0_u8; 0]);
        for (i, mailbox) in mailboxes.iter_mut().enumerate() {
            driver.write(&view, &[i as u8 + 1; 64]).unwrap();
            driver.post(mailbox, &view, 64 - i).unwrap();
        }
        driver.write(&view, &[3; 64]).unwrap();
        assert_eq!(room.count("hipEventSynchronize"), 0);
        assert_eq!(mailboxes[0].wait().unwrap(), [1; 64]);
        assert_eq!(mailboxes[1].wait().unwrap(), [2; 63]);
        assert_eq!((room.count("hipEventSynchronize"), room.count("hipStreamSynchronize")), (2, 0));

        let too_long = driver.post(&mut mailboxes[0], &view, 65).unwrap_err();
        assert!(matches!(too_long, GpuError::Range { what: "post", len_bytes: 65, available_bytes: 64 }));
        let too_long = driver.post(&mut mailboxes[0], &view, 101).unwrap_err();
        assert!(matches!(too_long, GpuError::Range { what: "read", len_bytes: 101, available_bytes: 100 }));
        let other = HipDriver::new(&room.runtime(), 1).unwrap();
        let elsewhere = other.allocate(100).unwrap().view();
        assert!(matches!(other.post(&mut mailboxes[0], &elsewhere, 1), Err(GpuError::ForeignMailbox)));
    }
    room.assert_all_given_back();
}

#[test]
fn every_thread_says_which_device_it_means() {
    let room = Room::new("arch = gfx1100, gfx1100");
    let runtime = room.runtime();
    let drivers: Vec<Arc<HipDriver>> =
        (0..2).map(|i| Arc::new(HipDriver::new(&runtime, i).expect("there is one"))).collect();
    let views: Vec<BufferView> = drivers.iter().map(|d| d.allocate(16).unwrap().view()).collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (driver, view) in drivers.iter().zip(&views) {
                    driver.write(view, &[1; 16]).unwrap();
                }
            });
        }
    });
    drivers[0].read(&views[0], &mut [0; 16]).unwrap();
    assert!(matches!(drivers[1].read(&views[0], &mut [0; 16]), Err(GpuError::ForeignMemory)));
    let kernel = drivers[0].load(GEMV, gemv()).unwrap();
    let args = arguments(&views[1], &views[1]);
    let launch = on([1, 1, 1], &args);
    assert!(matches!(drivers[1].launch(&kernel, &launch), Err(GpuError::ForeignKernel { .. })));
    assert!(matches!(drivers[0].launch(&kernel, &launch), Err(GpuError::ForeignMemory)));
}

#[test]
fn memory_outlives_its_driver_and_is_freed_once() {
    let room = Room::new("");
    let driver = room.driver();
    let view = driver.allocate(100).unwrap().view();
    let part = view.slice(10, 20).unwrap();
    drop((driver, view));
    assert_eq!(room.count("hipFree"), 0);
    drop(part);
    assert_eq!(room.count("hipFree live=0"), 1);
    room.assert_all_given_back();
}

#[test]
fn out_of_memory_says_how_much_was_asked_for_and_how_much_is_free() {
    let room = Room::new("memory = 1000000");
    let driver = room.driver();
    let _held = driver.allocate(300_000).unwrap();
    let error = said(&driver.allocate(800_000).unwrap_err());
    assert_eq!(error, "could not allocate 800000 bytes on hip:0, which has 700000 bytes free");
    driver.allocate(700_000).unwrap();
}

#[test]
fn an_object_for_another_chip_or_contract_never_reaches_the_runtime() {
    let room = Room::new("");
    let driver = room.driver();
    let load = |object: &[u8], spec| said(&driver.load(object, spec).unwrap_err());
    let tile = spec("linear_tile", &[ArgumentKind::Read; 3]);
    let wrong = load(TILE, tile);
    assert_eq!(
        wrong,
        "kernel `linear_tile` was compiled for gfx90a (code object v6), and hip:0, a gfx1100, does not take it"
    );
    let three = spec("linear_gemv", &[ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write]);
    assert!(load(GEMV, three).contains("expected: 3 arguments\n  found:    4 arguments"));
    assert!(load(GEMV, KernelSpec { block_size: 2048, ..gemv() }).contains("blocks of 2048 threads"));
    assert!(load(GEMV, spec("other", &[])).contains("no symbol `other`"));
    assert!(load(b"not an object", gemv()).contains("could not load the object of kernel `linear_gemv`"));
    assert_eq!(room.count("hipModuleLoadData"), 0);
}

#[test]
fn a_runtime_that_is_older_than_an_objects_version_refuses_it_as_one_for_another_chip() {
    for (release, is_taken) in [((5, 7), false), ((6, 2), false), ((6, 3), true), ((7, 2), true)] {
        let version = format!("{}.{}.31921", release.0, release.1);
        let room = Room::new(&format!("version = {version}"));
        assert_eq!(room.runtime().release(), Some(release));
        match room.driver().load(GEMV, gemv()) {
            Ok(_) => assert!(is_taken, "{version}"),
            Err(error) => {
                assert!(
                    !is_taken && matches!(error, GpuError::NoBinary { object_version: Some(6), .. }),
                    "{version}: {error}"
                );
            }
        }
    }
}

#[test]
fn waves_that_the_device_does_not_have_are_refused() {
    let room = Room::new("wave_size = 64");
    let error = said(&room.driver().load(GEMV, gemv()).unwrap_err());
    assert!(error.contains("expected: waves of 64\n  found:    waves of 32"), "{error}");
}

#[test]
fn a_failed_call_is_named_with_the_runtimes_words() {
    for (call, status, expected) in [
        (
            "hipStreamCreateWithFlags",
            1,
            "hip:0: could not create a stream: `hipStreamCreateWithFlags` failed: hipErrorInvalidValue (1), invalid argument",
        ),
        (
            "hipModuleLoadData",
            209,
            "kernel `linear_gemv` was compiled for gfx1100 (code object v6), and hip:0, a gfx1100, does not take it: `hipModuleLoadData` failed: hipErrorNoBinaryForGpu (209), no kernel image is available for execution on the device",
        ),
        (
            "hipModuleLoadData",
            303,
            "kernel `linear_gemv` was compiled for gfx1100 (code object v6), and hip:0, a gfx1100, does not take it: `hipModuleLoadData` failed: hipErrorSharedObjectInitFailed (303), shared object initialization failed",
        ),
        ("hipModuleGetFunction", 500, "the object has no symbol `linear_gemv`"),
        (
            "hipHostMalloc",
            1,
            "hip:0: could not allocate pinned memory: `hipHostMalloc` failed: hipErrorInvalidValue (1), invalid argument",
        ),
        (
            "hipMemcpyAsync",
            719,
            "hip:0: could not copy to the device: `hipMemcpyAsync` failed: hipErrorLaunchFailure (719), unspecified launch failure",
        ),
        (
            "hipModuleLaunchKernel",
            1,
            "hip:0: could not launch a kernel: `hipModuleLaunchKernel` failed: hipErrorInvalidValue (1), invalid argument",
        ),
        (
            "kernel",
            719,
            "hip:0: could not finish what was launched: `hipStreamSynchronize` failed: hipErrorLaunchFailure (719), unspecified launch failure",
        ),
    ] {
        let room = Room::new(&format!("fail = {call}:{status}"));
        let error = all_of_it(&room).expect_err(call);
        assert_eq!(said(&error), expected);
    }
}

/// Opens, loads, copies, launches and reads.
fn all_of_it(room: &Room) -> Result<(), GpuError> {
    let driver = HipDriver::new(&room.runtime(), 0)?;
    let kernel = driver.load(GEMV, gemv())?;
    let x = driver.upload(bytes(64).into())?.view();
    let y = driver.allocate(64)?.view();
    driver.launch(&kernel, &on([1, 1, 1], &arguments(&x, &y)))?;
    driver.read(&y, &mut [0; 64])
}

#[test]
fn a_runtime_that_does_not_start_or_makes_no_sense_is_refused() {
    let room = Room::new("fail = hipInit:303");
    let error = said(&HipRuntime::open(Some(room.path()), None).unwrap_err());
    assert!(error.starts_with("hip: could not start the runtime: `hipInit` failed: hipErrorShared"), "{error}");
    // What HIP says where there is no GPU: 6 the one, 5.2 the other.
    for orders in ["arch =", "fail = hipInit:101"] {
        assert_eq!(Room::new(orders).runtime().n_devices(), 0);
    }
    let room = Room::new("wave_size = 0");
    let error = said(&room.runtime().facts(0).unwrap_err());
    assert_eq!(error, "hip:0: the runtime reports an impossible wave size: 0");
    let room = Room::new("arch = Radeon");
    let error = said(&room.runtime().facts(0).unwrap_err());
    assert!(error.ends_with("an impossible arch: `Radeon`"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let error = said(&HipRuntime::open(Some(folder.path()), None).unwrap_err());
    assert!(error.starts_with("there is no HIP runtime: looked in `/"), "{error}");
}

#[test]
fn launches_are_captured_once_and_replayed_with_what_they_use() {
    let room = Room::new("");
    {
        let Ready { driver, kernel, args } = ready(&room);
        let launch = on([2, 1, 1], &args);
        let graph =
            driver.capture(&[(&kernel, launch.clone()), (&kernel, launch)]).unwrap().expect("the runtime has graphs");
        assert!(room.calls().contains(&"hipStreamEndCapture launches=2".to_owned()));
        assert_eq!(room.count("hipGraphDestroy"), 1);
        drop((args, kernel));
        assert_eq!((room.count("hipFree"), room.count("hipModuleUnload")), (0, 0));
        driver.replay(&graph).unwrap();
        driver.replay(&graph).unwrap();
        driver.read(&driver.allocate(4).unwrap().view(), &mut [0; 4]).unwrap();
        assert_eq!(room.count("hipGraphLaunch launches=2"), 2);
    }
    room.assert_all_given_back();
    assert_eq!(room.count("hipGraphExecDestroy"), 1);
}

#[test]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let room = Room::new("fail = hipModuleLaunchKernel:1:2");
    let Ready { driver, kernel, args } = ready(&room);
    let launch = on([2, 1, 1], &args);
    let error = driver.capture(&[(&kernel, launch.clone()), (&kernel, launch.clone())]).unwrap_err();
    assert!(said(&error).contains("could not launch a kernel"), "{}", said(&error));
    assert_eq!((room.count("hipStreamEndCapture"), room.count("hipGraphDestroy")), (1, 1));
    driver.launch(&kernel, &launch).unwrap();
    driver.read(&driver.allocate(4).unwrap().view(), &mut [0; 4]).unwrap();
}

#[test]
fn a_launch_is_timed_by_the_device() {
    let room = Room::new("");
    let Ready { driver, kernel, args } = ready(&room);
    let before = room.calls().len();
    driver.launch_timed(&kernel, &on([2, 1, 1], &args)).unwrap();
    let calls = room.calls()[before..].to_vec();
    let names: Vec<&str> = calls.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        names,
        [
            "hipEventCreateWithFlags",
            "hipEventCreateWithFlags",
            "hipEventRecord",
            "hipModuleLaunchKernel",
            "hipEventRecord",
            "hipEventSynchronize",
            "hipEventElapsedTime",
        ]
    );
}
