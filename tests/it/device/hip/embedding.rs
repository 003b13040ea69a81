//! A table that stays in main memory, where kernels of a HIP device read it.

use super::Room;
use super::commands::text;
use crate::object::hiprtc;

/// 768 rows of 128 numbers of two bytes.
const TABLE: &str = "196608";

#[test]
fn kernels_read_a_table_in_pinned_memory_and_the_device_has_none_of_it() {
    let Some(_) = hiprtc::compiler() else { return };
    let allocated = |place: &str| {
        let (room, simulated) = Room::executing("gfx1100", &[], "");
        let output = room.on("hip", &["--embedding", place]);
        assert_eq!(text(&output.stdout), simulated, "{}", text(&output.stderr));
        let is_told = text(&output.stderr).contains("the embedding (196.6 kB) is in main memory");
        assert_eq!(is_told, place == "host", "{}", text(&output.stderr));
        room.assert_all_given_back();
        ["hipMalloc", "hipHostMalloc"].map(|call| room.count(&format!("{call} {TABLE}")))
    };
    let ([of_device, of_host], [of_device_beside, of_host_beside]) = (allocated("device"), allocated("host"));
    assert_eq!((of_device_beside + 1, of_host_beside), (of_device, of_host + 1));
}

#[test]
fn a_table_that_cannot_be_pinned_is_told_of() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, _) = Room::executing("gfx1100", &[], "fail = hipHostMalloc:2");
    let output = room.on("hip", &["--embedding", "host"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("could not keep `embedding.weight` in main memory for the device: no 196608 bytes"), "{err}");
    assert!(err.contains("hint: `--embedding device` keeps it on the device"), "{err}");
}
