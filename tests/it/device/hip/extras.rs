//! An engine on the fake device, which runs one step ahead of what is known, and requests whose next token depends on
//! what is not known yet.

use std::sync::Arc;

use engine::device::Device;
use gpu::Driver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::store::Store;
use kernel::tuning::TuningTables;

use super::Room;
use super::run::cache;
use crate::engine::extras::{check_against_the_cpu, load};
use crate::object::hiprtc;

fn store() -> Store {
    Store::new(Cache::open(cache(), CacheLimits::default()), hiprtc::options())
}

#[test]
fn masks_and_penalties_know_the_token_before_one_step_ahead_too() {
    let Some(_) = hiprtc::compiler() else { return };
    let tables = TuningTables::load(&[]).expect("built in");
    let simulated: Device = "sim:gfx1100".parse().expect("a name");
    let (target, driver) = simulated.open(&tables, 0).expect("it opens");
    drop(load(target, store(), driver, 3)); // the fake executes what that compiles
    let room = Room::new(&format!("arch = gfx1100\nkernels = {}", cache().display()));
    let driver: Arc<dyn Driver> = Arc::new(room.driver());
    let mut engine = load(tables.gpu("gfx1100").expect("known"), store(), driver, 3);
    check_against_the_cpu(&mut engine);
    // Up to the logits a step is one replay; the rest is launched by itself, and only where somebody asks.
    assert!(room.count("hipGraphLaunch") > 0 && room.count("hipModuleLaunchKernel") > 0);
    drop(engine);
    room.assert_all_given_back();
}
