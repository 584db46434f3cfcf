//! vCPUs over more slices. Memory stays: pages follow their vCPUs one by one, and a home only costs a message.

use super::capacity::Capacity;
use super::drain::with_queues;
use super::{Plan, Refusal};
use crate::{Change, Placement};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use wire::{SliceId, VcpuId};

/// vCPUs evenly over all slices, by the fewest moves. Slices that run more vCPUs than they offer cores give up those first;
/// then each vCPU that moves goes from the slice with most to that with fewest, until they differ by one or there is no
/// room. The vCPUs with the highest numbers move.
///
/// # Errors
/// They are spread already, as far as there is room.
pub fn spread(placement: &Placement, capacity: &Capacity) -> Result<Plan, Refusal> {
    let plan = level(placement, capacity, placement.members());
    if plan.steps.is_empty() {
        let why = "vCPUs are spread as evenly as there is room";
        return Err(Refusal::NothingToDo(why.to_owned()));
    }
    Ok(plan)
}

/// A slice joins, and takes vCPUs as in [`spread`]; none moves between other slices. One that is a member already only
/// takes vCPUs. A slice with memory or paths to devices alone joins without vCPUs.
///
/// # Errors
/// It offers nothing that the VM can use, or is a member and cannot take more vCPUs, or they are spread already.
pub fn add(placement: &Placement, capacity: &Capacity, slice: SliceId) -> Result<Plan, Refusal> {
    let useless = |why: String| Err(Refusal::Useless { slice, why });
    let Some(offer) = capacity.offers.get(&slice) else {
        return useless("it offers nothing".to_owned());
    };
    if offer.usable_vcpus() == 0 && offer.bytes == 0 && offer.reaches.is_empty() {
        return useless(match &offer.lacks[..] {
            [] => "it has no cores, no memory and no path to a device".to_owned(),
            lacks => format!("its host lacks {}, and it has no memory", lacks.join(", ")),
        });
    }
    let mut plan = Plan::default();
    if !placement.is_member(slice) {
        plan.push(vec![Change::Join(slice)]);
    }
    plan.steps.extend(level(placement, capacity, &[slice]).steps);
    if plan.steps.is_empty() {
        let why = if offer.lacks.is_empty() {
            format!("{slice} is a member, and has its share of vCPUs or no core left")
        } else {
            format!("{slice} is a member, and lacks {} for vCPUs", offer.lacks.join(", "))
        };
        return Err(Refusal::NothingToDo(why));
    }
    Ok(plan)
}

/// Moves vCPUs to these slices. Who has been given one has fewest, so gives none up again: each moves once at most.
fn level(placement: &Placement, capacity: &Capacity, receivers: &[SliceId]) -> Plan {
    let mut on: BTreeMap<SliceId, Vec<VcpuId>> =
        placement.members().iter().map(|slice| (*slice, placement.vcpus_on(*slice))).collect();
    for slice in receivers {
        on.entry(*slice).or_default();
    }
    let receivers: BTreeSet<_> = receivers.iter().copied().collect();
    let count = |vcpus: &Vec<VcpuId>| u64::try_from(vcpus.len()).unwrap_or(u64::MAX);
    let mut plan = Plan::default();
    for _ in 0..placement.vcpus().len() {
        let over = |slice: SliceId, has: u64| has.saturating_sub(capacity.usable_vcpus(slice));
        let loads = || on.iter().map(|(slice, vcpus)| (*slice, count(vcpus)));
        let donor =
            loads().min_by_key(|(slice, has)| Reverse((over(*slice, *has), *has, Reverse(*slice))));
        let room = |(slice, has): &(SliceId, u64)| {
            receivers.contains(slice) && *has < capacity.usable_vcpus(*slice)
        };
        let receiver = loads().filter(room).min_by_key(|(slice, has)| (*has, *slice));
        let (Some((from, most)), Some((to, fewest))) = (donor, receiver) else { break };
        if over(from, most) == 0 && most < fewest + 2 {
            break;
        }
        let Some(vcpu) = on.get_mut(&from).and_then(Vec::pop) else { break };
        on.entry(to).or_default().push(vcpu);
        plan.push(with_queues(placement, capacity, vcpu, to));
    }
    plan
}
