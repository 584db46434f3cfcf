//! Single steps, and bad peers. That cuts are what they say is shown by the model (`migrate/sim`).

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::SliceId;

const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

fn counts(peer: u16, sent: u64, received: u64) -> Option<Vec<PeerCounts>> {
    Some(vec![PeerCounts { peer: SliceId(peer), sent: [sent, 7], received: [received, 7] }])
}

/// Takes each step as soon as it is asked for; each time they count, slice 1 has received one frame more, up to this number.
fn run(coordinator: &mut Coordinator, mut verdict: Verdict, sent: u64) -> (Vec<Step>, Vec<News>) {
    let (mut steps, mut news, mut came) = (Vec::new(), Vec::new(), 0);
    let mut queue = std::collections::VecDeque::new();
    loop {
        queue.extend(verdict.messages);
        news.extend(verdict.news);
        let Some((slice, message)) = queue.pop_front() else { return (steps, news) };
        let answer = match message {
            Message::Take(number, Step::Count) if slice == SLICES[0] => {
                steps.push(Step::Count);
                Message::Counted(number, counts(1, sent, 3))
            }
            Message::Take(number, Step::Count) => {
                let received = came;
                came = sent.min(came + 1);
                Message::Counted(number, counts(0, 3, received))
            }
            Message::Take(number, step) => {
                if slice == SLICES[0] {
                    steps.push(step);
                }
                Message::Taken(number, step)
            }
            Message::GoOn(number) => Message::GoesOn(number),
            other => panic!("{other:?}"),
        };
        verdict = coordinator.message(slice, answer);
    }
}

#[test]
fn slices_rest_again_until_everything_has_come() {
    use Step::*;
    let mut coordinator = Coordinator::new(SLICES[0], SLICES.to_vec());
    let first = coordinator.begin().unwrap();
    assert_eq!(coordinator.begin(), Err(Refusal::Busy));
    let (steps, news) = run(&mut coordinator, first, 2);
    let expected =
        [Vcpus, Queues, Devices, Memory, Count, Devices, Memory, Count, Devices, Memory, Count];
    assert_eq!(steps, expected);
    assert_eq!(news, [News::AtRest]);
    assert!(coordinator.is_at_rest() && coordinator.has_differed());
    assert_eq!(coordinator.begin(), Err(Refusal::Busy));
    let on = coordinator.go_on("asked");
    assert_eq!(coordinator.begin(), Err(Refusal::Busy));
    assert_eq!(run(&mut coordinator, on, 0).1, [News::Runs]);
    assert!(coordinator.is_idle());
}

#[test]
fn first_slice_brings_its_devices_to_rest_before_the_others() {
    let mut coordinator = Coordinator::new(SLICES[0], SLICES.to_vec());
    coordinator.begin().unwrap();
    let mut asked = Vec::new();
    for step in [Step::Vcpus, Step::Queues] {
        for slice in SLICES {
            asked = coordinator.message(slice, Message::Taken(1, step)).messages;
        }
    }
    assert_eq!(asked, [(SLICES[0], Message::Take(1, Step::Devices))]);
    // One that nobody asked has nothing to say.
    let early = coordinator.message(SLICES[1], Message::Taken(1, Step::Devices));
    assert_eq!(early, Verdict::default());
    let next = coordinator.message(SLICES[0], Message::Taken(1, Step::Devices));
    assert_eq!(next.messages, [(SLICES[1], Message::Take(1, Step::Devices))]);
}

#[test]
fn failure_lets_all_go_on_and_its_late_answers_count_for_nothing() {
    let mut coordinator = Coordinator::new(SLICES[0], SLICES.to_vec());
    coordinator.begin().unwrap();
    let failed = Message::Failed(1, "vCPU\x1b1\nwaits".into());
    let verdict = coordinator.message(SLICES[1], failed);
    assert_eq!(verdict.messages, SLICES.map(|slice| (slice, Message::GoOn(1))));
    let why = "slice1 cannot bring the vCPUs to rest: vCPU 1 waits";
    assert_eq!(verdict.news, Some(News::GivenUp(why.into())));
    assert_eq!(coordinator.message(SLICES[0], Message::Taken(1, Step::Vcpus)), Verdict::default());
    assert_eq!(coordinator.go_on("asked"), Verdict::default());
    assert_eq!(run(&mut coordinator, verdict, 0).1[1..], [News::Runs]);
    let second = coordinator.begin().unwrap();
    assert!(!coordinator.has_differed());
    assert_eq!(coordinator.message(SLICES[0], Message::Taken(1, Step::Vcpus)), Verdict::default());
    assert_eq!(run(&mut coordinator, second, 0).1, [News::AtRest]);
}

/// A coordinator of three slices that are at rest.
fn at_rest() -> Coordinator {
    let slices = [0, 1, 2].map(SliceId);
    let mut coordinator = Coordinator::new(slices[0], slices.to_vec());
    let mut queue: Vec<_> = coordinator.begin().unwrap().messages;
    while let Some((slice, message)) = queue.pop() {
        let answer = match message {
            Message::Take(number, Step::Count) => {
                let others = slices.into_iter().filter(|other| *other != slice);
                let none = |peer| PeerCounts { peer, sent: [0; 2], received: [0; 2] };
                Message::Counted(number, Some(others.map(none).collect()))
            }
            Message::Take(number, step) => Message::Taken(number, step),
            other => panic!("{other:?}"),
        };
        queue.extend(coordinator.message(slice, answer).messages);
    }
    assert!(coordinator.is_at_rest());
    coordinator
}

#[test]
fn coordination_goes_to_a_slice_that_begins_when_all_run() {
    let [first, second, third] = [0, 1, 2].map(SliceId);
    let mut coordinator = at_rest();
    assert_eq!(coordinator.hand_over(first), Err(Refusal::NotToThat(first)));
    assert_eq!(coordinator.hand_over(SliceId(3)), Err(Refusal::NotToThat(SliceId(3))));
    let take = |slice, step| (slice, Message::Take(1, step));
    let (may, does) = (Step::MayCoordinate(second), Step::Coordinate(second));
    assert_eq!(coordinator.hand_over(second).unwrap().messages, [take(first, may)]);
    let sent = coordinator.message(first, Message::Taken(1, may));
    assert_eq!(sent.messages, [take(second, may)]);
    let all = coordinator.message(second, Message::Taken(1, may)).messages;
    assert_eq!(all, [first, second, third].map(|slice| take(slice, does)));
    // There is no way back.
    assert_eq!(coordinator.go_on("asked"), Verdict::default());
    for slice in [second, first] {
        assert_eq!(coordinator.message(slice, Message::Taken(1, does)), Verdict::default());
    }
    let done = coordinator.message(third, Message::Taken(1, does));
    assert_eq!(done.news, Some(News::HandedOver(second)));
    let mut next = Coordinator::after(first, 1, second, vec![first, second, third]);
    assert_eq!(next.begin(), Err(Refusal::Busy));
    assert_eq!(coordinator.go_on("asked").messages.len(), 3);
    assert_eq!(coordinator.begin(), Err(Refusal::Elsewhere(second)));
    assert_eq!(coordinator.message(first, Message::GoesOn(1)), Verdict::default());
    assert_eq!(coordinator.message(third, Message::GoesOn(1)), Verdict::default());
    let end = coordinator.message(second, Message::GoesOn(1));
    assert_eq!(end.messages, [(second, Message::HandedOver(1))]);
    assert!(coordinator.is_over());
    // Only the one before can say so.
    assert_eq!(next.message(third, Message::HandedOver(1)), Verdict::default());
    assert_eq!(next.message(first, Message::HandedOver(1)).news, Some(News::Runs));
    let begun = next.begin().unwrap().messages;
    assert_eq!(begun[0], (first, Message::Take(2, Step::Vcpus)));
}

#[test]
fn coordination_stays_where_the_other_slice_cannot() {
    let mut coordinator = at_rest();
    let may = Step::MayCoordinate(SliceId(1));
    coordinator.hand_over(SliceId(1)).unwrap();
    coordinator.message(SliceId(0), Message::Taken(1, may));
    let verdict = coordinator.message(SliceId(1), Message::Failed(1, "no".into()));
    let why = "slice1 cannot have slice1 coordinate: no";
    assert_eq!(verdict.news, Some(News::GivenUp(why.into())));
    assert_eq!(verdict.messages.len(), 3);
}

#[test]
fn slice_leaves_when_all_others_do_without_it() {
    let [first, second, leaver] = [0, 1, 2].map(SliceId);
    let mut coordinator = at_rest();
    assert_eq!(coordinator.part_with(first), Err(Refusal::Stays(first)));
    assert_eq!(coordinator.part_with(SliceId(3)), Err(Refusal::Stays(SliceId(3))));
    let asked = coordinator.part_with(leaver).unwrap().messages;
    let take = |step| [first, second].map(|slice| (slice, Message::Take(1, step)));
    assert_eq!(asked, take(Step::MayPart(leaver)));
    let taken = |step| Message::Taken(1, step);
    let may = taken(Step::MayPart(leaver));
    assert_eq!(coordinator.message(first, may.clone()), Verdict::default());
    // The one that leaves has no say.
    assert_eq!(coordinator.message(leaver, may.clone()), Verdict::default());
    assert_eq!(coordinator.message(second, may).messages, take(Step::Part(leaver)));
    let done = taken(Step::Part(leaver));
    assert_eq!(coordinator.message(first, done.clone()), Verdict::default());
    // There is no way back.
    assert_eq!(coordinator.go_on("asked"), Verdict::default());
    let end = coordinator.message(second, done);
    assert_eq!(end.messages, [(leaver, Message::Dismiss(1))]);
    assert_eq!(end.news, Some(News::Parted(leaver)));
    let on = coordinator.go_on("asked").messages;
    assert_eq!(on, [first, second].map(|slice| (slice, Message::GoOn(1))));
}

#[test]
fn slice_stays_if_one_cannot_do_without_it() {
    let [second, leaver] = [1, 2].map(SliceId);
    let mut coordinator = at_rest();
    coordinator.part_with(leaver).unwrap();
    let verdict = coordinator.message(second, Message::Failed(1, "it has a page".into()));
    assert_eq!(verdict.messages.len(), 3, "all go on");
    let why = "slice1 cannot do without slice2: it has a page";
    assert_eq!(verdict.news, Some(News::GivenUp(why.into())));
    assert_eq!(coordinator.part_with(leaver), Err(Refusal::Busy));
}

#[test]
fn loss_of_a_bystander_does_not_stop_half_a_farewell() {
    let [first, bystander, leaver] = [0, 1, 2].map(SliceId);
    let mut coordinator = at_rest();
    coordinator.part_with(leaver).unwrap();
    for slice in [first, bystander] {
        coordinator.message(slice, Message::Taken(1, Step::MayPart(leaver)));
    }
    assert_eq!(
        coordinator.message(first, Message::Taken(1, Step::Part(leaver))),
        Verdict::default()
    );
    assert_eq!(coordinator.lost(bystander).news, Some(News::Parted(leaver)));
    // A failure behind the point of no return is told.
    let mut coordinator = at_rest();
    coordinator.part_with(leaver).unwrap();
    for slice in [first, bystander] {
        coordinator.message(slice, Message::Taken(1, Step::MayPart(leaver)));
    }
    let news = coordinator.message(first, Message::Failed(1, "no".into())).news;
    assert_eq!(news, Some(News::Broken("slice0 cannot do without slice2: no".into())));
}

const THREE: [SliceId; 3] = [SliceId(0), SliceId(1), SliceId(2)];
const MOVED: DeviceMove = DeviceMove { device: 4, from: SliceId(1), to: SliceId(2) };

/// A coordinator whose slices have taken all steps of a move until this one, which is asked for.
fn moving(until: Step) -> Coordinator {
    let mut coordinator = at_rest();
    let mut verdict = coordinator.move_device(MOVED).unwrap();
    loop {
        let step = coordinator.asking().expect("it asks").0;
        if step == until {
            return coordinator;
        }
        let asked: Vec<_> = verdict.messages.iter().map(|(to, _)| *to).collect();
        for slice in asked {
            verdict = coordinator.message(slice, Message::Taken(1, step));
        }
    }
}

#[test]
fn device_is_closed_before_it_is_opened_and_all_know_at_the_end() {
    let mut coordinator = at_rest();
    let wrong = [
        DeviceMove { to: MOVED.from, ..MOVED },
        DeviceMove { to: SliceId(3), ..MOVED },
        DeviceMove { from: SliceId(3), ..MOVED },
    ];
    for moved in wrong {
        assert_eq!(coordinator.move_device(moved), Err(Refusal::NoMove(moved)));
    }
    let take = |step, slices: &[SliceId]| {
        slices.iter().map(|slice| (*slice, Message::Take(1, step))).collect::<Vec<_>>()
    };
    let may = coordinator.move_device(MOVED).unwrap();
    assert_eq!(may.messages, take(Step::MayMove(MOVED), &THREE));
    assert_eq!(coordinator.move_device(MOVED), Err(Refusal::Busy));
    let mut told = |step| {
        let all = THREE.map(|slice| coordinator.message(slice, Message::Taken(1, step)));
        all.into_iter().find(|verdict| *verdict != Verdict::default()).unwrap()
    };
    let closes = told(Step::MayMove(MOVED));
    assert_eq!(closes.messages, take(Step::CloseDevice(MOVED), &[MOVED.from]));
    let opens = told(Step::CloseDevice(MOVED));
    assert_eq!(opens.messages, take(Step::OpenDevice(MOVED), &[MOVED.to]));
    let moved = told(Step::OpenDevice(MOVED));
    assert_eq!(moved.messages, take(Step::DeviceMoved(MOVED), &THREE));
    let end = told(Step::DeviceMoved(MOVED));
    assert_eq!(end, Verdict { messages: Vec::new(), news: Some(News::Moved(MOVED)) });
    assert!(coordinator.is_at_rest());
}

#[test]
fn device_that_cannot_be_opened_stays_and_all_go_on() {
    for step in [Step::MayMove(MOVED), Step::CloseDevice(MOVED), Step::OpenDevice(MOVED)] {
        let fails = if matches!(step, Step::OpenDevice(_)) { MOVED.to } else { MOVED.from };
        let mut coordinator = moving(step);
        let verdict = coordinator.message(fails, Message::Failed(1, "it is in use".into()));
        let go_on = |slices: &[SliceId]| {
            slices.iter().map(|slice| (*slice, Message::GoOn(1))).collect::<Vec<_>>()
        };
        if fails == MOVED.to {
            // The former place opens it again when the other one has let it go.
            assert_eq!(verdict.messages, go_on(&[MOVED.to]));
            let others = coordinator.message(MOVED.to, Message::GoesOn(1));
            assert_eq!(others.messages, go_on(&THREE[..2]));
        } else {
            assert_eq!(verdict.messages, go_on(&THREE));
        }
        let Some(News::GivenUp(why)) = verdict.news else { panic!("{:?}", verdict.news) };
        assert!(why.contains("device 4") && why.ends_with(": it is in use"), "{why}");
        // So does a wish, a loss, and time that is over.
        assert!(!moving(step).go_on("asked").messages.is_empty());
        assert_eq!(moving(step).lost(MOVED.to).messages.len(), 2);
    }
    // Not all know: there is no way back.
    let step = Step::DeviceMoved(MOVED);
    assert_eq!(moving(step).go_on("asked"), Verdict::default());
    let news = moving(step).message(MOVED.from, Message::Failed(1, "no".into())).news;
    assert_eq!(news, Some(News::Broken("slice1 cannot have device 4 at slice2: no".into())));
    let mut coordinator = moving(step);
    for slice in [0, 1].map(SliceId) {
        assert_eq!(coordinator.message(slice, Message::Taken(1, step)), Verdict::default());
    }
    assert_eq!(coordinator.lost(MOVED.to).news, Some(News::Moved(MOVED)));
}

fn message() -> impl Strategy<Value = (u16, Message)> {
    let step = prop::sample::select(vec![
        Step::Vcpus,
        Step::Queues,
        Step::Devices,
        Step::Memory,
        Step::Count,
        Step::MayPart(SLICES[1]),
        Step::Part(SLICES[1]),
        Step::MayMove(MOVED),
        Step::OpenDevice(MOVED),
        Step::Capture(1),
        Step::Begin,
    ]);
    let count = prop::option::of(vec((0..4_u16, any::<u64>(), any::<u64>()), 0..4));
    (0..4_u16, 0..3_u64, step, count, 0..5).prop_map(|(from, number, step, count, kind)| {
        let of_peer = |(peer, sent, received)| PeerCounts {
            peer: SliceId(peer),
            sent: [sent, 0],
            received: [received, 0],
        };
        let counts = count.map(|counts| counts.into_iter().map(of_peer).collect());
        let message = match kind {
            0 => Message::Taken(number, step),
            1 => Message::Counted(number, counts),
            2 => Message::Failed(number, "no".into()),
            3 => Message::GoesOn(number),
            _ => Message::Take(number, step),
        };
        (from, message)
    })
}

proptest! {
    /// Whatever peers say, only members that were asked are waited for, and a wish to go on is always heard.
    #[test]
    fn any_peer_is_harmless(messages in vec(message(), 0..60)) {
        let mut coordinator = Coordinator::new(SLICES[0], SLICES.to_vec());
        coordinator.begin().unwrap();
        for (from, message) in messages {
            let verdict = coordinator.message(SliceId(from), message);
            prop_assert!(verdict.messages.iter().all(|(to, _)| SLICES.contains(to)));
            if coordinator.is_idle() {
                coordinator.begin().unwrap();
            }
        }
        let verdict = coordinator.go_on("asked");
        run(&mut coordinator, verdict, 0);
        for slice in SLICES {
            coordinator.message(slice, Message::GoesOn(1));
            coordinator.message(slice, Message::GoesOn(2));
        }
        prop_assert!(coordinator.asking().is_none());
    }
}

#[test]
fn newcomer_is_asked_when_all_others_can_reach_it() {
    let (slices, newcomer) = ([0, 1, 2].map(SliceId), SliceId(7));
    let mut coordinator = at_rest();
    assert_eq!(coordinator.take_in(slices[2]), Err(Refusal::Member(slices[2])));
    let may = coordinator.take_in(newcomer).unwrap();
    let (step, join) = (Step::MayJoin(newcomer), Step::Join(newcomer));
    assert_eq!(may.messages, slices.map(|slice| (slice, Message::Take(1, step))));
    let mut last = Verdict::default();
    for slice in slices {
        assert_eq!(last, Verdict::default());
        last = coordinator.message(slice, Message::Taken(1, step));
    }
    assert_eq!(last.messages, [(newcomer, Message::Take(1, step))]);
    let all = coordinator.message(newcomer, Message::Taken(1, step));
    assert_eq!(all.messages, slices.map(|slice| (slice, Message::Take(1, join))));
    // There is no way back.
    assert_eq!(coordinator.go_on("asked"), Verdict::default());
    let mut gone = coordinator.clone();
    assert!(matches!(gone.lost(newcomer).news, Some(News::Broken(_))));
    for slice in slices {
        last = coordinator.message(slice, Message::Taken(1, join));
    }
    assert_eq!(last.news, Some(News::Joined(newcomer)));
    let on = coordinator.go_on("asked");
    let with = [slices[0], slices[1], slices[2], newcomer];
    assert_eq!(on.messages, with.map(|slice| (slice, Message::GoOn(1))));
}

#[test]
fn newcomer_that_cannot_is_missed_by_nobody() {
    let (slices, newcomer) = ([0, 1, 2].map(SliceId), SliceId(7));
    for by in [slices[1], newcomer] {
        let mut coordinator = at_rest();
        coordinator.take_in(newcomer).unwrap();
        for slice in slices.into_iter().filter(|_| by == newcomer) {
            coordinator.message(slice, Message::Taken(1, Step::MayJoin(newcomer)));
        }
        let on = coordinator.message(by, Message::Failed(1, "no memory".into()));
        assert!(matches!(&on.news, Some(News::GivenUp(why)) if why.contains("no memory")));
        assert_eq!(on.messages, slices.map(|slice| (slice, Message::GoOn(1))));
    }
}

#[test]
fn checkpoint_is_captured_at_rest_and_given_up_if_one_cannot() {
    let mut coordinator = Coordinator::new(THREE[0], THREE.to_vec());
    assert_eq!(coordinator.capture(9), Err(Refusal::Busy), "they run");
    let mut coordinator = at_rest();
    let step = Step::Capture(9);
    let asked = coordinator.capture(9).unwrap().messages;
    assert_eq!(asked, THREE.map(|slice| (slice, Message::Take(1, step))));
    assert_eq!(coordinator.capture(9), Err(Refusal::Busy));
    for slice in [0, 2].map(SliceId) {
        assert_eq!(coordinator.message(slice, Message::Taken(1, step)), Verdict::default());
    }
    let mut other = coordinator.clone();
    let captured = coordinator.message(THREE[1], Message::Taken(1, step));
    assert_eq!(captured, Verdict { messages: Vec::new(), news: Some(News::Captured(9)) });
    assert!(coordinator.is_at_rest());
    let failed = other.message(THREE[1], Message::Failed(1, "no room".into()));
    let why = "slice1 cannot begin its part of the checkpoint: no room";
    assert_eq!(failed.news, Some(News::GivenUp(why.into())));
    assert_eq!(failed.messages, THREE.map(|slice| (slice, Message::GoOn(1))));
}

#[test]
fn restored_vm_is_at_rest_when_all_slices_have_begun() {
    let mut coordinator = Coordinator::restored(THREE[0], THREE.to_vec());
    assert_eq!(coordinator.begin(), Err(Refusal::Busy));
    let taken = Message::Taken(FIRST_CUT, Step::Begin);
    for slice in [2, 0].map(SliceId) {
        assert_eq!(coordinator.message(slice, taken.clone()), Verdict::default());
    }
    // It would run without what the last one has.
    assert_eq!(coordinator.go_on("asked"), Verdict::default());
    let mut broken = coordinator.clone();
    let news = broken.message(THREE[1], Message::Failed(FIRST_CUT, "no memory".into())).news;
    assert_eq!(news, Some(News::Broken("slice1 cannot begin: no memory".into())));
    assert_eq!(coordinator.message(THREE[1], taken).news, Some(News::AtRest));
    assert_eq!(coordinator.go_on("asked").messages.len(), 3);
    for slice in THREE {
        coordinator.message(slice, Message::GoesOn(FIRST_CUT));
    }
    let next = coordinator.begin().unwrap().messages;
    assert_eq!(next[0], (THREE[0], Message::Take(FIRST_CUT + 1, Step::Vcpus)));
}
