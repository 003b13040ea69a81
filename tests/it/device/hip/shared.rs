//! Memory of several devices that all of them see.

use gpu::hip::HipDriver;
use gpu::{Driver, GpuError};

use super::Room;

fn drivers(room: &Room, n: usize) -> Vec<HipDriver> {
    let runtime = room.runtime();
    (0..n).map(|ordinal| HipDriver::new(&runtime, ordinal).expect("there is such a device")).collect()
}

fn others(drivers: &[HipDriver]) -> Vec<&dyn Driver> {
    drivers[1..].iter().map(|driver| driver as &dyn Driver).collect()
}

/// What the fake's pieces are multiples of.
const PIECE: usize = 12 << 10;

#[test]
fn each_device_reads_what_every_other_one_writes_and_all_is_given_back() {
    let room = Room::new("arch = gfx942, gfx942, gfx942");
    {
        let drivers = drivers(&room, 3);
        let views = drivers[0].shared(&others(&drivers), 100).expect("they reach each other");
        assert!(views.iter().all(|view| view.len_bytes() == 3 * PIECE && view.is_writable()));
        // One piece's end and the next one's beginning.
        let across = |i: usize| views[i].slice(PIECE - 8, 16).expect("inside");
        for (writer, writing) in drivers.iter().enumerate() {
            let bytes: Vec<u8> = (0..16).map(|i| 100 * writer as u8 + i).collect();
            writing.write(&across(writer), &bytes).expect("it is allowed");
            writing.wait().expect("written");
            for (reader, reading) in drivers.iter().enumerate() {
                let mut back = [0; 16];
                reading.read(&across(reader), &mut back).expect("it is allowed");
                assert_eq!(back, bytes[..], "{writer} wrote, {reader} read");
            }
        }
        assert!(matches!(drivers[0].read(&views[1], &mut [0]), Err(GpuError::ForeignMemory)));
    }
    let calls = room.calls();
    let of = |name: &str| calls.iter().filter(|line| line.starts_with(name)).cloned().collect::<Vec<_>>();
    let created: Vec<String> = (0..3).map(|device| format!("hipMemCreate {PIECE} of {device}")).collect();
    assert_eq!(of("hipMemCreate"), created);
    assert_eq!(of("hipMemRelease"), ["hipMemRelease created=2", "hipMemRelease created=1", "hipMemRelease created=0"]);
    assert_eq!((of("hipMemMap").len(), of("hipMemUnmap").len(), of("hipMemAddressFree").len()), (3, 3, 1));
    assert!(calls.last().is_some_and(|line| line.contains("live=0 streams=0")), "{calls:?}");
}

#[test]
fn what_must_not_wait_is_written_beside_what_runs() {
    let room = Room::new("arch = gfx1100, gfx1100");
    let drivers = drivers(&room, 2);
    let views = drivers[0].shared(&others(&drivers), 64).expect("they reach each other");
    let word = |i: usize| views[i].slice(PIECE, 4).expect("inside");
    let read = || {
        let mut word_of_it = [0; 4];
        drivers[1].read(&word(1), &mut word_of_it).map(|()| u32::from_ne_bytes(word_of_it))
    };
    drivers[0].write(&word(0), &1_u32.to_ne_bytes()).expect("it waits on its stream");
    drivers[0].fill_now(&views[0], 7).expect("it does not");
    assert_eq!(read().expect("read"), 7);
    drivers[0].wait().expect("the stream is done");
    assert_eq!(read().expect("read"), 1);
    let own = drivers[0].allocate(64).expect("there is room").view();
    drivers[1].fill_now(&own, 7).expect_err("memory of another device");
}

#[test]
fn devices_that_do_not_reach_each_other_say_so_and_what_was_begun_is_given_back() {
    let room = Room::new("arch = gfx1100, gfx1100\npeers = false");
    let two = drivers(&room, 2);
    let error = two[0].shared(&others(&two), 64).expect_err("no way");
    assert_eq!(error.to_string(), "hip:0 does not reach the memory of hip:1");
    let itself: [&dyn Driver; 1] = [&drivers(&room, 1)[0]];
    assert!(matches!(two[0].shared(&itself, 64), Err(GpuError::Unreachable { .. })), "a device and itself");

    for fail in ["hipMemMap:1:2", "hipMemCreate:2:2", "hipMemSetAccess:1:2"] {
        let room = Room::new(&format!("arch = gfx1100, gfx1100\nfail = {fail}"));
        let two = drivers(&room, 2);
        two[0].shared(&others(&two), 64).expect_err("a call fails");
        let calls = room.calls();
        let last = |name: &str| calls.iter().rfind(|line| line.starts_with(name)).cloned().unwrap_or_default();
        assert_eq!(last("hipMemRelease"), "hipMemRelease created=0", "{fail}: {calls:?}");
        // What is read beside all launches has pinned memory, for each device.
        assert_eq!(last("hipMemAddressFree"), "hipMemAddressFree live=2", "{fail}: {calls:?}");
    }
}

#[test]
fn memory_that_no_cache_keeps_is_asked_for_where_the_runtime_has_it() {
    // The fake refuses it before 7.2, as the runtime does: there it is not asked for.
    for version in ["6.4.43484", "7.2.0"] {
        let room = Room::new(&format!("arch = gfx942, gfx942\nversion = {version}"));
        let two = drivers(&room, 2);
        two[0].shared(&others(&two), 64).unwrap_or_else(|error| panic!("{version}: {error}"));
        let kinds: Vec<String> = room.calls().into_iter().filter(|line| line.starts_with("hipMemCreate")).collect();
        let uncached = kinds.iter().all(|line| line.ends_with("uncached"));
        assert_eq!(uncached, version.starts_with('7'), "{kinds:?}");
    }
}
