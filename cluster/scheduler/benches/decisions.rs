//! Decisions in a cluster of 100,000 hosts of 48 cores, full of VMs of Azure's sizes: how long each takes, and how much memory
//! the scheduler has. `TESSERA_HOSTS=1000` makes it smaller.
//!
//! Criterion tells of the mean of a decision alone. The lines before are of whole steps of the machine: the decision, its
//! reservation, the start, and all that follows when a VM ends.

use criterion::{Criterion, criterion_group, criterion_main};
use scheduler::cluster::{Cluster, HostSpec};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Bff, Consolidation, FragBff, Lifetime, Policy, Spread};
use scheduler::{
    Class, Effect, Fabric, FailureDomain, Input, Resources, Scheduler, Settings, Spec, VmId,
};
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOSTS: u32 = 100_000;
const CORES: u32 = 48;
/// 512 GiB.
const MEMORY: u32 = 262_144;
/// Of all cores so many hundredths are taken.
const FULL: u64 = 97;
/// The first policy of the process.
const FIRST: &str = "BFF";
const STEPS: usize = 100_000;

fn hosts() -> u32 {
    let wanted = std::env::var("TESSERA_HOSTS").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(HOSTS)
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for host in 0..hosts() {
        let node = Resources::new(CORES / 2, MEMORY / 2);
        let spec = HostSpec {
            fabric: Fabric(host / 100),
            domain: FailureDomain(host / 25),
            ..HostSpec::new(vec![node; 2])
        };
        cluster.add_host(&spec).expect("a host");
    }
    cluster
}

/// Kinds of VMs, each as often as it comes.
fn shapes() -> Vec<Arc<Spec>> {
    let shares = [(1, 29), (2, 29), (4, 23), (8, 12), (16, 5), (24, 1), (32, 1)];
    let mut shapes = Vec::new();
    for (cores, share) in shares {
        let gib = [2, 4, 8].map(|gib| Resources::new(cores, cores * gib * 512));
        let specs = gib.map(|needs| Arc::new(Spec::new(needs, Class::Requests)));
        shapes.extend(specs.iter().cycle().take(share * 3).cloned());
    }
    shapes
}

struct Load<P> {
    scheduler: Scheduler<P>,
    shapes: Vec<Arc<Spec>>,
    random: fastrand::Rng,
    running: Vec<VmId>,
    next: u32,
    now: u64,
    effects: Vec<Effect>,
}

impl<P: Policy> Load<P> {
    fn new(policy: P) -> Self {
        let scheduler = Scheduler::new(cluster(), policy, Settings::default());
        Self {
            scheduler,
            shapes: shapes(),
            random: fastrand::Rng::with_seed(1),
            running: Vec::new(),
            next: 0,
            now: 0,
            effects: Vec::new(),
        }
    }

    fn shape(&mut self) -> Arc<Spec> {
        Arc::clone(&self.shapes[self.random.usize(..self.shapes.len())])
    }

    /// A step of the machine, and how long it took.
    fn step(&mut self, input: Input) -> Duration {
        self.effects.clear();
        let start = Instant::now();
        self.scheduler.step(self.now, input, &mut self.effects).expect("an input that is right");
        start.elapsed()
    }

    /// What was asked for is done at once.
    fn settle(&mut self) {
        let mut at = 0;
        let mut effects = std::mem::take(&mut self.effects);
        while let Some(effect) = effects.get(at).cloned() {
            at += 1;
            match effect {
                Effect::Start { reservation, .. } | Effect::Move { reservation, .. } => {
                    self.step(Input::Ready { reservation });
                    effects.append(&mut self.effects);
                }
                Effect::Flip { reservation } => {
                    self.step(Input::Flipped { reservation });
                    effects.append(&mut self.effects);
                }
                Effect::Run { vm } => self.running.push(vm),
                Effect::Waits { .. } | Effect::Expired { .. } | Effect::HandBack { .. } => {}
            }
        }
    }

    fn arrive(&mut self) -> Duration {
        let spec = self.shape();
        self.next += 1;
        let vm = VmId(self.next);
        let took = self.step(Input::Arrive { vm, spec });
        self.settle();
        took
    }

    fn depart(&mut self) -> Duration {
        let at = self.random.usize(..self.running.len());
        let vm = self.running.swap_remove(at);
        let took = self.step(Input::Depart { vm });
        self.settle();
        took
    }

    fn free_percent(&self) -> u64 {
        let free = self.scheduler.cluster().hosts().iter().map(|host| u64::from(host.free().cores));
        100 * free.sum::<u64>() / u64::from(hosts() * CORES)
    }

    fn fill(&mut self) {
        let all = u64::from(hosts()) * u64::from(CORES);
        let mut taken = 0;
        while taken * 100 < all * FULL {
            self.arrive();
            let last = self.running.last().and_then(|vm| self.scheduler.cluster().vm(*vm));
            taken += last.map_or(1, |vm| u64::from(vm.resources().cores));
        }
    }
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    println!(
        "{what}: p50 {:?}, p99 {:?}, p99.9 {:?}, most {:?}",
        at(500),
        at(990),
        at(999),
        at(1000)
    );
}

fn run<P: Policy>(criterion: &mut Criterion, name: &str, policy: P) {
    let before = resident_kib();
    let mut load = Load::new(policy);
    let start = Instant::now();
    load.fill();
    let count = load.running.len();
    println!("{name}: {} hosts, {count} VMs, filled in {:?}", hosts(), start.elapsed());
    // Later ones find what the first has left.
    if name == FIRST {
        println!("{name}: {} MiB", resident_kib().saturating_sub(before) / 1024);
    }
    let (mut arrivals, mut departures) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        load.now += 100;
        departures.push(load.depart());
        arrivals.push(load.arrive());
    }
    show(&format!("{name}: a VM comes"), arrivals);
    show(&format!("{name}: a VM ends"), departures);
    let split = load.scheduler.cluster().aggregates_from(VmId(0)).count();
    let waiting = load.scheduler.queue().len();
    println!("{name}: {} % free, {split} VMs split, {waiting} wait", load.free_percent());
    criterion.bench_function(&format!("{name}, one decision"), |bencher| {
        bencher.iter(|| {
            let spec = load.shape();
            black_box(load.scheduler.policy().place(load.scheduler.cluster(), &spec)).is_ok()
        });
    });
    // No host holds it, so it is split where the policy splits, and refused where not, with the reason.
    let large = Spec::new(Resources::new(2 * CORES, 24_576), Class::Requests);
    criterion.bench_function(&format!("{name}, larger than a host"), |bencher| {
        bencher.iter(|| {
            black_box(load.scheduler.policy().place(load.scheduler.cluster(), &large)).is_ok()
        });
    });
}

fn decisions(criterion: &mut Criterion) {
    run(criterion, FIRST, Bff);
    let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinFragmentation);
    run(criterion, "FragBFF", FragBff { spread, consolidation, mix: Mix::azure() });
    run(criterion, "ours", Lifetime::azure());
}

criterion_group!(benches, decisions);
criterion_main!(benches);
