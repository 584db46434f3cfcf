//! VMs that come: when, what they want, how long they run.
//!
//! ```text
//!   deployments at random times, more by day --> size of the deployment --> one shape for all of it --> a life for each VM
//! ```
//! **It begins as it goes on.** VMs that run at the beginning have come before it, each at its time: of all that came since nobody
//! lives any more who came earlier, those that are left. So their ages are right, and so is what is to be expected of them.

mod lifetime;
mod shape;

pub use lifetime::Lifetimes;
pub use shape::{Preset, Shapes, UnknownPreset};

use scheduler::Spec;
use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;

/// An hour in milliseconds.
pub const HOUR: u64 = 3_600_000;

/// One VM that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When, in milliseconds.
    pub at: u64,
    /// How long it runs, in milliseconds.
    pub life: u64,
    /// What it wants.
    pub spec: Arc<Spec>,
}

/// What comes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Shapes of VMs.
    pub shapes: Shapes,
    /// How long they run.
    pub lifetimes: Lifetimes,
    /// The share of a pool's cores that VMs would have on average if nobody waited.
    pub load: f64,
    /// The rate of arrivals goes up and down by this share each day.
    pub diurnal: f64,
    /// A deployment has no more than this share of the pool's cores, if it has more than one VM.
    pub burst_max: f64,
}

impl Workload {
    /// VMs of a preset, at a load.
    #[must_use]
    pub fn new(preset: Preset, load: f64) -> Self {
        let shapes = Shapes::new(preset);
        let lifetimes = Lifetimes::azure(&shapes);
        Self { shapes, lifetimes, load, diurnal: 0.3, burst_max: 1.0 / 16.0 }
    }

    /// When the time begins that the generator tells of: nobody who came before the time 0 runs any more.
    #[must_use]
    pub fn beginning(&self) -> u64 {
        self.lifetimes.longest()
    }

    /// All VMs of a pool with so many cores, without end.
    #[must_use]
    pub fn generate(&self, cores: u64, seed: u64) -> Generator {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x9E37_79B9_7F4A_7C15);
        let burst_cores = cores_of(cores, self.burst_max);
        let per_deployment = self.core_hours(burst_cores);
        #[expect(clippy::cast_precision_loss, reason = "cores of a pool are few")]
        let rate = self.load * cores as f64 / per_deployment;
        random.f64();
        Generator {
            workload: self.clone(),
            random,
            rate,
            burst_cores,
            now: 0.0,
            ready: VecDeque::new(),
        }
    }

    /// Core-hours of a deployment on average, by many that are drawn; the same for all seeds.
    fn core_hours(&self, burst_cores: u32) -> f64 {
        const DRAWN: u32 = 50_000;
        let mut random = fastrand::Rng::with_seed(1);
        let mut sum = 0.0;
        for _ in 0..DRAWN {
            let (spec, count) = self.deployment(&mut random, burst_cores);
            let cores = spec.needs.cores;
            sum += f64::from(cores) * self.lifetimes.mean_hours(cores) * f64::from(count);
        }
        sum / f64::from(DRAWN)
    }

    fn deployment(&self, random: &mut fastrand::Rng, burst_cores: u32) -> (Arc<Spec>, u32) {
        let spec = self.shapes.draw(random);
        let most = (burst_cores / spec.needs.cores).max(1);
        (spec, shape::deployment_size(random).min(most))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of cores")]
#[expect(clippy::cast_precision_loss, reason = "cores of a pool are few")]
fn cores_of(cores: u64, share: f64) -> u32 {
    (cores as f64 * share).max(1.0) as u32
}

/// VMs by the time at which they come. Of those that come before the beginning only those that live to see it.
#[derive(Debug)]
pub struct Generator {
    workload: Workload,
    random: fastrand::Rng,
    /// Deployments in an hour.
    rate: f64,
    burst_cores: u32,
    /// In hours.
    now: f64,
    ready: VecDeque<Request>,
}

impl Generator {
    /// The time of the next deployment, by thinning: candidates at the highest rate, of which some count.
    fn advance(&mut self) {
        let diurnal = self.workload.diurnal;
        loop {
            let waits = -(1.0 - self.random.f64()).ln() / (self.rate * (1.0 + diurnal));
            self.now += waits;
            let rate = 1.0 + diurnal * (self.now / 24.0 * TAU).sin();
            if self.random.f64() * (1.0 + diurnal) < rate {
                return;
            }
        }
    }

    fn deploy(&mut self) {
        let beginning = self.workload.beginning();
        let (spec, count) = self.workload.deployment(&mut self.random, self.burst_cores);
        let at = milliseconds(self.now);
        for _ in 0..count {
            let life = self.workload.lifetimes.draw(spec.needs.cores, &mut self.random);
            if at >= beginning || at + life > beginning {
                self.ready.push_back(Request { at, life, spec: Arc::clone(&spec) });
            }
        }
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        while self.ready.is_empty() {
            self.advance();
            self.deploy();
        }
        self.ready.pop_front()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "hours from 0 on")]
fn milliseconds(hours: f64) -> u64 {
    (hours * 3_600_000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_has_the_same_vms_and_another_has_others() {
        let workload = Workload::new(Preset::Azure, 0.9);
        let first = |seed| workload.generate(960, seed).take(1000).collect::<Vec<_>>();

        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
        assert!(first(7).windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[test]
    fn load_is_what_was_asked_for_from_the_beginning_on() {
        let workload = Workload::new(Preset::Azure, 0.9);
        let cores = 48_000;
        let beginning = workload.beginning();
        let times = [0, 10, 20].map(|day| beginning + day * 24 * HOUR);
        let mut running = [0u64; 3];
        for it in workload.generate(cores, 3).take_while(|it| it.at <= times[2]) {
            for (sum, time) in running.iter_mut().zip(times) {
                if (it.at..it.at + it.life).contains(&time) {
                    *sum += u64::from(it.spec.needs.cores);
                }
            }
        }

        for sum in running {
            assert!((40_000..=47_000).contains(&sum), "{running:?} of {cores} cores");
        }
    }

    #[test]
    fn deployments_come_together_and_days_are_busier_than_nights() {
        let workload = Workload::new(Preset::Azure, 0.9);
        let beginning = workload.beginning();
        let all = workload.generate(48_000, 1).filter(|it| it.at >= beginning);
        let month: Vec<_> = all.take_while(|it| it.at < beginning + 720 * HOUR).collect();
        let together = month.windows(2).filter(|pair| pair[0].at == pair[1].at).count();
        let is_day = |it: &&Request| it.at / HOUR % 24 < 12;
        let by_day = month.iter().filter(is_day).count();

        assert!(together * 2 > month.len(), "{together} of {}", month.len());
        let share = 100 * by_day / month.len();
        assert!((54..=66).contains(&share), "{share} % in the half of the day that is busier");
    }
}
