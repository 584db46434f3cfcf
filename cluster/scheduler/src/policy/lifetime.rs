//! Our policy: what comes together is what is worth its cost, by the age of the VM and what it was measured to wait.
//!
//! * **Young VMs are left alone.** Most end within hours, and a move for them is for nothing. The more a VM
//!   waits, the younger it is moved: as soon as what it loses until the next chance is more than what a move costs that would have
//!   been for nothing by then.
//! * **Old VMs are looked at again and again**, not only when something ends beside them.
//! * **Any host may take all of a VM**, not only those where it has a slice. Nothing less is moved: each slice moves once.
//! * **The last slice is a best fit**, so that a split leaves no new fragment where it need not.
//! * **The more of a VM moves, and the larger it is, the dearer a move.** So neither many small VMs nor a few large ones take all moves.
//! * **Others move aside** for the first of the queue, once nobody may pass it ([`Room::SPARING`]).

use super::best_fit::{best_fit_on_a_node, on_one};
use super::consolidate::all_of;
use super::fragbff::on_several;
use super::refusal::refuse;
use super::room::{Room, RoomFor};
use super::split::{Order, Splitter};
use super::{Facts, Policy, Refusal};
use crate::cluster::{Cluster, Move, Slice, Traits, Vm};
use crate::cost::{Prices, stall_saved};
use crate::ids::{HostId, VmId};
use crate::placement::{Decision, Rejections, Rule};
use crate::resources::Resources;
use crate::spec::Spec;
use crate::survival::{HOUR, Survival};
use crate::validate::{Candidate, of_moment, of_traits};

/// Consolidation by age and measured stall.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// How long VMs live.
    pub survival: Survival,
    /// What moves cost.
    pub prices: Prices,
    /// The next chance to bring a VM together comes after about so long, in milliseconds.
    pub next_chance: u64,
    /// For whom others move aside; they never do if it is none.
    pub room: Option<Room>,
}

impl Lifetime {
    /// For VMs as in Azure's trace.
    #[must_use]
    pub fn azure() -> Self {
        Self {
            survival: Survival::azure(),
            prices: Prices::default(),
            next_chance: 6 * HOUR,
            room: Some(Room::SPARING),
        }
    }

    /// The same; others move aside early and often.
    #[must_use]
    pub fn with_eager_room(self) -> Self {
        Self { room: Some(Room::EAGER), ..self }
    }

    /// What it is worth to bring a VM together by these moves; nothing if it is not done, or not yet.
    fn worth(&self, vm: &Vm, slices: &[Slice], facts: &Facts<'_>, moves: &[Move]) -> Option<i64> {
        let spec = vm.spec();
        let hosts: Vec<HostId> = slices.iter().map(|slice| slice.host).collect();
        let saved = stall_saved(spec, facts.stall, &hosts, slices.len());
        let costs = moves.iter().map(|step| self.prices.cost_us(step, spec, facts.stall));
        let cost = costs.fold(0, u64::saturating_add);
        let age = facts.now.saturating_sub(vm.started());
        let benefit = |time: u64| self.prices.benefit_us(saved, spec.needs.cores, time);
        let worth = self.prices.worth(benefit(self.survival.remaining(age)), cost);
        let until_next = benefit(self.survival.within(age, self.next_chance));
        let ends = u128::from(self.survival.ends_within(age, self.next_chance));
        let for_nothing = u64::try_from(u128::from(cost) * ends / 1_000_000).unwrap_or(cost);
        let is_time = self.prices.worth(until_next, for_nothing) >= 0;
        // More than its class allows is too much at any price.
        (facts.is_over_budget || (is_time && worth > 0)).then_some(worth)
    }
}

impl Policy for Lifetime {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        let mut rejections = Rejections::default();
        if let Some(host) = best_fit_on_a_node(cluster, spec, &mut rejections) {
            return Ok(on_one(host, spec, rejections));
        }
        let splitter =
            Splitter { cluster, spec, vm: None, slices_max: spec.slices_max, is_last_tight: true };
        on_several(&splitter, Order::MostFirst, Rule::FewestHosts, rejections)
            .ok_or_else(|| refuse(cluster, spec))
    }

    fn consolidate(&self, cluster: &Cluster, id: VmId, facts: &Facts<'_>) -> Vec<Move> {
        let Some(vm) = cluster.vm(id) else { return Vec::new() };
        let slices = vm.slices();
        let own = slices.iter().map(|slice| slice.host);
        let elsewhere = host_for_all(cluster, id, vm);
        let mut best: Option<(i64, Vec<Move>)> = None;
        for to in own.chain(elsewhere) {
            let Some(moves) = gathered(cluster, id, &slices, to) else { continue };
            let Some(worth) = self.worth(vm, &slices, facts, &moves) else { continue };
            if best.as_ref().is_none_or(|(best, _)| worth > *best) {
                best = Some((worth, moves));
            }
        }
        best.map(|(_, moves)| moves).unwrap_or_default()
    }

    fn revisits(&self) -> bool {
        true
    }

    fn make_room(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        self.room.map(|room| room.moves(cluster, it)).unwrap_or_default()
    }

    fn makes_room(&self) -> bool {
        self.room.is_some()
    }
}

/// The best fit of the VM's fabric for all of it.
fn host_for_all(cluster: &Cluster, id: VmId, vm: &Vm) -> Option<HostId> {
    let spec = vm.spec();
    let fabric = cluster.host(vm.bootstrap())?.fabric();
    let it = Candidate::slice(spec, Some(id)).with(spec.needs, &spec.devices);
    let suits = |traits: &Traits| of_traits(traits, &it).is_none();
    let mut hosts = cluster.best_fit_in(fabric, spec.needs, suits);
    hosts.find(|host| of_moment(cluster, host, &it).is_none()).map(|host| host.id())
}

/// All slices that are not there, if there is room for all of them.
fn gathered(cluster: &Cluster, vm: VmId, slices: &[Slice], to: HostId) -> Option<Vec<Move>> {
    let others: Vec<&Slice> = slices.iter().filter(|slice| slice.host != to).collect();
    let sum = others.iter().fold(Resources::NONE, |sum, slice| sum.plus(slice.resources));
    if !sum.fits_in(cluster.host(to)?.free()) {
        return None;
    }
    others.into_iter().map(|slice| all_of(cluster, vm, slice, to)).collect()
}
