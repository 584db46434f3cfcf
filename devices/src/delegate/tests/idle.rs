//! Delegated devices with nothing under way.

use super::{OWNER, PATIENCE, World};
use crate::back_end::{
    Disk, DiskDone, DiskReply, DiskRequest, DiskShape, Nic, NicShape, PacketSink, PacketsDone,
};
use crate::delegate::StillInFlight;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use wire::{DeviceId, SliceId};

const DEVICE: DeviceId = DeviceId(4);
const SHORT: Duration = Duration::from_millis(5);
const ASKER: SliceId = SliceId(1);

/// A disk and a network that end nothing before they are told.
#[derive(Default)]
struct Keeping {
    requests: Mutex<Vec<DiskDone>>,
    batches: Mutex<Vec<PacketsDone>>,
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeping")
    }
}

impl Keeping {
    fn count(&self) -> usize {
        self.requests.lock().unwrap().len() + self.batches.lock().unwrap().len()
    }

    fn end_all(&self) {
        for done in self.requests.lock().unwrap().drain(..) {
            done(DiskReply::Done(Vec::new()));
        }
        self.batches.lock().unwrap().drain(..).for_each(|done| done());
    }
}

fn disk_shape() -> DiskShape {
    DiskShape { sectors: 64, block_bytes: 512, read_only: false, discard: true, id: [0; 20] }
}

fn nic_shape() -> NicShape {
    NicShape { mac: [2; 6], mtu: 1500, pairs: 1, offloads: 0 }
}

impl Disk for Keeping {
    fn shape(&self) -> DiskShape {
        disk_shape()
    }

    fn submit(&self, _: DiskRequest, done: DiskDone) {
        self.requests.lock().unwrap().push(done);
    }
}

impl Nic for Keeping {
    fn shape(&self) -> NicShape {
        nic_shape()
    }

    fn connect(&self, _: u64, _: u16, _: Option<Arc<dyn PacketSink>>) {}

    fn transmit(&self, _: u16, _: Vec<Vec<u8>>, done: PacketsDone) {
        self.batches.lock().unwrap().push(done);
    }

    fn allow(&self, _: u16, _: u32) {}
}

/// Asks the device of another slice three times; counts the answers.
fn ask(world: &World, kind: &str) -> (Arc<Keeping>, Arc<AtomicUsize>) {
    let (device, answers) = (Arc::<Keeping>::default(), Arc::<AtomicUsize>::default());
    let answered = || {
        let answers = Arc::clone(&answers);
        move || {
            // Long enough that whoever does not wait for it is found out.
            thread::sleep(SHORT);
            answers.fetch_add(1, Ordering::SeqCst);
        }
    };
    if kind == "disk" {
        world.slice(OWNER).serve_disk(DEVICE, device.clone(), 1).unwrap();
        let disk = world.slice(ASKER).remote_disk(DEVICE, OWNER, disk_shape(), 1);
        for _ in 0..3 {
            let answered = answered();
            disk.submit(DiskRequest::Flush, Box::new(move |_| answered()));
        }
    } else {
        world.slice(OWNER).serve_nic(DEVICE, device.clone()).unwrap();
        let nic = world.slice(ASKER).remote_nic(DEVICE, OWNER, nic_shape());
        for _ in 0..3 {
            nic.transmit(0, vec![vec![0; 60]], Box::new(answered()));
        }
    }
    (device, answers)
}

#[test]
fn slices_are_idle_once_everything_asked_is_answered() {
    for kind in ["disk", "network"] {
        let mut world = World::new(7);
        let (device, answers) = ask(&world, kind);
        let still = |slice: SliceId, world: &World| world.slice(slice).wait_until_idle(SHORT);
        let three = Err(StillInFlight { device: DEVICE, requests: 3, within: SHORT });
        assert_eq!(still(ASKER, &world), three);
        world.run_until(|| device.count() == 3);
        assert_eq!((still(OWNER, &world), still(ASKER, &world)), (three, three));
        device.end_all();
        assert_eq!(world.slice(OWNER).wait_until_idle(PATIENCE), Ok(()));
        let (asker, seen) = (Arc::clone(&world.slices[1]), Arc::clone(&answers));
        let waiting = thread::spawn(move || {
            let idle = asker.wait_until_idle(PATIENCE);
            (idle, seen.load(Ordering::SeqCst))
        });
        world.run_until(|| answers.load(Ordering::SeqCst) == 3);
        assert_eq!(waiting.join().unwrap(), (Ok(()), 3), "{kind}");
        assert_eq!(still(SliceId(2), &world), Ok(()), "it has asked nothing");
    }
}

#[test]
fn requests_to_a_lost_slice_are_not_in_flight_any_more() {
    for kind in ["disk", "network"] {
        let mut world = World::new(3);
        let (device, answers) = ask(&world, kind);
        world.run_until(|| device.count() == 3);
        world.lose_owner();
        assert_eq!(world.slice(ASKER).wait_until_idle(PATIENCE), Ok(()));
        assert_eq!(answers.load(Ordering::SeqCst), 3, "{kind}");
    }
}
