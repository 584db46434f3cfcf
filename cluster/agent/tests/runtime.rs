//! An agent over real processes and a real journal. Slices are shells here; what an agent does with them is the same.

use agent::decide::{
    End, Generation, Manner, Operation, Order, Phase, Refusal, Reply, Request, Settings, Slice,
    SliceName, Term, Vm,
};
use agent::runtime::{AgentHandle, AskError, Options, Running};
use scheduler::Resources;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SLICE: SliceName = SliceName { vm: Vm(77), number: 0 };
const TERM: Term = Term(1);
const LIMIT: Duration = Duration::from_secs(60);

/// The folder of an agent. Processes that are left are ended with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tessera-agent-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder of its own");
        Self(path)
    }

    fn begin(&self) -> Running {
        let settings = Settings { capacity: Resources::new(4, 4) };
        let (program, folder) = ("/bin/sh".into(), self.0.clone());
        Running::begin(Options { settings, program, folder, environment: Vec::new() })
            .expect("an agent begins")
    }

    /// How often something was started.
    fn starts(&self) -> usize {
        fs::read_to_string(self.0.join("starts")).map_or(0, |text| text.lines().count())
    }

    /// A slice that notes its start, and then does this.
    fn order(&self, then: &str) -> Order {
        let script = format!("echo $$ >> {}/starts; {then}", self.0.display());
        Order { resources: Resources::new(3, 3), words: vec!["-c".into(), script] }
    }

    fn ensure(&self, generation: u64, then: &str) -> Request {
        let generation = Generation(generation);
        Request::Ensure { slice: SLICE, generation, order: self.order(then) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for vm in [SLICE.vm, Vm(78)] {
            let fence = Request::Fence { vm, generation: Generation(u64::MAX - 1) };
            let _ = self.begin().handle().ask(Term(u64::MAX), fence);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn slice(of: &AgentHandle) -> Option<Slice> {
    of.journal().slices.get(&SLICE).cloned()
}

/// Waits until the slice is so.
fn wait(of: &AgentHandle, is_so: impl Fn(&Phase) -> bool) -> Slice {
    let end = Instant::now() + LIMIT;
    loop {
        let found = slice(of);
        if let Some(found) = found.as_ref().filter(|found| is_so(&found.phase)) {
            return found.clone();
        }
        assert!(Instant::now() < end, "{found:?}");
        sleep(Duration::from_millis(5));
    }
}

fn runs(phase: &Phase) -> bool {
    matches!(phase, Phase::Running(_))
}

const SLEEPS: &str = "exec sleep 600";

#[test]
fn slice_outlives_its_agent_and_is_found_again() {
    let folder = Folder::new("outlives");
    let first = folder.begin();
    first.handle().ask(TERM, folder.ensure(1, SLEEPS)).unwrap();
    let before = wait(&first.handle(), runs);
    drop(first);

    let second = folder.begin();
    let handle = second.handle();
    let again = handle.ask(TERM, folder.ensure(1, SLEEPS)).unwrap();
    assert_eq!(again, Reply::Slice(Box::new(before.clone())));
    assert_eq!(folder.starts(), 1);
    let conflict = handle.ask(TERM, folder.ensure(1, "exit 1"));
    assert!(matches!(conflict, Err(AskError::Refused(Refusal::GenerationConflict))));

    let stop = |manner| Request::Stop { slice: SLICE, generation: Generation(1), manner };
    handle.ask(TERM, stop(Manner::Orderly)).unwrap();
    let ended = wait(&handle, |phase| matches!(phase, Phase::Ended(_)));
    assert_eq!(ended.phase, Phase::Ended(End::Unseen), "a former agent has started it");
    let free = Request::Reserve {
        operation: Operation(1),
        slice: SliceName { vm: Vm(78), number: 0 },
        generation: Generation(1),
        resources: Resources::new(4, 4),
        lasts: 1000,
    };
    assert_eq!(handle.ask(TERM, free).unwrap(), Reply::Done);
}

#[test]
fn end_is_told_with_its_status_and_nothing_starts_by_itself() {
    let folder = Folder::new("status");
    let running = folder.begin();
    let handle = running.handle();
    handle.ask(TERM, folder.ensure(1, "exit 5")).unwrap();
    let ended = wait(&handle, |phase| matches!(phase, Phase::Ended(_)));
    assert_eq!(ended.phase, Phase::Ended(End::Status(5)));
    handle.ask(TERM, folder.ensure(1, "exit 5")).unwrap();
    assert_eq!(folder.starts(), 1);
    handle.ask(TERM, folder.ensure(2, "exit 6")).unwrap();
    wait(&handle, |phase| *phase == Phase::Ended(End::Status(6)));
    let old = handle.ask(TERM, folder.ensure(1, "exit 5"));
    assert!(matches!(old, Err(AskError::Refused(Refusal::StaleGeneration { .. }))), "{old:?}");
}

#[test]
fn fence_is_confirmed_when_nothing_runs_and_holds_for_the_next_agent() {
    let folder = Folder::new("fence");
    let first = folder.begin();
    // It takes no notice of a polite request.
    first.handle().ask(TERM, folder.ensure(1, "trap '' TERM; while :; do sleep 1; done")).unwrap();
    wait(&first.handle(), runs);
    let fence = Request::Fence { vm: SLICE.vm, generation: Generation(1) };
    let fenced = first.handle().ask(Term(2), fence).unwrap();
    assert!(matches!(fenced, Reply::Fenced(_)), "{fenced:?}");
    assert_eq!(slice(&first.handle()).unwrap().phase, Phase::Ended(End::Signal(9)));
    drop(first);

    let second = folder.begin();
    let late = second.handle().ask(Term(1), folder.ensure(2, SLEEPS));
    assert!(matches!(late, Err(AskError::Refused(Refusal::StaleTerm { .. }))), "{late:?}");
    let late = second.handle().ask(Term(2), folder.ensure(1, SLEEPS));
    assert!(matches!(late, Err(AskError::Refused(Refusal::StaleGeneration { .. }))), "{late:?}");
    assert_eq!(folder.starts(), 1);
}

#[test]
fn program_that_is_not_there_is_an_end_with_its_cause() {
    let folder = Folder::new("missing");
    let settings = Settings { capacity: Resources::new(4, 4) };
    let program = folder.0.join("no-program");
    let (path, environment) = (folder.0.clone(), Vec::new());
    let options = Options { settings, program, folder: path, environment };
    let running = Running::begin(options).unwrap();
    running.handle().ask(TERM, folder.ensure(1, SLEEPS)).unwrap();
    let ended = wait(&running.handle(), |phase| matches!(phase, Phase::Ended(_)));
    assert!(matches!(ended.phase, Phase::Ended(End::NotStarted(_))), "{ended:?}");
}
