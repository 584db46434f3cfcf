//! Which groups of vCPUs share memory, as far as that can be told from noise.

use crate::Placement;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::{Epoch, SliceId, VcpuId};

/// Fewest windows that tell something of noise.
pub(super) const WINDOWS_MIN: usize = 3;
/// Most windows that are looked at: the last ones.
pub(super) const WINDOWS_MAX: usize = 64;
/// So many times the noise must be exceeded.
pub(super) const NOISE_FACTOR: f64 = 2.0;

/// Pages that one slice has asked of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCount {
    /// The slice that lacked the pages.
    pub asker: SliceId,
    /// The slice that sent them.
    pub asked: SliceId,
    /// The vCPU that lacked them, where that is counted. Each page is counted once, for its vCPU or without one.
    pub vcpu: Option<VcpuId>,
    /// Pages, in the whole window.
    pub pages: u64,
}

/// What was counted in one stretch of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The placement in force all the time. A window of another epoch than the placement's says nothing of it.
    pub epoch: Epoch,
    /// How long it was.
    pub length: Duration,
    /// Several counts of one pair are added up.
    pub faults: Vec<FaultCount>,
}

/// Pages between two slices with vCPUs, both ways together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    /// Pages per second, over all windows.
    pub(super) mean: f64,
    /// What is left of them beyond the noise, pages per second.
    pub(super) sure: f64,
}

/// What the windows say.
pub(super) struct Sharing {
    rates: BTreeMap<(SliceId, SliceId), Rate>,
    /// vCPUs that were counted, and the slices that they asked.
    asked: BTreeSet<(VcpuId, SliceId)>,
}

impl Sharing {
    /// Counts between slices that both run vCPUs, in windows of this placement. Pages that come from a slice without vCPUs
    /// come once: nobody takes them back.
    pub(super) fn new(placement: &Placement, windows: &[Window]) -> Self {
        let here = |window: &&Window| window.epoch == placement.epoch() && !window.length.is_zero();
        let windows: Vec<_> = windows.iter().filter(here).collect();
        let windows = &windows[windows.len().saturating_sub(WINDOWS_MAX)..];
        let runs: BTreeSet<_> = placement.vcpus().iter().copied().collect();
        let counts = |fault: &&FaultCount| {
            let at = fault.vcpu.is_none_or(|vcpu| placement.slice_of(vcpu) == Some(fault.asker));
            at && fault.asker != fault.asked
                && runs.contains(&fault.asker)
                && runs.contains(&fault.asked)
        };
        let mut pages: BTreeMap<(SliceId, SliceId), Vec<u64>> = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for (at, window) in windows.iter().enumerate() {
            for fault in window.faults.iter().filter(counts) {
                let pair = (fault.asker.min(fault.asked), fault.asker.max(fault.asked));
                let of = pages.entry(pair).or_insert_with(|| vec![0; windows.len()]);
                of[at] = of[at].saturating_add(fault.pages);
                asked.extend(fault.vcpu.map(|vcpu| (vcpu, fault.asked)));
            }
        }
        let seconds: Vec<_> = windows.iter().map(|window| window.length.as_secs_f64()).collect();
        let rates = pages.into_iter().filter_map(|(pair, of)| Some((pair, rate(&of, &seconds)?)));
        Self { rates: rates.collect(), asked }
    }

    /// Pages between two slices, if they are beyond the noise.
    pub(super) fn between(&self, one: SliceId, other: SliceId) -> Option<Rate> {
        self.rates.get(&(one.min(other), one.max(other))).copied()
    }

    /// How many of these vCPUs have asked one of these slices for pages; `None` if that was not counted by vCPU.
    pub(super) fn askers(&self, vcpus: &[VcpuId], slices: &[SliceId]) -> Option<usize> {
        let asks =
            |vcpu: &&VcpuId| slices.iter().any(|slice| self.asked.contains(&(**vcpu, *slice)));
        let count = vcpus.iter().filter(asks).count();
        (count > 0).then_some(count)
    }
}

/// The rate of pages that were counted in windows of so many seconds; `None` if it is within the noise. Noise is what
/// windows differ by (their standard deviation), and no less than what counting alone makes (the square root of a count).
fn rate(pages: &[u64], seconds: &[f64]) -> Option<Rate> {
    if pages.len() < WINDOWS_MIN {
        return None;
    }
    let count = pages.len() as f64;
    let total: f64 = pages.iter().map(|pages| *pages as f64).sum();
    let time: f64 = seconds.iter().sum();
    let mean = total / time;
    let off = pages.iter().zip(seconds).map(|(pages, time)| (*pages as f64 / time - mean).powi(2));
    let deviation = (off.sum::<f64>() / (count - 1.0)).sqrt();
    let counting = total.sqrt() / time;
    let sure = mean - NOISE_FACTOR * deviation.max(counting);
    (sure > 0.0).then_some(Rate { mean, sure })
}
