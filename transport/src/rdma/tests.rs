//! How queue pairs end. These need an RDMA port; without one they say so and do nothing, unless
//! `TESSERA_RDMA=require`.

use super::device::Wanted;
use super::setup::Endpoint;
use super::verbs::{Done, completions};
use super::{RdmaError, RdmaTransport, available, loopback, pair};
use crate::config::Config;
use crate::seam::{Class, Event, Transport};
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairAttribute, QueuePairState};
use std::io::IoSlice;
use std::time::{Duration, Instant};
use wire::SliceId;

const A: SliceId = SliceId(0);
const B: SliceId = SliceId(1);
/// Far beyond the lease; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn has_rdma() -> bool {
    match available() {
        Ok(_) => true,
        Err(error) if std::env::var_os("TESSERA_RDMA").is_some_and(|word| word == "require") => {
            panic!("cannot run: {error}")
        }
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
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
    let place = first.place();
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
    let mut first = Endpoint::open(&Wanted::Any).unwrap();
    let mut second = Endpoint::open_with(&Wanted::Any, places).unwrap();
    first.connect(&second.offer(), Duration::from_secs(3)).unwrap();
    second.connect(&first.offer(), Duration::from_secs(3)).unwrap();
    let (mut a, mut b) = transports(first, second);
    // B does not poll meanwhile.
    for class in [Class::Interrupt, Class::Coherence, Class::Bulk] {
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

/// Run by `./x lab rdma` in a process that may lock little memory.
#[test]
fn refused_registration_names_the_limit() {
    if std::env::var_os("TESSERA_RDMA").is_none_or(|word| word != "memlock") {
        println!("skipped: needs a process that may lock little memory (TESSERA_RDMA=memlock)");
        return;
    }
    let error = Endpoint::open(&Wanted::Any).unwrap_err();

    assert!(matches!(error, RdmaError::Pinning { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("65536 bytes") && text.contains("ulimit -l"), "{text}");
}
