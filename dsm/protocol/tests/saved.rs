//! Saved forms of nodes: what is at rest is read back and goes on; what contradicts itself or another form is refused.

use migrate::saved::{SavedError, decode, encode};
use migrate::{Invalid, SavedState};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use tessera_dsm_protocol::saved::{
    Disagreement, FrameRuns, HolderKind, HoldersState, NodeState, NotAtRest, RootState, TableHalf,
    TableScope, check_all,
};
use tessera_dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Message, NoPages, Node,
    Replicate, SliceId, VcpuId,
};

const FRAMES: u64 = 24;
const SLICES: u16 = 3;
/// The root of every vCPU; a replica as soon as two slices walk it.
const ROOT: Gfn = Gfn(2);

fn config(local: u16) -> Config {
    let range = |frames, home| HomeRange { frames, home: SliceId(home) };
    // One home has two ranges, one has a hole behind it.
    let ranges = vec![range(0..8, 0), range(8..12, 1), range(12..14, 0), range(16..FRAMES, 2)];
    let homes = HomeTable::new(ranges).expect("ranges that fit");
    let slices = (0..SLICES).map(SliceId).collect();
    let config = Config::new(SliceId(local), slices, homes, Epoch(3));
    Config { replicate: Replicate::AllTables, vcpus: 4, ..config }
}

struct Cluster {
    nodes: Vec<Node>,
    messages: VecDeque<(u16, SliceId, Message)>,
}

impl Cluster {
    fn new() -> Self {
        let nodes = (0..SLICES).map(|local| Node::new(config(local))).collect();
        Self { nodes, messages: VecDeque::new() }
    }

    fn give(&mut self, slice: u16, input: Input) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[usize::from(slice)];
        node.step(1_000, input, &mut NoPages, &mut effects).expect("a step that is possible");
        for effect in effects {
            if let Effect::Send { to, message } = effect {
                self.messages.push_back((slice, to, message));
            }
        }
    }

    /// Lets one message come.
    fn deliver(&mut self) -> bool {
        let Some((from, to, message)) = self.messages.pop_front() else { return false };
        self.give(to.0, Input::Message { from: SliceId(from), epoch: Epoch(3), message });
        true
    }

    fn settle(&mut self) {
        while self.deliver() {}
    }

    fn save(&self) -> Vec<NodeState> {
        let save = |node: &Node| {
            let state = node.save(&NoPages).expect("a node at rest");
            assert_eq!(node.counts(), state.channels);
            state
        };
        self.nodes.iter().map(save).collect()
    }
}

/// Every kind of page: shared, exclusive, granted exclusively, and a replica.
fn states() -> Vec<NodeState> {
    let mut cluster = Cluster::new();
    let touch = |gfn, want| Input::Fault { gfn: Gfn(gfn), want };
    for slice in 0..SLICES {
        cluster.give(slice, Input::Root { vcpu: VcpuId(u32::from(slice)), gfn: ROOT });
        cluster.settle();
    }
    cluster.give(1, touch(ROOT.0, Access::Write));
    cluster.give(1, touch(5, Access::Read));
    cluster.give(2, touch(5, Access::Read));
    cluster.give(0, touch(9, Access::Write));
    cluster.give(1, Input::Prefetch { gfn: Gfn(16), pages: 3, want: Access::Read });
    cluster.settle();
    cluster.save()
}

fn input() -> impl Strategy<Value = Input> {
    let frame = || prop_oneof![0..14_u64, 16..FRAMES].prop_map(Gfn);
    let want = || prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        6 => (frame(), want()).prop_map(|(gfn, want)| Input::Fault { gfn, want }),
        1 => (frame(), 1..5_u16, want()).prop_map(|(gfn, pages, want)| Input::Prefetch {
            gfn,
            pages,
            want
        }),
        1 => frame().prop_map(|gfn| Input::UpgradeAhead { gfn }),
        1 => (0..4_u32, frame()).prop_map(|(vcpu, gfn)| Input::Root { vcpu: VcpuId(vcpu), gfn }),
    ]
}

#[test]
fn keepers_have_every_page_of_a_home_once() {
    let states = states();
    let home = &states[0];
    assert!(home.replicas.iter().any(|replica| replica.page == ROOT), "{home:?}");
    let keepers = home.keepers();
    let pages: u64 = keepers.iter().map(|(_, frames)| frames.pages()).sum();
    assert_eq!(pages, 10);
    let of = |page| keepers.iter().find(|(_, frames)| frames.contains(page)).map(|(by, _)| *by);
    assert_eq!(
        (of(ROOT), of(Gfn(5)), of(Gfn(0))),
        (Some(SliceId(0)), Some(SliceId(0)), Some(SliceId(0)))
    );
    let keepers = states[1].keepers();
    assert!(keepers.iter().any(|(by, frames)| *by == SliceId(0) && frames.contains(Gfn(9))));
    let granted = |state: &NodeState| {
        let mut groups = state.directory.iter();
        groups.any(|group| group.kind == HolderKind::ExclusiveGrant && group.frames.pages() == 3)
    };
    assert!(granted(&states[2]), "{:?}", states[2].directory);
}

#[test]
fn node_with_something_in_flight_is_not_saved() {
    let mut cluster = Cluster::new();
    cluster.give(1, Input::Fault { gfn: Gfn(5), want: Access::Read });
    assert_eq!(cluster.nodes[1].save(&NoPages), Err(NotAtRest::Requested(Gfn(5))));
    cluster.settle();
    cluster.give(1, Input::Pin { gfn: Gfn(5), want: Access::Read, token: 1 });
    assert_eq!(cluster.nodes[1].save(&NoPages), Err(NotAtRest::Pinned(Gfn(5))));
    cluster.give(0, Input::Fault { gfn: Gfn(5), want: Access::Write });
    cluster.settle();
    assert_eq!(cluster.nodes[1].save(&NoPages), Err(NotAtRest::Recalled(Gfn(5))));
    cluster.give(1, Input::Unpin { gfn: Gfn(5) });
    cluster.settle();
    assert_eq!(check_all(&cluster.save()), Ok(()));
}

/// Nobody waits for a root, and nobody answers it: only both slices together can tell.
#[test]
fn message_on_its_way_is_found_by_all_together() {
    let mut cluster = Cluster::new();
    cluster.give(1, Input::Root { vcpu: VcpuId(1), gfn: ROOT });
    let expected =
        Disagreement::OnItsWay { from: SliceId(1), to: SliceId(0), sent: 1, received: 0 };
    assert_eq!(check_all(&cluster.save()), Err(expected));
    cluster.settle();
    assert_eq!(check_all(&cluster.save()), Ok(()));
}

type Change = (&'static str, fn(&mut NodeState));

/// What one node's form can be asked. The form is that of slice 0, which is home of frames 0 to 8 and 12 to 14.
const CONTRADICTIONS: [Change; 26] = [
    ("directory", |state| state.directory.reverse()),
    ("directory", |state| {
        let empty = FrameRuns::default();
        let first = state.directory[0].clone();
        state.directory.insert(0, HoldersState { slices: vec![], frames: empty, ..first });
    }),
    ("exclusive", |state| state.exclusive = state.shared.clone()),
    ("exclusive", |state| state.exclusive = FrameRuns::of(vec![0..2, 14..15])),
    ("shared", |state| state.shared = FrameRuns::default()),
    ("replicas", |state| state.replicas.clear()),
    ("replicas", |state| state.replicas[0].level = 0),
    ("replicas", |state| state.replicas[0].level = 200),
    ("replicas", |state| state.replicas.push(state.replicas[0].clone())),
    ("replicas", |state| state.replicas[0].page = Gfn(u64::MAX)),
    ("replicas", |state| state.tables = TableScope::Nothing),
    ("replicas", |state| state.replicas[0].half = TableHalf::User),
    ("replicas", |state| {
        state.tables = TableScope::Kernel;
        (state.replicas[0].level, state.replicas[0].half) = (3, TableHalf::User);
    }),
    ("directory", |state| drop(state.directory.pop())),
    ("directory", |state| state.directory.push(state.directory[0].clone())),
    ("directory", |state| state.directory[0].slices = vec![SliceId(7)]),
    ("directory", |state| state.directory[0].slices = vec![SliceId(1), SliceId(0)]),
    ("directory", |state| {
        let exclusive =
            state.directory.iter_mut().find(|group| group.kind == HolderKind::Exclusive);
        exclusive.expect("a page with one holder").slices = vec![SliceId(0), SliceId(1)];
    }),
    ("slice", |state| state.slice = SliceId(9)),
    ("slices", |state| state.slices.swap(0, 1)),
    ("slices", |state| state.slices.push(SliceId(64))),
    ("homes", |state| state.homes[0].pages = u64::MAX),
    ("homes", |state| state.homes[0].pages = 0),
    ("channels", |state| state.channels.truncate(1)),
    ("roots", |state| state.roots.push(RootState { vcpu: VcpuId(4), page: ROOT })),
    ("never_replicas", |state| {
        state.never_replicas = FrameRuns::of(vec![Range { start: ROOT.0, end: ROOT.0 + 1 }]);
    }),
];

#[test]
fn forms_that_contradict_themselves_are_refused() {
    let [good, ..] = &states()[..] else { panic!("there are three") };
    good.check().unwrap();
    for (number, (field, change)) in CONTRADICTIONS.iter().enumerate() {
        let mut state = good.clone();
        change(&mut state);
        let invalid = state.check().unwrap_err();
        assert_eq!(invalid.field, *field, "change {number}: {invalid}");
        assert!(matches!(encode(&state), Err(SavedError::Invalid { .. })));
    }
}

/// Each form is in order, but they are not of one memory.
#[test]
fn forms_that_contradict_each_other_are_refused() {
    let good = states();
    assert_eq!(check_all(&good), Ok(()));
    let refused = |change: &dyn Fn(&mut Vec<NodeState>)| {
        let mut states = good.clone();
        change(&mut states);
        states.iter().for_each(|state| state.check().unwrap());
        check_all(&states).unwrap_err()
    };
    let add = |set: &FrameRuns, frame: u64| {
        let new = iter::once(frame..frame + 1);
        FrameRuns::of(set.ranges().chain(new).collect())
    };
    let two_owners = refused(&|all| all[1].exclusive = add(&all[1].exclusive, 0));
    let copy = |slice, gfn, held| Disagreement::Copy { slice: SliceId(slice), gfn: Gfn(gfn), held };
    assert_eq!(two_owners, copy(1, 0, "exclusive"));
    let lost_copy = refused(&|all| all[2].shared = FrameRuns::default());
    assert_eq!(lost_copy, copy(2, 5, "shared"));
    let reader_of_a_writer = refused(&|all| all[2].shared = add(&all[2].shared, 9));
    assert_eq!(reader_of_a_writer, copy(2, 9, "shared"));
    let lost_replica = refused(&|all| all[1].replicas.clear());
    assert!(matches!(lost_replica, Disagreement::Replica { gfn: ROOT, .. }));
    let other_twin = refused(&|all| all[1].replicas[0].hash += 1);
    assert!(matches!(other_twin, Disagreement::Replica { gfn: ROOT, .. }));
    let missing = refused(&|all| drop(all.pop()));
    assert!(matches!(missing, Disagreement::Members { .. }));
    let twice = refused(&|all| all.push(all[1].clone()));
    assert!(matches!(twice, Disagreement::Members { .. }));
    let older = refused(&|all| all[2].epoch = Epoch(2));
    assert!(matches!(older, Disagreement::Shape { what: "epoch", .. }));
    let other_moment = refused(&|all| all[2].channels[0].received -= 1);
    assert!(matches!(other_moment, Disagreement::OnItsWay { to: SliceId(2), .. }));
    assert!(matches!(check_all(&[]), Err(Disagreement::Members { .. })));
}

#[test]
fn form_of_another_configuration_or_memory_is_refused() {
    let states = states();
    let refused = |config| Node::restored(config, &states[0], &mut NoPages).unwrap_err().field;
    assert_eq!(refused(config(1)), "slice");
    assert_eq!(refused(Config { vcpus: 5, ..config(0) }), "vcpus");
    assert_eq!(refused(Config { epoch: Epoch(2), ..config(0) }), "epoch");
    assert_eq!(refused(Config { replicate: Replicate::KernelTables, ..config(0) }), "tables");
    let mut other = states[0].clone();
    other.replicas[0].hash ^= 1;
    let error = Node::restored(config(0), &other, &mut NoPages).unwrap_err();
    assert_eq!(error, Invalid::new("replicas", format!("{ROOT} in memory is not what was saved")));
}

/// The bytes of a form in which a list, or a run of frames, says that it is longer than it is.
#[test]
fn lengths_that_lie_are_refused() {
    let bytes = encode(&states()[0]).unwrap();
    let key = b"\x66shared";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    // [[5, 1]]: a list of one run.
    assert_eq!(bytes[at..at + 4], [0x81, 0x82, 5, 1]);
    let with = |new: &[u8]| [&bytes[..at], new, &bytes[at + 4..]].concat();
    let many = [&[0x9b][..], &(1_u64 << 62).to_be_bytes(), &[0x82, 5, 1]].concat();
    let error = decode::<NodeState>(&with(&many)).unwrap_err();
    assert!(matches!(error, SavedError::Malformed { .. }), "{error}");
    for pages in [0, 2, 1 << 40, u64::MAX] {
        let long = [&[0x81, 0x82, 5, 0x1b][..], &pages.to_be_bytes()].concat();
        let error = decode::<NodeState>(&with(&long)).unwrap_err();
        assert!(matches!(error, SavedError::Invalid { .. }), "{pages} pages: {error}");
    }
}

#[test]
fn numbers_near_their_end_are_refused() {
    let changes: [fn(&mut NodeState); 3] = [
        |state| state.newest_flush = u64::MAX,
        |state| state.channels[0].sent = u64::MAX,
        |state| state.channels[1].received = u64::MAX,
    ];
    for change in changes {
        let mut state = states().remove(0);
        change(&mut state);
        assert!(state.check().is_err());
    }
}

/// Whoever goes on with the form of these bytes has what is in it, in an epoch of its own, or is told an error.
fn is_in_order_or_an_error(bytes: &[u8], states: &[NodeState]) {
    let Ok(read) = decode::<NodeState>(bytes) else { return };
    read.check().expect("a form that was read is in order");
    if let Ok(node) = Node::restored(config(0), &read, &mut NoPages) {
        assert!(read.epoch <= config(0).epoch, "{:?} is later than the node", read.epoch);
        let gone_on = NodeState { epoch: config(0).epoch, ..read.clone() };
        assert_eq!(node.save(&NoPages), Ok(gone_on));
    }
    let all: Vec<_> = iter::once(&read).chain(&states[1..]).cloned().collect();
    let _ = check_all(&all);
}

#[test]
fn no_damaged_byte_does_harm() {
    let states = states();
    let bytes = encode(&states[0]).unwrap();
    for at in 0..bytes.len() {
        for to in 0..=u8::MAX {
            let mut damaged = bytes.clone();
            damaged[at] = to;
            is_in_order_or_an_error(&damaged, &states);
        }
    }
}

#[test]
fn form_of_an_earlier_epoch_goes_on_in_this_one() {
    let earlier = NodeState { epoch: Epoch(2), ..states().remove(0) };
    let node = Node::restored(config(0), &earlier, &mut NoPages).unwrap();
    assert_eq!(node.save(&NoPages).unwrap(), NodeState { epoch: Epoch(3), ..earlier });
}

proptest! {
    #[test]
    fn cluster_at_rest_is_saved_and_goes_on(
        before in vec((0..SLICES, input(), any::<bool>()), 0..60),
        after in vec((0..SLICES, input()), 0..20),
    ) {
        let mut cluster = Cluster::new();
        for (slice, input, deliver) in before {
            cluster.give(slice, input);
            if deliver {
                cluster.deliver();
            }
        }
        cluster.settle();
        let states = cluster.save();
        prop_assert_eq!(check_all(&states), Ok(()));
        for (at, state) in states.iter().enumerate() {
            let read: NodeState = decode(&encode(state).unwrap()).unwrap();
            prop_assert_eq!(&read, state);
            let local = u16::try_from(at).unwrap();
            cluster.nodes[at] = Node::restored(config(local), &read, &mut NoPages).unwrap();
        }
        prop_assert_eq!(cluster.save(), states);
        for (slice, input) in after {
            cluster.give(slice, input);
        }
        cluster.settle();
        prop_assert_eq!(check_all(&cluster.save()), Ok(()));
    }

    /// Bytes of which several are damaged give another form that is in order, or an error.
    #[test]
    fn damaged_bytes_do_no_harm(changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let states = states();
        let mut bytes = encode(&states[0]).unwrap();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        is_in_order_or_an_error(&bytes, &states);
    }
}
