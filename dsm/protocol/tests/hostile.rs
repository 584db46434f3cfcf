//! A peer that sends whatever it likes: a node refuses it or carries on, and neither panics nor grows without
//! bound.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use std::collections::BTreeSet;
use tessera_dsm_protocol::{
    Config, Effect, HomeRange, HomeTable, Input, Message, NoPages, Node, Replicate,
};
use wire::{
    Access, Asked, DirectoryEntry, Entry, Epoch, Gfn, Half, Held, HolderKind, Level, RUN_MAX,
    SliceId, Table, VcpuId,
};

const FRAMES: u64 = 8;
const SLICES: u16 = 3;
const EPOCH: Epoch = Epoch(1);
const VCPUS: u32 = 4;

fn gfn() -> impl Strategy<Value = Gfn> {
    prop_oneof![20 => 0..FRAMES, 1 => FRAMES..FRAMES + 2, 1 => any::<u64>()].prop_map(Gfn)
}

fn slice() -> impl Strategy<Value = SliceId> {
    prop_oneof![20 => 0..SLICES, 1 => any::<u16>()].prop_map(SliceId)
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::Write)]
}

fn table() -> impl Strategy<Value = Table> {
    let half = prop_oneof![Just(Half::Kernel), Just(Half::User)];
    (0..3_usize, half).prop_map(|(below, half)| {
        let level = (0..below).fold(Level::ROOT, |level, _| level.below().unwrap_or(level));
        Table { level, half }
    })
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let target =
        prop_oneof![Just(0), (0..FRAMES).prop_map(|frame| frame << 12 | 0x63), any::<u64>()];
    let entry = (gfn(), prop_oneof![Just(3_u16), Just(256), 0..512_u16], any::<u64>(), target);
    vec(entry.prop_map(|(gfn, index, old, new)| Entry { gfn, index, old, new }), 0..4)
}

fn count() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 0..4_u16, 1 => any::<u16>()]
}

fn request() -> impl Strategy<Value = Message> {
    let held = prop_oneof![Just(Held::Exclusive), Just(Held::Replica)];
    prop_oneof![
        (gfn(), access(), of(table())).prop_map(|(gfn, want, table)| Message::Get {
            gfn,
            want,
            table
        }),
        (gfn(), 1..=RUN_MAX, access()).prop_map(|(gfn, pages, want)| Message::GetRun {
            gfn,
            pages,
            want
        }),
        (gfn(), held, any::<bool>()).prop_map(|(gfn, held, asked)| Message::Confirm {
            gfn,
            held,
            asked
        }),
        (gfn(), any::<bool>()).prop_map(|(gfn, conflict)| Message::Demote { gfn, conflict }),
        (prop_oneof![0..VCPUS, any::<u32>()], gfn())
            .prop_map(|(vcpu, gfn)| Message::Root { vcpu: VcpuId(vcpu), gfn }),
    ]
}

fn answer() -> impl Strategy<Value = Message> {
    let flush = || prop_oneof![0..4_u64, any::<u64>()];
    prop_oneof![
        (gfn(), slice(), access(), count(), any::<bool>(), of(table())).prop_map(
            |(gfn, requester, keep, acks, owner, table)| {
                Message::Fetch { gfn, requester, keep, acks, owner, table }
            }
        ),
        (gfn(), slice(), count()).prop_map(|(gfn, requester, upgrade)| Message::Invalidate {
            gfn,
            requester,
            upgrade
        }),
        (gfn(), count(), of(table())).prop_map(|(gfn, acks, table)| Message::Grant {
            gfn,
            acks,
            table
        }),
        (gfn(), access(), count(), any::<u32>(), of(table())).prop_map(
            |(gfn, access, acks, held_us, table)| Message::Data {
                gfn,
                access,
                acks,
                held_us,
                table
            }
        ),
        (gfn(), count(), any::<u32>()).prop_map(|(gfn, upgrade, held_us)| Message::Acked {
            gfn,
            upgrade,
            held_us
        }),
        (gfn(), table()).prop_map(|(gfn, table)| Message::Offer { gfn, table }),
        gfn().prop_map(|gfn| Message::Ready { gfn }),
        gfn().prop_map(|gfn| Message::Go { gfn }),
        (flush(), entries()).prop_map(|(flush, entries)| Message::Diff { flush, entries }),
        flush().prop_map(|flush| Message::DiffDone { flush }),
        (gfn(), slice(), any::<bool>()).prop_map(|(gfn, heir, dropped)| Message::Leave {
            gfn,
            heir,
            dropped
        }),
        (gfn(), entries()).prop_map(|(gfn, entries)| Message::Left { gfn, entries }),
        gfn().prop_map(|gfn| Message::Demoted { gfn }),
    ]
}

/// Most are what a home, or the coordinator, could say.
fn about_a_home() -> impl Strategy<Value = Message> {
    let pages = || prop_oneof![10 => Just(1_u16), 1 => 0..600_u16];
    let placement = || prop_oneof![10 => 1..4_u32, 1 => any::<u32>()].prop_map(Epoch);
    let kind = prop_oneof![
        Just(HolderKind::Shared),
        Just(HolderKind::Exclusive),
        Just(HolderKind::ExclusiveGrant),
        Just(HolderKind::Replicated)
    ];
    let bits = || prop_oneof![20 => 0..8_u64, 1 => any::<u64>()];
    let entry = (bits(), kind, any::<[bool; 2]>(), bits()).prop_map(
        |(holders, kind, [widely_shared, never_replica], late_runs)| DirectoryEntry {
            holders,
            kind,
            widely_shared,
            never_replica,
            late_runs,
        },
    );
    let asked = prop_oneof![
        (access(), of(table()), any::<bool>()).prop_map(|(want, table, late_run)| Asked::Get {
            want,
            table,
            late_run
        }),
        Just(Asked::Demote)
    ];
    prop_oneof![
        (gfn(), pages(), slice(), placement()).prop_map(|(gfn, pages, to, placement)| {
            Message::MoveHome { gfn, pages, to, placement }
        }),
        (gfn(), pages(), slice(), placement()).prop_map(|(gfn, pages, to, placement)| {
            Message::HomeLeaves { gfn, pages, to, placement }
        }),
        gfn().prop_map(|gfn| Message::HomeAwaited { gfn }),
        (gfn(), slice(), asked).prop_map(|(gfn, requester, asked)| Message::HomeRequest {
            gfn,
            requester,
            asked
        }),
        (gfn(), vec(entry, 0..3)).prop_map(|(gfn, entries)| Message::HomeEntries { gfn, entries }),
        (gfn(), pages()).prop_map(|(gfn, pages)| Message::HomeMoved { gfn, pages }),
    ]
}

/// A move of one page, as it goes where nobody lies, and in between whatever else.
fn move_of_a_page() -> impl Strategy<Value = Vec<Input>> {
    let from_home = |from, message| Input::Message { from: SliceId(from), epoch: EPOCH, message };
    let away = (vec(input(), 0..6), 0..2_u16).prop_map(move |(between, to)| {
        let to = SliceId(to + 1);
        let leaves = Message::MoveHome { gfn: Gfn(0), pages: 1, to, placement: EPOCH };
        let answer = Message::HomeAwaited { gfn: Gfn(0) };
        let mut all = vec![from_home(1, leaves), from_home(1, answer.clone())];
        all.extend(between.clone());
        all.push(from_home(2, answer));
        all.extend(between);
        all.push(from_home(to.0, Message::HomeMoved { gfn: Gfn(0), pages: 1 }));
        all
    });
    let here = vec(input(), 0..6).prop_map(move |between| {
        let (gfn, to) = (Gfn(1), SliceId(0));
        let entry = DirectoryEntry {
            holders: 2,
            kind: HolderKind::Exclusive,
            widely_shared: false,
            never_replica: false,
            late_runs: 0,
        };
        let mut all =
            vec![from_home(1, Message::HomeLeaves { gfn, pages: 1, to, placement: EPOCH })];
        all.extend(between.clone());
        all.push(from_home(1, Message::HomeEntries { gfn, entries: vec![entry] }));
        all.extend(between);
        all
    });
    prop_oneof![away, here]
}

fn input() -> impl Strategy<Value = Input> {
    let epoch = prop_oneof![20 => Just(EPOCH), 1 => any::<u32>().prop_map(Epoch)];
    let message = prop_oneof![3 => request(), 3 => answer(), 1 => about_a_home()];
    let local = 0..FRAMES;
    prop_oneof![
        // From others, or from one that the VM does not have.
        8 => (prop_oneof![20 => 1..SLICES, 1 => any::<u16>()], epoch, message)
            .prop_filter("this slice sends nothing to itself by the transport", |(from, ..)| *from != 0)
            .prop_map(|(from, epoch, message)| Input::Message { from: SliceId(from), epoch, message }),
        2 => (local.clone(), any::<bool>()).prop_map(|(gfn, write)| Input::Fault {
            gfn: Gfn(gfn),
            want: if write { Access::Write } else { Access::Read },
        }),
        1 => (local.clone(), 1..4_u16, any::<bool>()).prop_map(|(gfn, pages, write)| Input::Prefetch {
            gfn: Gfn(gfn),
            pages,
            want: if write { Access::Write } else { Access::Read },
        }),
        1 => local.prop_map(|gfn| Input::UpgradeAhead { gfn: Gfn(gfn) }),
        1 => (0..u64::MAX - 3, 0..4_u64)
            .prop_map(|(first, count)| Input::Release { tokens: first..first + count }),
        1 => (0..VCPUS, gfn()).prop_map(|(vcpu, gfn)| Input::Root { vcpu: VcpuId(vcpu), gfn }),
        1 => Just(Input::Tick),
    ]
}

fn node() -> Node {
    let ranges = (0..FRAMES).map(|frame| HomeRange {
        frames: frame..frame + 1,
        home: SliceId(u16::try_from(frame).unwrap_or(0) % SLICES),
    });
    let homes = HomeTable::new(ranges.collect()).expect("ranges of one frame each");
    let slices = (0..SLICES).map(SliceId).collect();
    let config = Config::new(SliceId(0), slices, homes, EPOCH);
    Node::new(Config { replicate: Replicate::AllTables, vcpus: VCPUS, ..config })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whatever_a_peer_sends_is_refused_or_taken(inputs in vec(input(), 1..60)) {
        let mut node = node();
        let mut effects = Vec::new();
        for (now, input) in (0..).zip(inputs) {
            let result = node.step(now * 1_000_000, input, &mut NoPages, &mut effects);
            for effect in effects.drain(..) {
                if let Effect::Send { to, .. } = effect {
                    prop_assert!(to != SliceId(0) && to.0 < SLICES, "to {to}");
                }
            }
            // Whoever is told of an error stops the VM.
            if result.is_err() {
                return Ok(());
            }
        }
    }

    #[test]
    fn whatever_a_peer_sends_while_a_home_moves_is_refused_or_taken(
        inputs in move_of_a_page(),
        more in vec(input(), 0..20),
    ) {
        let mut node = node();
        for (now, input) in (0..).zip(inputs.into_iter().chain(more)) {
            if node.step(now * 1_000_000, input, &mut NoPages, &mut Vec::new()).is_err() {
                return Ok(());
            }
        }
    }

    #[test]
    fn vcpus_that_a_peer_names_are_bounded(vcpus in vec(any::<u32>(), 1..200)) {
        let mut node = node();
        let mut taken = BTreeSet::new();
        for vcpu in vcpus {
            let message = Message::Root { vcpu: VcpuId(vcpu), gfn: Gfn(1) };
            let input = Input::Message { from: SliceId(1), epoch: EPOCH, message };
            if node.step(0, input, &mut NoPages, &mut Vec::new()).is_ok() {
                taken.insert(vcpu);
            }
        }
        prop_assert!(taken.iter().all(|vcpu| *vcpu < VCPUS));
    }
}
