//! Runs of pages over borders of the guest's mapping, with a real userfaultfd. The kernel keeps a part of the
//! address space (VMA) for each stretch of pages with the same protection and the same watch.

use super::*;
use needs::Need;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::slice::from_ref;

const CHUNK: u64 = 512;

/// A store with these homes; `None` where the machine cannot run this.
fn store(frames: u64, own: Range<u64>, others: Range<u64>) -> Option<Store> {
    if !needs::has(Need::Uffd, crate::check_host()) {
        return None;
    }
    let ram = GuestRam::new(from_ref(&(0..frames))).unwrap();
    let (uffd, ram) = (ram.userfaultfd().unwrap(), Arc::new(ram));
    Some(Store::new(uffd, ram, from_ref(&own), from_ref(&others), Mechanisms::ALL).unwrap())
}

/// The file has these pages.
fn back(store: &Store, pages: Range<u64>) {
    pages.for_each(|page| store.ram.back(Gfn(page)));
}

/// Whether the guest's mapping has a page, as /proc/self/pagemap tells (bit 63).
fn is_mapped(store: &Store, page: u64) -> bool {
    let mut entry = [0; 8];
    let at = store.address(Gfn(page)) / PAGE * 8;
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, at).unwrap();
    u64::from_ne_bytes(entry) >> 63 != 0
}

#[test]
fn uffd_run_over_a_probed_page_is_mapped() {
    for writable in [false, true] {
        let Some(mut store) = store(CHUNK, 0..0, 0..CHUNK) else { return };
        back(&store, 0..10);
        // Its protection makes it a part of its own.
        store.probe(Gfn(5)).unwrap();
        store.map_run(PageRun { first: Gfn(0), pages: 10, writable }).unwrap();
        assert!((0..10).all(|page| is_mapped(&store, page)));
    }
}

#[test]
fn uffd_run_over_the_border_of_two_homes_is_mapped() {
    let Some(mut store) = store(CHUNK, 0..100, 100..CHUNK) else { return };
    back(&store, 90..110);
    store.map_run(PageRun { first: Gfn(90), pages: 20, writable: true }).unwrap();
    assert!((90..110).all(|page| is_mapped(&store, page)));
}

#[test]
fn uffd_chunk_is_mapped_over_probed_pages() {
    let Some(mut store) = store(CHUNK, 0..0, 0..CHUNK) else { return };
    back(&store, 0..CHUNK);
    for page in [0, 7, 8, 300, 511] {
        store.probe(Gfn(page)).unwrap();
    }
    let start = store.address(Gfn(0));
    store.uffd.install_missing(start, CHUNK * PAGE).unwrap();
    assert!((0..CHUNK).all(|page| is_mapped(&store, page)));
}

#[test]
fn uffd_access_is_taken_over_probed_pages() {
    let Some(mut store) = store(CHUNK, 0..0, 0..CHUNK) else { return };
    back(&store, 0..10);
    store.map_run(PageRun { first: Gfn(0), pages: 10, writable: true }).unwrap();
    store.probe(Gfn(5)).unwrap();
    store
        .take_run(InvalidationRun { first: Gfn(0), pages: 10, what: Invalidation::Write })
        .unwrap();
    assert!((0..10).all(|page| is_mapped(&store, page)));
    store.take_run(InvalidationRun { first: Gfn(0), pages: 10, what: Invalidation::All }).unwrap();
    assert!(!(0..10).any(|page| is_mapped(&store, page)));
}
