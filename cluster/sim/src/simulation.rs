//! The loop: what comes and what has been prepared is told to the scheduler, and what it says is done, in its time.
//!
//! ```text
//!   Request ──Arrive──> scheduler ──Start──> booting ──Ready──> Run: it ends after its life ──Depart──>
//!                                  ──Move───> prepared ──Ready──> Flip: its memory follows ──Flipped──>
//! ```
//! At the same time what was prepared comes before who comes new. Whoever arrives has its life from the moment it runs.

use crate::judge::Judge;
use crate::meter::Meter;
use crate::pool::Pool;
use crate::tally::Tally;
use crate::workload::{HOUR, Request};
use rustc_hash::FxHashMap;
use scheduler::cluster::{ClusterError, HostState, Move};
use scheduler::policy::Policy;
use scheduler::{
    Effect, HostId, Input, InputError, ReservationId, Scheduler, Settings, Spec, SpecError, VmId,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// How long things take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A VM is prepared on one host.
    pub boot: u64,
    /// Each further slice takes so much longer.
    pub slice: u64,
    /// A slice is prepared where it goes.
    pub prepare_move: u64,
    /// The network carries so many KiB of a slice that moves in a millisecond; 0: all at once.
    pub kib_per_ms: u64,
    /// The scheduler is told that time has passed.
    pub tick: u64,
    /// Fragmentation is looked at, and the ledger is compared with what agents have.
    pub look: u64,
}

impl Default for Times {
    /// Tessera's boots, and 10 Gbit/s.
    fn default() -> Self {
        Self {
            boot: 1500,
            slice: 500,
            prepare_move: 2000,
            kib_per_ms: 1220,
            tick: 60_000,
            look: 6 * HOUR,
        }
    }
}

/// Hosts are drained one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// One each so many milliseconds.
    pub every: u64,
    /// It is open again after so long, whether it has become empty or not.
    pub most: u64,
}

/// Something that happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ends(VmId),
    Ready(ReservationId),
    Flipped(ReservationId),
    Tick,
    Look,
    Drains(HostId),
    Opens(HostId),
}

/// A VM that has come and not ended.
#[derive(Debug)]
struct Known {
    spec: Arc<Spec>,
    at: u64,
    life: u64,
    has_started: bool,
}

/// A scheduler, and the world that it decides about.
#[derive(Debug)]
pub struct Simulation<P> {
    scheduler: Scheduler<P>,
    pool: Pool,
    times: Times,
    maintenance: Option<Maintenance>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    known: FxHashMap<VmId, Known>,
    /// What is on its way, to be carried when it flips.
    moving: FxHashMap<ReservationId, Move>,
    next_vm: u32,
    judge: Judge,
    meter: Meter,
    effects: Vec<Effect>,
}

impl<P: Policy> Simulation<P> {
    /// An empty pool.
    ///
    /// # Errors
    /// There cannot be such hosts.
    pub fn new(pool: Pool, policy: P, settings: Settings, times: Times) -> Result<Self, SpecError> {
        let cluster = pool.cluster()?;
        Ok(Self {
            judge: Judge::new(&cluster, settings),
            meter: Meter::new(pool),
            scheduler: Scheduler::new(cluster, policy, settings),
            pool,
            times,
            maintenance: None,
            events: BinaryHeap::new(),
            events_made: 0,
            known: FxHashMap::default(),
            moving: FxHashMap::default(),
            next_vm: 0,
            effects: Vec::new(),
        })
    }

    /// With hosts that are drained.
    #[must_use]
    pub fn with_maintenance(mut self, maintenance: Option<Maintenance>) -> Self {
        self.maintenance = maintenance;
        self
    }

    /// Runs all that comes, in its order, until a time. What happens from `from` on is counted.
    pub fn run(mut self, requests: impl Iterator<Item = Request>, from: u64, to: u64) -> Tally {
        self.meter.window(from, to);
        let mut requests = requests.take_while(|it| it.at < to).peekable();
        let begins = requests.peek().map_or(from, |it| it.at).min(from);
        self.add(begins, Event::Tick);
        self.add(from, Event::Look);
        if let Some(it) = self.maintenance {
            self.add(from.saturating_add(it.every), Event::Drains(HostId(0)));
        }
        loop {
            let event = self.events.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let is_new = requests.peek().is_some_and(|it| it.at < event);
            if is_new {
                requests.next().into_iter().for_each(|it| self.arrive(it));
            } else if event < to {
                let Some(Reverse((at, _, event))) = self.events.pop() else { break };
                self.happens(at, event);
            } else {
                break;
            }
        }
        self.end(to)
    }

    fn end(mut self, to: u64) -> Tally {
        self.meter.advance(to);
        for it in self.scheduler.queue().iter() {
            if let Some(known) = self.known.get(&it.vm) {
                self.meter.delayed(&known.spec, known.at, to);
            }
        }
        self.judge.compare(self.scheduler.cluster(), to);
        self.meter.finish(self.judge.broken().clone())
    }

    fn add(&mut self, at: u64, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse((at, self.events_made, event)));
    }

    fn arrive(&mut self, Request { at, life, spec }: Request) {
        // It could only run split, whatever the policy; then it would say nothing of policies.
        if !self.pool.holds(&spec) {
            self.meter.larger(at);
            return;
        }
        let vm = VmId(self.next_vm);
        self.next_vm = self.next_vm.wrapping_add(1);
        self.meter.comes(&spec, at);
        self.known.insert(vm, Known { spec: Arc::clone(&spec), at, life, has_started: false });
        if !self.step(at, Input::Arrive { vm, spec }) {
            self.known.remove(&vm);
            self.meter.turned_away(at);
        }
    }

    fn happens(&mut self, at: u64, event: Event) {
        match event {
            Event::Ends(vm) => {
                self.known.remove(&vm);
                self.meter.ends(at, vm);
                self.judge.ends(vm);
                self.step(at, Input::Depart { vm });
            }
            Event::Ready(reservation) => {
                if !self.step(at, Input::Ready { reservation }) {
                    self.moving.remove(&reservation);
                }
            }
            Event::Flipped(reservation) => {
                let vm = self.moving.remove(&reservation).map(|step| step.vm);
                self.judge.flipped(reservation);
                self.step(at, Input::Flipped { reservation });
                vm.into_iter().for_each(|vm| self.follow(at, vm));
            }
            Event::Tick => {
                self.step(at, Input::Passed);
                self.add(at + self.times.tick.max(1), Event::Tick);
            }
            Event::Look => {
                self.meter.look(at, self.scheduler.cluster());
                self.judge.compare(self.scheduler.cluster(), at);
                self.add(at + self.times.look.max(1), Event::Look);
            }
            Event::Drains(host) => self.drains(at, host),
            Event::Opens(host) => {
                self.step(at, Input::Host { host, state: HostState::Open });
            }
        }
    }

    fn drains(&mut self, at: u64, host: HostId) {
        let Some(it) = self.maintenance else { return };
        self.step(at, Input::Host { host, state: HostState::Draining });
        self.add(at + it.most, Event::Opens(host));
        // Not the neighbour: it would take what leaves this one.
        let next = HostId((host.0 + self.pool.hosts / 2 + 1) % self.pool.hosts.max(1));
        self.add(at + it.every.max(1), Event::Drains(next));
    }

    /// Tells the scheduler, and begins what it says. Whether it took it.
    fn step(&mut self, now: u64, input: Input) -> bool {
        self.meter.advance(now);
        let reservation = match input {
            Input::Ready { reservation } => Some(reservation),
            _ => None,
        };
        let mut effects = std::mem::take(&mut self.effects);
        let result = self.scheduler.step(now, input, &mut effects);
        match result {
            Ok(()) => {}
            // It has ended since, or the queue is full.
            Err(InputError::Cluster(ClusterError::Stale(_)) | InputError::QueueFull(_)) => {}
            Err(_) => self.judge.refused(),
        }
        for effect in effects.drain(..) {
            self.act(now, effect, reservation);
        }
        self.effects = effects;
        self.meter.waits(self.scheduler.queue().len());
        result.is_ok()
    }

    fn act(&mut self, now: u64, effect: Effect, ready: Option<ReservationId>) {
        match effect {
            Effect::Start { reservation, vm, decision, expires } => {
                let Some(known) = self.known.get_mut(&vm) else { return };
                let slices = decision.shares.len();
                if !known.has_started {
                    known.has_started = true;
                    self.meter.starts(&known.spec, known.at, now, slices);
                }
                self.judge.start(reservation, vm, &known.spec, &decision, expires);
                let further = u64::try_from(slices.saturating_sub(1)).unwrap_or(0);
                let takes = self.times.boot + self.times.slice * further;
                self.add(now + takes, Event::Ready(reservation));
            }
            Effect::Run { vm } => {
                if let Some(reservation) = ready {
                    self.judge.runs(reservation, vm, now);
                }
                let Some(known) = self.known.get(&vm) else { return };
                self.meter.runs(now, vm, &known.spec);
                let ends = now.saturating_add(known.life);
                self.follow(now, vm);
                self.add(ends, Event::Ends(vm));
            }
            Effect::Move { reservation, step, expires, pause_us } => {
                let from = self.scheduler.cluster().host(step.from);
                let is_drain = from.is_some_and(|host| host.state() == HostState::Draining);
                self.judge.moves(now, reservation, &step, (pause_us, expires), is_drain);
                self.moving.insert(reservation, step);
                self.add(now + self.times.prepare_move, Event::Ready(reservation));
            }
            Effect::Flip { reservation } => {
                self.judge.flips(reservation, now);
                let Some(step) = self.moving.get(&reservation) else { return };
                let kib = u64::from(step.resources.memory) * 2048;
                let takes = kib.checked_div(self.times.kib_per_ms).unwrap_or(0);
                self.meter.moves(now, step);
                self.add(now + takes, Event::Flipped(reservation));
            }
            Effect::Expired { reservation, .. } => {
                self.judge.expires(reservation);
                self.moving.remove(&reservation);
            }
            Effect::Waits { .. } | Effect::HandBack { .. } => {}
        }
    }

    /// Whether a VM is an Aggregate VM may be another answer now.
    fn follow(&mut self, now: u64, vm: VmId) {
        let is_aggregate = self.scheduler.cluster().is_aggregate(vm);
        self.meter.is_aggregate(now, vm, is_aggregate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Preset, Workload};
    use scheduler::fragmentation::Mix;
    use scheduler::policy::{Bff, Consolidation, FragBff, Lifetime, Spread};
    use scheduler::{Class, Resources};

    fn pool(hosts: u32) -> Pool {
        Pool { hosts, cores: 12, gib: 48, fabric: 100, domain: 100 }
    }

    fn request(at: u64, life: u64, cores: u32) -> Request {
        let spec = Spec::new(Resources::new(cores, cores * 512), Class::Default);
        Request { at, life, spec: Arc::new(spec) }
    }

    fn frag_bff() -> FragBff {
        let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
        FragBff { spread, consolidation, mix: Mix::azure() }
    }

    fn run(policy: impl Policy, requests: Vec<Request>) -> Tally {
        let times = Times { boot: 0, slice: 0, prepare_move: 0, kib_per_ms: 0, ..Times::default() };
        let it = Simulation::new(pool(2), policy, Settings::default(), times).unwrap();
        it.run(requests.into_iter(), 0, 10 * HOUR)
    }

    /// Ten of twelve cores are taken on both hosts; a VM of four comes after an hour, and after three one of those ends.
    fn scattered() -> Vec<Request> {
        vec![request(0, 3 * HOUR, 10), request(0, 20 * HOUR, 10), request(HOUR, 4 * HOUR, 4)]
    }

    #[test]
    fn vm_waits_under_bff_until_another_ends() {
        let tally = run(Bff, scattered());
        let figures = tally.figures();

        assert_eq!(tally.broken(), 0);
        assert!((figures.delayed_percent - 100.0 / 3.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.delay_mean_min[0] - 120.0).abs() < 0.1, "{figures:?}");
        assert!((figures.aggregate_percent - 0.0).abs() < 1e-9);
    }

    #[test]
    fn vm_is_split_and_comes_together_under_fragbff() {
        let tally = run(frag_bff(), scattered());
        let figures = tally.figures();

        assert_eq!(tally.broken(), 0);
        assert!(figures.delayed_percent.abs() < 1e-9, "{figures:?}");
        assert!((figures.slices_mean - 2.0).abs() < 1e-9, "{figures:?}");
        // Split for two of its four hours, of 10*3 + 10*10 + 4*4 core-hours.
        assert!((figures.aggregate_percent - 100.0 * 8.0 / 146.0).abs() < 1e-6, "{figures:?}");
        assert!((figures.moves_per_hour - 0.1).abs() < 1e-9, "{figures:?}");
        assert!((figures.vcpus_per_hour - 0.2).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn boots_and_moves_take_their_time() {
        let it = Simulation::new(pool(2), frag_bff(), Settings::default(), Times::default());
        let tally = it.unwrap().run(scattered().into_iter(), 0, 10 * HOUR);

        // The same, but two slices boot for 2 s, the move is prepared for 2 s, and two of four GiB take 1.7 s.
        let split = 4.0 * (2.0 * 3600.0 - 0.5 + 2.0 + 1.719);
        let found = tally.aggregate_core_seconds();
        assert!((found - split).abs() < 8.0, "{found} core-seconds, not {split}");
    }

    #[test]
    fn vm_larger_than_a_host_is_counted_and_not_offered() {
        let tally = run(frag_bff(), vec![request(0, HOUR, 13), request(0, HOUR, 12)]);

        assert_eq!(tally.larger(), 1);
        assert!((tally.figures().vms - 1.0).abs() < 1e-9);
    }

    #[test]
    fn full_pools_with_maintenance_break_no_rule() {
        for seed in 0..3 {
            let workload = Workload::new(Preset::Azure, 1.0);
            let begins = workload.beginning();
            let pool = Pool { hosts: 12, fabric: 6, ..Pool::default() };
            let it =
                Simulation::new(pool, Lifetime::azure(), Settings::default(), Times::default());
            let it =
                it.unwrap().with_maintenance(Some(Maintenance { every: 5 * HOUR, most: 4 * HOUR }));
            let requests = workload.generate(pool.all_cores(), seed);
            let tally = it.run(requests, begins, begins + 5 * 24 * HOUR);

            assert_eq!(tally.broken(), 0, "{:?}", tally.rules());
            assert!(tally.figures().moves_per_hour > 0.0, "drains move something");
        }
    }

    #[test]
    fn same_seed_has_the_same_figures() {
        let run = || {
            let workload = Workload::new(Preset::Big, 1.0);
            let begins = workload.beginning();
            let pool = Pool { hosts: 10, ..Pool::default() };
            let it = Simulation::new(pool, frag_bff(), Settings::default(), Times::default());
            let requests = workload.generate(pool.all_cores(), 9);
            it.unwrap().run(requests, begins, begins + 72 * HOUR).figures()
        };

        assert_eq!(run(), run());
    }
}
