//! Plans are taken step by step, and compared with all that could have been done.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SLICES: u16 = 4;

fn one_of() -> impl Strategy<Value = u16> {
    0..SLICES
}

/// A placement on four slices that may have nothing. All ranges have the same number of frames.
fn any_placement(
    vcpus: usize,
    ranges: usize,
    each: impl Strategy<Value = u64>,
) -> impl Strategy<Value = Placement> {
    let device = (one_of(), vec(one_of(), 0..4));
    let device = device.prop_map(|(owner, queues)| device_at(owner, &queues));
    (vec(one_of(), 1..=vcpus), each, vec(one_of(), 0..=ranges), vec(device, 0..3)).prop_map(
        |(vcpus, each, memory, devices)| placement(SLICES, &vcpus, (each, &memory), devices),
    )
}

/// Up to eight vCPUs and six ranges, of one frame or of more than a chunk.
fn placement_of_any_size() -> impl Strategy<Value = Placement> {
    any_placement(8, 6, prop_oneof![Just(1), Just(700)])
}

fn any_offer() -> impl Strategy<Value = Offer> {
    let frames = prop_oneof![0..6_u64, 0..4000_u64];
    let lacks = prop_oneof![5 => Just(Vec::new()), 1 => Just(vec!["avx2".to_owned()])];
    (0..6_u32, frames, lacks, prop::collection::btree_set(0..3_u16, 0..3)).prop_map(
        |(vcpus, frames, lacks, reaches)| Offer { lacks, reaches, ..offer(vcpus, frames) },
    )
}

/// Offers of some of five slices, and queues that follow vCPUs, some of which there are not.
fn any_capacity() -> impl Strategy<Value = Capacity> {
    let offers = vec(prop::option::weighted(0.9, any_offer()), 5);
    let queues =
        prop::collection::btree_map((0..3_u16, 0..4_u16), (0..8_u32).prop_map(VcpuId), 0..6);
    (offers, queues).prop_map(|(offers, queues)| {
        let some = (0..).map(SliceId).zip(offers);
        let offers = some.filter_map(|(slice, offer)| Some((slice, offer?))).collect();
        Capacity { offers, queues, stays: None }
    })
}

/// Takes each step and checks it: it is possible, gives no slice more than it offers, and a device goes only where it can.
fn follow(
    before: &Placement,
    capacity: &Capacity,
    plan: &Plan,
) -> Result<Placement, TestCaseError> {
    let mut now = before.clone();
    for step in &plan.steps {
        prop_assert!(!step.changes.is_empty());
        let next = now.next(&step.changes);
        prop_assert!(next.is_ok(), "{step:?}: {next:?}");
        let next = next.unwrap();
        for slice in next.members() {
            let (vcpus, frames) = load(&next, *slice);
            let (had_vcpus, had_frames) = load(&now, *slice);
            let (most_vcpus, most_frames) = limit(capacity, *slice);
            prop_assert!(vcpus <= most_vcpus.max(had_vcpus), "{slice}: {step:?}");
            prop_assert!(frames <= most_frames.max(had_frames), "{slice}: {step:?}");
        }
        for (device, (old, new)) in (0..).zip(now.devices().iter().zip(next.devices())) {
            let reaches = |offer: &Offer| offer.reaches.contains(&device);
            let path = capacity.offers.get(&new.owner).is_some_and(reaches);
            prop_assert!(old.owner == new.owner || path, "{step:?}");
        }
        now = next;
    }
    prop_assert_eq!(plan.result(before), Ok(now.clone()));
    Ok(now)
}

/// Everything that was on a slice that has not left is where it was, and queues are with their vCPU if it has moved.
fn only_what_had_to(
    before: &Placement,
    after: &Placement,
    capacity: &Capacity,
) -> Result<(), TestCaseError> {
    let stays = |slice: &SliceId| after.is_member(*slice);
    for (old, new) in before.vcpus().iter().zip(after.vcpus()) {
        prop_assert!(!stays(old) || old == new);
    }
    for place in before.memory().iter().filter(|place| stays(&place.home)) {
        for gfn in place.frames.clone() {
            prop_assert_eq!(after.home_of(wire::Gfn(gfn)), Some(place.home));
        }
    }
    for (device, (old, new)) in (0..).zip(before.devices().iter().zip(after.devices())) {
        prop_assert!(!stays(&old.owner) || old.owner == new.owner);
        for (queue, (was, is)) in (0..).zip(old.queues.iter().zip(&new.queues)) {
            let vcpu = capacity.queues.get(&(device, queue));
            let at = |placement: &Placement| vcpu.and_then(|vcpu| placement.slice_of(*vcpu));
            match (at(before) == at(after), stays(was)) {
                (true, true) => prop_assert_eq!(was, is),
                (true, false) => prop_assert_eq!(*is, at(after).unwrap_or(new.owner)),
                (false, _) => prop_assert_eq!(Some(*is), at(after)),
            }
        }
    }
    Ok(())
}

/// With how few slices the VM can do. Tries every slice for every vCPU, frame and device.
fn fewest_by_force(before: &Placement, capacity: &Capacity) -> usize {
    let members = before.members();
    let allowed = |slice: SliceId| {
        let (vcpus, frames) = load(before, slice);
        let (most_vcpus, most_frames) = limit(capacity, slice);
        (most_vcpus.max(vcpus), most_frames.max(frames))
    };
    // Slices that have anything, as bits, and vCPUs and frames of each; after one part more each time.
    let none = [(0_u64, 0_u64); SLICES as usize];
    let mut sets = BTreeSet::from([(0_u32, none)]);
    let mut put = |targets: &dyn Fn(usize) -> bool, (vcpus, frames): (u64, u64)| {
        let mut next = BTreeSet::new();
        for (used, loads) in &sets {
            for at in (0..members.len()).filter(|at| targets(*at)) {
                let mut loads = *loads;
                loads[at] = (loads[at].0 + vcpus, loads[at].1 + frames);
                let most = allowed(members[at]);
                if loads[at].0 <= most.0 && loads[at].1 <= most.1 {
                    next.insert((used | 1 << at, loads));
                }
            }
        }
        sets = next;
    };
    for _ in before.vcpus() {
        put(&|_| true, (1, 0));
    }
    for place in before.memory() {
        for _ in place.frames.clone() {
            put(&|_| true, (0, 1));
        }
    }
    for (device, place) in (0..).zip(before.devices()) {
        let reaches =
            |slice| capacity.offers.get(&slice).is_some_and(|it| it.reaches.contains(&device));
        put(&|at| members[at] == place.owner || reaches(members[at]), (0, 0));
    }
    sets.iter().map(|(used, _)| used.count_ones().try_into().unwrap()).min().unwrap()
}

/// Whether a slice can be emptied, by sums: vCPUs and frames can be dealt out one by one.
fn can_leave(before: &Placement, capacity: &Capacity, slice: SliceId) -> bool {
    let others = || before.members().iter().filter(|other| **other != slice);
    let room = |other: &SliceId| {
        let ((vcpus, frames), most) = (load(before, *other), limit(capacity, *other));
        (most.0.saturating_sub(vcpus), most.1.saturating_sub(frames))
    };
    let room = others().map(room).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let need = load(before, slice);
    let path = |device: u16| {
        let offers = others().filter_map(|other| capacity.offers.get(other));
        offers.into_iter().any(|offer| offer.reaches.contains(&device))
    };
    let devices = (0..).zip(before.devices()).filter(|(_, place)| place.owner == slice);
    need.0 <= room.0 && need.1 <= room.1 && devices.into_iter().all(|(device, _)| path(device))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn drain_empties_the_slice_or_says_why_not(
        before in placement_of_any_size(), capacity in any_capacity(), slice in one_of(),
    ) {
        let slice = SliceId(slice);
        match drain(&before, &capacity, slice) {
            Ok(plan) => {
                let after = follow(&before, &capacity, &plan)?;
                prop_assert!(can_leave(&before, &capacity, slice));
                prop_assert!(!after.is_member(slice));
                prop_assert_eq!(after.members().len() + 1, before.members().len());
                only_what_had_to(&before, &after, &capacity)?;
                let (vcpus, frames) = load(&before, slice);
                prop_assert_eq!(plan.cost().vcpus, vcpus);
                prop_assert_eq!(plan.cost().bytes, frames * 4096);
            }
            Err(refusal) => {
                prop_assert!(!can_leave(&before, &capacity, slice), "{refusal}");
                prop_assert!(!refusal.to_string().contains('\n'));
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Few parts, for all ways to place them are tried.
    #[test]
    fn consolidation_leaves_the_fewest_slices(
        before in any_placement(4, 3, Just(1)),
        capacity in any_capacity(),
    ) {
        let fewest = fewest_by_force(&before, &capacity);
        let after = match consolidate(&before, &capacity) {
            Ok(plan) => {
                let after = follow(&before, &capacity, &plan)?;
                only_what_had_to(&before, &after, &capacity)?;
                prop_assert!(after.members().len() < before.members().len());
                after
            }
            Err(refusal) => {
                prop_assert!(matches!(refusal, Refusal::NothingToDo(_)), "{refusal}");
                before
            }
        };
        prop_assert_eq!(after.members().len(), fewest);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Of all sets of as many slices that could be kept, none moves less.
    #[test]
    fn consolidation_moves_least(before in placement_of_any_size(), capacity in any_capacity()) {
        let Ok(plan) = consolidate(&before, &capacity) else { return Ok(()) };
        let after = follow(&before, &capacity, &plan)?;
        only_what_had_to(&before, &after, &capacity)?;
        let weight = |plan: &Plan| (plan.cost().devices, plan.cost().bytes, plan.cost().vcpus);
        for set in 1..(1_u32 << SLICES) {
            let leaves = |slice: &&SliceId| set >> slice.0 & 1 == 1;
            let leaving: Vec<_> = before.members().iter().filter(leaves).copied().collect();
            if leaving.len() + after.members().len() == before.members().len()
                && let Ok(other) = drain::evacuate(&before, &capacity, &leaving)
            {
                prop_assert!(weight(&plan) <= weight(&other), "{plan:?} {other:?}");
            }
        }
    }

    #[test]
    fn vcpus_are_spread_evenly_by_the_fewest_moves(
        before in any_placement(12, 2, Just(1)), capacity in any_capacity(), slice in prop::option::of(0..5_u16),
    ) {
        let slice = slice.map(SliceId);
        let plan = match slice {
            None => spread(&before, &capacity),
            Some(slice) => add(&before, &capacity, slice),
        };
        let after = match plan {
            Ok(plan) => {
                let after = follow(&before, &capacity, &plan)?;
                let came = |slice: &SliceId| load(&after, *slice).0.saturating_sub(load(&before, *slice).0);
                prop_assert_eq!(plan.cost().vcpus, after.members().iter().map(came).sum::<u64>());
                prop_assert_eq!(plan.cost().bytes + plan.cost().devices, 0);
                for member in after.members().iter().filter(|member| came(member) > 0) {
                    prop_assert!(slice.is_none_or(|slice| slice == *member));
                }
                after
            }
            Err(Refusal::Useless { .. }) => {
                let nothing = slice.and_then(|slice| capacity.offers.get(&slice));
                prop_assert!(nothing.is_none_or(|offer| offer.bytes == 0));
                return Ok(());
            }
            Err(refusal) => {
                prop_assert!(matches!(refusal, Refusal::NothingToDo(_)), "{refusal}");
                before
            }
        };
        prop_assert!(slice.is_none_or(|slice| after.is_member(slice)));
        // No vCPU could still go where there are fewer, or away from where there is no core for it.
        let free = |slice: &&SliceId| load(&after, **slice).0 < limit(&capacity, **slice).0;
        let takes = |member: &&SliceId| slice.is_none_or(|slice| slice == **member);
        for to in after.members().iter().filter(takes).filter(free) {
            for from in after.members() {
                let ((has, _), (gets, _)) = (load(&after, *from), load(&after, *to));
                prop_assert!(has <= limit(&capacity, *from).0, "{from} to {to}");
                prop_assert!(has < gets + 2, "{from} to {to}");
            }
        }
    }
}

fn device_at(owner: u16, queues: &[u16]) -> DevicePlace {
    DevicePlace { owner: SliceId(owner), queues: slices(queues) }
}

#[test]
fn queues_go_with_their_vcpu_and_memory_goes_toward_it() {
    // The memory would fit into slice 1 more tightly, but slice 2 has the core.
    let device = device_at(0, &[0, 1, 1]);
    let before = placement(3, &[0, 1, 1], (512, &[0, 1, 2]), vec![device]);
    let mut capacity = offers(&[(3, 2000), (2, 2048), (1, 9000)]);
    capacity.queues = BTreeMap::from([((0, 0), VcpuId(0))]);
    capacity.offers.entry(SliceId(2)).and_modify(|offer| offer.reaches = BTreeSet::from([0]));
    let plan = drain(&before, &capacity, SliceId(0)).unwrap();
    let to = SliceId(2);
    let moved = Change::Vcpu { vcpu: VcpuId(0), to };
    let expected = [
        vec![Change::Device { device: 0, to }],
        vec![moved, Change::Queue { device: 0, queue: 0, to }],
        vec![Change::Memory { frames: 0..512, to }],
        vec![Change::Coordinator(SliceId(1))],
        vec![Change::Leave(SliceId(0))],
    ];
    assert_eq!(plan.steps.iter().map(|step| step.changes.clone()).collect::<Vec<_>>(), expected);
}

/// Of two slices with a path to devices that nobody uses.
#[test]
fn devices_go_where_their_queues_are_or_the_vm_is_coordinated() {
    let devices = vec![device_at(3, &[1, 2, 2]), device_at(3, &[])];
    let before = placement(4, &[1, 2], (4, &[3]), devices);
    let mut capacity = offers(&[(0, 0), (1, 9000), (1, 9000), (1, 9000)]);
    for slice in [1, 2] {
        capacity.offers.entry(SliceId(slice)).and_modify(|offer| offer.reaches = [0, 1].into());
    }
    let place = |before: &Placement| {
        let plan = drain(before, &capacity, SliceId(3)).unwrap();
        let after = plan.result(before).unwrap();
        after.devices().iter().map(|device| device.owner.0).collect::<Vec<_>>()
    };
    assert_eq!(place(&before), [2, 1], "most queues of the first are there");
    let coordinated = before.next(&[Change::Coordinator(SliceId(2))]).unwrap();
    assert_eq!(place(&coordinated), [2, 2]);
}

/// A queue is not where its vCPU is, and both slices leave.
#[test]
fn slice_leaves_once_its_queues_have_followed_vcpus_of_others() {
    let before = placement(3, &[0, 2], (1, &[]), vec![device_at(0, &[1])]);
    let mut capacity = offers(&[(2, 0), (0, 0), (0, 0)]);
    capacity.queues = BTreeMap::from([((0, 0), VcpuId(1))]);
    let plan = consolidate(&before, &capacity).unwrap();
    let after = follow(&before, &capacity, &plan).unwrap();
    assert_eq!((after.members(), after.queue_at(0, 0)), (&[SliceId(0)][..], Some(SliceId(0))));
}

#[test]
fn groups_stay_together_where_there_is_room() {
    let before = placement(4, &[0, 0, 0, 1, 2], (1, &[]), Vec::new());
    let tightest = drain(&before, &offers(&[(3, 0), (3, 0), (4, 0), (9, 0)]), SliceId(0)).unwrap();
    let after = tightest.result(&before).unwrap();
    assert_eq!(after.vcpus_on(SliceId(2)), [0, 1, 2, 4].map(VcpuId));
    let most = drain(&before, &offers(&[(3, 0), (2, 0), (3, 0), (0, 0)]), SliceId(0)).unwrap();
    let after = most.result(&before).unwrap();
    assert_eq!(after.vcpus_on(SliceId(2)), [0, 1, 4].map(VcpuId));
}

#[test]
fn chunks_are_cut_only_where_they_must_be() {
    let before = placement(3, &[1], (1024, &[0]), Vec::new());
    let homes = |first, second| {
        let plan = drain(&before, &offers(&[(0, 0), (1, first), (0, second)]), SliceId(0)).unwrap();
        let after = plan.result(&before).unwrap();
        let ends = after.memory().iter().map(|place| (place.frames.end, place.home.0));
        ends.collect::<Vec<_>>()
    };
    assert_eq!(homes(700, 600), [(512, 1), (1024, 2)]);
    assert_eq!(homes(700, 324), [(700, 1), (1024, 2)]);
}

#[test]
fn refusals_name_each_part_and_why() {
    let devices = vec![device_at(1, &[1]), device_at(0, &[]), device_at(1, &[])];
    let before = placement(4, &[0, 1, 1, 1, 3], (512, &[0, 1]), devices);
    let mut capacity = offers(&[(2, 612), (4, 512), (8, 0)]);
    capacity.offers.entry(SliceId(2)).and_modify(|offer| offer.lacks = vec!["avx512f".to_owned()]);
    let says = |plan: Result<Plan, Refusal>| plan.unwrap_err().to_string();
    assert_eq!(
        says(drain(&before, &capacity, SliceId(1))),
        "slice1 cannot be drained: no core for vcpu2 to vcpu3: slice0 has 1 of 2 cores free, slice2 lacks avx512f, \
         slice3 offers nothing; device 0 has its real part there: slice0, slice2, slice3 have no path to it \
         (a disk or network has one where its option says standby=); device 2 has its real part there: slice0, slice2, slice3 have no path to it \
         (a disk or network has one where its option says standby=); \
         no room for 1.6 MiB of memory: slice0 has 400.0 KiB of 2.4 MiB left, slice2 has 0 B of 0 B left, \
         slice3 offers nothing"
    );
    assert_eq!(says(drain(&before, &capacity, SliceId(7))), "slice7 is not a member of the VM");
    let alone = placement(1, &[0], (1, &[0]), Vec::new());
    assert_eq!(says(drain(&alone, &capacity, SliceId(0))), "slice0 is the VM's last slice");
    let nothing = says(consolidate(&alone, &capacity));
    assert_eq!(nothing, "nothing to do: the VM is on slice0 alone");
    let two = placement(2, &[0, 1], (1, &[]), Vec::new());
    assert_eq!(
        says(consolidate(&two, &offers(&[(1, 1), (1, 1)]))),
        "nothing to do: all 2 slices are needed: \
         slice0 stays, no core for vcpu0: slice1 has 0 of 1 cores free; \
         slice1 stays, no core for vcpu1: slice0 has 0 of 1 cores free"
    );
    let even = says(spread(&two, &offers(&[(4, 1), (4, 1)])));
    assert_eq!(even, "nothing to do: vCPUs are spread as evenly as there is room");
    assert_eq!(
        says(add(&two, &capacity, SliceId(2))),
        "slice2 can take no part of the VM: its host lacks avx512f, and it has no memory"
    );
    let unknown = says(add(&two, &capacity, SliceId(9)));
    assert_eq!(unknown, "slice9 can take no part of the VM: it offers nothing");
    let again = says(add(&two, &capacity, SliceId(1)));
    assert_eq!(
        again,
        "nothing to do: slice1 is a member, and has its share of vCPUs or no core left"
    );
}

#[test]
fn ties_keep_the_lowest_slices_and_what_is_dearest_to_move() {
    let kept = |placement: &Placement, capacity: &Capacity| {
        let plan = consolidate(placement, capacity).unwrap();
        plan.result(placement).unwrap().members().to_vec()
    };
    let room = offers(&[(4, 8), (4, 8), (4, 8)]);
    let alike = placement(3, &[0, 1, 2], (1, &[0, 1, 2]), Vec::new());
    assert_eq!(kept(&alike, &room), slices(&[0]));
    let more_vcpus = placement(3, &[0, 1, 2, 2], (1, &[0, 1, 2]), Vec::new());
    assert_eq!(kept(&more_vcpus, &room), slices(&[2]));
    let more_memory = placement(3, &[0, 1, 2, 2], (1, &[0, 1, 2, 1]), Vec::new());
    assert_eq!(kept(&more_memory, &room), slices(&[1]));
    let mut reached = room;
    reached.offers.values_mut().for_each(|offer| offer.reaches = BTreeSet::from([0]));
    let with_device = placement(3, &[0, 1, 2, 2], (1, &[0, 1, 2, 1]), vec![device_at(0, &[])]);
    assert_eq!(kept(&with_device, &reached), slices(&[0]));
}

/// As the slice of a supervised bootstrap: it is asked for checkpoints, and its end has the VM begin anew.
#[test]
fn slice_that_stays_is_emptied_and_coordinates() {
    let two = placement(2, &[0, 1, 1], (1, &[0, 1, 1]), Vec::new());
    let mut capacity = offers(&[(4, 8), (4, 8)]);
    let kept = |capacity: &Capacity| {
        let plan = consolidate(&two, capacity).unwrap();
        plan.result(&two).unwrap().members().to_vec()
    };
    assert_eq!(kept(&capacity), slices(&[1]), "less moves");
    capacity.stays = Some(SliceId(0));
    assert_eq!(kept(&capacity), slices(&[0]));

    let after = drain(&two, &capacity, SliceId(0)).unwrap().result(&two).unwrap();
    assert_eq!((after.members(), after.coordinator()), (&slices(&[0, 1])[..], SliceId(0)));
    assert_eq!((load(&after, SliceId(0)), load(&after, SliceId(1))), ((0, 0), (3, 3)));
    let none = drain(&after, &capacity, SliceId(1)).unwrap().result(&after).unwrap();
    assert_eq!(none.members(), slices(&[0]));

    let full = Capacity { stays: capacity.stays, ..offers(&[(1, 1), (4, 8)]) };
    let why = consolidate(&two, &full).unwrap_err().to_string();
    assert!(why.contains("slice0 does not leave; slice1 stays, no core"), "{why}");
}

/// Sixteen slices, 64 vCPUs with a queue each of devices in all slots, and no two neighbouring chunks at home together.
#[test]
fn largest_vm_takes_bounded_work() {
    let homes: Vec<u16> = (0..1024).map(|n| n % 16).collect();
    let vcpus: Vec<u16> = (0..64).map(|n| n % 16).collect();
    let devices: Vec<_> = (0..31).map(|n| device_at(n % 16, &[n % 16; 16])).collect();
    let before = placement(16, &vcpus, (512, &homes), devices);
    let mut capacity = offers(&[(12, 512 * 1024 / 5); 16]);
    capacity.offers.values_mut().for_each(|offer| offer.reaches = (0..31).collect());
    let (_, looked_at) = consolidate::Search::new(&before, &capacity).fewest();
    assert_eq!(looked_at, 0xffff);
    let plan = consolidate(&before, &capacity).unwrap();
    let after = follow(&before, &capacity, &plan).unwrap();
    // Cores alone ask for six of them.
    assert_eq!(after.members(), slices(&[0, 1, 2, 3, 4, 5]));
    let (parts, cuts) = (64 + 1024 + 31 + 31 * 16, 16 * 16);
    assert!(plan.steps.len() <= parts + cuts, "{}", plan.steps.len());
    let one_more = before.next(&[Change::Join(SliceId(16))]).unwrap();
    assert_eq!(consolidate(&one_more, &capacity), Err(Refusal::TooMany(17)));
}

#[test]
fn offers_of_any_size_are_no_trouble() {
    let huge = Offer { vcpus: u32::MAX, bytes: u64::MAX, ..Offer::default() };
    let offers = (0..3).map(|slice| (SliceId(slice), huge.clone())).collect();
    let capacity = Capacity { offers, ..Capacity::default() };
    let before = placement(3, &[0, 1, 2], (1 << 30, &[0, 1, 2]), Vec::new());
    let plan = consolidate(&before, &capacity).unwrap();
    assert_eq!(plan.result(&before).unwrap().members(), slices(&[0]));
}

#[test]
fn drain_to_one_slice_goes_there_whatever_it_offers() {
    let before = placement(3, &[0, 1, 2], (512, &[0, 1, 2]), vec![]);
    let capacity = offers(&[(1, 512), (1, 512), (8, 4096)]);
    let [zero, one, two] = [0, 1, 2].map(SliceId);
    let anywhere = drain(&before, &capacity, one).unwrap().result(&before).unwrap();
    assert_eq!(load(&anywhere, two), (2, 1024), "there alone is room");
    let there = drain_to(&before, &capacity, one, zero).unwrap().result(&before).unwrap();
    assert_eq!((load(&there, zero), load(&there, two)), ((2, 1024), (1, 512)));
    let mut lacks = capacity.clone();
    lacks.offers.get_mut(&zero).unwrap().lacks.push("amx".to_owned());
    drain_to(&before, &lacks, one, zero).unwrap_err();
}

#[test]
fn nothing_but_devices_is_drained_to_a_slice_that_has_devices_only() {
    let before = placement(3, &[0], (512, &[0, 1]), vec![]);
    let capacity = offers(&[(8, 4096), (8, 4096), (0, 0)]);
    let [one, two] = [1, 2].map(SliceId);
    let refusal = drain_to(&before, &capacity, one, two).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "slice1 cannot be drained to slice2: it is in the VM for its devices only"
    );
}

#[test]
fn slice_is_drained_to_another_member_only() {
    let before = placement(2, &[0, 1], (512, &[0, 1]), vec![]);
    let capacity = offers(&[(8, 4096), (8, 4096)]);
    let [one, seven] = [1, 7].map(SliceId);
    assert_eq!(drain_to(&before, &capacity, one, seven), Err(Refusal::Unknown(seven)));
    let refusal = drain_to(&before, &capacity, one, one).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "slice1 cannot be drained to slice1: it is the slice that is to be empty"
    );
}
