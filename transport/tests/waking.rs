//! What wakes the owner of a transport over TCP, and what need not.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod raw_peer;

use raw_peer::{rig, watch};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tessera_transport::{Class, Config, Event, TcpTransport, Transport};
use vmm_sys_util::epoll::{Epoll, EpollEvent};

const RUN: usize = 2;
/// Payload bytes of the frame that comes in pieces.
const LARGE: usize = 100 * 1024;
/// Only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// What comes at all comes sooner over the loopback device.
const A_WHILE: Duration = Duration::from_millis(50);

/// A transport, the raw other ends of its connections, and what is woken by it.
fn watched(lease: Duration) -> (TcpTransport, [TcpStream; Class::COUNT], Epoll) {
    let (transport, peer) = rig(Config { lease, ..Config::default() });
    let epoll = watch(&transport);
    (transport, peer, epoll)
}

fn is_woken(epoll: &Epoll, limit: Duration) -> bool {
    let limit = i32::try_from(limit.as_millis()).unwrap();
    epoll.wait(limit, &mut [EpollEvent::default()]).unwrap() > 0
}

/// The class and length of each frame that comes until nothing wakes the owner for a while.
fn frames(transport: &mut TcpTransport, epoll: &Epoll) -> Vec<(Class, usize)> {
    let mut seen = Vec::new();
    while is_woken(epoll, A_WHILE) {
        transport.poll(16, &mut |event| match event {
            Event::Frame { class, bytes, .. } => seen.push((class, bytes.len())),
            other => panic!("{other:?}"),
        });
    }
    seen
}

/// A data frame of a run.
fn frame(bytes: usize) -> Vec<u8> {
    let length = u32::try_from(bytes).unwrap().to_le_bytes();
    [&length[..], &[2, 0, 0, 0], &vec![7; bytes]].concat()
}

#[test]
fn part_of_a_large_frame_wakes_nobody() {
    let (mut transport, mut peer, epoll) = watched(PATIENCE);
    let bytes = frame(LARGE);
    let (first, rest) = bytes.split_at(1000);
    let (middle, last) = rest.split_at(LARGE / 2);
    peer[RUN].write_all(first).unwrap();
    assert_eq!(frames(&mut transport, &epoll), []);

    peer[RUN].write_all(middle).unwrap();
    assert!(!is_woken(&epoll, A_WHILE));

    peer[RUN].write_all(last).unwrap();
    assert_eq!(frames(&mut transport, &epoll), [(Class::Run, LARGE)]);
    // And the next frame is not waited for.
    peer[RUN].write_all(&frame(10)).unwrap();
    assert_eq!(frames(&mut transport, &epoll), [(Class::Run, 10)]);
}

/// Nothing else comes from the peer, and each piece is too small to wake anybody.
#[test]
fn frame_that_comes_slowly_is_a_sign_of_life() {
    let lease = Duration::from_millis(400);
    let (mut transport, mut peer, epoll) = watched(lease);
    let bytes = frame(LARGE);
    let start = Instant::now();
    let mut came = 0;
    let pieces = bytes.chunks(LARGE / 100);
    let last = pieces.len() - 1;
    for (place, piece) in pieces.enumerate() {
        peer[RUN].write_all(piece).unwrap();
        // The last completes the frame, however late its receiver gets to run.
        let patience = if place == last { PATIENCE } else { Duration::from_millis(15) };
        while came < LARGE && is_woken(&epoll, patience) {
            transport.poll(16, &mut |event| match event {
                Event::Frame { bytes, .. } => came += bytes.len(),
                other => panic!("{other:?} after {:?}", start.elapsed()),
            });
        }
    }
    assert_eq!(came, LARGE);
    assert!(start.elapsed() > 3 * lease, "it was not slow");
}
