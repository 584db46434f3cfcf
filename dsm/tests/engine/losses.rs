//! What an engine makes of peers that are lost, and of one that breaks the protocol. One engine; the test has the
//! other ends of its transport.

use crate::support::{LIMIT, forward_to};
use needs::Need;
use std::os::fd::BorrowedFd;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tessera_dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, NodeConfig,
    RestError, Tracing, Unrest, Uplink, check_host,
};
use transport::{Class, Config, Event, SendError, ShmTransport, Transport, shm};
use wire::{Epoch, Gfn, Message, SliceId, VcpuId};

const FRAMES: u64 = 512;

/// Shared memory of which nothing comes while the gate is shut, and where messages may get lost.
struct Gated {
    frames: ShmTransport,
    is_shut: Arc<AtomicBool>,
    loses: bool,
}

impl Transport for Gated {
    forward_to!(frames);
    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), SendError> {
        if self.loses && class == Class::Coherence {
            return Ok(());
        }
        self.frames.send(to, class, head, rest)
    }
    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.frames.take_heard(sink);
    }
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        if self.is_shut.load(Ordering::SeqCst) { 0 } else { self.frames.poll(budget, sink) }
    }
}

/// Tells of losses and of the end.
struct Ears(Sender<String>);

impl Uplink for Ears {
    fn frame(&mut self, from: SliceId, _: Class, _: &[u8]) {
        let _ = self.0.send(format!("frame of {from}"));
    }
    fn lost(&mut self, peer: SliceId, _: String) {
        let _ = self.0.send(format!("{peer} is lost"));
    }
    fn fatal(&mut self, error: EngineError) {
        let _ = self.0.send(error.to_string());
    }
    fn sample_roots(&mut self) {}
}

/// An engine of slice 0 with the ends of slices 1 and 2; slice 1 may be a bystander.
struct Setup {
    handle: Handle,
    others: [ShmTransport; 2],
    is_shut: Arc<AtomicBool>,
    said: Receiver<String>,
}

fn setup(bystanders: &[SliceId]) -> Option<Setup> {
    setup_with(bystanders, SliceId(0), false, LIMIT)
}

fn setup_with(
    bystanders: &[SliceId],
    home: SliceId,
    loses: bool,
    wait_limit: Duration,
) -> Option<Setup> {
    if !needs::has(Need::Uffd, check_host()) {
        return None;
    }
    let mut mesh = shm::mesh(3, &Config::default()).unwrap().into_iter();
    let is_shut = Arc::new(AtomicBool::new(false));
    let transport = Gated { frames: mesh.next().unwrap(), is_shut: Arc::clone(&is_shut), loses };
    let others = [mesh.next().unwrap(), mesh.next().unwrap()];
    let home = HomeRange { frames: 0..FRAMES, home };
    let members = (0..3).map(SliceId).filter(|slice| !bystanders.contains(slice)).collect();
    let homes = HomeTable::new(vec![home]).unwrap();
    let (sender, said) = channel();
    let (handle, _) = Engine::start(EngineConfig {
        bystanders: bystanders.to_vec(),
        core: None,
        wait_limit,
        node: NodeConfig::new(SliceId(0), members, homes, Epoch(1)),
        ram: Arc::new(GuestRam::new(from_ref(&(0..FRAMES))).unwrap()),
        transport: Box::new(transport),
        uplink: Box::new(Ears(sender)),
        trace: Tracing::Off,
    })
    .unwrap();
    Some(Setup { handle, others, is_shut, said })
}

#[test]
fn uffd_all_peers_that_are_lost_at_once_are_told() {
    for bystanders in [&[][..], &[SliceId(1)], &[SliceId(2)]] {
        let Some(setup) = setup(bystanders) else { return };
        setup.is_shut.store(true, Ordering::SeqCst);
        // The engine is not in the midst of a poll that began before.
        setup.handle.report(LIMIT).unwrap();
        drop(setup.others);
        setup.is_shut.store(false, Ordering::SeqCst);
        let mut told = [0; 2].map(|_| setup.said.recv_timeout(LIMIT).unwrap());
        told.sort();
        assert_eq!(told, [1, 2].map(|slice| format!("{} is lost", SliceId(slice))));
    }
}

#[test]
fn uffd_frames_behind_the_loss_of_a_bystander_count() {
    let Some(setup) = setup(&[SliceId(1)]) else { return };
    let [bystander, mut other] = setup.others;
    setup.is_shut.store(true, Ordering::SeqCst);
    setup.handle.report(LIMIT).unwrap();
    drop(bystander);
    other.send(SliceId(0), Class::Interrupt, b"x", &[]).unwrap();
    setup.is_shut.store(false, Ordering::SeqCst);
    let mut told = [0; 2].map(|_| setup.said.recv_timeout(LIMIT).unwrap());
    told.sort();
    assert_eq!(told, ["frame of slice2", "slice1 is lost"]);
    setup.handle.stop();
}

#[test]
fn uffd_root_outside_memory_or_of_no_vcpu_is_refused() {
    for (vcpu, gfn) in [(0, 1 << 40), (0, FRAMES), (1 << 20, 3)] {
        let Some(setup) = setup(&[]) else { return };
        let [mut peer, _other] = setup.others;
        let mut frame = Vec::new();
        let root = Message::Root { vcpu: VcpuId(vcpu), gfn: Gfn(gfn) };
        root.encode(Epoch(1), false, &mut frame);
        peer.send(SliceId(0), Class::Coherence, &frame, &[]).unwrap();
        let said = setup.said.recv_timeout(LIMIT).unwrap();
        assert_eq!(said, "the coherence protocol was broken");
    }
}

#[test]
fn uffd_root_of_a_guest_may_be_anywhere() {
    let Some(setup) = setup(&[]) else { return };
    for gfn in [1 << 40, u64::MAX >> 12, FRAMES] {
        setup.handle.set_root(VcpuId(0), Gfn(gfn));
    }
    setup.handle.report(LIMIT).unwrap();
    assert!(setup.said.try_recv().is_err());
    setup.handle.stop();
}

#[test]
fn uffd_wait_for_a_page_whose_request_got_lost_ends_and_is_told() {
    let limit = Duration::from_millis(300);
    let Some(setup) = setup_with(&[], SliceId(1), true, limit) else { return };
    // As a vCPU would: it needs the page, and its request gets lost.
    let copied = setup.handle.read(7 * 4096, 8, LIMIT);
    assert!(copied.is_err());
    let said = setup.said.recv_timeout(LIMIT).unwrap();
    let parts = ["gfn7 has been waited for", "its home is slice1"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

/// The home of a page lives and does not answer: the time for a rest ends, and what is under way is told.
#[test]
fn uffd_rest_is_bounded_and_names_what_is_in_flight() {
    let Some(setup) = setup_with(&[], SliceId(1), false, LIMIT) else { return };
    let limit = Duration::from_millis(50);
    setup.handle.read(0, 8, limit).unwrap_err();
    let unrest = Unrest::Copies(1);
    for _ in 0..2 {
        assert_eq!(setup.handle.rest(limit), Err(RestError::Late { limit, unrest }));
        assert_eq!(setup.handle.save(LIMIT), Err(RestError::NotAtRest(unrest)));
    }
    setup.handle.stop();
}
