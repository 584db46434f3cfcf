//! Proposes where whole groups of vCPUs would be better placed. It never acts.
//!
//! ```text
//!   Windows --what is beyond the noise--> who shares with whom --sets of groups that share--> one slice with room for each
//!     --gain against cost--> Proposals, ranked
//! ```
//! A *group* is all vCPUs of a slice: none is ever taken out of it. A proposal brings groups together that share memory,
//! so that a slice that is named in it as a source has no vCPU afterwards. No single vCPU is sent after a page that it
//! lacks; addresses of pages and single faults are no input (decision 50 says why).
//!
//! **Gain.** The pages that travel between the groups now, and would not between vCPUs of one slice. What they exchange
//! with others stays as it is. **Cost**, in seconds that vCPUs wait: the interruption of each, and for each hot page one
//! fault and its bytes on the link.
//!
//! **Hysteresis.** Pages count only as far as they are beyond the noise of at least three windows under the present
//! placement, so nothing is proposed right after a move. What is left must make good for the cost several times over, for
//! each group that moves as well as in sum, and be worth a hundredth of a vCPU. So a small change of the counters
//! does not send a group there and back.

use super::capacity::{Capacity, bytes_of};
use super::drain::with_queues;
use super::refusal::{named, size};
use super::sharing::{Rate, Sharing, Window};
use super::{Plan, Refusal, SLICES_MAX};
use crate::Placement;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use wire::{PAGE_SIZE, SliceId, VcpuId};

/// Most proposals at one time.
pub const PROPOSALS_MAX: usize = 8;

/// Waiting that must be saved for a proposal to be worth its words: a hundredth of a vCPU's time.
const LEAST_WAITING: f64 = 0.01;

/// What a fault and a move cost, and how long a move has to make good for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// How long a vCPU waits for a page of another slice.
    pub fault: Duration,
    /// For how long a move interrupts a vCPU.
    pub interruption: Duration,
    /// What a link between two hosts carries, in bytes per second.
    pub bytes_per_second: u64,
    /// Memory that the vCPUs of a slice have used lately and that follows them, in bytes. For a slice that is not named
    /// it is all memory whose home is there.
    pub hot_bytes: BTreeMap<SliceId, u64>,
    /// How long the VM is expected to go on like this.
    pub horizon: Duration,
    /// How many times the gain within the horizon must exceed the cost.
    pub payback: f64,
}

/// All vCPUs of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where they run.
    pub from: SliceId,
    /// Ascending; never empty.
    pub vcpus: Vec<VcpuId>,
    /// How many of them have asked for pages that would not travel any more; `None` if nobody has counted by vCPU.
    pub askers: Option<usize>,
}

/// What a proposal is expected to save.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Pages per second that do not travel any more.
    pub pages_per_second: f64,
    /// How many of them are beyond the noise. All decisions are by these.
    pub sure_pages_per_second: f64,
    /// Seconds of waiting saved per second, by `sure_pages_per_second`, over all vCPUs.
    pub waiting: f64,
}

/// What a proposal costs once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expense {
    /// Interruption of all vCPUs that move, added up.
    pub interruption: Duration,
    /// Hot pages that follow them, in bytes.
    pub hot_bytes: u64,
    /// Interruption, faults and transfers, in seconds over all vCPUs.
    pub waiting: f64,
}

/// Groups that would be better off on one slice. Prints as one line for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// What would move, ascending by slice.
    pub groups: Vec<Group>,
    /// Where to.
    pub to: SliceId,
    /// What it is expected to save.
    pub gain: Gain,
    /// What it costs.
    pub cost: Expense,
    /// How it is done: vCPUs with their queues, nothing else.
    pub plan: Plan,
}

impl Proposal {
    /// When the gain has made good for the cost, in seconds.
    #[must_use]
    pub fn repaid_after(&self) -> f64 {
        self.cost.waiting / self.gain.waiting
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter();
        let all = groups.map(|group| format!("all of {} ({})", group.from, named(&group.vcpus)));
        let all = all.collect::<Vec<_>>().join(" and ");
        let Gain { pages_per_second, sure_pages_per_second, waiting } = self.gain;
        write!(
            f,
            "move {all} to {}: saves {pages_per_second:.0} pages/s (at least \
             {sure_pages_per_second:.0}), {waiting:.2} s of waiting each second",
            self.to
        )?;
        let vcpus: usize = self.groups.iter().map(|group| group.vcpus.len()).sum();
        if let Some(askers) = self.groups.iter().map(|group| group.askers).sum::<Option<usize>>() {
            write!(f, " ({askers} of these {vcpus} vCPUs ask for pages)")?;
        }
        let interruption = self.cost.interruption.as_secs_f64() * 1e3;
        write!(
            f,
            "; costs {interruption:.2} ms of interruption and {} of hot pages, {:.2} s of waiting in \
             all, repaid after {:.1} s",
            size(self.cost.hot_bytes),
            self.cost.waiting,
            self.repaid_after()
        )
    }
}

/// Proposals for this placement, the most worth first, [`PROPOSALS_MAX`] at most. They exclude each other where they move
/// the same group or need the same room: after one of them, count anew.
///
/// `windows` are in the order of time; those of the placement's epoch count, the last 64 of them at most.
///
/// # Errors
/// More than [`SLICES_MAX`] slices.
pub fn advise(
    placement: &Placement,
    capacity: &Capacity,
    windows: &[Window],
    terms: &Terms,
) -> Result<Vec<Proposal>, Refusal> {
    let members = placement.members();
    if members.len() > SLICES_MAX {
        return Err(Refusal::TooMany(members.len()));
    }
    let advisor = Advisor::new(placement, capacity, terms, Sharing::new(placement, windows));
    let sets = 1..(1_u32 << advisor.groups.len());
    let mut choices: Vec<_> = sets.filter_map(|set| advisor.choose(set)).collect();
    // The order of the sets decides where all else is equal: sorting keeps it.
    choices.sort_by(|one, other| other.net.total_cmp(&one.net));
    let mut best: Vec<Choice> = Vec::new();
    for choice in choices {
        // More groups must be worth more.
        let fewer = |other: &Choice| other.together & !choice.together == 0;
        if best.len() < PROPOSALS_MAX && !best.iter().any(fewer) {
            best.push(choice);
        }
    }
    Ok(best.iter().map(|choice| advisor.propose(choice)).collect())
}

/// Groups, by their place in the list of groups.
type Set = u32;

/// The best slice for the groups of a set.
struct Choice {
    together: Set,
    to: SliceId,
    gain: Gain,
    cost: Expense,
    /// Seconds of waiting saved within the horizon, less the cost as many times as the gain must exceed it.
    net: f64,
}

struct Advisor<'a> {
    placement: &'a Placement,
    capacity: &'a Capacity,
    terms: &'a Terms,
    sharing: Sharing,
    groups: Vec<(SliceId, Vec<VcpuId>)>,
    /// What moving each group costs.
    costs: Vec<Expense>,
    /// What each two groups share.
    rates: Vec<Vec<Option<Rate>>>,
    /// With which groups each shares anything.
    near: Vec<Set>,
    /// vCPUs for which each member has room.
    rooms: Vec<(SliceId, u64)>,
}

impl<'a> Advisor<'a> {
    fn new(
        placement: &'a Placement,
        capacity: &'a Capacity,
        terms: &'a Terms,
        sharing: Sharing,
    ) -> Self {
        let members = placement.members().iter();
        let room = |slice: &SliceId| (*slice, capacity.room(placement, *slice).vcpus);
        let rooms = members.clone().map(room).collect();
        let groups = members.map(|slice| (*slice, placement.vcpus_on(*slice)));
        let groups: Vec<_> = groups.filter(|(_, vcpus)| !vcpus.is_empty()).collect();
        let with = |one: SliceId| groups.iter().map(move |(other, _)| (one, *other));
        let row = |(one, _): &(SliceId, _)| {
            with(*one).map(|(one, other)| sharing.between(one, other)).collect()
        };
        let rates: Vec<Vec<Option<Rate>>> = groups.iter().map(row).collect();
        let near = |row: &Vec<Option<Rate>>| {
            let some = row.iter().enumerate().filter(|(_, rate)| rate.is_some());
            some.fold(0, |near, (at, _)| near | 1 << at)
        };
        let near = rates.iter().map(near).collect();
        let costs = groups.iter().map(|group| expense(placement, terms, group)).collect();
        Self { placement, capacity, terms, sharing, groups, costs, rates, near, rooms }
    }

    fn members(&self, set: Set) -> impl Iterator<Item = usize> + Clone + use<> {
        (0..self.groups.len()).filter(move |at| set >> at & 1 == 1)
    }

    /// What one group shares with others.
    fn shared(&self, one: usize, others: Set) -> (f64, f64) {
        let rates = self.members(others).filter_map(|other| self.rates[one][other]);
        rates.fold((0.0, 0.0), |(mean, sure), rate| (mean + rate.mean, sure + rate.sure))
    }

    fn gain(&self, (pages_per_second, sure_pages_per_second): (f64, f64)) -> Gain {
        let waiting = sure_pages_per_second * self.terms.fault.as_secs_f64();
        Gain { pages_per_second, sure_pages_per_second, waiting }
    }

    /// Whether each group shares with another one, directly or by others of them.
    fn is_connected(&self, set: Set) -> bool {
        let mut reached = set & set.wrapping_neg();
        loop {
            let near = self.members(reached).fold(0, |near, at| near | self.near[at]);
            let next = reached | near & set;
            if next == reached {
                return reached == set;
            }
            reached = next;
        }
    }

    /// Where these groups would best be together, if that is worth its cost.
    fn choose(&self, together: Set) -> Option<Choice> {
        if together.count_ones() < 2 || !self.is_connected(together) {
            return None;
        }
        // Each pair is met twice.
        let sum = self.members(together).map(|one| self.shared(one, together));
        let (mean, sure) = sum.fold((0.0, 0.0), |sum, of| (sum.0 + of.0 / 2.0, sum.1 + of.1 / 2.0));
        let gain = self.gain((mean, sure));
        if gain.waiting < LEAST_WAITING {
            return None;
        }
        let choices = self.rooms.iter().filter_map(|target| self.choice(together, *target, gain));
        choices.min_by(|one, other| one.cost.waiting.total_cmp(&other.cost.waiting))
    }

    fn choice(&self, together: Set, (to, room): (SliceId, u64), gain: Gain) -> Option<Choice> {
        let own = self.groups.iter().position(|(slice, _)| *slice == to).map_or(0, |at| 1 << at);
        // Whose vCPUs share nothing with the groups is no place for them.
        if own & !together != 0 {
            return None;
        }
        let moved = self.members(together & !own);
        let need: usize = moved.clone().map(|at| self.groups[at].1.len()).sum();
        if u64::try_from(need).ok()? > room {
            return None;
        }
        // No group comes along that is not worth its own move.
        let net = |at: usize| self.net(self.gain(self.shared(at, together)), self.costs[at]);
        if moved.clone().any(|at| net(at) <= 0.0) {
            return None;
        }
        let cost = moved.map(|at| self.costs[at]).reduce(|sum, of| Expense {
            interruption: sum.interruption.saturating_add(of.interruption),
            hot_bytes: sum.hot_bytes.saturating_add(of.hot_bytes),
            waiting: sum.waiting + of.waiting,
        })?;
        let net = self.net(gain, cost);
        (net > 0.0).then_some(Choice { together, to, gain, cost, net })
    }

    /// What a gain is worth beyond a cost, in seconds. Positive if it pays.
    fn net(&self, gain: Gain, cost: Expense) -> f64 {
        gain.waiting * self.terms.horizon.as_secs_f64() - self.terms.payback * cost.waiting
    }

    fn propose(&self, choice: &Choice) -> Proposal {
        let Choice { together, to, gain, cost, .. } = *choice;
        let slices: Vec<_> = self.members(together).map(|at| self.groups[at].0).collect();
        let moved = self.members(together).map(|at| &self.groups[at]);
        let group = |(from, vcpus): &(SliceId, Vec<VcpuId>)| Group {
            from: *from,
            vcpus: vcpus.clone(),
            askers: self.sharing.askers(vcpus, &slices),
        };
        let groups: Vec<_> = moved.filter(|(from, _)| *from != to).map(group).collect();
        let mut plan = Plan::default();
        for vcpu in groups.iter().flat_map(|group| &group.vcpus) {
            plan.push(with_queues(self.placement, self.capacity, *vcpu, to));
        }
        Proposal { groups, to, gain, cost, plan }
    }
}

/// What moving a group costs (FragVisor measured 86 us for a vCPU).
fn expense(
    placement: &Placement,
    terms: &Terms,
    (from, vcpus): &(SliceId, Vec<VcpuId>),
) -> Expense {
    let all = || bytes_of(placement.frame_count(*from));
    let hot_bytes = terms.hot_bytes.get(from).copied().unwrap_or_else(all);
    let count = u32::try_from(vcpus.len()).unwrap_or(u32::MAX);
    let interruption = terms.interruption.saturating_mul(count);
    let bytes = hot_bytes as f64;
    let faults = bytes / PAGE_SIZE as f64 * terms.fault.as_secs_f64();
    let transfer = if hot_bytes == 0 { 0.0 } else { bytes / terms.bytes_per_second as f64 };
    Expense { interruption, hot_bytes, waiting: interruption.as_secs_f64() + faults + transfer }
}
