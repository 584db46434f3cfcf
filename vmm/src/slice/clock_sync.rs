//! Keeps guest clocks together while the VM runs: asks, and has slices step. What is done is decided in
//! [`crate::clock`].
//!
//! ```text
//!   coordinator, each round: ClockPing --> companion: its guest clock, what it stepped in all --> ClockPong
//!                          ClockStep: what it is to have stepped in all --> companion --> the gate of its vCPUs
//! ```
//! A step may fail because a vCPU waits for a page. It is tried again soon; until then nothing
//! new is decided about that slice, whose answers tell how far it got.

use super::channels::Channels;
use super::events::SliceEvent;
use super::joining::JOIN_LIMIT;
use crate::clock::{Discipline, Exchange, History, Interval, Pace, RATE_PPM, RunAway, Why, ticks};
use crate::machine::Machine;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};
use wire::{Control, SliceId};

/// Between two looks whether a step is left to do, or a round is due.
const LOOK: Duration = Duration::from_millis(200);
/// Most exchanges of a round with each companion; the best count.
const EXCHANGES: u64 = 8;
/// An answer that takes longer is of no use.
const ANSWER_LIMIT: Duration = Duration::from_millis(100);
/// For all vCPUs to come out of the guest, at first. Those that are out wait for the others, so it is short; each time
/// that one does not come in time it is doubled, up to this often.
const GATE_LIMIT: Duration = Duration::from_millis(20);
const DOUBLINGS_MAX: u32 = 5;
/// Guest clocks that have certainly moved apart by more since the round before end the VM: no crystal is that wrong.
const SKEW_LIMIT: Duration = Duration::from_millis(1);
/// Answers that may wait.
const PONGS_MAX: usize = 64;

/// What hidden options do to the clock of a slice, to see what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockTest {
    /// Pretends that the counter is fast by so many parts per million.
    pub ppm: u32,
    /// The coordinator measures and does not correct.
    pub uncorrected: bool,
}

/// An answer, and when it came by the guest clock here.
#[derive(Clone, Copy, Debug)]
struct Pong {
    from: SliceId,
    id: u64,
    answered: u64,
    stepped: u64,
    received: u64,
}

/// What is known of a companion's clock.
#[derive(Clone, Copy, Debug)]
struct Known {
    skew_ns: i64,
    bound_ns: u64,
}

/// The clock of this slice as others reach it.
#[derive(Debug)]
pub(crate) struct ClockSync {
    machine: Machine,
    /// Ticks that this slice was told to step in all, and those that it did.
    told: AtomicU64,
    stepped: AtomicU64,
    /// Tries in a row in which a vCPU did not come out.
    failed: AtomicU32,
    pongs: (Sender<Pong>, Receiver<Pong>),
    known: Mutex<BTreeMap<SliceId, Known>>,
    over: AtomicBool,
}

impl ClockSync {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine,
            told: AtomicU64::new(0),
            stepped: AtomicU64::new(0),
            failed: AtomicU32::new(0),
            pongs: bounded(PONGS_MAX),
            known: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    /// A companion is asked. Called on the engine's thread, so that nothing else is in the answer's time.
    pub(crate) fn answer(&self, id: u64) -> Control {
        let stepped = self.stepped.load(SeqCst);
        Control::ClockPong { id, ticks: self.machine.clock().now(), stepped }
    }

    /// An answer has come, just now.
    pub(crate) fn answered(&self, from: SliceId, id: u64, ticks: u64, stepped: u64) {
        let received = self.machine.clock().now();
        // Whoever does not take them in time gets none: an old one is worth nothing.
        let _ = self.pongs.0.try_send(Pong { from, id, answered: ticks, stepped, received });
    }

    /// This slice is to have stepped so many ticks in all. Its own thread does it.
    pub(crate) fn tell(&self, sum: u64) {
        self.told.fetch_max(sum, SeqCst);
    }

    /// Does what is left to do of what was told. False when a vCPU did not come out.
    fn carry_out(&self) -> bool {
        let told = self.told.load(SeqCst);
        let left = told - self.stepped.load(SeqCst);
        let failed = self.failed.load(SeqCst);
        let limit = GATE_LIMIT * 2u32.pow(failed.min(DOUBLINGS_MAX));
        let done = left == 0 || self.machine.step_clock(left, limit);
        if done {
            self.stepped.store(told, SeqCst);
        }
        self.failed.store(if done { 0 } else { failed.saturating_add(1) }, SeqCst);
        done
    }

    /// Whether all that was told is done.
    fn is_through(&self) -> bool {
        self.told.load(SeqCst) == self.stepped.load(SeqCst)
    }

    /// What was measured last of a slice's clock against the coordinator's: skew and bound, in nanoseconds.
    pub(crate) fn measured(&self, slice: SliceId) -> Option<(i64, u64)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&slice)?;
        Some((known.skew_ns, known.bound_ns))
    }

    /// Ticks that this slice stepped forward.
    pub(crate) fn stepped(&self) -> u64 {
        self.stepped.load(SeqCst)
    }

    fn nanoseconds(&self, ticks: i64) -> i64 {
        let khz = i128::from(self.machine.true_tsc_khz().max(1));
        i64::try_from(i128::from(ticks) * 1_000_000 / khz).unwrap_or(i64::MAX)
    }

    /// So long a time in ticks.
    fn ticks(&self, time: Duration) -> i64 {
        i64::try_from(ticks(time, self.machine.true_tsc_khz())).unwrap_or(i64::MAX)
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.over.store(true, SeqCst);
    }
}

/// Starts the thread of a slice: while the slice coordinates, it measures the others and decides; everywhere it has this
/// slice step.
pub(crate) fn start(
    channels: &Arc<Channels>,
    clock_sync: &Arc<ClockSync>,
    test: ClockTest,
) -> io::Result<()> {
    let (channels, clock_sync) = (Arc::downgrade(channels), Arc::clone(clock_sync));
    let khz = clock_sync.machine.true_tsc_khz();
    let discipline = Discipline::new(SKEW_LIMIT, khz);
    let mut keeper = Keeper {
        channels,
        clock_sync,
        discipline,
        paces: Vec::new(),
        histories: Vec::new(),
        began: Instant::now(),
        told: Vec::new(),
        companions: Vec::new(),
        looked: false,
        test,
        decided: Instant::now(),
        next: 0,
    };
    Builder::new().name("clock".into()).spawn(move || keeper.run()).map(drop)
}

struct Keeper {
    channels: Weak<Channels>,
    clock_sync: Arc<ClockSync>,
    companions: Vec<SliceId>,
    /// It has looked for companions since it coordinates: whoever appears from now on has joined.
    looked: bool,
    discipline: Discipline,
    /// How much is asked of each companion.
    paces: Vec<Pace>,
    /// What earlier rounds prove of each companion.
    histories: Vec<History>,
    /// Since when their times are counted.
    began: Instant,
    /// Ticks that each companion was told to step in all.
    told: Vec<u64>,
    test: ClockTest,
    /// When steps were decided about last.
    decided: Instant,
    /// Number of the next exchange.
    next: u64,
}

/// How far the false drift of a test has come.
struct Drifted {
    /// Until when it is in the counter.
    until: Instant,
    /// When it was looked at last.
    looked: Instant,
}

impl Keeper {
    fn run(&mut self) {
        let mut drifted = Drifted { until: Instant::now(), looked: Instant::now() };
        let mut due = Instant::now();
        while !self.clock_sync.over.load(SeqCst) {
            std::thread::sleep(LOOK);
            let Some(channels) = self.channels.upgrade() else { return };
            self.drift(&mut drifted);
            self.clock_sync.carry_out();
            if Instant::now() < due {
                continue;
            }
            if let Err(away) = self.round(&channels) {
                channels.event(SliceEvent::Fatal(self.describe(away)));
                return;
            }
            due = Instant::now() + self.period();
        }
    }

    /// Time to the next round.
    fn period(&self) -> Duration {
        let khz = self.clock_sync.machine.true_tsc_khz();
        self.paces.iter().map(|pace| pace.period(khz)).min().unwrap_or(LOOK)
    }

    /// For tests: this slice's counter runs faster than it does. The step is not told to anybody. A counter that drifts
    /// does not jump: what could not be added, because a vCPU waited for a page, is made up for at twice the rate.
    fn drift(&self, drifted: &mut Drifted) {
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut drifted.looked, now));
        if self.test.ppm == 0 {
            return;
        }
        let span = now.duration_since(drifted.until).min(since * 2);
        let khz = u128::from(self.clock_sync.machine.true_tsc_khz());
        let ticks = span.as_nanos() * khz * u128::from(self.test.ppm) / 1_000_000_000_000;
        if self.clock_sync.machine.step_clock(u64::try_from(ticks).unwrap_or(0), GATE_LIMIT) {
            drifted.until += span;
        }
    }

    /// One round: measure all, decide, tell.
    fn round(&mut self, channels: &Channels) -> Result<(), RunAway> {
        self.look_who_is_there(channels);
        // Own steps that are still to be done would be decided about once more.
        if self.companions.is_empty() || !self.clock_sync.is_through() {
            return Ok(());
        }
        let passed = self.decided.elapsed();
        let found: Vec<_> =
            (0..self.companions.len()).map(|at| self.measure(channels, at)).collect();
        self.note(&found);
        let in_time = self.companions.iter().zip(&found).filter(|(_, found)| found.is_some());
        channels.clock_rounds.note(in_time.map(|(slice, _)| *slice));
        self.decided += passed;
        if self.test.uncorrected {
            return self.discipline.check(&found, passed);
        }
        let (own, steps) = self.discipline.steps(&found, passed)?;
        self.clock_sync.told.fetch_add(own, SeqCst);
        self.clock_sync.carry_out();
        for ((told, step), slice) in self.told.iter_mut().zip(steps).zip(&self.companions) {
            if step > 0 {
                *told += step;
                channels.send(*slice, &Control::ClockStep { sum: *told });
            }
        }
        Ok(())
    }

    /// The coordinator measures all others. Slices that were drained have no guest clock any more.
    fn look_who_is_there(&mut self, channels: &Channels) {
        let leads = channels.leads();
        let others = if leads { channels.others() } else { Vec::new() };
        while let Some(at) = self.companions.iter().position(|slice| !others.contains(slice)) {
            channels.clock_rounds.forget(self.companions.remove(at));
            self.paces.remove(at);
            self.histories.remove(at);
            self.told.remove(at);
            self.discipline.forget(at);
        }
        let khz = self.clock_sync.machine.true_tsc_khz();
        for slice in others {
            if !self.companions.contains(&slice) {
                if self.looked {
                    self.discipline.expect(self.companions.len(), JOIN_LIMIT);
                }
                self.companions.push(slice);
                self.paces.push(Pace::default());
                self.histories.push(History::new(khz));
                self.told.push(0);
            }
        }
        self.looked = leads;
    }

    /// Exchanges with one companion; nothing if it has not yet done what it was told.
    fn measure(&mut self, channels: &Channels, at: usize) -> Option<Interval> {
        let (_, pongs) = &self.clock_sync.pongs;
        let (slice, pace) = (self.companions[at], &mut self.paces[at]);
        let mut exchanges: Vec<Exchange> = Vec::new();
        for _ in 0..EXCHANGES {
            if !channels.leads() {
                return None;
            }
            self.next += 1;
            let sent = self.clock_sync.machine.clock().now();
            channels.send(slice, &Control::ClockPing { id: self.next });
            let end = Instant::now() + ANSWER_LIMIT;
            // Those of nobody do not count, however many there are.
            while let Some(pong) = before(end, pongs) {
                let Pong { from, id, answered, stepped, received } = pong;
                if from == slice && id == self.next {
                    if stepped != self.told[at] {
                        // Another coordinator has told it more.
                        self.told[at] = self.told[at].max(stepped);
                        return None;
                    }
                    exchanges.push(Exchange { sent, answered, received });
                    break;
                }
            }
            let found = Interval::narrow(exchanges.iter().copied());
            if found.is_some_and(|interval| pace.suffices(interval)) {
                break;
            }
        }
        // Neither clock may be stepped during a round.
        let found = Interval::narrow(exchanges)?;
        pace.learn(found);
        let stepped = self.told[at].wrapping_sub(self.clock_sync.stepped()).cast_signed();
        let at_ticks = self.clock_sync.ticks(self.began.elapsed());
        Some(self.histories[at].narrow(at_ticks, found, stepped))
    }

    fn note(&self, found: &[Option<Interval>]) {
        let mut known = self.clock_sync.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (slice, found) in self.companions.iter().zip(found) {
            let Some(found) = found else { continue };
            let bound = i64::try_from(found.bound()).unwrap_or(i64::MAX);
            let measured = Known {
                skew_ns: self.clock_sync.nanoseconds(found.middle()),
                bound_ns: self.clock_sync.nanoseconds(bound).unsigned_abs(),
            };
            known.insert(*slice, measured);
        }
    }

    fn describe(&self, away: RunAway) -> String {
        let RunAway { companion, interval, why } = away;
        let slice = self.companions[companion];
        if why == Why::Rate {
            return format!(
                "the guest clocks of {slice} and of the coordinator drift apart by more than {RATE_PPM} ppm: one of their \
                 time stamp counters runs at another rate than at the start"
            );
        }
        let skew = self.clock_sync.nanoseconds(interval.middle());
        let bound =
            self.clock_sync.nanoseconds(i64::try_from(interval.bound()).unwrap_or(i64::MAX));
        format!(
            "the guest clock of {slice} is {skew} ns from the coordinator's (give or take {bound} ns), more than \
             {SKEW_LIMIT:?}: one of their time stamp counters jumps or runs at another rate"
        )
    }
}

/// The next answer before the limit, also while one comes after the other.
fn before(limit: Instant, pongs: &Receiver<Pong>) -> Option<Pong> {
    if Instant::now() < limit { pongs.recv_deadline(limit).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupts::{InterruptBackEnd, NoRemote};
    use crate::machine::{MachineConfig, MachineHooks, open_kvm};
    use crate::slice::channels::tests::channels;
    use crate::timer_spacing::TimerSpacing;
    use crate::tsc::ClockRate;
    use crate::vcpu::VcpuError;
    use devices::{ShutdownCause, ShutdownSink};
    use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
    use migrate::{Change, PlacementView};
    use wire::{Epoch, VcpuId};

    struct Nobody;

    impl MachineHooks for Nobody {
        fn fatal(&self, _: &VcpuError) {}
    }

    impl ShutdownSink for Nobody {
        fn shutdown(&self, _: ShutdownCause) {}
    }

    fn machine() -> Machine {
        let nobody = Arc::new(Nobody);
        let cpuid = open_kvm().unwrap().get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
        Machine::new(MachineConfig {
            placement: PlacementView::fixed(SliceId(0), &[SliceId(0)]).unwrap(),
            memory: Vec::new(),
            cpuid: vec![cpuid.as_slice().to_vec()],
            remote: Arc::new(NoRemote),
            shutdown: Arc::clone(&nobody) as _,
            hooks: nobody,
            back_end: InterruptBackEnd::Userspace,
            timer_spacing: TimerSpacing::Off,
            clock_rate: ClockRate::REAL,
        })
        .unwrap()
    }

    /// A vCPU of the bootstrap is with a device for some rounds, while a companion is a tenth of a millisecond ahead.
    #[test]
    fn kvm_steps_that_are_put_off_do_not_add_up() {
        if !needs::kvm() {
            return;
        }
        let machine = machine();
        let (channels, _told) = channels(SliceId(0));
        channels.owner.advance(&[Change::Leave(SliceId(2))], Epoch(2)).unwrap();
        channels.leads.store(true, SeqCst);
        let start = machine.clock().offset();
        let us = |count: u64| count * u64::from(machine.true_tsc_khz()) / 1000;
        assert_eq!(machine.shared.gate.join(VcpuId(0)), None);
        let clock_sync = Arc::new(ClockSync::new(machine.clone()));
        let mut keeper = Keeper {
            channels: Weak::new(),
            clock_sync: Arc::clone(&clock_sync),
            companions: vec![SliceId(1)],
            looked: true,
            discipline: Discipline::new(SKEW_LIMIT, machine.true_tsc_khz()),
            paces: vec![Pace::default()],
            histories: vec![History::new(machine.true_tsc_khz())],
            began: Instant::now(),
            told: vec![0],
            test: ClockTest::default(),
            decided: Instant::now(),
            next: 0,
        };
        let mut round = || {
            let stepped = machine.clock().offset().wrapping_sub(start);
            // By the bootstrap's clock without its steps: the companion takes none.
            let received = machine.clock().now() + us(400);
            let answered = received - stepped + us(100);
            while clock_sync.pongs.1.try_recv().is_ok() {}
            for id in keeper.next + 1..=keeper.next + EXCHANGES {
                let pong = Pong { from: SliceId(1), id, answered, stepped: 0, received };
                clock_sync.pongs.0.try_send(pong).unwrap();
            }
            keeper.round(&channels)
        };
        (0..6).for_each(|_| round().unwrap());
        // It comes back from the device.
        machine.shared.gate.leave(VcpuId(0));
        assert!(clock_sync.carry_out());
        assert!(clock_sync.stepped() <= us(400), "more than the exchanges permit");
        round().unwrap();
    }
}
