//! How queue pairs end. These need an RDMA port; without one they say so and do nothing, unless
//! `TESSERA_REQUIRE` names rdma.

use super::completion::Done;
use super::device::Wanted;
use super::setup::Endpoint;
use super::verbs::completions;
use super::{RdmaError, RdmaTransport, available, link, loopback, pair};
use crate::config::Config;
use crate::memory::PageMemory;
use crate::testing::{PAGE, PAGES, bytes_of, fill_page, memory, page_of};
use crate::traits::{Class, Event, SendError, Transport};
use needs::Need;
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairAttribute, QueuePairState};
use std::io::IoSlice;
use std::time::{Duration, Instant};
use wire::SliceId;

const A: SliceId = SliceId(0);
const B: SliceId = SliceId(1);
/// Far beyond the lease; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn has_rdma() -> bool {
    needs::has(Need::Rdma, available())
}

fn transports(first: Endpoint, second: Endpoint) -> (RdmaTransport, RdmaTransport) {
    let (near, far) = loopback().unwrap();
    let config = Config::default();
    let first = RdmaTransport::new(A, vec![(B, first, near)], config.clone()).unwrap();
    (first, RdmaTransport::new(B, vec![(A, second, far)], config).unwrap())
}

/// Polls both until each lost the other; the causes.
fn ends(a: &mut RdmaTransport, b: &mut RdmaTransport) -> [String; 2] {
    let end = Instant::now() + PATIENCE;
    let mut causes = [None, None];
    while causes.iter().any(Option::is_none) {
        assert!(Instant::now() < end, "nobody noticed: {causes:?}");
        for (transport, cause) in [&mut *a, &mut *b].into_iter().zip(&mut causes) {
            transport.poll(64, &mut |event| {
                if let Event::Lost { cause: text, .. } = event {
                    *cause = Some(text);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    causes.map(Option::unwrap_or_default)
}

#[test]
fn queue_pair_in_error_ends_the_peer_on_both_sides() {
    if !has_rdma() {
        return;
    }
    let (mut first, second) = pair(Duration::from_secs(3)).unwrap();
    let place = first.location();
    let mut broken = QueuePairAttribute::new();
    broken.setup_state(QueuePairState::Error);
    first.link.pairs[1].modify(&broken).unwrap();
    let (mut a, mut b) = transports(first, second);

    let [near, far] = ends(&mut a, &mut b);

    assert!(near.contains("queue pair of class 1") && near.contains(&place), "{near}");
    assert!(far.starts_with("slice0 at "), "{far}");
}

#[test]
fn overflow_of_the_completion_queue_ends_the_peer() {
    if !has_rdma() {
        return;
    }
    // Adapters round up to a power of two or to a page: it must still be less than what comes.
    let places = 8;
    assert!(completions() > 400, "this test floods a queue with more than it could hold");
    let mut first = Endpoint::open(&Wanted::Any, None).unwrap();
    let mut second = Endpoint::open_with(&Wanted::Any, places, None).unwrap();
    first.connect(&second.offer(), Duration::from_secs(3)).unwrap();
    second.connect(&first.offer(), Duration::from_secs(3)).unwrap();
    let (mut a, mut b) = transports(first, second);
    // B does not poll meanwhile.
    for class in Class::ALL {
        for _ in 0..30 {
            a.send(B, class, &[1; 900], &[]).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(300));

    let [_, far] = ends(&mut a, &mut b);

    assert!(far.contains("completion queue"), "{far}");
}

#[test]
fn peer_cannot_write_where_it_was_not_asked_to() {
    if !has_rdma() {
        return;
    }
    let (mut first, second) = pair(Duration::from_secs(3)).unwrap();
    let mut second = second;
    // Even with the right address and key of the pool.
    let (address, key) = second.link.whereabouts();
    first.link.fill(1, 0, &[IoSlice::new(&[0xee; 64])], 0);
    first.link.post_write(1, address, key).unwrap();

    let (mut done, end) = (Vec::new(), Instant::now() + PATIENCE);
    while !done.iter().any(|one| matches!(one, Done::Failed { class: 1, .. })) {
        assert!(Instant::now() < end, "the write was not refused: {done:?}");
        first.link.poll(&mut done).unwrap();
    }
    let mut memory = [0; 64];
    second.link.copy_out(0, 0, 0, &mut memory);
    assert_eq!(memory, [0; 64]);
}

#[test]
#[ignore = "needs a process that may lock little memory; ./x lab rdma runs it in one"]
fn refused_registration_names_the_limit() {
    let error = Endpoint::open(&Wanted::Any, None).unwrap_err();

    assert!(matches!(error, RdmaError::Pinning { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("65536 bytes") && text.contains("ulimit -l"), "{text}");
}

#[test]
fn pages_are_there_before_their_frames() {
    if has_rdma() {
        [Class::Coherence, Class::Run].into_iter().for_each(places_before_frames);
    }
}

fn places_before_frames(class: Class) {
    let exposed = [memory(), memory()];
    let mut mesh = super::mesh_exposing(2, &Config::default(), &exposed).unwrap();
    let (mut b, mut a) = (mesh.pop().unwrap(), mesh.pop().unwrap());
    assert!(a.has_remote_write(B) && b.has_remote_write(A) && !a.has_remote_write(A));
    for page in 0..PAGES {
        fill_page(&exposed[0], page, u8::try_from(page % 251 + 1).unwrap());
    }
    let (mut sent, mut seen, end) = (0, 0, Instant::now() + PATIENCE);
    // More than may be under way, some alone and some many by one call.
    while seen < PAGES {
        assert!(Instant::now() < end, "{seen} of {sent} pages came");
        a.cork(sent % 3 == 0);
        while sent < PAGES {
            let offset = u64::try_from(sent * PAGE).unwrap();
            let head = u64::try_from(sent).unwrap().to_le_bytes();
            match a.remote_write(B, class, &head, offset, 1) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, SendError::Full);
                    break;
                }
            }
        }
        a.cork(false);
        a.poll(64, &mut |event| assert!(!matches!(event, Event::Lost { .. }), "{event:?}"));
        b.poll(64, &mut |event| match event {
            Event::Frame { bytes, .. } => {
                let page = usize::try_from(u64::from_le_bytes(bytes.try_into().unwrap())).unwrap();
                assert_eq!(page, seen);
                assert_eq!(usize::from(page_of(&exposed[1], page)), page % 251 + 1);
                seen += 1;
            }
            other => panic!("{other:?}"),
        });
    }
    let beyond = u64::try_from(PAGES * PAGE).unwrap();
    for offset in [beyond, beyond - 1, 5, u64::MAX] {
        assert_eq!(a.remote_write(B, class, &[1], offset, 1), Err(SendError::Full));
    }
    assert_eq!(a.remote_write(B, Class::Bulk, &[1], 0, 1), Err(SendError::Full));
}

#[test]
fn pages_are_not_written_where_one_end_exposes_nothing() {
    if !has_rdma() {
        return;
    }
    let mut mesh = super::mesh_exposing(2, &Config::default(), &[memory()]).unwrap();

    for (transport, peer) in mesh.iter_mut().zip([B, A]) {
        assert!(!transport.has_remote_write(peer));
        assert_eq!(
            transport.remote_write(peer, Class::Coherence, &[1], 0, 1),
            Err(SendError::Full)
        );
    }
}

/// Ends of queue pairs that expose memory to each other, and the memory.
fn exposing() -> (Endpoint, Endpoint, [PageMemory; 2]) {
    let exposed = [memory(), memory()];
    let (first, second) =
        super::pair_exposing(Duration::from_secs(3), [Some(&exposed[0]), Some(&exposed[1])])
            .unwrap();
    (first, second, exposed)
}

/// Whether a write of 64 bytes to the peer's memory was carried out.
fn writes(end: &mut Endpoint, class: usize, address: u64, key: u32) -> bool {
    end.link.fill(class, 0, &[IoSlice::new(&[0xee; 64])], 0);
    end.link.post_write(class, address, key).unwrap();
    let (mut done, end_at) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < end_at, "neither written nor refused");
        end.link.poll(&mut done).unwrap();
        for one in done.drain(..) {
            match one {
                Done::NoteSent { class: of } if of == class => return true,
                Done::Failed { class: of, .. } if of == class => return false,
                _ => {}
            }
        }
    }
}

/// What a key of exposed memory is worth: all of the memory, and nothing else.
#[test]
fn key_of_exposed_memory_reaches_that_memory_alone() {
    if !has_rdma() {
        return;
    }
    let bytes = u64::try_from(PAGES * PAGE).unwrap();
    let (mut first, second, exposed) = exposing();
    let there = second.link.exposed().unwrap();
    assert!(writes(&mut first, 1, there.address + bytes - 64, there.key));
    assert_eq!(bytes_of(&exposed[1], PAGES * PAGE - 1, 1), [0xee]);
    // A refused write ends the queue pair, so each is tried by a new one.
    assert!(!writes(&mut first, 1, there.address + bytes - 32, there.key), "beyond the end");
    let (mut first, second, _lent) = exposing();
    let there = second.link.exposed().unwrap();
    let (address, key) = second.link.whereabouts();
    assert!(!writes(&mut first, 1, address, key), "into the pool");
    let (mut stranger, other, _lent) = exposing();
    let here = other.link.exposed().unwrap();
    assert_ne!((here.address, here.key), (there.address, there.key));
    assert!(!writes(&mut stranger, 1, there.address, there.key), "with another peer's key");
    drop(second);
}

/// A slice that is alone takes in a peer that is alone.
#[test]
fn running_transports_take_in_each_other() {
    if !has_rdma() {
        return;
    }
    let (near, far) = loopback().unwrap();
    let (first, second) = pair(Duration::from_secs(3)).unwrap();
    let alone = |slice| RdmaTransport::new(slice, Vec::new(), Config::default()).unwrap();
    let (mut a, mut b) = (alone(A), alone(B));
    a.add_peer(link(B, first, near, &Config::default()).unwrap()).unwrap();
    b.add_peer(link(A, second, far, &Config::default()).unwrap()).unwrap();

    a.send(B, Class::Coherence, b"hello", &[]).unwrap();
    let end = Instant::now() + PATIENCE;
    let mut came = 0;
    while came == 0 {
        assert!(Instant::now() < end, "nothing came");
        came += b.poll(16, &mut |event| {
            assert!(matches!(event, Event::Frame { from: A, bytes: b"hello", .. }), "{event:?}");
        });
        a.poll(16, &mut |event| panic!("{event:?}"));
    }
    drop(a.remove_peer(B).unwrap());
    assert_eq!(a.send(B, Class::Coherence, b"more", &[]), Err(SendError::Gone));
}
