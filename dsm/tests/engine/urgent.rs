//! A page that somebody waits for passes those of a run: over a transport that keeps runs back as long as the
//! test wants.

use crate::support::{LIMIT, Silent, Slice, Telling, forward_to, start_over, stop};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{Memory, Replicate, Uplink};
use transport::{Class, Config, Event, SendError, ShmTransport, Transport, shm};
use wire::SliceId;

/// Slice 1 is home of the second half.
const FRAMES: u64 = 4096;
const THEIRS: u64 = FRAMES / 2;

/// What the test decides and learns.
#[derive(Debug, Default)]
struct Gate {
    is_shut: AtomicBool,
    /// Frames of runs that were ever kept back.
    kept: AtomicU64,
    /// All messages are sent among the runs.
    misplaces: AtomicBool,
}

/// Shared memory, of which frames of runs come when the gate is open.
struct Gated {
    frames: ShmTransport,
    gate: Arc<Gate>,
    kept: VecDeque<(SliceId, Vec<u8>)>,
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
        let misplaces = class == Class::Coherence && self.gate.misplaces.load(Ordering::SeqCst);
        self.frames.send(to, if misplaces { Class::Run } else { class }, head, rest)
    }
    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.frames.take_heard(sink);
    }
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let Self { frames, gate, kept } = self;
        let is_shut = gate.is_shut.load(Ordering::SeqCst);
        if !is_shut {
            for (from, bytes) in kept.drain(..) {
                sink(Event::Frame { from, class: Class::Run, bytes: &bytes });
            }
        }
        frames.poll(budget, &mut |event| match event {
            Event::Frame { from, class: Class::Run, bytes } if is_shut => {
                kept.push_back((from, bytes.to_vec()));
                gate.kept.fetch_add(1, Ordering::SeqCst);
            }
            event => sink(event),
        })
    }
}

fn gated(gate: &Arc<Gate>) -> Vec<Box<dyn Transport>> {
    let mesh = shm::mesh(2, &Config::default()).unwrap();
    let ends = mesh.into_iter().map(|frames| {
        let gate = if frames.local() == SliceId(0) { Arc::clone(gate) } else { Arc::default() };
        Box::new(Gated { frames, gate, kept: VecDeque::new() }) as Box<dyn Transport>
    });
    ends.collect()
}

/// What slice 1 wrote to a page of its own.
fn written(slice: &Slice, page: u64) -> u64 {
    let bytes = slice.handle.read(page * 4096 + 8, 8, LIMIT).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn uffd_pages_that_are_waited_for_pass_those_of_a_run() {
    let gate = Arc::new(Gate::default());
    let mesh = |_: &[_]| gated(&gate);
    let silent = |_| Box::new(Silent) as Box<_>;
    let started = start_over(FRAMES, Memory::default(), Replicate::Nothing, silent, mesh);
    let Some(slices) = started else { return };
    let [reader, home] = &slices;
    for page in THEIRS..FRAMES {
        home.word(page, 1).store(page, Ordering::SeqCst);
    }
    gate.is_shut.store(true, Ordering::SeqCst);
    let (run, mut far) = (THEIRS..THEIRS + 700, FRAMES - 1);
    scope(|threads| {
        let going_on = threads.spawn(|| {
            run.clone().for_each(|page| {
                assert_eq!(reader.word(page, 1).load(Ordering::SeqCst), page);
            });
        });
        let start = Instant::now();
        while gate.kept.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < LIMIT, "no run is fetched");
            sleep(Duration::from_millis(1));
        }
        // Pages too far from one another to be a run.
        for step in [70, 111, 95, 83, 140, 77, 102, 68] {
            assert_eq!(written(reader, far), far);
            far -= step;
        }
        assert!(!going_on.is_finished(), "the run came though it is kept back");
        gate.is_shut.store(false, Ordering::SeqCst);
        // Wakes the engine, which finds the frames of the run.
        assert_eq!(written(reader, far), far);
    });
    stop(slices);
}

/// A peer that asks for a page among the runs could overtake itself.
#[test]
fn uffd_message_among_runs_that_is_none_of_them_is_refused() {
    let gate = Arc::new(Gate::default());
    gate.misplaces.store(true, Ordering::SeqCst);
    let (sender, told) = channel();
    let telling = |_| Box::new(Telling::new(&sender)) as Box<dyn Uplink>;
    let mesh = |_: &[_]| gated(&gate);
    let started = start_over(FRAMES, Memory::default(), Replicate::Nothing, telling, mesh);
    let Some(slices) = started else { return };

    let read = slices[0].handle.read(THEIRS * 4096, 8, Duration::from_millis(1));
    let error = told.recv_timeout(LIMIT).unwrap();

    assert!(read.is_err(), "an answer to what is refused");
    assert!(error.contains("belongs to that of coherence"), "{error}");
    stop(slices);
}
