//! What a slice does with frames of its peers.

use super::*;
use crate::slice::BOOTSTRAP;
use crate::slice::channels::tests::channels_among;
use crate::slice::events::Events;
use devices::Standing;
use std::slice::from_ref;
use wire::Epoch;
use wire::control::{DeviceCall, OrderedChange, Space};

const EPOCH: Epoch = Epoch(1);

fn link(local: SliceId) -> (Link, Events) {
    link_among(local, &[])
}

fn link_among(local: SliceId, bystanders: &[SliceId]) -> (Link, Events) {
    let (channels, told) = channels_among(local, bystanders);
    let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
    (Link::new(Arc::new(Dispatcher::new(channels, ram))), told)
}

/// Between its look at the peers and now this process may have stood still.
#[test]
fn fence_is_renewed_from_when_the_engine_began_to_look() {
    let (mut link, _told) = link(BOOTSTRAP);
    let second = 1_000_000_000;
    let (now, fence) = (Fence::now(), Arc::new(Fence::default()));
    fence.take_lease(now - 4 * second, Duration::from_secs(1000));
    fence.hear(now);
    link.dispatcher.channels.fence.set(Arc::clone(&fence)).unwrap();
    let is_late = |at: u64| fence.look(at) == Standing::Late;

    assert!(link.looked(), "nothing was looked at");
    assert!(is_late(now + 497 * second));
    link.began = Some(now - 2 * second);
    assert!(link.looked());
    assert!(!is_late(now + 497 * second) && is_late(now + 499 * second));
    link.looks();
    assert!(link.looked());
    assert!(!is_late(now + 499 * second));
}

/// Nobody is left who could take this slice for lost; or another one is to join, and will.
#[test]
fn lease_ends_with_the_loss_of_the_last_other_slice() {
    for is_expected in [false, true] {
        let (mut link, told) = link_among(BOOTSTRAP, &[SliceId(1), SliceId(2)]);
        let channels = Arc::clone(&link.dispatcher.channels);
        let fence = Arc::new(Fence::default());
        fence.take_lease(Fence::now(), Duration::from_secs(1000));
        channels.fence.set(Arc::clone(&fence)).unwrap();
        link.lost(SliceId(1), "silent".into());
        assert!(fence.has_lease(), "slice 2 is there");
        if is_expected {
            channels.cut.expect(SliceId(3));
        }
        link.lost(SliceId(2), "silent".into());
        assert_eq!(fence.has_lease(), is_expected);
        assert_eq!(told.try_iter().count(), 2);
        channels.cut.settled(SliceId(3));
        channels.settle_lease();
        assert!(!fence.has_lease());
        assert_eq!(fence.look(u64::MAX), Standing::Open);
    }
}

/// The placement has one that is lost as a member still. It is lost before the other one leaves, or while it does.
#[test]
fn lease_ends_when_the_last_but_a_lost_one_leaves() {
    for leaves_first in [false, true] {
        let (mut link, _told) = link_among(BOOTSTRAP, &[SliceId(2)]);
        let channels = Arc::clone(&link.dispatcher.channels);
        channels.fence.set(Arc::default()).unwrap();
        let fence = channels.fence.get().unwrap();
        channels.settle_lease();
        assert!(fence.has_lease(), "as long as the VM's");
        let mut lose = || link.lost(SliceId(2), "silent".into());
        let leave = || {
            channels.cut.set_leaver(Some(SliceId(1)));
            channels.settle_lease();
        };
        if leaves_first {
            leave();
            assert!(fence.has_lease(), "slice 2 is there");
            lose();
        } else {
            lose();
            assert!(fence.has_lease(), "slice 1 is there");
            leave();
        }
        assert!(!fence.has_lease(), "{leaves_first}");
    }
}

/// A slice that is cut off, and so slow that it takes long to find the others lost: the VM may go on without it meanwhile.
#[test]
fn fence_is_late_once_one_slice_was_not_heard_for_a_lease() {
    let (mut link, _told) = link(BOOTSTRAP);
    let second = 1_000_000_000;
    let (now, fence) = (Fence::now(), Arc::new(Fence::default()));
    fence.take_lease(now - 700 * second, Duration::from_secs(1000));
    link.dispatcher.channels.fence.set(Arc::clone(&fence)).unwrap();
    let mut look = |heard: &[u16], at: u64| {
        link.looks();
        heard.iter().for_each(|peer| link.heard(SliceId(*peer), now - at * second));
        assert!(link.looked());
        fence.look(now + 450 * second)
    };
    // What comes now may have been on its way for long.
    assert_eq!(look(&[1, 2], 600), Standing::Late);
    assert_eq!(look(&[1], 20), Standing::Late, "slice 2 is silent");
    assert_eq!(look(&[2], 551), Standing::Late);
    assert_eq!(look(&[2], 540), Standing::Open);
}

#[test]
fn loss_of_a_slice_is_heard_behind_what_a_bad_peer_sends() {
    let (mut link, told) = link(BOOTSTRAP);
    let report = Control::Report(b"{}".to_vec()).encode(EPOCH);
    (0..20_000).for_each(|_| link.frame(SliceId(2), Class::Interrupt, &report));
    link.lost(SliceId(1), "silent".into());

    assert!(matches!(told.recv(None), Ok(SliceEvent::Lost(SliceId(1), _))));
}

/// A slice that is slow may find both at once: what it is told on a thread of cuts comes behind the loss.
#[test]
fn slice_that_has_left_is_not_ended_by_the_loss_of_those_that_have_ended_since() {
    for is_dismissed in [true, false] {
        let (mut link, told) = link(SliceId(1));
        if is_dismissed {
            let dismiss = Control::Cut(CutMessage::Dismiss(7)).encode(EPOCH);
            link.frame(BOOTSTRAP, Class::Interrupt, &dismiss);
        }
        link.lost(BOOTSTRAP, "it has closed".into());

        let event = told.recv(None).unwrap();
        assert_eq!(matches!(event, SliceEvent::Dismissed), is_dismissed, "{event:?}");
        assert_eq!(matches!(event, SliceEvent::Lost(..)), !is_dismissed, "{event:?}");
    }
}

/// What the main thread hears of a frame.
fn told(local: u16, from: u16, frame: &Control) -> Vec<SliceEvent> {
    let (mut link, told) = link(SliceId(local));
    link.frame(SliceId(from), Class::Interrupt, &frame.encode(EPOCH));
    told.try_iter().collect()
}

#[test]
fn access_that_kvm_takes_for_a_devices_is_done_in_memory() {
    let (link, _told) = link(BOOTSTRAP);
    let dispatcher = &link.dispatcher;
    let mut read = [0; 4];
    assert_eq!(
        dispatcher.access_memory(3 * PAGE + 8, MemoryAccess::Write(&[1, 2, 3, 4])),
        InMemory::Done
    );
    assert_eq!(
        dispatcher.access_memory(3 * PAGE + 8, MemoryAccess::Read(&mut read)),
        InMemory::Done
    );
    assert_eq!(read, [1, 2, 3, 4]);
    for address in [16 * PAGE, 0xfec0_0000, u64::MAX] {
        let found = dispatcher.access_memory(address, MemoryAccess::Read(&mut read));
        assert_eq!((found, read), (InMemory::No, [1, 2, 3, 4]));
    }
}

fn foreign(events: &[SliceEvent]) -> bool {
    matches!(events, [SliceEvent::Fatal(text)] if text.contains("which it must not"))
}

#[test]
fn frames_count_from_those_who_may_send_them_only() {
    let call =
        DeviceCall { id: 1, space: Space::Port, write: false, address: 0x3f8, length: 1, data: 0 };
    let change = OrderedChange::Broken { device: 1 };
    let from_bootstrap = [
        Control::End(EndCause::PowerOff),
        Control::Answer { id: 1, data: 7 },
        Control::AskReport,
        Control::Apply { sequence: 1, change },
        Control::ClockPing { id: 1 },
        Control::ClockStep { sum: 1 },
    ];
    let to_bootstrap = [
        Control::Report(b"{}".to_vec()),
        Control::WantEnd(EndCause::Reset),
        Control::Call(call),
        Control::EndOfInterrupt { vector: 3 },
        Control::Applied { sequence: 1 },
        Control::Broken { device: 1 },
        Control::ClockPong { id: 1, ticks: 1, stepped: 1 },
        Control::WantStop,
        Control::EndSeen,
    ];
    for frame in &from_bootstrap {
        assert!(foreign(&told(1, 2, frame)), "a companion sends {frame:?}");
        assert!(foreign(&told(0, 2, frame)), "to the bootstrap: {frame:?}");
        assert!(!foreign(&told(2, 0, frame)), "{frame:?}");
    }
    for frame in &to_bootstrap {
        assert!(foreign(&told(1, 2, frame)), "to a companion: {frame:?}");
        assert!(foreign(&told(1, 0, frame)), "the bootstrap sends {frame:?}");
        assert!(!foreign(&told(0, 2, frame)), "{frame:?}");
    }
}

#[test]
fn answer_of_another_companion_reaches_no_vcpu() {
    let (mut link, told) = link(SliceId(1));
    let (id, answer) = link.dispatcher.channels.calls.begin();
    let frame = |data| Control::Answer { id, data }.encode(EPOCH);

    link.frame(SliceId(2), Class::Interrupt, &frame(0xbad));
    assert!(answer.try_recv().is_err());
    assert!(foreign(&told.try_iter().collect::<Vec<_>>()));
    link.frame(SliceId(0), Class::Interrupt, &frame(7));

    assert_eq!(answer.try_recv(), Ok(7));
}

#[test]
fn state_of_a_queue_waits_and_what_comes_twice_ends_the_vm() {
    let (mut link, told) = link(SliceId(1));
    let frame = |queue| Control::QueueState { device: 0, queue, placement: EPOCH, state: vec![1] };
    let mut say = |queue| link.frame(SliceId(2), Class::Interrupt, &frame(queue).encode(EPOCH));
    say(0);
    say(1);
    assert!(told.try_iter().next().is_none());
    say(1);
    let fatal: Vec<_> = told.try_iter().collect();
    assert!(matches!(&fatal[..], [SliceEvent::Fatal(text)] if text.contains("twice")), "{fatal:?}");
    let own = Control::QueueState { device: 0, queue: 0, placement: EPOCH, state: Vec::new() };
    assert!(foreign(&self::told(1, 1, &own)), "of this slice itself");
}
