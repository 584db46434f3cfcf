use super::{Adaptive, Borrowed, GivenBack, Load, Side};
use crate::{Change, MemoryPlace, Placement};
use proptest::prelude::*;
use std::time::Duration;
use wire::{Epoch, SliceId, VcpuId};

const LENGTH: Duration = Duration::from_secs(1);

/// In percent of a vCPU.
fn load(run: u64, delayed: u64, waited: u64) -> Load {
    let [run, delayed, waited] =
        [run, delayed, waited].map(|percent| Duration::from_millis(10 * percent));
    Load { length: LENGTH, run, delayed, waited }
}

/// Two vCPUs that compute and share nothing: on one core, and on two.
fn unshared(side: Side) -> Load {
    if side == Side::Home { load(100, 100, 0) } else { load(195, 0, 2) }
}

/// Two vCPUs that share everything.
fn sharing(side: Side) -> Load {
    if side == Side::Home { load(98, 95, 0) } else { load(30, 5, 160) }
}

/// Windows on each side.
fn spent(policy: &mut Adaptive, windows: u32, load: fn(Side) -> Load) -> (u32, u32, u32) {
    let (mut home, mut flips) = (0, 0);
    for _ in 0..windows {
        let side = policy.side();
        home += u32::from(side == Side::Home);
        flips += u32::from(policy.observe(&load(side)));
    }
    (home, windows - home, flips)
}

#[test]
fn what_shares_nothing_goes_and_stays() {
    let mut policy = Adaptive::new(Side::Home, 1);
    assert_eq!(spent(&mut policy, 1000, unshared), (8, 992, 1));
}

#[test]
fn what_shares_is_tried_more_and_more_seldom() {
    let mut policy = Adaptive::new(Side::Home, 1);
    let (home, away, _) = spent(&mut policy, 10_000, sharing);
    assert_eq!(home + away, 10_000);
    // Seven windows for each try, and hold-offs that double from 8 to 512.
    assert!(away <= 7 * 25, "{away}");
    assert_eq!(policy.hold_off(), 512);
    // Once it pays, it goes at the next try, and what has stayed for long is tried soon again.
    let (_, away, _) = spent(&mut policy, 2000, unshared);
    assert!(away >= 2000 - 512, "{away}");
    spent(&mut policy, 3, sharing);
    assert_eq!((policy.side(), policy.hold_off()), (Side::Home, 8));
}

#[test]
fn who_does_little_stays_where_it_is() {
    for side in [Side::Home, Side::Away] {
        let mut policy = Adaptive::new(side, 1);
        let (_, _, flips) = spent(&mut policy, 1000, |_| load(3, 1, 2));
        assert_eq!(flips, 0, "{side:?}");
    }
}

/// One busy thread that faults now and then runs on home's core as well.
#[test]
fn lone_thread_that_waits_comes_home_and_stays() {
    let alone = |side| if side == Side::Home { load(100, 2, 0) } else { load(60, 0, 40) };
    let mut policy = Adaptive::new(Side::Away, 1);
    let (_, away, flips) = spent(&mut policy, 1000, alone);
    assert_eq!((away, flips), (7, 1));
}

/// Three borrowed vCPUs that wait for half of the time do more than one core would.
#[test]
fn many_that_wait_stay_where_they_do_more_than_home() {
    let mut policy = Adaptive::new(Side::Away, 1);
    assert_eq!(spent(&mut policy, 100, |_| load(200, 0, 200)).2, 0);
    let mut policy = Adaptive::new(Side::Away, 4);
    assert_eq!(spent(&mut policy, 100, |_| load(200, 0, 200)).2, 1);
}

/// Home's core is half somebody else's: there the two would have half of one together.
#[test]
fn home_counts_for_what_it_gives() {
    let overcommitted = |side| if side == Side::Home { load(50, 150, 0) } else { load(85, 45, 70) };
    let mut policy = Adaptive::new(Side::Home, 1);
    assert_eq!(spent(&mut policy, 200, overcommitted), (8, 192, 1));
}

/// Of sixteen cores hardly three are used; two vCPUs have met on one of them.
#[test]
fn free_cores_at_home_are_enough() {
    let mut policy = Adaptive::new(Side::Home, 16);
    assert_eq!(spent(&mut policy, 200, |_| load(300, 60, 0)).2, 0);
}

#[test]
fn windows_that_do_not_agree_change_nothing() {
    for side in [Side::Home, Side::Away] {
        let mut policy = Adaptive::new(side, 1);
        for window in 0..1000 {
            let load = if window % 3 == 2 { load(50, 10, 5) } else { sharing(side) };
            assert!(!policy.observe(&load));
        }
    }
}

/// vCPU 0 at home, and one of each other slice.
fn layout() -> Placement {
    let members: Vec<_> = (0..4).map(SliceId).collect();
    let place = |home: &SliceId| {
        let first = u64::from(home.0) << 10;
        MemoryPlace { frames: first..first + 1024, home: *home }
    };
    let memory = members.iter().map(place).collect();
    Placement::new(Epoch(1), members.clone(), members, memory, Vec::new()).unwrap()
}

fn moves(placement: &Placement, vcpu: u32, to: u16) -> Placement {
    placement.next(&[Change::Vcpu { vcpu: VcpuId(vcpu), to: SliceId(to) }]).unwrap()
}

#[test]
fn all_go_and_all_come_one_after_another() {
    let mut placement = layout();
    let mut group = Borrowed::new(&placement, SliceId(0), Side::Away, None);
    for side in [Side::Home, Side::Away, Side::Home] {
        let mut steps = 0;
        while let Some((vcpu, to)) = group.next(side) {
            placement = moves(&placement, vcpu.0, to.0);
            group.moved(vcpu, side);
            assert_eq!(group.observe(&placement), []);
            steps += 1;
        }
        assert_eq!(steps, 3);
        let at_home = placement.vcpus().iter().filter(|slice| slice.0 == 0).count();
        assert_eq!(at_home, if side == Side::Home { 4 } else { 1 });
    }
    assert_eq!(group.own_slice(VcpuId(3)), Some(SliceId(3)));
    assert_eq!(group.own_slice(VcpuId(0)), None);
    let fewer = Borrowed::new(&layout(), SliceId(0), Side::Away, Some(3));
    assert_eq!([2, 3].map(|vcpu| fewer.own_slice(VcpuId(vcpu))), [Some(SliceId(2)), None]);
}

#[test]
fn what_others_have_moved_is_theirs() {
    let start = layout();
    let mut group = Borrowed::new(&start, SliceId(0), Side::Away, None);
    let placement = moves(&start, 1, 2);
    assert_eq!(group.observe(&placement), [(VcpuId(1), GivenBack::Moved)]);
    // Also when it comes back.
    let placement = moves(&placement, 1, 1);
    assert_eq!(group.observe(&placement), []);
    assert_eq!(group.next(Side::Home), Some((VcpuId(2), SliceId(0))));
    assert_eq!(group.refused(VcpuId(2)), Some(GivenBack::Refused(SliceId(2))));
    assert_eq!(group.next(Side::Home), Some((VcpuId(3), SliceId(0))));
    assert_eq!(group.refused(VcpuId(3)), Some(GivenBack::Refused(SliceId(3))));
    assert!(group.is_empty() && group.refused(VcpuId(3)).is_none());
}

#[test]
fn slice_that_was_emptied_or_has_left_gets_nothing() {
    let start = layout();
    let mut placement = start.clone();
    for vcpu in 1..4 {
        placement = moves(&placement, vcpu, 0);
    }
    let mut group = Borrowed::new(&start, SliceId(0), Side::Home, None);
    for emptied in [1, 2] {
        let first = emptied << 10;
        let memory = Change::Memory { frames: first..first + 1024, to: SliceId(0) };
        placement = placement.next(&[memory]).unwrap();
    }
    placement = placement.next(&[Change::Leave(SliceId(2))]).unwrap();
    assert_eq!(
        group.observe(&placement),
        [(VcpuId(1), GivenBack::Emptied(SliceId(1))), (VcpuId(2), GivenBack::Left(SliceId(2)))]
    );
    assert_eq!(group.next(Side::Away), Some((VcpuId(3), SliceId(3))));
}

proptest! {
    /// Whatever the windows say: between two tries lies the hold-off, so tries take a bounded part of the time.
    #[test]
    fn tries_that_fail_are_seldom(loads in prop::collection::vec((0u64..200, 0u64..200, 0u64..200), 0..3000)) {
        let mut policy = Adaptive::new(Side::Home, 1);
        let mut since_home = 0;
        for (run, delayed, waited) in loads {
            let (side, hold_off) = (policy.side(), policy.hold_off());
            since_home += 1;
            if policy.observe(&load(run, delayed, waited)) {
                if side == Side::Home {
                    prop_assert!(since_home >= hold_off);
                }
                since_home = 0;
            }
            prop_assert!((8..=512).contains(&policy.hold_off()));
        }
    }
}
