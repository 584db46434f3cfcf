//! What a slice without a machine does with frames about hand-overs.

use super::*;
use crate::slice::BOOTSTRAP;
use crate::slice::channels::tests::channels;
use crate::slice::events::Events;
use crate::slice::operations::Operation;
use crossbeam_channel::bounded;
use proptest::prelude::*;
use wire::Epoch;

const VCPU: VcpuId = VcpuId(0);

/// Of three slices; the only vCPU is of slice 0.
fn handovers(local: u16) -> (Handovers, Events) {
    let (channels, told) = channels(SliceId(local));
    (Handovers::new(&channels, &Arc::default()), told)
}

fn one(from: u16, to: u16) -> Move {
    Move { number: 1, vcpu: VCPU, from: SliceId(from), to: SliceId(to) }
}

/// What the main thread hears of a message.
fn told(local: u16, from: u16, vcpu: VcpuId, message: VcpuMessage) -> Vec<String> {
    let (handovers, told) = handovers(local);
    handovers.message(SliceId(from), vcpu, message);
    let text = |event| match event {
        SliceEvent::Fatal(text) => text,
        other => panic!("{other:?}"),
    };
    told.try_iter().map(text).collect()
}

#[test]
fn message_that_cannot_be_ends_the_vm_with_its_sender() {
    for (local, from, message) in [
        (2, 1, Message::Marker(1)),
        (2, 1, Message::MarkerOf(1, SliceId(1))),
        (2, 1, Message::Event(InterruptEvent::Nmi)),
        (2, 1, Message::Straggler(SliceId(1), InterruptEvent::Nmi)),
        (0, 1, Message::Installed(1)),
        (2, 1, Message::Prepare(one(0, 2))),
        (2, 0, Message::Prepare(one(1, 2))),
        (2, 0, Message::Flip(one(0, 2), Epoch(2))),
    ] {
        let name = message.name();
        let texts = told(local, from, VCPU, message);
        assert_eq!(texts.len(), 1, "{name}");
        assert!(texts[0].starts_with(&format!("slice{from} sends {name}")), "{texts:?}");
    }
    let texts = told(2, 0, VcpuId(9), Message::Event(InterruptEvent::Nmi));
    assert_eq!(texts, ["something came for vcpu9, which the VM has not"]);
}

#[test]
fn slice_whose_guest_does_not_run_takes_no_vcpu_and_stays_as_it_is() {
    assert_eq!(told(2, 0, VCPU, Message::Prepare(one(0, 2))), [""; 0]);
    let (handovers, _told) = handovers(0);
    let (reply, _answer) = bounded(1);
    let ongoing = handovers.channels.operations.begin(Operation::Move).unwrap();
    assert_eq!(handovers.begin(VCPU, SliceId(1), (reply, ongoing.into())), Err(MoveError::Over));
    assert!(handovers.channels.operations.begin(Operation::Move).is_ok(), "it goes on");
}

/// All slices but the two of the move hear of it by a frame, and send on to the new place.
#[test]
fn flip_changes_where_frames_for_the_vcpu_go() {
    let (handovers, told) = handovers(2);
    let event = InterruptEvent::Fixed(0x31);
    assert_eq!(handovers.local(VCPU, event), Some(SliceId(0)));
    let later = Message::Flip(one(0, 1), Epoch(2));
    handovers.message(BOOTSTRAP, VCPU, later.clone());
    assert_eq!(handovers.local(VCPU, event), Some(SliceId(1)));
    assert_eq!(handovers.channels.placement.load().epoch(), Epoch(2));
    assert_eq!(told.try_iter().count(), 0);

    handovers.message(BOOTSTRAP, VCPU, later);
    assert_eq!(told.try_iter().count(), 1, "of an epoch that is over");
}

fn any_message() -> impl Strategy<Value = VcpuMessage> {
    let slice = || (0..4_u16).prop_map(SliceId);
    let one = (0..3_u64, slice(), slice()).prop_map(|(number, from, to)| Move {
        number,
        vcpu: VCPU,
        from,
        to,
    });
    let number = 0..3_u64;
    let event = (0..4_u8).prop_map(|kind| match kind {
        0 => InterruptEvent::Init,
        1 => InterruptEvent::Nmi,
        2 => InterruptEvent::Startup(9),
        _ => InterruptEvent::Fixed(0x31),
    });
    prop_oneof![
        one.clone().prop_map(Message::Prepare),
        one.clone().prop_map(Message::Stop),
        (one, 0..4_u32).prop_map(|(one, epoch)| Message::Flip(one, Epoch(epoch))),
        number.clone().prop_map(Message::Ready),
        number.clone().prop_map(|number| Message::State(number, vec![1, 2, 3])),
        number.clone().prop_map(Message::Installed),
        number.clone().prop_map(|number| Message::Failed(number, "no".into())),
        number.clone().prop_map(Message::Discard),
        number.clone().prop_map(Message::Resume),
        number.clone().prop_map(Message::Marker),
        number.clone().prop_map(Message::Settled),
        (number, slice()).prop_map(|(number, slice)| Message::MarkerOf(number, slice)),
        event.clone().prop_map(Message::Event),
        (slice(), event).prop_map(|(slice, event)| Message::Straggler(slice, event)),
    ]
}

proptest! {
    /// Whatever peers say, and in whatever order: at most the VM ends.
    #[test]
    fn messages_of_bad_peers_are_survived(
        local in 0..3_u16,
        messages in prop::collection::vec((0..4_u16, 0..2_u32, any_message()), 0..40),
    ) {
        let (handovers, _told) = handovers(local);
        for (from, vcpu, message) in messages {
            handovers.message(SliceId(from), VcpuId(vcpu), message);
        }
    }
}
