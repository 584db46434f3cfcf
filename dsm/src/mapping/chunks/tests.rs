//! When chunks are shared, private again and granted, and how many borders they have.

use super::*;
use crate::memory::CHUNK_PAGES;
use std::slice::from_ref;

const LONG: u64 = 1000 * QUIET_NS;

fn chunks(seams_max: u64) -> Chunks {
    Chunks::new(
        from_ref(&(0..100 * CHUNK_PAGES)),
        from_ref(&(100 * CHUNK_PAGES..200 * CHUNK_PAGES)),
        200 * CHUNK_PAGES,
        seams_max,
        false,
    )
}

fn page(chunk: u64, at: u64) -> Gfn {
    Gfn(chunk * CHUNK_PAGES + at)
}

/// First page and count of the runs to map.
fn unmapped(chunks: &mut Chunks, id: ChunkId) -> Vec<(Gfn, u64)> {
    chunks.take_unmapped(id).into_iter().map(|run| (run.first, run.pages)).collect()
}

#[test]
fn only_whole_chunks_of_the_own_home_are_private() {
    let chunks = Chunks::new(&[100..1536, 2048..2100], &[], 4096, 1000, false);
    let private: Vec<u64> = (0..8).filter(|at| chunks.is_private(ChunkId(*at))).collect();
    assert_eq!(private, [1, 2]);
    assert_eq!(chunks.counts.own, 2);
}

#[test]
fn chunk_becomes_private_when_all_pages_have_been_back_for_a_while() {
    let mut chunks = chunks(1000);
    assert_eq!(chunks.share(ChunkId(7)), 7..8);
    assert!(!chunks.is_private(ChunkId(7)));
    chunks.took(page(7, 3), 1);
    chunks.took(page(7, 4), 1);
    chunks.took(page(7, 4), 1);
    chunks.gave(page(7, 3));
    assert_eq!(chunks.quiet(LONG), [], "page 4 is away");

    chunks.gave(page(7, 4));
    assert_eq!(chunks.quiet(LONG + QUIET_NS - 1), []);
    assert_eq!(chunks.quiet(2 * LONG), [ChunkId(7)]);
    assert!(chunks.settle(ChunkId(7)) && chunks.is_private(ChunkId(7)));
    assert_eq!(chunks.quiet(3 * LONG), []);
    assert_eq!((chunks.counts.shared_now, chunks.counts.private_again), (0, 1));
}

#[test]
fn chunk_that_is_shared_again_soon_waits_longer() {
    let mut chunks = chunks(1000);
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..9 {
        chunks.share(ChunkId(7));
        let start = now;
        while chunks.quiet(now).is_empty() {
            now += LOOK_NS;
        }
        waits.push((now - start) / QUIET_NS);
        assert!(chunks.settle(ChunkId(7)));
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    chunks.quiet(now + 64 * PROVED * QUIET_NS + LOOK_NS);
    chunks.share(ChunkId(7));
    assert_eq!(chunks.known[&ChunkId(7)].wait_ns(), QUIET_NS);
}

#[test]
fn unmapped_pages_are_those_still_here_and_named_once() {
    let mut chunks = chunks(1000);
    chunks.share(ChunkId(1));
    chunks.took(page(1, 0), 1);
    chunks.took(page(1, 10), 1);
    assert_eq!(chunks.take_unmapped(ChunkId(1)), []);
    chunks.set_unmapped(ChunkId(1));
    assert_eq!(unmapped(&mut chunks, ChunkId(1)), [(page(1, 1), 9), (page(1, 11), 501)]);
    assert_eq!(chunks.take_unmapped(ChunkId(1)), []);
}

#[test]
fn seams_are_the_borders_between_states() {
    let mut chunks = chunks(1000);
    for (id, seams) in [(10, 2), (12, 4), (11, 2), (0, 3)] {
        chunks.share(ChunkId(id));
        assert_eq!(chunks.seams, seams, "after {id}");
    }
    chunks.settle(ChunkId(11));
    assert_eq!(chunks.seams, 5);
    chunks.settle(ChunkId(10));
    assert_eq!(chunks.seams, 3);
}

#[test]
fn chunk_that_came_from_elsewhere_stays_a_part_of_its_own() {
    let mut chunks =
        Chunks::new(from_ref(&(0..100 * CHUNK_PAGES)), &[], 200 * CHUNK_PAGES, 1000, true);
    for (id, seams) in [(10, 2), (11, 2)] {
        chunks.share(ChunkId(id));
        assert_eq!(chunks.seams, seams, "after {id}");
    }
    chunks.settle(ChunkId(10));
    assert_eq!(chunks.seams, 3);
    chunks.settle(ChunkId(11));
    assert_eq!(chunks.seams, 2);
}

#[test]
fn chunk_of_another_home_is_granted_shared_and_private_again() {
    let mut chunks = chunks(1000);
    let id = ChunkId(150);
    assert!(!chunks.is_private(id) && chunks.may_grant(id));
    assert!(!chunks.may_grant(ChunkId(50)) && !chunks.may_grant(ChunkId(200)));
    chunks.took(page(150, 9), 1);
    assert!(chunks.exclusive_grant(id) && chunks.is_private(id) && !chunks.may_grant(id));
    assert!(chunks.exclusive_grant(ChunkId(151)));
    assert_eq!(chunks.seams, 2, "one part of two chunks");

    assert_eq!(chunks.share(id), 150..151);
    chunks.set_unmapped(id);
    chunks.took(page(150, 9), 1);
    assert_eq!(unmapped(&mut chunks, id), [(page(150, 0), 9), (page(150, 10), 502)]);
    assert!(!chunks.is_private(id));
    assert_eq!((chunks.seams, chunks.counts.shared_now), (2, 1));

    // The page comes back: by the wait of chunks that are shared, or with the others in order.
    chunks.gave(page(150, 9));
    assert_eq!(chunks.quiet(LONG), [id]);
    assert!(chunks.settle(id) && chunks.is_private(id));
    chunks.share(id);
    chunks.took(page(150, 9), 1);
    assert!(chunks.exclusive_grant(id));
    chunks.share(id);
    assert_eq!(chunks.quiet(3 * LONG), [id], "no page is away");
    assert_eq!((chunks.counts.exclusive_grants, chunks.counts.shared_now), (3, 1));
    assert_eq!(chunks.counts.own, 100);
}

#[test]
fn all_chunks_are_settled_at_once_whatever_the_limit() {
    let mut chunks = chunks(4);
    for at in [3, 50] {
        chunks.share(ChunkId(at));
        chunks.took(page(at, 9), 1);
    }
    let shared = chunks.settle_all(&[0..200]);
    assert_eq!(shared.len(), 102);
    assert!((0..200).all(|at| chunks.is_private(ChunkId(at))));
    assert_eq!((chunks.counts.shared_now, chunks.counts.private_again), (0, 102));
    // Those of another home are one part, and so are all others.
    assert_eq!(chunks.seams, 2);
    assert_eq!(chunks.share(ChunkId(3)), 3..4);
    assert_eq!(
        unmapped(&mut chunks, ChunkId(3)),
        [],
        "no page is away any more, and all are mapped"
    );
    assert_eq!(chunks.settle_all(&[0..200]), [ChunkId(3)]);
}

#[test]
fn at_the_limit_no_chunk_is_granted() {
    let mut chunks = chunks(2);
    assert!(chunks.exclusive_grant(ChunkId(150)) && !chunks.exclusive_grant(ChunkId(160)));
    assert!(chunks.exclusive_grant(ChunkId(151)), "a neighbour needs no more parts");
}

#[test]
fn at_the_limit_chunks_are_shared_up_to_the_next_shared_one() {
    let mut chunks = chunks(4);
    chunks.share(ChunkId(10));
    chunks.share(ChunkId(20));
    assert_eq!(chunks.share(ChunkId(13)), 11..14);
    assert_eq!(chunks.share(ChunkId(19)), 19..20, "a neighbour needs no more parts");
    assert_eq!(chunks.share(ChunkId(18)), 18..19);
    assert_eq!(chunks.share(ChunkId(30)), 21..31);
    assert_eq!((chunks.seams, chunks.counts.shared_for_maps), (4, 11));
    assert!(!chunks.settle(ChunkId(25)), "that would cut a run in two");
    assert!(chunks.settle(ChunkId(30)), "the end of a run");
    assert_eq!(chunks.counts.kept_for_maps, 1);
}

#[test]
fn looks_are_bounded_and_come_to_every_chunk() {
    let mut chunks =
        Chunks::new(from_ref(&(0..5000 * CHUNK_PAGES)), &[], 5000 * CHUNK_PAGES, 20_000, false);
    for id in 0..5000 {
        chunks.share(ChunkId(id));
    }
    let (mut now, mut left) = (LONG, 5000);
    for _ in 0..3000 {
        now += LOOK_NS;
        let found = chunks.quiet(now);
        assert!(found.len() <= SETTLES);
        for id in found {
            assert!(chunks.settle(id));
            left -= 1;
        }
    }
    assert_eq!(left, 0);
}
