//! CPU hot-plug as the methods of the DSDT use it.

use super::*;
use crate::saved::testing::{bring_over, damage};
use migrate::Saved;
use proptest::prelude::*;

/// So many vCPUs on two nodes in turns.
fn config(vcpus: u32, present: u32) -> HotplugConfig {
    let vcpu_nodes = (0..vcpus).map(|vcpu| u8::from(vcpu % 2 == 1)).collect();
    HotplugConfig { present, vcpu_nodes, nodes: 2 }
}

/// Four vCPUs, two of them there.
fn machine() -> Hotplug {
    Hotplug::new(&config(4, 2))
}

fn states(hotplug: &Hotplug) -> Vec<PlugState> {
    hotplug.plugs().iter().map(|plug| plug.state).collect()
}

fn sta(hotplug: &mut Hotplug, vcpu: u32) -> u32 {
    hotplug.write(0, vcpu);
    hotplug.read(8)
}

fn ost(hotplug: &mut Hotplug, vcpu: u32, event: u32, status: u32) {
    hotplug.write(0, vcpu);
    hotplug.write(12, event << 16 | status);
}

fn eject(hotplug: &mut Hotplug, vcpu: u32) {
    hotplug.write(0, vcpu);
    hotplug.write(8, 1);
}

#[test]
fn vcpu_is_added_taken_away_and_added_again() {
    let mut hotplug = machine();
    for _ in 0..2 {
        assert_eq!(sta(&mut hotplug, 2), 0);
        assert_eq!(hotplug.add(2, 0), Ok(true));
        assert_eq!((sta(&mut hotplug, 2), hotplug.read(4)), (0xf, 0x1_0002));
        assert_eq!((hotplug.read(4), hotplug.read(0)), (NO_REQUEST, 2));
        ost(&mut hotplug, 2, 1, 0x80);
        assert_eq!(states(&hotplug)[2], PlugState::Adding);
        ost(&mut hotplug, 2, 1, 0);
        assert_eq!(states(&hotplug)[2], PlugState::Present);
        assert_eq!(hotplug.remove(2), Ok(true));
        assert_eq!((hotplug.read(4), hotplug.read(4)), (0x3_0002, NO_REQUEST));
        ost(&mut hotplug, 2, 3, 0x84);
        assert_eq!(states(&hotplug)[2], PlugState::Leaving);
        eject(&mut hotplug, 2);
        ost(&mut hotplug, 2, 3, 0);
        assert_eq!(states(&hotplug)[2..], [PlugState::Absent; 2]);
    }
}

#[test]
fn guest_that_refuses_leaves_it_as_it_was_and_says_why() {
    let mut hotplug = machine();
    hotplug.add(2, 0).unwrap();
    hotplug.read(4);
    ost(&mut hotplug, 2, 1, 0x81);
    assert_eq!(hotplug.plugs()[2], Plug { state: PlugState::Absent, refusal: 0x81, node: 0 });
    hotplug.remove(1).unwrap();
    hotplug.read(4);
    ost(&mut hotplug, 1, 3, 0x1082);
    assert_eq!(hotplug.plugs()[1], Plug { state: PlugState::Present, refusal: 0xff, node: 1 });
    hotplug.remove(1).unwrap();
    assert_eq!(hotplug.plugs()[1], Plug { state: PlugState::Asked, refusal: 0, node: 1 });
}

#[test]
fn request_that_was_not_taken_is_taken_back() {
    let mut hotplug = machine();
    hotplug.remove(1).unwrap();
    assert_eq!(hotplug.add(1, 0), Ok(false));
    assert_eq!((states(&hotplug)[1], hotplug.read(4)), (PlugState::Present, NO_REQUEST));
    hotplug.remove(1).unwrap();
    hotplug.read(4);
    assert_eq!(hotplug.add(1, 0), Err(PlugError::Leaving(1)));
    // A guest that has lost the request is asked again.
    assert_eq!((hotplug.remove(1), hotplug.read(4)), (Ok(true), 0x3_0001));
}

#[test]
fn guest_is_told_where_a_vcpu_is_when_it_comes() {
    let mut hotplug = machine();
    let node = |hotplug: &mut Hotplug, vcpu| {
        hotplug.write(0, vcpu);
        hotplug.read(16)
    };
    assert_eq!([0, 1, 2, 3, 4].map(|vcpu| node(&mut hotplug, vcpu)), [0, 1, 0, 1, 0]);
    hotplug.add(2, 1).unwrap();
    assert_eq!(node(&mut hotplug, 2), 1);
    // One that it has stays where it was, and so does one on a node that came later than the tables.
    hotplug.add(1, 0).unwrap();
    hotplug.add(3, 2).unwrap();
    assert_eq!([1, 3].map(|vcpu| node(&mut hotplug, vcpu)), [1, 1]);
}

#[test]
fn guest_may_eject_by_itself_but_for_vcpu_0() {
    let mut hotplug = machine();
    ost(&mut hotplug, 1, 0x103, 0x84);
    eject(&mut hotplug, 1);
    eject(&mut hotplug, 0);
    assert_eq!(states(&hotplug)[..2], [PlugState::Present, PlugState::Absent]);
    assert_eq!(hotplug.remove(0), Err(PlugError::BootVcpu));
    assert_eq!((hotplug.remove(4), hotplug.add(4, 0)), {
        let unknown = Err(PlugError::NoSuchVcpu(4));
        (unknown, unknown)
    });
}

#[test]
fn requests_are_told_of_each_and_taken_one_by_one() {
    let mut hotplug = Hotplug::new(&config(4, 1));
    assert_eq!([1, 2, 0].map(|vcpu| hotplug.add(vcpu, 0)), [Ok(true), Ok(true), Ok(false)]);
    assert_eq!([0; 3].map(|_| hotplug.read(4)), [0x1_0001, 0x1_0002, NO_REQUEST]);
}

type Lie = (&'static str, fn(&mut HotplugState));

#[test]
fn forms_that_lie_are_refused() {
    let mut hotplug = machine();
    let good = hotplug.save();
    let lies: [Lie; 8] = [
        ("vcpus", |state| state.vcpus.clear()),
        ("vcpus", |state| state.vcpus[1] = 6),
        ("vcpus", |state| state.vcpus[0] = 0),
        ("vcpus", |state| state.vcpus = vec![3; 257]),
        ("refusals", |state| state.refusals.truncate(1)),
        ("nodes", |state| state.nodes.push(0)),
        ("nodes", |state| state.nodes[1] = 2),
        // Of another machine.
        ("vcpus", |state| {
            (state.vcpus, state.refusals, state.nodes) = (vec![3; 5], vec![0; 5], vec![0; 5]);
        }),
    ];
    for (field, lie) in lies {
        let mut state = good.clone();
        lie(&mut state);
        assert_eq!(hotplug.restore(state).unwrap_err().field, field);
        assert_eq!(hotplug.save(), good);
    }
    damage(&good, 0x11, |state| drop(machine().restore(state)));
    let largest = Hotplug::new(&config(300, 256));
    bring_over(&largest, &mut Hotplug::new(&config(256, 1)));
}

/// What the guest and the outside do.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u16),
    Write(u16, u32),
    Add(u32, u8),
    Remove(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let event = prop::sample::select(vec![0_u32, 1, 3, 0x103, 0xffff]);
    let status = prop::sample::select(vec![0_u32, 1, 0x80, 0x82, 0x84, 0xffff]);
    prop_oneof![
        2 => (0_u16..24).prop_map(Step::Read),
        2 => (0_u32..6).prop_map(|vcpu| Step::Write(0, vcpu)),
        2 => Just(Step::Write(8, 1)),
        3 => (event, status).prop_map(|(event, status)| Step::Write(12, event << 16 | status)),
        1 => (any::<u16>(), any::<u32>()).prop_map(|(at, value)| Step::Write(at, value)),
        2 => (0_u32..6, 0_u8..3).prop_map(|(vcpu, node)| Step::Add(vcpu, node)),
        2 => (0_u32..6).prop_map(Step::Remove),
    ]
}

/// Takes a step and says what can be seen of it.
fn run(hotplug: &mut Hotplug, step: Step) -> u32 {
    match step {
        Step::Read(offset) => hotplug.read(offset),
        Step::Write(offset, value) => {
            hotplug.write(offset, value);
            0
        }
        Step::Add(vcpu, node) => hotplug.add(vcpu, node).map_or(2, u32::from),
        Step::Remove(vcpu) => hotplug.remove(vcpu).map_or(2, u32::from),
    }
}

proptest! {
    /// Whatever a guest writes: vCPU 0 stays, what is asked is told once and then no more, and nothing but a request
    /// from outside has a vCPU come.
    #[test]
    fn any_guest_is_survived(steps in prop::collection::vec(step(), 0..200)) {
        let mut hotplug = machine();
        for step in steps {
            let before = states(&hotplug);
            run(&mut hotplug, step);
            let after = states(&hotplug);
            prop_assert_eq!(after.len(), 4);
            prop_assert_eq!(after[0], PlugState::Present);
            for (was, is) in before.iter().zip(&after) {
                let came = *was == PlugState::Absent && *is != PlugState::Absent;
                prop_assert!(!came || matches!(step, Step::Add(..)), "{:?}", step);
            }
        }
        let asked = |plug: &PlugState| matches!(plug, PlugState::Announced | PlugState::Asked);
        let requests = states(&hotplug).iter().filter(|plug| asked(plug)).count();
        for _ in 0..requests {
            let request = hotplug.read(4);
            prop_assert!(request & 0xffff < 4 && matches!(request >> 16, 1 | 3), "{:#x}", request);
        }
        prop_assert_eq!(hotplug.read(4), NO_REQUEST);
    }

    #[test]
    fn restored_registers_go_on_as_the_saved_ones(
        before in prop::collection::vec(step(), 0..60),
        after in prop::collection::vec(step(), 0..60),
    ) {
        let (mut one, mut two) = (machine(), Hotplug::new(&config(4, 1)));
        for step in before {
            run(&mut one, step);
        }
        bring_over(&one, &mut two);
        for step in after {
            prop_assert_eq!(run(&mut one, step), run(&mut two, step), "{:?}", step);
        }
        prop_assert_eq!(one, two);
    }
}
