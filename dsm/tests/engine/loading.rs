//! Engines whose memory comes while they run.

use crate::support::{LIMIT, Telling, over_shm, start_over, stop};
use std::ops::Range;
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;
use tessera_dsm::{
    Give, GuestRam, LoadError, Loader, Memory, Pace, Replicate, SnapshotError, Source,
};

/// Two chunks each.
const FRAMES: u64 = 4 * 512;

/// Pages with their number in each word. Chunks come when they are opened; one is torn.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<Vec<u64>>,
    changed: Condvar,
    torn: Option<u64>,
}

impl Gate {
    fn open(&self, chunk: u64) {
        self.open.lock().unwrap().push(chunk);
        self.changed.notify_all();
    }
}

impl Source for Gate {
    fn name(&self) -> String {
        "a gate".into()
    }

    fn has(&self, _: Range<u64>) -> bool {
        true
    }

    fn read(&self, frames: Range<u64>, give: &mut Give<'_>) -> Result<(), LoadError> {
        let chunk = frames.start / 512;
        let is_shut = |open: &mut Vec<u64>| !open.contains(&chunk);
        drop(self.changed.wait_while(self.open.lock().unwrap(), is_shut).unwrap());
        if self.torn == Some(chunk) {
            return Err(LoadError::Source("it is torn".into()));
        }
        frames.into_iter().try_for_each(|frame| give(frame, &frame.to_ne_bytes().repeat(512)))
    }
}

fn load(rams: &[Arc<GuestRam>], gate: &Arc<Gate>) -> Vec<Loader> {
    let halves = [0..FRAMES / 2, FRAMES / 2..FRAMES];
    let pace = Pace { limit: LIMIT, pause: Duration::ZERO, prefer: || () };
    let start = |(ram, own): (&Arc<GuestRam>, &Range<u64>)| {
        Loader::start(ram, from_ref(own), Arc::clone(gate) as _, pace).unwrap()
    };
    rams.iter().zip(&halves).map(start).collect()
}

#[test]
fn uffd_pages_that_come_later_travel_as_they_were() {
    for memory in [Memory::Memfd, Memory::Anonymous] {
        let (gate, (tell, fatal)) = (Arc::new(Gate::default()), channel());
        let mut loaders = Vec::new();
        let mesh = |rams: &[Arc<GuestRam>]| {
            loaders = load(rams, &gate);
            over_shm(rams)
        };
        let uplink = |_| Box::new(Telling::new(&tell)) as Box<dyn tessera_dsm::Uplink>;
        let Some(slices) = start_over(FRAMES, memory, Replicate::Nothing, uplink, mesh) else {
            return;
        };
        let [one, other] = &slices;
        let limit = Duration::from_millis(20);
        let early = one.handle.protect(limit);
        assert!(matches!(early, Err(SnapshotError::Loading(_))), "{early:?}");
        // The second chunk of each is asked for while a thread stands at the first.
        gate.open(1);
        assert_eq!(other.word(700, 3).swap(7, Ordering::SeqCst), 700, "{memory}");
        assert_eq!(one.word(700, 3).load(Ordering::SeqCst), 7);
        assert_eq!(one.word(701, 3).load(Ordering::SeqCst), 701);
        assert_eq!(one.ram.loaded().left, 1);
        gate.open(3);
        gate.open(2);
        assert_eq!(one.word(1100, 0).fetch_add(1, Ordering::SeqCst), 1100);
        assert_eq!(other.word(1100, 0).load(Ordering::SeqCst), 1101);
        gate.open(0);
        assert!(slices.iter().all(|slice| slice.ram.wait_until_loaded(LIMIT).left == 0));
        one.handle.protect(LIMIT).unwrap();
        one.handle.unprotect();
        assert_eq!(one.word(700, 3).load(Ordering::SeqCst), 7, "{memory}: a store is lost");
        assert!(fatal.try_recv().is_err());
        stop(slices);
    }
}

/// Another slice asks for a page that does not come: it gets nothing, and the engine says why.
#[test]
fn uffd_page_that_does_not_come_is_given_to_nobody() {
    let gate = Arc::new(Gate { torn: Some(1), ..Gate::default() });
    let (tell, fatal) = channel();
    let mut loaders = Vec::new();
    let mesh = |rams: &[Arc<GuestRam>]| {
        loaders = load(rams, &gate);
        over_shm(rams)
    };
    let uplink = |_| Box::new(Telling::new(&tell)) as Box<dyn tessera_dsm::Uplink>;
    let Some(slices) = start_over(FRAMES, Memory::Memfd, Replicate::Nothing, uplink, mesh) else {
        return;
    };
    gate.open(1);
    let [one, other] = slices;
    let guest = spawn(move || other.word(700, 3).load(Ordering::SeqCst));
    let error = fatal.recv_timeout(LIMIT).unwrap();
    assert!(error.contains("load guest memory"), "{error}");
    assert_eq!(one.ram.load_failure().unwrap().to_string(), "it is torn");
    sleep(Duration::from_millis(50));
    assert!(!guest.is_finished(), "it has something");
    one.thread.join().unwrap();
}
