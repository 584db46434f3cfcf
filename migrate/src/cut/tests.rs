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
    let mut coordinator = Coordinator::new(SLICES.to_vec());
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
    let mut coordinator = Coordinator::new(SLICES.to_vec());
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
    let mut coordinator = Coordinator::new(SLICES.to_vec());
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

fn message() -> impl Strategy<Value = (u16, Message)> {
    let step = prop::sample::select(vec![
        Step::Vcpus,
        Step::Queues,
        Step::Devices,
        Step::Memory,
        Step::Count,
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
        let mut coordinator = Coordinator::new(SLICES.to_vec());
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
