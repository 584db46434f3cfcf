//! A VMM that sends more from the engine's own thread than the engine's queue holds, as it may when it brings
//! misdirected interrupts on.

use crate::support::LIMIT;
use needs::Need;
use std::slice::from_ref;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tessera_dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, NodeConfig, Tracing,
    Uplink, check_host,
};
use transport::{Class, Config, Event, Transport, shm};
use wire::{Epoch, SliceId};

const FRAMES: u64 = 512;
/// More than the queue of commands holds.
const FOR_EACH: usize = 5000;
const COUNT: usize = 3 * FOR_EACH;

/// Sends each frame on to slice 2, many times.
struct Forwards(Arc<OnceLock<Handle>>);

impl Uplink for Forwards {
    fn frame(&mut self, _: SliceId, _: Class, bytes: &[u8]) {
        for _ in 0..FOR_EACH {
            let sent = self.0.get().unwrap().send(SliceId(2), Class::Interrupt, bytes.to_vec());
            assert!(sent);
        }
    }
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, error: EngineError) {
        panic!("the engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
}

#[test]
fn uffd_engine_that_brings_frames_on_never_waits_for_itself() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let mut mesh = shm::mesh(3, &Config::default()).unwrap().into_iter();
    let (own, mut sender, mut receiver) =
        (mesh.next().unwrap(), mesh.next().unwrap(), mesh.next().unwrap());
    let home = HomeRange { frames: 0..FRAMES, home: SliceId(0) };
    let shared = Arc::new(OnceLock::new());
    let (handle, engine) = Engine::start(EngineConfig {
        bystanders: Vec::new(),
        core: None,
        wait_limit: LIMIT,
        node: NodeConfig::new(
            SliceId(0),
            (0..3).map(SliceId).collect(),
            HomeTable::new(vec![home]).unwrap(),
            Epoch(1),
        ),
        ram: Arc::new(GuestRam::new(from_ref(&(0..FRAMES))).unwrap()),
        transport: Box::new(own),
        uplink: Box::new(Forwards(Arc::clone(&shared))),
        trace: Tracing::Off,
    })
    .unwrap();
    shared.set(handle.clone()).unwrap();
    let start = Instant::now();
    for _ in 0..COUNT / FOR_EACH {
        sender.send(SliceId(0), Class::Interrupt, b"on", &[]).unwrap();
    }
    let mut came = 0;
    while came < COUNT && start.elapsed() < LIMIT {
        for end in [&mut sender, &mut receiver] {
            end.poll(64, &mut |event| came += usize::from(matches!(event, Event::Frame { .. })));
        }
        thread::sleep(Duration::from_micros(20));
    }
    assert_eq!(came, COUNT);
    handle.stop();
    engine.join().unwrap();
}
