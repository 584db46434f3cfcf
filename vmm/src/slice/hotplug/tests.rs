//! What the guest is asked, and what follows from its answers.

use super::*;
use crate::slice::channels::tests::channels;
use crate::slice::peripherals::testing::chipset_of;
use devices::{Bus, Chipset};
use proptest::prelude::*;
use std::sync::Arc;
use wire::SliceId;

const STATES: [PlugState; 6] = [
    PlugState::Absent,
    PlugState::Announced,
    PlugState::Adding,
    PlugState::Present,
    PlugState::Asked,
    PlugState::Leaving,
];

fn plugs_in(states: &[PlugState]) -> Vec<Plug> {
    states.iter().map(|state| Plug { state: *state, ..Plug::default() }).collect()
}

#[test]
fn lowest_vcpus_come_first_and_highest_go_first() {
    use PlugState::{Absent, Adding, Announced, Asked, Leaving, Present};
    let ask = |states: &[PlugState], count| {
        let steps = steps(&plugs_in(states), count).unwrap();
        steps.iter().map(|step| (step.vcpu, step.add)).collect::<Vec<_>>()
    };
    assert_eq!(ask(&[Present, Absent, Absent, Absent], 3), [(1, true), (2, true)]);
    assert_eq!(ask(&[Present; 4], 2), [(3, false), (2, false)]);
    assert_eq!(ask(&[Present, Absent, Present], 2), []);
    // What is under way is brought to an end.
    assert_eq!(ask(&[Present, Announced, Adding, Asked], 3), [(3, false), (1, true), (2, true)]);
    assert_eq!(ask(&[Present, Leaving, Asked], 2), [(1, false), (2, true)]);
    assert_eq!(ask(&[Present, Leaving, Absent], 2), [(1, false), (2, true)]);
}

#[test]
fn numbers_that_cannot_be_are_refused_before_anything_is_asked() {
    for count in [0, 3, u32::MAX] {
        let refused = steps(&plugs_in(&[PlugState::Present; 2]), count);
        assert!(matches!(refused, Err(HotplugError::Number(2))));
    }
    let (channels, _events) = channels(SliceId(0));
    let hotplugs = Hotplugs(Arc::downgrade(&channels));
    assert!(hotplugs.vcpus().unwrap_err().message.contains("another slice coordinates"));
    channels.chipset.store(Some(Arc::new(chipset_of(2, None))));
    assert!(hotplugs.set_vcpus(2, &mut |_| {}).unwrap_err().message.contains("max-cpus="));
    channels.chipset.store(Some(Arc::new(chipset_of(2, Some(1)))));
    let cut = channels.operations.begin(Operation::Cut).unwrap();
    assert!(hotplugs.set_vcpus(2, &mut |_| {}).unwrap_err().message.contains("paused"));
    drop(cut);
    drop(channels);
    assert!(hotplugs.vcpus().unwrap_err().message.contains("over"));
}

/// Answers requests as a guest does, with this status, until nobody asks any more for a while.
fn guest(chipset: &Chipset, status: u32) {
    let read = |offset: u16| {
        let mut data = [0; 4];
        chipset.pio_read(0x620 + offset, &mut data);
        u32::from_le_bytes(data)
    };
    let write = |offset: u16, value: u32| chipset.pio_write(0x620 + offset, &value.to_le_bytes());
    let mut idle = 0;
    while idle < 500 {
        idle += 1;
        thread::sleep(Duration::from_millis(1));
        let request = read(4);
        if request == u32::MAX {
            continue;
        }
        idle = 0;
        let event = request >> 16;
        if event == 3 && status == 0 {
            write(8, 1);
        }
        write(12, event << 16 | status);
    }
}

#[test]
fn guest_that_answers_gets_and_gives_back_vcpus() {
    let (channels, _events) = channels(SliceId(0));
    let chipset = Arc::new(chipset_of(4, Some(2)));
    channels.chipset.store(Some(Arc::clone(&chipset)));
    let hotplugs = Hotplugs(Arc::downgrade(&channels));
    thread::scope(|scope| {
        scope.spawn(|| guest(&chipset, 0));
        let mut told = Vec::new();
        let more = hotplugs.set_vcpus(4, &mut |far| told.push(far.next)).unwrap();
        assert_eq!(more, VcpusAnswer { present: vec![0, 1, 2, 3], ..VcpusAnswer::default() });
        assert_eq!(told, ["vCPU 2 is added", "vCPU 3 is added"]);
        let fewer = hotplugs.set_vcpus(1, &mut |_| {}).unwrap();
        assert_eq!((fewer.present, fewer.absent), (vec![0], vec![1, 2, 3]));
    });
}

#[test]
fn guest_that_refuses_is_quoted_and_the_rest_is_not_asked() {
    let (channels, _events) = channels(SliceId(0));
    let chipset = Arc::new(chipset_of(4, Some(2)));
    channels.chipset.store(Some(Arc::clone(&chipset)));
    let hotplugs = Hotplugs(Arc::downgrade(&channels));
    thread::scope(|scope| {
        scope.spawn(|| guest(&chipset, 0x82));
        let cause = hotplugs.set_vcpus(1, &mut |_| {}).unwrap_err();
        assert!(cause.message.contains("keeps vCPU 1 (status 0x82"), "{cause}");
        let cause = hotplugs.set_vcpus(4, &mut |_| {}).unwrap_err();
        assert!(cause.message.contains("not taken vCPU 2 (status 0x82"), "{cause}");
        let left = hotplugs.vcpus().unwrap();
        assert_eq!((left.present, left.absent), (vec![0, 1], vec![2, 3]));
    });
}

proptest! {
    /// From any state: vCPU 0 is never asked for, each vCPU is asked about once, and a guest that does all of it has as many
    /// as wished.
    #[test]
    fn steps_lead_to_the_number(
        states in prop::collection::vec(prop::sample::select(STATES.to_vec()), 0..12),
        count in 0u32..14,
    ) {
        let states = [vec![PlugState::Present], states].concat();
        let Ok(steps) = steps(&plugs_in(&states), count) else {
            prop_assert!(count == 0 || count as usize > states.len());
            return Ok(());
        };
        let mut after: Vec<bool> = states.iter().map(|state| *state == PlugState::Present).collect();
        for Step { vcpu, add } in &steps {
            prop_assert!(*vcpu != 0);
            after[*vcpu as usize] = *add;
        }
        prop_assert_eq!(after.iter().filter(|has| **has).count(), count as usize);
        let mut asked: Vec<u32> = steps.iter().map(|step| step.vcpu).collect();
        asked.sort_unstable();
        asked.dedup();
        prop_assert_eq!(asked.len(), steps.len());
    }
}
