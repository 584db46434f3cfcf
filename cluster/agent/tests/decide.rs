//! What an agent decides against its own rules (decision 66).

use agent::decide::{
    Agent, Asked, Effect, End, Found, Generation, Input, Journal, Manner, Operation, Order, Phase,
    Process, Refusal, Reply, Request, Settings, SliceName, Term, Ticket, Token, Vm,
};
use scheduler::Resources;
use std::collections::BTreeMap;

const SETTINGS: Settings = Settings { capacity: Resources::new(8, 8) };
const VM: Vm = Vm(7);
const OTHER: Vm = Vm(8);
const DAY: u64 = 24 * 3600 * 1000;
const PROCESS: Process = Process { id: 100, began: 1 };

fn slice(vm: Vm) -> SliceName {
    SliceName { vm, number: 0 }
}

/// An agent, and the journal as its disk has it.
struct Host {
    agent: Agent,
    disk: Journal,
    tickets: u64,
}

impl Host {
    fn new() -> Self {
        let (agent, _) = Agent::recover(SETTINGS, Journal::default(), 0, &Found::default());
        Self { agent, disk: Journal::default(), tickets: 0 }
    }

    fn hear(&mut self, now: u64, input: Input) -> Vec<Effect> {
        let effects = self.agent.step(now, input);
        for effect in &effects {
            if let Effect::Record(entries) = effect {
                entries.iter().for_each(|entry| self.disk.take(entry));
            }
        }
        effects
    }

    fn ask(&mut self, now: u64, request: Request) -> Vec<Effect> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.hear(now, Input::Asked(Asked { term: Term(1), ticket, request }))
    }

    fn begin_again(&mut self, now: u64, processes: BTreeMap<Token, Process>) -> Vec<Effect> {
        let found = Found { processes, ..Found::default() };
        let (agent, effects) = Agent::recover(SETTINGS, self.disk.clone(), now, &found);
        self.agent = agent;
        effects
    }
}

fn ensure(vm: Vm, generation: u64) -> Request {
    let order = Order { resources: Resources::new(3, 3), words: Vec::new() };
    Request::Ensure { slice: slice(vm), generation: Generation(generation), order }
}

fn fence(vm: Vm, generation: u64) -> Request {
    Request::Fence { vm, generation: Generation(generation) }
}

fn remove(generation: u64) -> Request {
    Request::Remove { slice: slice(VM), generation: Generation(generation) }
}

fn stop(manner: Manner) -> Request {
    Request::Stop { slice: slice(VM), generation: Generation(1), manner }
}

fn resize(vm: Vm, cores: u32) -> Request {
    let resources = Resources::new(cores, 3);
    Request::Resize { slice: slice(vm), generation: Generation(1), resources }
}

fn answer(effects: &[Effect]) -> Option<Result<Reply, Refusal>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Answer { result, .. } => Some(result.clone()),
        _ => None,
    })
}

fn starts(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Start { .. }))
}

fn ends(effects: &[Effect], how: Manner) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::End { manner, .. } if *manner == how))
}

/// The journal could not be written when a program was not there.
#[test]
fn start_that_failed_while_nothing_could_be_recorded_ends_with_its_cause() {
    let mut host = Host::new();
    let begun = host.ask(0, ensure(VM, 1));
    let token = begun.iter().find_map(|effect| match effect {
        Effect::Start { token, .. } => Some(*token),
        _ => None,
    });
    let token = token.unwrap();
    let end = End::NotStarted("no such program".into());
    let ended = BTreeMap::from([(token, end.clone())]);
    let found = Found { ended, ..Found::default() };
    let (agent, effects) = Agent::recover(SETTINGS, host.disk.clone(), 1, &found);
    host.agent = agent;
    assert_eq!(host.agent.journal().slices[&slice(VM)].phase, Phase::Ended(end.clone()));
    assert!(matches!(&effects[..], [Effect::Record(_)]), "{effects:?}");
    // It is told once more, which is no news.
    assert_eq!(host.hear(2, Input::Ended(token, end)), []);
}

/// `saturating_add(1)`: the highest life is fenced, confirmed, and starts.
#[test]
fn highest_generation_that_is_fenced_never_runs() {
    let mut host = Host::new();
    let fenced = answer(&host.ask(0, fence(VM, u64::MAX)));
    let after = host.ask(0, ensure(VM, u64::MAX));
    assert!(
        !(matches!(fenced, Some(Ok(Reply::Fenced(_)))) && starts(&after)),
        "confirmed, and started: {after:?}"
    );
}

/// The same while it runs: it is never killed, and who fences it never has an answer.
#[test]
fn highest_generation_that_runs_is_killed_by_its_fence() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, u64::MAX));
    let _ = host.hear(0, Input::Started(Token(0), PROCESS));
    let effects = host.ask(0, fence(VM, u64::MAX));
    assert!(ends(&effects, Manner::AtOnce) || answer(&effects).is_some(), "{effects:?}");
}

/// The second proof is given from a fence that is forgotten a second later.
#[test]
fn fence_that_was_confirmed_just_now_holds() {
    let mut host = Host::new();
    let _ = host.ask(0, fence(VM, 1));
    let again = answer(&host.ask(DAY, fence(VM, 1)));
    assert!(matches!(again, Some(Ok(Reply::Fenced(_)))), "{again:?}");
    let _ = host.hear(DAY + 1000, Input::Tick);
    let late = host.ask(DAY + 2000, ensure(VM, 1));
    assert!(!starts(&late), "fenced two seconds ago: {late:?}");
}

/// A slice that ended long ago is removed: its VM is forgotten with the next tick, and an earlier life starts.
#[test]
fn vm_is_remembered_for_a_day_after_its_last_slice() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, 2));
    let _ = host.hear(0, Input::Ended(Token(0), End::Status(0)));
    let _ = host.ask(2 * DAY, remove(2));
    let _ = host.hear(2 * DAY + 1000, Input::Tick);
    let late = host.ask(2 * DAY + 2000, ensure(VM, 1));
    assert!(!starts(&late), "an earlier life starts: {late:?}");
}

/// "The same request twice has one effect", "nothing starts by itself".
#[test]
fn late_copy_of_a_request_does_not_start_a_slice_again() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, 1));
    let _ = host.hear(0, Input::Ended(Token(0), End::Status(0)));
    let _ = host.ask(0, remove(1));
    let late = host.ask(1, ensure(VM, 1));
    assert!(!starts(&late), "{late:?}");
}

/// Said to be done, and forgotten when the agent is killed, or its disk is full, before it has heard of the process.
#[test]
fn stop_that_was_answered_is_done_although_the_agent_is_killed() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, 1));
    let answered = answer(&host.ask(0, stop(Manner::AtOnce)));
    assert!(matches!(answered, Some(Ok(_))), "{answered:?}");
    let effects = host.begin_again(0, BTreeMap::from([(Token(0), PROCESS)]));
    assert!(ends(&effects, Manner::AtOnce), "{effects:?}");
}

#[test]
fn polite_request_does_not_take_a_kill_back() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, 1));
    let _ = host.ask(0, stop(Manner::AtOnce));
    let _ = host.ask(0, stop(Manner::Orderly));
    let effects = host.hear(0, Input::Started(Token(0), PROCESS));
    assert!(ends(&effects, Manner::AtOnce), "{effects:?}");
}

/// The copy of a reservation that was used up reserves again: what runs counts twice.
#[test]
fn late_copy_of_a_reservation_reserves_nothing() {
    let reserve = Request::Reserve {
        operation: Operation(1),
        slice: slice(VM),
        generation: Generation(1),
        resources: Resources::new(3, 3),
        lasts: u64::MAX,
    };
    let mut host = Host::new();
    let _ = host.ask(0, reserve.clone());
    let _ = host.ask(0, ensure(VM, 1));
    let _ = host.ask(0, reserve);
    assert_eq!(host.agent.free(0), Resources::new(5, 5));
}

/// Who asks again and again about one slice that does not end takes the place of all others.
#[test]
fn fence_of_a_vm_that_is_not_here_is_confirmed_whoever_waits() {
    let mut host = Host::new();
    let _ = host.ask(0, ensure(VM, 1));
    let _ = host.hear(0, Input::Started(Token(0), PROCESS));
    (0..1024).for_each(|_| drop(host.ask(0, fence(VM, 1))));
    let effects = host.ask(0, fence(OTHER, 1));
    assert!(matches!(answer(&effects), Some(Ok(Reply::Fenced(_)))), "{effects:?}");
}

/// What a slice gets more is nobody else's from its answer on, and what it gives up is free.
#[test]
fn room_of_a_slice_grows_as_far_as_there_is_any() {
    let mut host = Host::new();
    let unknown = answer(&host.ask(0, resize(VM, 1)));
    assert_eq!(unknown, Some(Err(Refusal::Unknown)));
    let _ = host.ask(0, ensure(VM, 1));
    let _ = host.ask(0, ensure(OTHER, 1));
    let refused = answer(&host.ask(0, resize(VM, 6)));
    let free = Resources::new(2, 2);
    assert_eq!(refused, Some(Err(Refusal::NoCapacity { free })), "3 + 2 are less than 6");
    for _ in 0..2 {
        assert!(matches!(answer(&host.ask(0, resize(VM, 5))), Some(Ok(Reply::Slice(_)))));
    }
    let other = Process { id: 101, began: 1 };
    let _ = host.begin_again(0, BTreeMap::from([(Token(0), PROCESS), (Token(1), other)]));
    let refused = answer(&host.ask(0, resize(OTHER, 4)));
    assert!(matches!(refused, Some(Err(Refusal::NoCapacity { .. }))), "it is given: {refused:?}");
    let _ = host.ask(0, resize(VM, 3));
    assert!(matches!(answer(&host.ask(0, resize(OTHER, 4))), Some(Ok(Reply::Slice(_)))));
    // What has ended uses nothing, and asking again does not fail.
    let _ = host.hear(0, Input::Ended(Token(0), End::Status(0)));
    assert!(matches!(answer(&host.ask(0, resize(VM, 8))), Some(Ok(Reply::Slice(_)))));
}
