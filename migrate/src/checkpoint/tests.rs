//! What the decider says, input by input. The model (`migrate/sim`) tries all orders.

use super::{Coordinator, Effect, Message, Refusal};
use wire::SliceId;

const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

fn begun_as(live: bool) -> Coordinator {
    let mut coordinator = Coordinator::new(4);
    let requests = SLICES.map(|slice| (slice, vec![1]));
    let asked = coordinator.begin(requests.to_vec(), live).unwrap();
    assert_eq!(asked, SLICES.map(|slice| Effect::Send(slice, Message::Prepare(5, vec![1]))));
    coordinator
}

fn begun() -> Coordinator {
    begun_as(false)
}

fn cutting() -> Coordinator {
    cut_of(begun())
}

fn cut_of(mut coordinator: Coordinator) -> Coordinator {
    assert_eq!(coordinator.message(SLICES[1], Message::Prepared(5)), []);
    assert_eq!(coordinator.waiting(), [SLICES[0]]);
    assert_eq!(coordinator.message(SLICES[0], Message::Prepared(5)), [Effect::Cut(5)]);
    coordinator
}

fn discarded(goes_on: bool, why: &str) -> Vec<Effect> {
    let discard = SLICES.map(|slice| Effect::Send(slice, Message::Discard(5)));
    let go_on = goes_on.then_some(Effect::GoOn);
    discard.into_iter().chain(go_on).chain([Effect::Over(Err(why.into()))]).collect()
}

#[test]
fn guest_goes_on_when_all_parts_are_written_and_committed() {
    let mut coordinator = cutting();
    // One may be done before the other has its form.
    assert_eq!(coordinator.message(SLICES[1], Message::Written(5, vec![8])), []);
    assert_eq!(coordinator.captured(), []);
    assert_eq!(coordinator.waiting(), [SLICES[0]]);
    let parts = vec![(SLICES[0], vec![7]), (SLICES[1], vec![8])];
    let written = coordinator.message(SLICES[0], Message::Written(5, vec![7]));
    assert_eq!(written, [Effect::Commit(parts)]);
    let mut expected = SLICES.map(|slice| Effect::Send(slice, Message::Committed(5))).to_vec();
    expected.extend([Effect::GoOn, Effect::Over(Ok(()))]);
    assert_eq!(coordinator.committed(), expected);
    assert!(coordinator.is_idle());
}

#[test]
fn guest_goes_on_when_all_have_their_forms_if_it_is_live() {
    let mut coordinator = cut_of(begun_as(true));
    assert_eq!(coordinator.captured(), [Effect::GoOn]);
    assert_eq!(coordinator.message(SLICES[1], Message::Written(5, vec![8])), []);
    let mut lost = coordinator.clone();
    let discard = Effect::Send(SLICES[0], Message::Discard(5));
    let over = Effect::Over(Err("slice1 is lost".into()));
    assert_eq!(lost.lost(SLICES[1]), [discard, over]);
    coordinator.message(SLICES[0], Message::Written(5, vec![7]));
    assert!(!coordinator.committed().contains(&Effect::GoOn));
    // All may have written before it is known that all have their forms.
    let mut early = cut_of(begun_as(true));
    for slice in SLICES {
        early.message(slice, Message::Written(5, vec![]));
    }
    assert_eq!(early.captured()[0], Effect::GoOn);
    assert!(matches!(early.captured()[..], []));
}

#[test]
fn one_at_a_time_and_each_has_another_number() {
    let mut coordinator = begun();
    assert_eq!(coordinator.begin(Vec::new(), false), Err(Refusal::Busy));
    assert_eq!(coordinator.failed("enough"), discarded(false, "enough"));
    assert_eq!(coordinator.failed("again"), []);
    coordinator.begin(SLICES.map(|slice| (slice, Vec::new())).to_vec(), false).unwrap();
    assert_eq!(coordinator.number(), 6);
    assert_eq!(coordinator.message(SLICES[0], Message::Prepared(5)), [], "of the one before");
    assert_eq!(coordinator.waiting(), SLICES);
}

#[test]
fn failure_of_a_slice_is_told_without_control_characters() {
    let mut coordinator = cutting();
    let why = "slice1 has not written its part: the disk is [31mfull";
    let failed = Message::Failed(5, "the disk is\x1b[31mfull".into());
    assert_eq!(coordinator.message(SLICES[1], failed), discarded(true, why));
}

/// A coordinator that waits for the manifest.
fn committing() -> Coordinator {
    let mut coordinator = cutting();
    coordinator.captured();
    for slice in SLICES {
        coordinator.message(slice, Message::Written(5, vec![]));
    }
    coordinator
}

#[test]
fn what_may_be_a_checkpoint_already_is_not_given_up() {
    let mut coordinator = committing();
    assert_eq!(coordinator.failed("enough"), []);
    assert_eq!(coordinator.message(SLICES[1], Message::Failed(5, "no".into())), []);
    assert!(!coordinator.is_idle());
    assert_eq!(coordinator.clone().committed().len(), 4);
    // Whoever writes the manifest knows that there is none.
    assert_eq!(coordinator.not_committed("no room"), discarded(true, "no room"));
    assert_eq!(coordinator.not_committed("no room"), []);
    assert_eq!(coordinator.committed(), []);
    let mut writing = cutting();
    assert_eq!(writing.not_committed("it is not asked for"), []);
    assert!(!writing.is_idle());
}

#[test]
fn slice_that_is_lost_has_no_part_unless_all_are_written() {
    let mut coordinator = cutting();
    let lost = coordinator.lost(SLICES[1]);
    let discard = Effect::Send(SLICES[0], Message::Discard(5));
    let over = Effect::Over(Err("slice1 is lost".into()));
    assert_eq!(lost, [discard, Effect::GoOn, over]);
    let mut coordinator = committing();
    assert_eq!(coordinator.lost(SLICES[1]), []);
    assert_eq!(coordinator.lost(SliceId(9)), []);
    let committed = Effect::Send(SLICES[0], Message::Committed(5));
    assert_eq!(coordinator.committed(), [committed, Effect::GoOn, Effect::Over(Ok(()))]);
}
