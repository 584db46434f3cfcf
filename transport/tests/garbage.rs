//! A peer that breaks the rules is lost with a cause; it never stops this process.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod raw_peer;

use raw_peer::{PEER, rig, watch};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tessera_transport::{Class, Config, Event, SendError, TcpTransport, Transport};
use vmm_sys_util::epoll::EpollEvent;

fn victim() -> (TcpTransport, [TcpStream; Class::COUNT]) {
    rig(Config::default())
}

fn cause_of_loss(transport: &mut TcpTransport) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    let mut causes = Vec::new();
    let epoll = watch(transport);
    while causes.is_empty() {
        assert!(Instant::now() < end, "the peer was not given up");
        epoll.wait(1000, &mut [EpollEvent::default()]).unwrap();
        transport.poll(64, &mut |event| {
            if let Event::Lost { peer, cause } = event {
                assert_eq!(peer, PEER);
                causes.push(cause);
            }
        });
    }
    assert_eq!(transport.send(PEER, Class::Bulk, &[], &[]), Err(SendError::Gone));
    assert_eq!(transport.poll(64, &mut |_| {}), 0);
    causes.remove(0)
}

fn cause_after(class: usize, bytes: &[u8]) -> String {
    let (mut transport, mut peer) = victim();
    peer[class].write_all(bytes).unwrap();
    cause_of_loss(&mut transport)
}

#[test]
fn oversized_length_loses_the_peer() {
    let cause = cause_after(1, &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);

    assert!(cause.contains("announced a frame of 4294967295 bytes"), "{cause}");
    assert!(cause.starts_with("slice1 at 127.0.0.1:"), "{cause}");
}

#[test]
fn frame_of_the_wrong_class_loses_the_peer() {
    let cause = cause_after(0, &[0, 0, 0, 0, 2, 0, 0, 0]);

    assert!(cause.contains("class 2 on the stream of class 0"), "{cause}");
}

#[test]
fn unknown_kind_and_reserved_bytes_lose_the_peer() {
    let kind = cause_after(2, &[0, 0, 0, 0, 2, 9, 0, 0]);
    let reserved = cause_after(2, &[0, 0, 0, 0, 2, 0, 1, 0]);

    assert!(kind.contains("unknown kind 9"), "{kind}");
    assert!(reserved.contains("reserved bytes 0x0001"), "{reserved}");
}

#[test]
fn credit_never_taken_loses_the_peer() {
    let cause = cause_after(0, &[4, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0]);

    assert!(cause.contains("broke the credit rule"), "{cause}");
}

#[test]
fn stamp_that_was_never_sent_loses_the_peer() {
    let mut beat = vec![16, 0, 0, 0, 0, 1, 0, 0];
    beat.extend(7_u64.to_le_bytes());
    beat.extend(u64::MAX.to_le_bytes());
    let cause = cause_after(0, &beat);

    assert!(cause.contains("sends back a stamp that it was not sent"), "{cause}");
    let cause = cause_after(0, &beat[..8 + 8]);
    assert!(cause.contains("silent"), "half of one is none: {cause}");
}

#[test]
fn end_inside_a_frame_loses_the_peer() {
    let (mut transport, [first, mut second, third, fourth]) = victim();
    second.write_all(&[100, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3]).unwrap();
    drop(second);

    let cause = cause_of_loss(&mut transport);

    drop((first, third, fourth));
    assert!(cause.contains("closed the connection inside a frame"), "{cause}");
}
