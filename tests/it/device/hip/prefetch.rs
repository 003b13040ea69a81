//! Copies to the device beside what is launched.

use bytes::Bytes;
use gpu::host::{self, HostDriver};
use gpu::{BufferView, Driver, GpuError};

use super::Room;

/// More than the ring of pinned memory has.
const LEN_BYTES: usize = 40 << 20;

fn bytes(seed: usize) -> Vec<u8> {
    let part: Vec<u8> = (0..65_537).map(|i: usize| (i * 7 + i / 251 + seed) as u8).collect();
    let mut all = part.repeat(LEN_BYTES / part.len() + 1); // of no period that chunks have
    all.truncate(LEN_BYTES);
    all
}

fn in_memory(bytes: &[u8]) -> BufferView {
    let view = host::allocate(bytes.len()).expect("there is room").view();
    HostDriver::new(1).expect("a thread").write(&view, bytes).expect("it fits");
    view.slice(0, bytes.len()).expect("all of it")
}

fn read(driver: &dyn Driver, view: &BufferView) -> Vec<u8> {
    let mut back = vec![0; view.len_bytes()];
    driver.read(view, &mut back).expect("it is there");
    back
}

/// From pinned memory and from any, whether the fake copies as late as it may or as early: what was copied is there for
/// what asked for it, and what comes next to the same place does not come too early.
#[test]
fn what_is_used_is_what_was_asked_for() {
    for orders in ["", "copies = early"] {
        let room = Room::new(&format!("arch = gfx1100\n{orders}"));
        {
            let driver = room.driver();
            let (first, second) = (bytes(1), bytes(2));
            let pinned = driver.pin(&in_memory(&first)).expect("it can be").expect("it is this program's");
            assert!(pinned.is_pinned());
            let file =
                HostDriver::new(1).expect("a thread").upload(Bytes::from(second.clone())).expect("as it is").view();
            assert!(driver.pin(&file).expect("no error").is_none(), "somebody else's bytes");
            let [place, used] = [LEN_BYTES; 2].map(|len| driver.allocate(len).expect("there is room").view());
            driver.prefetch(1, &[(pinned, place.clone())]).expect("it fits");
            driver.begin_use(1).expect("it waits");
            driver.copy(&place, &used).expect("as a kernel would");
            driver.end_use(1).expect("it is told");
            driver.prefetch(1, &[(file, place.clone())]).expect("it fits");
            driver.begin_use(1).expect("it waits");
            assert!(read(&driver, &used) == first, "{orders}: the first copy was overtaken");
            assert!(read(&driver, &place) == second, "{orders}: the second copy was not waited for");
            let short = place.slice(0, 8).expect("inside");
            let too_long = driver.prefetch(0, &[(in_memory(&first), short)]).expect_err("it does not fit");
            assert!(matches!(too_long, GpuError::Range { .. }), "{too_long}");
        }
        assert_eq!(room.count("hipHostUnregister registered=0"), 1);
        room.assert_all_given_back();
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error_and_goes_another_way() {
    let room = Room::new("arch = gfx1100\nfail = hipHostRegister:2");
    let driver = room.driver();
    let (own, place) = (in_memory(&[7; 64]), driver.allocate(64).expect("there is room").view());
    let error = driver.pin(&own).expect_err("it was told to fail");
    assert!(matches!(error, GpuError::Call { what: "pin memory", .. }), "{error}");
    driver.prefetch(0, &[(own, place.clone())]).expect("through the ring");
    driver.begin_use(0).expect("it waits");
    assert_eq!(read(&driver, &place), [7; 64]);
}
