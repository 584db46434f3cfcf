//! Bad peers, and what the model of one vCPU does not have.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::Epoch;

type Part = Member<InterruptEvent, u8>;
type Frame = Message<InterruptEvent, u8>;

const COORDINATOR: SliceId = SliceId(0);
const VCPU: VcpuId = VcpuId(3);
const THERE: Move = Move { number: 1, vcpu: VCPU, from: SliceId(1), to: SliceId(2) };

/// Of three slices; the vCPU is on slice 1.
fn part(local: u16) -> Part {
    let members = [0, 1, 2].map(SliceId).into();
    Member::new(SliceId(local), VCPU, (COORDINATOR, members), (SliceId(1), Epoch(1)))
}

fn told(part: &mut Part, from: u16, message: Frame) -> Vec<Effect<InterruptEvent, u8>> {
    part.step(Input::Message { from: SliceId(from), message }).unwrap()
}

/// The source, with the vCPU stopped.
fn stopped() -> Part {
    let mut source = part(1);
    told(&mut source, 0, Message::Stop(THERE));
    source.step(Input::Saved(1, Ok(7))).unwrap();
    source
}

fn stragglers(effects: Vec<Effect<InterruptEvent, u8>>) -> Vec<InterruptEvent> {
    let event = |effect| match effect {
        Effect::Send { message: Message::Straggler(_, event), .. } => Some(event),
        _ => None,
    };
    effects.into_iter().filter_map(event).collect()
}

#[test]
fn what_waits_is_pending_once_and_init_does_away_with_it() {
    use InterruptEvent::{Fixed, Init, Nmi, Startup};
    let mut source = stopped();
    for _ in 0..10_000 {
        for event in [Fixed(0x31), Nmi, Fixed(0x32), Init, Startup(9), Fixed(0x31), Fixed(0x31)] {
            source.step(Input::Local(event)).unwrap();
            told(&mut source, 2, Message::Event(Fixed(0x40)));
        }
    }
    let flipped = told(&mut source, 0, Message::Flip(THERE, Epoch(2)));
    assert_eq!(stragglers(flipped), [Init, Fixed(0x40), Startup(9), Fixed(0x31)]);
}

#[test]
fn what_begins_a_move_is_too_late_behind_what_undoes_it() {
    let (mut source, mut target) = (part(1), part(2));
    assert_eq!(told(&mut source, 0, Message::Resume(1)), []);
    assert_eq!(told(&mut source, 0, Message::Stop(THERE)), []);
    assert_eq!(told(&mut target, 0, Message::Discard(1)), []);
    assert_eq!(told(&mut target, 0, Message::Prepare(THERE)), []);
    assert!(source.is_settled() && target.is_settled());
    // The next one is another move.
    let next = Move { number: 2, ..THERE };
    assert_eq!(told(&mut target, 0, Message::Prepare(next)), [Effect::Prepare(next)]);
    assert_eq!(told(&mut source, 0, Message::Stop(next)), [Effect::Stop(2)]);
    // And what is late of the one before does not disturb it.
    assert_eq!(told(&mut source, 0, Message::Stop(THERE)), []);
}

#[test]
fn other_parts_may_have_moved_meanwhile() {
    let mut bystander = part(0);
    told(&mut bystander, 0, Message::Flip(THERE, Epoch(9)));
    assert_eq!(bystander.place(), SliceId(2));
    let stale = Message::Flip(Move { from: SliceId(2), to: SliceId(1), ..THERE }, Epoch(9));
    assert!(bystander.step(Input::Message { from: COORDINATOR, message: stale }).is_err());
}

#[test]
fn nobody_waits_for_the_marker_of_a_lost_slice() {
    let mut target = part(2);
    told(&mut target, 0, Message::Prepare(THERE));
    target.step(Input::Prepared(1, Ok(()))).unwrap();
    told(&mut target, 1, Message::State(1, 7));
    target.step(Input::Restored(1, Ok(()))).unwrap();
    told(&mut target, 0, Message::Flip(THERE, Epoch(2)));
    told(&mut target, 1, Message::MarkerOf(1, SliceId(1)));
    told(&mut target, 1, Message::MarkerOf(1, SliceId(2)));
    assert_eq!(told(&mut target, 0, Message::Event(InterruptEvent::Nmi)), []);
    let settled = Effect::Send { to: COORDINATOR, message: Message::Settled(1) };
    let freed = [Effect::Deliver(InterruptEvent::Nmi), settled];
    assert_eq!(target.step(Input::Lost(SliceId(0))).unwrap(), freed);
    assert!(target.is_settled());
}

/// The source has kept what a slice sent before it was lost; the target has heard of the loss first.
#[test]
fn what_a_lost_slice_sent_before_still_arrives() {
    let (event, lost) = (InterruptEvent::Fixed(0x41), SliceId(0));
    let by = |coordinator: u16| {
        let members = || [0, 1, 2].map(SliceId).into();
        let part = |local| {
            let at = (SliceId(1), Epoch(1));
            Member::<InterruptEvent, u8>::new(
                SliceId(local),
                VCPU,
                (SliceId(coordinator), members()),
                at,
            )
        };
        (part(1), part(2))
    };
    let (mut source, mut target) = by(2);
    told(&mut source, 2, Message::Stop(THERE));
    source.step(Input::Saved(1, Ok(7))).unwrap();
    told(&mut source, 0, Message::Event(event));
    told(&mut target, 2, Message::Prepare(THERE));
    told(&mut target, 1, Message::State(1, 7));
    target.step(Input::Restored(1, Ok(()))).unwrap();
    target.step(Input::Lost(lost)).unwrap();
    told(&mut target, 2, Message::Flip(THERE, Epoch(2)));
    told(&mut target, 1, Message::MarkerOf(1, SliceId(2)));
    told(&mut source, 0, Message::Marker(1));
    for effect in told(&mut source, 2, Message::Flip(THERE, Epoch(2))) {
        if let Effect::Send { to: SliceId(2), message } = effect {
            let delivered = told(&mut target, 1, message.clone());
            let straggler = matches!(message, Message::Straggler(..));
            assert_eq!(delivered.contains(&Effect::Deliver(event)), straggler, "{message:?}");
        }
    }
    assert!(target.is_settled());
    // The source has not heard of the loss when the vCPU comes back.
    told(
        &mut source,
        2,
        Message::Prepare(Move { number: 2, from: SliceId(2), to: SliceId(1), ..THERE }),
    );
}

#[test]
fn only_the_coordinator_decides() {
    let orders: [Frame; 5] = [
        Message::Prepare(THERE),
        Message::Stop(THERE),
        Message::Flip(THERE, Epoch(2)),
        Message::Resume(1),
        Message::Discard(1),
    ];
    for order in orders {
        for local in [0, 1, 2] {
            for mut part in [part(local), stopped()] {
                let input = Input::Message { from: SliceId(2), message: order.clone() };
                assert!(part.step(input).is_err(), "{order:?}");
            }
        }
    }
}

fn event() -> impl Strategy<Value = InterruptEvent> {
    prop_oneof![
        (0x31..0x34_u8).prop_map(InterruptEvent::Fixed),
        Just(InterruptEvent::Nmi),
        Just(InterruptEvent::Init),
        Just(InterruptEvent::Startup(1)),
    ]
}

fn input() -> impl Strategy<Value = Input<InterruptEvent, u8>> {
    let slice = || (0..4_u16).prop_map(SliceId);
    let number = || 1..3_u64;
    let one = (number(), 2..4_u32, slice(), slice()).prop_map(|(number, vcpu, from, to)| Move {
        number,
        vcpu: VcpuId(vcpu),
        from,
        to,
    });
    let one = prop_oneof![2 => Just(THERE), 1 => one];
    let done = || prop_oneof![2 => Just(Ok(())), 1 => Just(Err("no".to_owned()))];
    let message = prop_oneof![
        one.clone().prop_map(Message::Prepare),
        one.clone().prop_map(Message::Stop),
        (one, (0..4_u32).prop_map(Epoch)).prop_map(|(one, epoch)| Message::Flip(one, epoch)),
        number().prop_map(|number| Message::State(number, 7)),
        number().prop_map(Message::Discard),
        number().prop_map(Message::Resume),
        number().prop_map(Message::Marker),
        (number(), slice()).prop_map(|(number, slice)| Message::MarkerOf(number, slice)),
        (slice(), event()).prop_map(|(slice, event)| Message::Straggler(slice, event)),
        event().prop_map(Message::Event),
        number().prop_map(Message::Settled),
    ];
    prop_oneof![
        6 => (slice(), message).prop_map(|(from, message)| Input::Message { from, message }),
        1 => event().prop_map(Input::Local),
        1 => (number(), done()).prop_map(|(number, done)| Input::Prepared(number, done)),
        1 => (number(), done()).prop_map(|(number, done)| Input::Saved(number, done.map(|()| 7))),
        1 => (number(), done()).prop_map(|(number, done)| Input::Restored(number, done)),
        1 => slice().prop_map(Input::Lost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes is taken or refused, and messages go to slices of the VM only.
    #[test]
    fn bad_peers_are_refused(local in 0..3_u16, inputs in vec(input(), 1..80)) {
        let mut part = part(local);
        for input in inputs {
            // Whoever is told of an error stops the VM.
            let Ok(effects) = part.step(input) else { return Ok(()) };
            for effect in effects {
                if let Effect::Send { to, .. } = effect {
                    prop_assert!(to.0 < 3, "to {to}");
                }
            }
        }
    }
}
