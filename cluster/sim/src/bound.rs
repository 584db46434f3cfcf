//! What no policy can do better: VMs as a fluid. All hosts of a pool are one, so a VM starts whenever its cores and its memory are
//! free anywhere, in any pieces. The same queue.
//!
//! It is the linear program whose VMs may be cut into any parts, at each moment: what is free altogether is all that counts.

use crate::meter::Meter;
use crate::pool::Pool;
use crate::tally::Tally;
use crate::workload::Request;
use scheduler::{Discipline, Resources, Settings, Spec, VmId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// Amounts of a whole pool.
#[derive(Clone, Copy, Debug)]
struct Amount {
    cores: u64,
    memory: u64,
}

impl Amount {
    fn of(needs: Resources) -> Self {
        Self { cores: u64::from(needs.cores), memory: u64::from(needs.memory) }
    }
}

struct Waiting {
    vm: VmId,
    spec: Arc<Spec>,
    at: u64,
    life: u64,
}

struct Fluid {
    free: Amount,
    age_max: u64,
    look_ahead: usize,
    queue: VecDeque<Waiting>,
    ends: BinaryHeap<Reverse<(u64, VmId)>>,
    running: BTreeMap<VmId, Amount>,
    meter: Meter,
}

/// The figures of a fluid that is poured into a pool. Nothing takes time.
#[must_use]
pub fn fluid(
    pool: Pool,
    settings: &Settings,
    requests: impl Iterator<Item = Request>,
    from: u64,
    to: u64,
) -> Tally {
    let hosts = u64::from(pool.hosts);
    let host = Amount::of(pool.host());
    let age_max = match settings.discipline {
        Discipline::Backfill { age_max } => age_max,
        Discipline::Strict => 0,
    };
    let mut it = Fluid {
        free: Amount { cores: host.cores * hosts, memory: host.memory * hosts },
        age_max,
        look_ahead: settings.look_ahead,
        queue: VecDeque::new(),
        ends: BinaryHeap::new(),
        running: BTreeMap::new(),
        meter: Meter::new(pool),
    };
    it.meter.window(from, to);
    let requests = requests.filter(|it| pool.holds(&it.spec)).take_while(|it| it.at < to);
    for (request, vm) in requests.zip(0..) {
        it.pass(request.at);
        it.meter.comes(&request.spec, request.at);
        let Request { at, life, spec } = request;
        it.queue.push_back(Waiting { vm: VmId(vm), spec, at, life });
        it.serve(at);
    }
    it.pass(to);
    it.meter.advance(to);
    for waiting in &it.queue {
        it.meter.delayed(&waiting.spec, waiting.at, to);
    }
    it.meter.finish(BTreeMap::new())
}

impl Fluid {
    /// All that ends until then.
    fn pass(&mut self, until: u64) {
        while let Some(Reverse((at, vm))) = self.ends.peek().copied().filter(|it| it.0.0 <= until) {
            self.ends.pop();
            self.meter.ends(at, vm);
            if let Some(had) = self.running.remove(&vm) {
                self.free.cores += had.cores;
                self.free.memory += had.memory;
            }
            self.serve(at);
        }
    }

    fn serve(&mut self, now: u64) {
        let mut at = 0;
        while at < self.look_ahead.min(self.queue.len()) {
            let needs = Amount::of(self.queue[at].spec.needs);
            if needs.cores <= self.free.cores && needs.memory <= self.free.memory {
                self.start(at, needs, now);
                continue;
            }
            if at == 0 && now - self.queue[0].at >= self.age_max {
                return;
            }
            at += 1;
        }
    }

    fn start(&mut self, at: usize, needs: Amount, now: u64) {
        let Some(it) = self.queue.remove(at) else { return };
        self.free.cores -= needs.cores;
        self.free.memory -= needs.memory;
        self.meter.starts(&it.spec, it.at, now, 1);
        self.meter.runs(now, it.vm, &it.spec);
        self.running.insert(it.vm, needs);
        self.ends.push(Reverse((now.saturating_add(it.life), it.vm)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Name;
    use crate::workload::{HOUR, Preset, Workload};
    use crate::{Simulation, Times};

    #[test]
    fn fluid_waits_only_for_what_is_free_altogether() {
        let pool = Pool { hosts: 2, cores: 12, gib: 48, fabric: 2, domain: 2 };
        let request = |at, life, cores| Request {
            at,
            life,
            spec: Arc::new(Spec::new(Resources::new(cores, 1), scheduler::Class::Shared)),
        };
        let all = [(0, 9, 10), (0, 2, 10), (1, 5, 4), (1, 5, 6)];
        let requests = all.map(|(at, life, cores)| request(at * HOUR, life * HOUR, cores));

        let figures =
            fluid(pool, &Settings::default(), requests.into_iter(), 0, 10 * HOUR).figures();

        assert!((figures.delayed_percent - 25.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.delay_mean_min[1] - 20.0).abs() < 1e-9, "an hour, of three: {figures:?}");
    }

    #[test]
    fn no_policy_uses_more_of_a_full_pool() {
        let workload = Workload::new(Preset::Big, 1.1);
        let begins = workload.beginning();
        let (pool, to) = (Pool { hosts: 10, ..Pool::default() }, begins + 240 * HOUR);
        let requests = || workload.generate(pool.all_cores(), 2);
        let settings = Settings::default();
        let bound = fluid(pool, &settings, requests(), begins, to).figures();
        for name in [Name::Bff, Name::Ours] {
            let it = Simulation::new(pool, name.policy(), settings, Times::default()).unwrap();
            let found = it.run(requests(), begins, to).figures();

            assert!(
                found.utilisation_percent < bound.utilisation_percent,
                "{name}: {found:?}, {bound:?}"
            );
        }
    }
}
