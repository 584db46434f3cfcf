//! Advice for counters that are known.

use super::*;
use crate::plan::sharing::{WINDOWS_MAX, WINDOWS_MIN};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

fn terms() -> Terms {
    Terms {
        fault: Duration::from_micros(100),
        interruption: Duration::from_micros(86),
        bytes_per_second: 1 << 30,
        hot_bytes: (0..16).map(|slice| (SliceId(slice), 64 << 20)).collect(),
        horizon: Duration::from_hours(1),
        payback: 3.0,
    }
}

fn asked(asker: u16, asked: u16, pages: u64) -> FaultCount {
    FaultCount { asker: SliceId(asker), asked: SliceId(asked), vcpu: None, pages }
}

fn window(faults: &[FaultCount]) -> Window {
    Window { epoch: Epoch(1), length: Duration::from_secs(10), faults: faults.to_vec() }
}

/// Three slices with two vCPUs each, which have four cores each.
fn three() -> (Placement, Capacity) {
    let before = placement(3, &[0, 0, 1, 1, 2, 2], (512, &[0, 1, 2]), Vec::new());
    (before, offers(&[(4, 512); 3]))
}

/// What is proposed, as slices whose groups move and where to.
fn moves(proposals: &[Proposal]) -> Vec<(Vec<SliceId>, SliceId)> {
    let from = |proposal: &Proposal| proposal.groups.iter().map(|group| group.from).collect();
    proposals.iter().map(|proposal| (from(proposal), proposal.to)).collect()
}

#[test]
fn groups_that_share_are_brought_together() {
    let (before, mut capacity) = three();
    capacity.queues = BTreeMap::from([((0, 0), VcpuId(5))]);
    let device = DevicePlace { owner: SliceId(0), queues: slices(&[2]) };
    let (members, memory) = (before.members().to_vec(), before.memory().to_vec());
    let vcpus = before.vcpus().to_vec();
    let before = Placement::new(Epoch(1), members, vcpus, memory, vec![device]).unwrap();
    let by = |vcpu, count: FaultCount| FaultCount { vcpu: Some(VcpuId(vcpu)), ..count };
    let faults = [by(2, asked(1, 2, 9_000)), by(4, asked(2, 1, 2_000)), asked(0, 1, 20)];
    let windows = vec![window(&faults); 4];
    // The group that is cheaper to move moves.
    let mut terms = terms();
    terms.hot_bytes.insert(SliceId(2), 1 << 20);
    let proposals = advise(&before, &capacity, &windows, &terms).unwrap();
    assert_eq!(moves(&proposals), [(slices(&[2]), SliceId(1))]);
    let to = SliceId(1);
    let queue = Change::Queue { device: 0, queue: 0, to };
    let steps = [
        vec![Change::Vcpu { vcpu: VcpuId(4), to }],
        vec![Change::Vcpu { vcpu: VcpuId(5), to }, queue],
    ];
    let steps = steps.map(|changes| Step { changes });
    assert_eq!(proposals[0].plan.steps, steps);
    assert_eq!(
        proposals[0].to_string(),
        "move all of slice2 (vcpu4 to vcpu5) to slice1: saves 1100 pages/s (at least 1090), 0.11 s of waiting each \
         second (1 of these 2 vCPUs ask for pages); costs 0.17 ms of interruption and 1.0 MiB of hot pages, 0.03 s of \
         waiting in all, repaid after 0.2 s"
    );
}

#[test]
fn what_is_within_the_noise_is_not_proposed() {
    let (before, capacity) = three();
    let none = |windows: &[Window], terms: &Terms| {
        assert_eq!(advise(&before, &capacity, windows, terms), Ok(Vec::new()));
    };
    let some = |pages: u64| window(&[asked(0, 1, pages)]);
    let calm = vec![some(10_000); WINDOWS_MIN];
    assert_eq!(advise(&before, &capacity, &calm, &terms()).unwrap().len(), 1);
    // Too few windows.
    none(&calm[1..], &terms());
    // One burst, and windows that differ by more than they say.
    none(&[some(30_000), some(0), some(0), some(0)], &terms());
    none(&[some(20_000), some(2_000), some(20_000), some(2_000)], &terms());
    // A few pages, which chance alone makes vary by as much; and more, which are not worth the words.
    none(&vec![some(1); WINDOWS_MIN], &Terms { fault: Duration::from_secs(1), ..terms() });
    none(&vec![some(500); 8], &terms());
    // Of another placement, of no length, or of a vCPU that is not there.
    let other = Window { epoch: Epoch(2), ..some(10_000) };
    none(&vec![other; 8], &terms());
    let short = Window { length: Duration::ZERO, ..some(10_000) };
    none(&vec![short; 8], &terms());
    let gone = FaultCount { vcpu: Some(VcpuId(2)), ..asked(0, 1, 10_000) };
    none(&vec![window(&[gone]); 8], &terms());
    // The move costs more than it saves while the VM lives, or nobody knows how it should be done.
    none(&calm, &Terms { horizon: Duration::from_secs(50), ..terms() });
    none(&calm, &Terms { payback: 300.0, ..terms() });
    none(&calm, &Terms { bytes_per_second: 0, ..terms() });
}

#[test]
fn groups_go_only_where_there_is_room_for_all_of_them() {
    let (before, _) = three();
    let windows = vec![window(&[asked(0, 1, 10_000)]); 4];
    let propose =
        |of: &[(u32, u64)]| moves(&advise(&before, &offers(of), &windows, &terms()).unwrap());
    assert_eq!(propose(&[(3, 0), (3, 0), (9, 0)]), []);
    assert_eq!(propose(&[(3, 0), (4, 0), (9, 0)]), [(slices(&[0]), SliceId(1))]);
    // A slice without vCPUs takes both, if no slice that has one of them takes the other.
    let before = placement(3, &[0, 1], (1, &[]), Vec::new());
    let propose =
        |of: &[(u32, u64)]| moves(&advise(&before, &offers(of), &windows, &terms()).unwrap());
    assert_eq!(propose(&[(1, 0), (1, 0), (2, 0)]), [(slices(&[0, 1]), SliceId(2))]);
    assert_eq!(propose(&[(2, 0), (1, 0), (2, 0)]), [(slices(&[1]), SliceId(0))]);
}

#[test]
fn no_group_rides_along_and_what_is_worth_most_is_first() {
    let (before, _) = three();
    let capacity = offers(&[(6, 0); 3]);
    let propose = |faults: &[FaultCount]| {
        let windows = vec![window(faults); 4];
        moves(&advise(&before, &capacity, &windows, &terms()).unwrap())
    };
    // Slice 2 shares too little to be worth its own move, or moves of both others to it.
    assert_eq!(propose(&[asked(0, 1, 10_000), asked(2, 1, 60)]), [(slices(&[1]), SliceId(0))]);
    let expected =
        [(slices(&[1, 2]), SliceId(0)), (slices(&[1]), SliceId(0)), (slices(&[2]), SliceId(1))];
    assert_eq!(propose(&[asked(0, 1, 10_000), asked(2, 1, 5_000)]), expected);
}

#[test]
fn memory_of_slices_without_vcpus_draws_nobody() {
    let before = placement(3, &[0, 1], (512, &[0, 1, 2]), Vec::new());
    let windows = vec![window(&[asked(0, 2, 50_000), asked(1, 2, 50_000)]); 4];
    assert_eq!(advise(&before, &offers(&[(4, 0); 3]), &windows, &terms()), Ok(Vec::new()));
}

proptest! {
    /// Whatever is counted: whole groups move, there is room for them, and each proposal pays.
    #[test]
    fn proposals_are_of_whole_groups(
        vcpus in vec(0..5_u16, 1..12),
        counts in vec((0..6_u16, 0..6_u16, 0..20_000_u64), 0..12),
        windows in 0..6_usize,
        cores in vec(0..12_u32, 5),
    ) {
        let before = placement(5, &vcpus, (512, &[0, 1, 2, 3, 4]), Vec::new());
        let cores: Vec<_> = cores.iter().map(|cores| (*cores, 0)).collect();
        let capacity = offers(&cores);
        let faults = counts.iter().map(|(asker, from, pages)| asked(*asker, *from, *pages));
        let windows = vec![window(&faults.collect::<Vec<_>>()); windows];
        let proposals = advise(&before, &capacity, &windows, &terms()).unwrap();
        prop_assert!(proposals.len() <= PROPOSALS_MAX);
        for proposal in &proposals {
            let after = proposal.plan.result(&before).unwrap();
            for group in &proposal.groups {
                prop_assert_eq!(&group.vcpus, &before.vcpus_on(group.from));
                prop_assert_eq!(after.vcpus_on(group.from), []);
            }
            let limit = limit(&capacity, proposal.to).0;
            prop_assert!(load(&after, proposal.to).0 <= limit);
            let Gain { pages_per_second, sure_pages_per_second, waiting } = proposal.gain;
            prop_assert!(pages_per_second >= sure_pages_per_second && sure_pages_per_second > 0.0);
            prop_assert!(waiting * 3600.0 > 3.0 * proposal.cost.waiting);
        }
    }
}

/// Sixteen groups that all share with each other, and as many windows as are looked at.
#[test]
fn largest_vm_is_judged_by_each_set_once() {
    let vcpus: Vec<u16> = (0..64).map(|n| n % 16).collect();
    let before = placement(16, &vcpus, (512, &[0]), Vec::new());
    let pairs = (0..16_u16).flat_map(|one| (0..16).map(move |other| asked(one, other, 1_000)));
    let windows = vec![window(&pairs.collect::<Vec<_>>()); WINDOWS_MAX + 1];
    let capacity = offers(&[(64, 0); 16]);
    let proposals = advise(&before, &capacity, &windows, &terms()).unwrap();
    assert_eq!(proposals.len(), PROPOSALS_MAX);
    assert_eq!(proposals[0].groups.len(), 15);
    let one_more = before.next(&[Change::Join(SliceId(16))]).unwrap();
    assert_eq!(advise(&one_more, &capacity, &windows, &terms()), Err(Refusal::TooMany(17)));
}
