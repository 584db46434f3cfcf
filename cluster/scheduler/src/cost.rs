//! What a move costs, and what it brings. Both in core-microseconds: one core that does nothing useful for a microsecond.
//!
//! ```text
//!   cost    = vCPUs x stop + hot pages x (fault + 4 KiB / bandwidth) + devices x take-over
//!             + risk + vCPUs x cores of the VM, up to 24, x disturbance
//!   benefit = (stall now - stall after) x cores x expected rest of its life
//!   a move is made iff benefit > factor x cost
//! ```
//! Stalls are counted by the running VM: the time that its vCPUs wait for pages of other slices. Where nobody has counted, the
//! class says what to expect.

use crate::cluster::Move;
use crate::ids::HostId;
use crate::spec::Spec;
use std::collections::BTreeMap;

const MILLION: u128 = 1_000_000;
/// Pages of 4 KiB in a unit of memory.
const PAGES_PER_UNIT: u64 = 512;
/// Of a VM's memory the part that is taken to be hot until somebody has measured it: one in so many.
const HOT_ONE_IN: u64 = 10;
/// Pairs of slices in a measurement.
pub const PAIRS_MAX: usize = 256;

/// Faults of one slice for pages of another one, in a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultCounter {
    /// Whose vCPUs waited.
    pub by: HostId,
    /// Where the pages were.
    pub of: HostId,
    /// How long they waited together, in microseconds.
    pub waited_us: u64,
}

/// What was measured of a VM: the share of its time that it waits, in millionths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stall {
    /// Between two slices, the lower host first.
    pairs: BTreeMap<(HostId, HostId), u32>,
    /// Pages that were used in the window.
    hot_pages: u64,
}

impl Stall {
    /// From counters of a window of so many microseconds, of a VM with so many vCPUs; none if no time has passed. Pairs
    /// beyond [`PAIRS_MAX`] are left out.
    #[must_use]
    pub fn measured(
        counters: &[FaultCounter],
        vcpus: u32,
        window_us: u64,
        hot_pages: u64,
    ) -> Option<Self> {
        let all = u128::from(vcpus) * u128::from(window_us);
        if all == 0 {
            return None;
        }
        let mut waits: BTreeMap<(HostId, HostId), u64> = BTreeMap::new();
        for counter in counters.iter().filter(|counter| counter.by != counter.of) {
            let pair = (counter.by.min(counter.of), counter.by.max(counter.of));
            if waits.len() >= PAIRS_MAX && !waits.contains_key(&pair) {
                continue;
            }
            let sum = waits.entry(pair).or_default();
            *sum = sum.saturating_add(counter.waited_us);
        }
        let share = |waited: u64| {
            u32::try_from((u128::from(waited) * MILLION / all).min(MILLION)).unwrap_or(0)
        };
        let pairs = waits.into_iter().map(|(pair, waited)| (pair, share(waited))).collect();
        Some(Self { pairs, hot_pages })
    }

    /// All together.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.pairs.values().fold(0u32, |sum, share| sum.saturating_add(*share)).min(1_000_000)
    }

    /// Of that what slices on these hosts wait for each other.
    fn among(&self, hosts: &[HostId]) -> u32 {
        let within = |pair: &(HostId, HostId)| hosts.contains(&pair.0) && hosts.contains(&pair.1);
        let shares = self.pairs.iter().filter(|(pair, _)| within(pair)).map(|(_, share)| *share);
        shares.fold(0u32, u32::saturating_add).min(1_000_000)
    }
}

/// The share of a VM's time that it no longer waits once the slices of `joined` hosts are on one, of `slices` altogether.
#[must_use]
pub fn stall_saved(spec: &Spec, stall: Option<&Stall>, joined: &[HostId], slices: usize) -> u32 {
    if let Some(stall) = stall {
        return stall.among(joined);
    }
    // Nobody knows who waits for whom: all pairs alike.
    let pairs = |count: usize| {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        count.saturating_mul(count.saturating_sub(1)) / 2
    };
    let all = pairs(slices).max(1);
    let saved = u64::from(spec.class.stall_expected()) * pairs(joined.len()).min(all) / all;
    u32::try_from(saved).unwrap_or(1_000_000)
}

/// What things cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prices {
    /// A vCPU stands still so long, in microseconds.
    pub vcpu_us: u64,
    /// A fault for a hot page at its new place, without its bytes.
    pub page_us: u64,
    /// What the network carries in a microsecond; at least 1.
    pub bytes_per_us: u64,
    /// Another host takes over the real part of a device.
    pub device_us: u64,
    /// What may go wrong, for each move.
    pub risk_us: u64,
    /// The same for each vCPU that moves, times each core that the VM has: vCPUs stop one after the other, and all of the VM waits
    /// for whoever has stopped.
    pub disturbance_us: u64,
    /// More cores of the VM count as this many: what a move brings grows with the cores, and so the largest VMs would never be
    /// worth one.
    pub disturbed_max: u32,
    /// The benefit is to be more than so many hundredths of the cost.
    pub factor_percent: u64,
}

impl Default for Prices {
    /// FragVisor's vCPU (86 us), a page over 10 Gbit/s. What may go wrong is three core-hours, and 0.3 core-hours for each vCPU and
    /// core. These two are not measured: a simulator found them, by what moves and core-hours in Aggregate VMs become (decision 62).
    fn default() -> Self {
        Self {
            vcpu_us: 86,
            page_us: 40,
            bytes_per_us: 1250,
            device_us: 2_000_000,
            risk_us: 10_800_000_000,
            disturbance_us: 1_080_000_000,
            disturbed_max: 24,
            factor_percent: 200,
        }
    }
}

impl Prices {
    /// How long some of the VM stands still, in microseconds: its vCPUs one after the other, then the devices.
    #[must_use]
    pub fn pause_us(&self, step: &Move) -> u64 {
        let vcpus = u64::from(step.resources.cores).saturating_mul(self.vcpu_us);
        vcpus.saturating_add(self.devices_us(step))
    }

    fn devices_us(&self, step: &Move) -> u64 {
        u64::try_from(step.devices.len()).unwrap_or(u64::MAX).saturating_mul(self.device_us)
    }

    /// What a move costs.
    #[must_use]
    pub fn cost_us(&self, step: &Move, spec: &Spec, stall: Option<&Stall>) -> u64 {
        let pages = |units: u32| u64::from(units) * PAGES_PER_UNIT;
        let hot = match stall {
            Some(stall) => {
                let of_all = u128::from(stall.hot_pages) * u128::from(step.resources.memory);
                let share = of_all / u128::from(spec.needs.memory.max(1));
                u64::try_from(share).unwrap_or(u64::MAX).min(pages(step.resources.memory))
            }
            None => pages(step.resources.memory) / HOT_ONE_IN,
        };
        let page_us = self.page_us.saturating_add(4096 / self.bytes_per_us.max(1));
        let pull = hot.saturating_mul(page_us);
        let risk = self.risk_us.saturating_add(self.disturbance(step, spec));
        self.pause_us(step).saturating_add(pull).saturating_add(risk)
    }

    fn disturbance(&self, step: &Move, spec: &Spec) -> u64 {
        let disturbed = spec.needs.cores.min(self.disturbed_max);
        let pairs = u64::from(step.resources.cores).saturating_mul(u64::from(disturbed));
        pairs.saturating_mul(self.disturbance_us)
    }

    /// What it brings that a VM waits less for a time.
    #[must_use]
    pub fn benefit_us(&self, saved: u32, cores: u32, time_ms: u64) -> i64 {
        let waits = u128::from(saved) * u128::from(cores) * u128::from(time_ms) / 1000;
        i64::try_from(waits).unwrap_or(i64::MAX)
    }

    /// What a move is worth beyond its cost, times the factor; positive iff it is to be made.
    #[must_use]
    pub fn worth(&self, benefit_us: i64, cost_us: u64) -> i64 {
        let price = u128::from(cost_us) * u128::from(self.factor_percent) / 100;
        benefit_us.saturating_sub(i64::try_from(price).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VmId;
    use crate::resources::Resources;
    use crate::spec::Class;

    fn step(cores: u32, memory: u32) -> Move {
        let (from, to) = (HostId(0), HostId(1));
        Move { vm: VmId(0), from, to, resources: Resources::new(cores, memory), devices: vec![] }
    }

    #[test]
    fn stall_is_the_share_of_all_vcpus_time() {
        let counter =
            |by, of, waited_us| FaultCounter { by: HostId(by), of: HostId(of), waited_us };
        let counters =
            [counter(0, 1, 300), counter(1, 0, 100), counter(1, 2, 50), counter(2, 2, 999)];

        let stall = Stall::measured(&counters, 4, 1000, 7).unwrap();

        assert_eq!(stall.share(), 112_500);
        assert_eq!(stall.among(&[HostId(0), HostId(1)]), 100_000);
        assert_eq!(Stall::measured(&counters, 0, 1000, 7), None);
    }

    #[test]
    fn what_nobody_has_measured_is_shared_out_over_pairs() {
        let spec = Spec::new(Resources::new(8, 8), Class::Requests);
        let hosts = [0, 1, 2].map(HostId);

        assert_eq!(stall_saved(&spec, None, &hosts, 3), 150_000);
        assert_eq!(stall_saved(&spec, None, &hosts[..2], 3), 50_000);
        assert_eq!(stall_saved(&spec, None, &hosts[..1], 3), 0);
    }

    #[test]
    fn cost_has_vcpus_hot_pages_and_risk() {
        let prices = Prices { risk_us: 5, disturbance_us: 3, ..Prices::default() };
        let spec = Spec::new(Resources::new(4, 100), Class::Default);
        let stall = Stall { hot_pages: 1000, ..Stall::default() };

        assert_eq!(prices.cost_us(&step(2, 50), &spec, Some(&stall)), 2 * 86 + 500 * 43 + 5 + 24);
        assert_eq!(prices.cost_us(&step(2, 50), &spec, None), 2 * 86 + 2560 * 43 + 5 + 24);
        assert_eq!(prices.pause_us(&step(2, 50)), 172);
        let large = Spec::new(Resources::new(1000, 100), Class::Default);
        assert_eq!(prices.cost_us(&step(2, 50), &large, Some(&stall)), 2 * 86 + 500 * 43 + 5 + 144);
        let huge = Spec::new(Resources::new(u32::MAX, 1), Class::Default);
        let dear = Prices { disturbance_us: u64::MAX, ..prices };
        assert_eq!(dear.cost_us(&step(u32::MAX, 1), &huge, None), u64::MAX);
    }

    #[test]
    fn move_is_worth_it_when_the_benefit_exceeds_the_factor_of_its_cost() {
        let prices = Prices::default();

        assert_eq!(prices.benefit_us(250_000, 4, 1000), 1_000_000);
        assert_eq!(prices.worth(201, 100), 1);
        assert_eq!(prices.worth(200, 100), 0);
    }
}
