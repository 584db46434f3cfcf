//! Drives cuts on the coordinator: asks the machine that decides, sends what it says, and keeps the time.
//!
//! ```text
//!   pause ----> coming to rest --News::AtRest--> at rest (the answer) --resume--> going on --News::Runs--> runs (the answer)
//!                   \---failure, or the limit----> going on (the answer says why)
//!
//!   leave ----> coming to rest --News::AtRest--> part_with --News::Parted--> going on --News::Runs--> runs (the answer)
//!
//!   device ---> coming to rest --News::AtRest--> move_device --News::Moved--> going on --News::Runs--> runs (the answer)
//!
//!   hand over > coming to rest --News::AtRest--> hand_over --News::HandedOver--> going on --News::Runs--> over (the answer)
//!
//!   join -----> coming to rest --News::AtRest--> take_in --the newcomer is asked: admission-->
//!                                                        --News::Joined--> going on --News::Runs--> runs (the answer)
//!
//!   capture --> coming to rest --News::AtRest--> capture --News::Captured--> at rest (the answer) --resume--> as above
//!                                                                at rest --hold--> at rest for ever --release--> at rest
//!
//!   restored -> News::AtRest (all have begun) -> going on --News::Runs--> runs
//! ```

use crate::slice::cut_link::{Admission, CutError, Input, RESUME_LIMIT, Reply};
use crate::slice::operations::{Ongoing, Operation, Operations};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dsm::schedule;
use migrate::cut::{Coordinator, DeviceMove, Message, News, Refusal, Step, Verdict};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use wire::SliceId;

/// What may wait: a few messages of each slice, and requests of people.
const INPUTS_MAX: usize = 1024;
/// For all slices to come to rest.
const REST_LIMIT: Duration = Duration::from_secs(60);
/// For all slices to take a newcomer into their transports, and for it to begin, while the guest stands still.
const MAY_JOIN_LIMIT: Duration = Duration::from_secs(15);

/// For all slices to go on. One that does not hangs, as in storage that does not answer, and part of the guest stands still for as
/// long; nothing else can be done to the VM. Storage comes back, though, and then it goes on.
const GO_ON_LIMIT: Duration = Duration::from_secs(600);

/// Starts the thread. `send` takes messages to members, this slice among them. It says by
/// `ready` that cuts can begin. It ends when another slice coordinates, or when nobody is left who could ask, and says so
/// by `end`.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start_driver(
    coordinator: Coordinator,
    operations: Operations,
    send: impl Fn(SliceId, Message) + Send + 'static,
    fail: impl Fn(String) + Send + 'static,
    (ready, end): (impl FnOnce() + Send + 'static, impl FnOnce() + Send + 'static),
) -> io::Result<Sender<Input>> {
    let (sender, inputs) = bounded(INPUTS_MAX);
    let begins = coordinator.asking().is_some();
    // Nothing else is done to a VM that is restored before it runs.
    let ongoing = begins.then(|| operations.begin(Operation::Cut).ok()).flatten().map(Arc::new);
    let mut thread = Thread {
        coordinator,
        operations,
        ongoing,
        send,
        fail,
        asked: None,
        given_up: None,
        goal: if begins { Goal::Begin } else { Goal::Rest },
        admission: None,
        began: Instant::now(),
        asked_at: Instant::now(),
        going_on: None,
        stopping: false,
        held: None,
        over: false,
    };
    let run = move || {
        // The guest stands still for what waits here.
        schedule::prefer_this_thread_only();
        thread.serve(&inputs, ready);
        end();
    };
    thread::Builder::new().name("cut-driver".into()).spawn(run)?;
    Ok(sender)
}

/// What is to be done when all slices are at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// Nothing: they stay so.
    Rest,
    /// This one leaves.
    Leave(SliceId),
    /// This one coordinates.
    HandOver(SliceId),
    /// This one is a slice more.
    Join(SliceId),
    /// This device goes to another host.
    MoveDevice(DeviceMove),
    /// The checkpoint of this number is written, while they rest.
    Capture(u64),
    /// They run: the VM is restored.
    Begin,
}

impl Goal {
    /// What there is to say when it is not reached.
    fn missed(self) -> &'static str {
        match self {
            Self::Rest => "the VM was not paused",
            Self::Leave(_) => "no slice has left",
            Self::HandOver(_) => "no other slice coordinates",
            Self::Join(_) => "no slice has joined",
            Self::MoveDevice(_) => "the device has not moved",
            Self::Capture(_) => "no checkpoint is written",
            Self::Begin => "the VM is not restored",
        }
    }
}

struct Thread<S, F> {
    coordinator: Coordinator,
    operations: Operations,
    /// From the first step to rest until all slices run again.
    ongoing: Option<Arc<Ongoing>>,
    send: S,
    /// Ends the VM.
    fail: F,
    /// Who waits for the end of what goes on.
    asked: Option<Reply>,
    /// Why they will be told that it was not done, when all slices run.
    given_up: Option<String>,
    goal: Goal,
    /// Who has a newcomer begin, which frames do not reach yet.
    admission: Option<Admission>,
    /// When that began.
    began: Instant,
    /// When somebody asked for it.
    asked_at: Instant,
    /// Since when slices are to go on.
    going_on: Option<Instant>,
    /// It is asked to stop: its guest is to have all the time that is left.
    stopping: bool,
    /// What would have slices go on, and has come while they must not.
    held: Option<Vec<Input>>,
    /// The VM is over.
    over: bool,
}

impl<S: Fn(SliceId, Message), F: Fn(String)> Thread<S, F> {
    fn serve(&mut self, inputs: &Receiver<Input>, ready: impl FnOnce()) {
        let mut ready = Some(ready);
        loop {
            if !self.coordinator.is_waiting()
                && let Some(ready) = ready.take()
            {
                ready();
            }
            let input = match self.deadline() {
                None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => inputs.recv_deadline(deadline),
            };
            match input {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => self.late(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.coordinator.is_over() {
                return;
            }
        }
    }

    fn take(&mut self, input: Input) {
        let input = match self.refusal(&input) {
            Some(error) => return input.refuse(error),
            None => input,
        };
        match input {
            Input::Over => {
                self.over = true;
                self.reply(Err(CutError::Over));
            }
            Input::Pause(reply) => match self.begin_cut() {
                Ok(verdict) => self.begin(reply, verdict),
                Err(error) => tell(&reply, Err(error)),
            },
            Input::Leave(slice, ongoing, reply) => {
                self.begin_with(Goal::Leave(slice), ongoing, reply);
            }
            Input::HandOver(slice, ongoing, reply) => {
                self.begin_with(Goal::HandOver(slice), ongoing, reply);
            }
            Input::MoveDevice(moved, ongoing, reply) => {
                self.begin_with(Goal::MoveDevice(moved), ongoing, reply);
            }
            Input::Join(slice, (ongoing, admission), reply) => {
                self.admission = Some(admission);
                self.begin_with(Goal::Join(slice), ongoing, reply);
            }
            Input::Capture(number, ongoing, reply) => {
                self.begin_with(Goal::Capture(number), ongoing, reply);
            }
            Input::Resume(reply) => {
                let verdict = self.coordinator.go_on("asked");
                self.begin(reply, verdict);
            }
            Input::Hold(reply) => {
                self.held.get_or_insert_default();
                tell(&reply, Ok(Duration::ZERO));
            }
            Input::Release => {
                self.held.take().into_iter().flatten().for_each(|input| self.take(input));
            }
            input @ (Input::GoOn | Input::Lost(_)) if self.held.is_some() => {
                self.held.get_or_insert_default().push(input);
            }
            Input::GoOn => {
                self.stopping = true;
                self.tell_of_end("it is asked to stop");
                let verdict = self.coordinator.go_on("the VM is asked to stop");
                self.follow(verdict);
            }
            Input::Message(from, message) => {
                let before = self.coordinator.asking().map(|(step, _)| step);
                let verdict = self.coordinator.message(from, message);
                let now = self.coordinator.asking().map(|(step, _)| step);
                if now != before && now.is_some_and(Step::is_final) {
                    // Whatever the steps before have taken, it is not too late any more.
                    self.began = Instant::now();
                }
                self.follow(verdict);
            }
            // A newcomer that is gone is none of the VM, unless it is just being taken in.
            Input::Missed(slice) if self.goal == Goal::Join(slice) => {
                let verdict = self.coordinator.lost(slice);
                self.follow(verdict);
            }
            Input::Missed(_) => {}
            Input::Lost(slice) => {
                self.tell_of_end(&format!("{slice} is lost"));
                let verdict = self.coordinator.lost(slice);
                self.follow(verdict);
            }
        }
    }

    /// Why a request is not followed, whatever it asks for.
    fn refusal(&self, input: &Input) -> Option<CutError> {
        let begins = matches!(
            input,
            Input::Pause(_)
                | Input::Leave(..)
                | Input::HandOver(..)
                | Input::Join(..)
                | Input::MoveDevice(..)
                | Input::Capture(..)
        );
        match input {
            Input::Resume(_) if self.over => Some(CutError::Over),
            Input::Resume(_) | Input::Hold(_) if !self.coordinator.is_at_rest() => {
                Some(CutError::NotPaused)
            }
            Input::Hold(_) if self.over => Some(CutError::Over),
            Input::Resume(_) if self.held.is_some() => Some(CutError::Ends),
            _ if begins && self.over => Some(CutError::Over),
            _ if begins && self.stopping => Some(CutError::Stopping),
            _ => None,
        }
    }

    /// Until when what goes on may take.
    fn deadline(&self) -> Option<Instant> {
        if self.over {
            return self.asked.is_some().then(|| self.began + RESUME_LIMIT);
        }
        if let Some((step, _)) = self.coordinator.asking() {
            let is_may_join = matches!(step, Step::MayJoin(_));
            return Some(self.began + if is_may_join { MAY_JOIN_LIMIT } else { REST_LIMIT });
        }
        match self.asked {
            Some(_) => Some(self.began + RESUME_LIMIT),
            None => self.going_on.map(|since| since + GO_ON_LIMIT),
        }
    }

    fn begin_cut(&mut self) -> Result<Verdict, CutError> {
        if self.coordinator.is_idle() {
            self.ongoing = Some(Arc::new(self.operations.begin(Operation::Cut)?));
        }
        Ok(self.coordinator.begin()?)
    }

    /// Begins a cut as a part of an operation.
    fn begin_with(&mut self, goal: Goal, ongoing: Arc<Ongoing>, reply: Reply) {
        match self.coordinator.begin() {
            Ok(verdict) => {
                (self.goal, self.ongoing) = (goal, Some(ongoing));
                self.begin(reply, verdict);
            }
            Err(error) => {
                self.admission = None;
                tell(&reply, Err(error.into()));
            }
        }
    }

    fn begin(&mut self, reply: Reply, verdict: Verdict) {
        (self.asked, self.began) = (Some(reply), Instant::now());
        self.asked_at = self.began;
        self.follow(verdict);
    }

    fn follow(&mut self, verdict: Verdict) {
        for (to, message) in verdict.messages {
            self.post(to, message);
        }
        if self.coordinator.is_idle() {
            self.ongoing = None;
        }
        let goes_on = self.coordinator.going_on().is_some();
        self.going_on = self.going_on.or_else(|| Some(Instant::now())).filter(|_| goes_on);
        match (verdict.news, self.goal) {
            (None, _) => {}
            (Some(News::AtRest), Goal::Leave(slice)) => {
                let next = self.coordinator.part_with(slice);
                self.follow_on(next);
            }
            (Some(News::AtRest), Goal::HandOver(slice)) => {
                let next = self.coordinator.hand_over(slice);
                self.follow_on(next);
            }
            (Some(News::AtRest), Goal::Join(slice)) => {
                let next = self.coordinator.take_in(slice);
                self.follow_on(next);
            }
            (Some(News::AtRest), Goal::MoveDevice(moved)) => {
                let next = self.coordinator.move_device(moved);
                self.follow_on(next);
            }
            (Some(News::AtRest), Goal::Capture(number)) => {
                let next = self.coordinator.capture(number);
                self.follow_on(next);
            }
            (Some(News::AtRest), Goal::Begin) => {
                self.goal = Goal::Rest;
                self.began = Instant::now();
                let verdict = self.coordinator.go_on("all have begun");
                self.follow(verdict);
            }
            (Some(News::AtRest | News::Runs | News::Captured(_)), _) => {
                self.goal = Goal::Rest;
                let given_up = self.given_up.take().map(CutError::GivenUp);
                self.reply(given_up.map_or_else(|| Ok(self.began.elapsed()), Err));
            }
            (Some(News::Parted(slice)), _) => self.reached(slice, "has left"),
            (Some(News::Joined(slice)), _) => self.reached(slice, "has joined"),
            (Some(News::HandedOver(slice)), _) => {
                self.reached(slice, "coordinates the VM from now on");
            }
            (Some(News::Moved(moved)), _) => {
                self.reached(moved.to, &format!("has device {} from now on", moved.device));
            }
            (Some(News::Broken(why)), _) => (self.fail)(why),
            (Some(News::GivenUp(why)), goal) => {
                tracing::warn!("{}: {why}", goal.missed());
                (self.admission, self.began) = (None, Instant::now());
                if self.goal == Goal::Rest {
                    self.reply(Err(CutError::GivenUp(why)));
                } else {
                    // Whoever asked for more than rest may begin the next thing once all run.
                    self.given_up = Some(why);
                }
            }
        }
    }

    /// What the cut was for is done: all go on.
    fn reached(&mut self, slice: SliceId, what: &str) {
        let why = format!("{slice} {what}");
        tracing::info!("{why}; the guest stood still for {:.1?}", self.asked_at.elapsed());
        self.began = Instant::now();
        let verdict = self.coordinator.go_on(&why);
        self.follow(verdict);
    }

    /// A newcomer is reached by frames once it has begun.
    fn post(&mut self, to: SliceId, message: Message) {
        match (message, self.goal) {
            (Message::Take(number, Step::MayJoin(slice)), Goal::Join(newcomer))
                if (slice, to) == (newcomer, newcomer) =>
            {
                if let Some(admission) = self.admission.take() {
                    // Whoever waits there has nothing else to do.
                    let _ = admission.try_send(number);
                }
            }
            (message, _) => (self.send)(to, message),
        }
    }

    /// What follows when all are at rest; if that cannot be, they go on.
    fn follow_on(&mut self, next: Result<Verdict, Refusal>) {
        match next {
            Ok(verdict) => {
                self.began = Instant::now();
                self.follow(verdict);
            }
            Err(error) => {
                let why = self.goal.missed();
                self.goal = Goal::Rest;
                self.reply(Err(error.into()));
                let verdict = self.coordinator.go_on(why);
                self.follow(verdict);
            }
        }
    }

    /// Nobody waits for an answer who could be told.
    fn tell_of_end(&self, why: &str) {
        if self.coordinator.is_at_rest() {
            tracing::warn!("the VM is not paused any more: {why}");
        }
    }

    fn late(&mut self) {
        let Some((step, waiting)) = self.coordinator.asking() else {
            if self.asked.is_none() {
                self.hangs();
            }
            return self.reply(Err(CutError::Silent));
        };
        let slow = names(waiting);
        let why = if let Step::MayJoin(slice) | Step::Join(slice) = step {
            format!("{slow} did not say in time that {slice} can join")
        } else if step.is_repeated() && self.coordinator.has_differed() {
            format!("what slices have sent and received did not agree within {REST_LIMIT:?}")
        } else {
            format!("{slow} did not bring {step} to rest within {REST_LIMIT:?}")
        };
        let verdict = self.coordinator.go_on(&why);
        if step.is_final() {
            (self.fail)(why);
            self.over = true;
            self.reply(Err(CutError::Over));
        }
        self.follow(verdict);
    }

    /// Not all slices go on.
    fn hangs(&mut self) {
        let hang = self.coordinator.going_on().map(names).unwrap_or_default();
        (self.fail)(format!(
            "{hang} did not go on within {GO_ON_LIMIT:?}: does its storage answer?"
        ));
        self.over = true;
    }

    fn reply(&mut self, result: Result<Duration, CutError>) {
        self.admission = None;
        if let Some(reply) = self.asked.take() {
            tell(&reply, result);
        }
    }
}

fn names(slices: &BTreeSet<SliceId>) -> String {
    let names: Vec<_> = slices.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn tell(reply: &Reply, result: Result<Duration, CutError>) {
    // Whoever asked may have gone.
    let _ = reply.try_send(result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::cut_link::CutHandle;
    use crossbeam_channel::unbounded;
    use migrate::cut::PeerCounts;
    use std::thread::JoinHandle;

    const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

    /// A VM whose slices take each step at once, but for one that slice 1 fails, if any. It ends with its handles.
    fn vm(fails: Option<Step>) -> (Sender<Input>, JoinHandle<()>) {
        let (sender, sent) = unbounded();
        let send = move |to, message| sender.send((to, message)).unwrap();
        let coordinator = Coordinator::new(SLICES[0], SLICES.to_vec());
        let driver = start_driver(
            coordinator,
            Operations::default(),
            send,
            |why| panic!("{why}"),
            (|| (), || ()),
        )
        .unwrap();
        // As the links of a slice do, it goes before the thread can end.
        let handle = driver.clone();
        let members = thread::spawn(move || {
            let mut handle = Some(handle);
            for (to, message) in sent {
                let Some(driver) = &handle else { continue };
                let answer = match message {
                    Message::Take(number, step) if fails == Some(step) && to == SLICES[1] => {
                        Message::Failed(number, "no".into())
                    }
                    Message::Take(number, step) => taken(to, number, step),
                    Message::GoOn(number) => Message::GoesOn(number),
                    other => panic!("{other:?}"),
                };
                let last = matches!(answer, Message::GoesOn(2)) && to == SLICES[1];
                driver.send(Input::Message(to, answer)).unwrap();
                if last {
                    handle = None;
                }
            }
        });
        (driver, members)
    }

    #[test]
    fn vm_is_paused_once_and_goes_on_once() {
        let (driver, members) = vm(None);
        let handle = CutHandle::new(driver.clone());
        for _ in 0..2 {
            assert_eq!(handle.ask(Input::Resume), Err(CutError::NotPaused));
            handle.ask(Input::Pause).unwrap();
            assert!(matches!(handle.ask(Input::Pause), Err(CutError::Refused(_))));
            handle.ask(Input::Resume).unwrap();
        }
        drop((driver, handle));
        members.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_vm_that_is_over() {
        let (driver, members) = vm(None);
        let handle = CutHandle::new(driver.clone());
        handle.ask(Input::Pause).unwrap();
        driver.send(Input::Over).unwrap();
        assert_eq!(handle.ask(Input::Resume), Err(CutError::Over));
        assert_eq!(handle.ask(Input::Pause), Err(CutError::Over));
        drop(members);
    }

    /// Its guest must not write to disks of which the checkpoint says what is on them.
    #[test]
    fn vm_that_ends_with_a_checkpoint_stays_at_rest_whatever_happens() {
        let (driver, members) = vm(None);
        let handle = CutHandle::new(driver.clone());
        assert_eq!(handle.ask(Input::Hold), Err(CutError::NotPaused));
        handle.ask(Input::Pause).unwrap();
        handle.ask(Input::Hold).unwrap();
        driver.send(Input::GoOn).unwrap();
        driver.send(Input::Lost(SLICES[1])).unwrap();
        assert_eq!(handle.ask(Input::Resume), Err(CutError::Ends));
        handle.ask(Input::Hold).unwrap();
        handle.release();
        assert_eq!(handle.ask(Input::Resume), Err(CutError::NotPaused), "it was asked to stop");
        assert_eq!(handle.ask(Input::Pause), Err(CutError::Stopping));
        drop(members);
    }

    #[test]
    fn request_to_stop_has_a_paused_vm_go_on() {
        let (driver, members) = vm(None);
        let handle = CutHandle::new(driver.clone());
        handle.ask(Input::Pause).unwrap();
        driver.send(Input::GoOn).unwrap();
        assert_eq!(handle.ask(Input::Resume), Err(CutError::NotPaused));
        assert_eq!(handle.ask(Input::Pause), Err(CutError::Stopping));
        drop(members);
    }

    #[test]
    fn who_asked_is_told_why_the_vm_runs_on() {
        let (driver, members) = vm(Some(Step::Queues));
        let handle = CutHandle::new(driver.clone());
        let why = "slice1 cannot bring the queues to rest: no";
        assert_eq!(handle.ask(Input::Pause), Err(CutError::GivenUp(why.into())));
        // Until all slices have said that they run the next pause is refused.
        while handle.ask(Input::Pause) != Err(CutError::GivenUp(why.into())) {
            thread::yield_now();
        }
        drop((driver, handle));
        members.join().unwrap();
    }

    /// The driver of a VM, on the thread of a test.
    fn driver<S: Fn(SliceId, Message), F: Fn(String)>(send: S, fail: F) -> Thread<S, F> {
        let began = Instant::now();
        Thread {
            coordinator: Coordinator::new(SLICES[0], SLICES.to_vec()),
            operations: Operations::default(),
            ongoing: None,
            send,
            fail,
            asked: None,
            given_up: None,
            goal: Goal::Rest,
            admission: None,
            began,
            asked_at: began,
            going_on: None,
            stopping: false,
            held: None,
            over: false,
        }
    }

    /// What a slice says that takes each step at once.
    fn taken(slice: SliceId, number: u64, step: Step) -> Message {
        let peer = if slice == SLICES[0] { SLICES[1] } else { SLICES[0] };
        let counts = PeerCounts { peer, sent: [4, 4], received: [4, 4] };
        match step {
            Step::Count => Message::Counted(number, Some(vec![counts])),
            step => Message::Taken(number, step),
        }
    }

    /// An image took as long to open as slices have for all steps until then.
    #[test]
    fn last_step_of_a_move_has_time_of_its_own() {
        let moved = DeviceMove { device: 0, from: SLICES[0], to: SLICES[1] };
        let (sender, sent) = unbounded();
        let send = move |to, message| sender.send((to, message)).unwrap();
        let mut thread = driver(send, |why| panic!("{why}"));
        let ongoing = Arc::new(thread.operations.begin(Operation::Move).unwrap());
        thread.take(Input::MoveDevice(moved, ongoing, bounded(1).0));
        let mut began = thread.began;
        let mut last = Step::Vcpus;
        while last != Step::DeviceMoved(moved) {
            let asked: Vec<_> = sent.try_iter().collect();
            assert!(!asked.is_empty(), "nothing follows {last:?}");
            for (to, message) in asked {
                let Message::Take(number, step) = message else { panic!("{message:?}") };
                if step != last && step == Step::MayMove(moved) {
                    began = thread.began;
                }
                last = step;
                if step == Step::DeviceMoved(moved) {
                    break;
                }
                assert_eq!(thread.began, began, "{step:?}");
                thread.take(Input::Message(to, taken(to, number, step)));
            }
        }
        assert!(thread.began > began, "what is left of another step's time may be nothing");
    }

    /// What was on its way once has come since.
    #[test]
    fn slice_that_is_late_after_rest_is_named() {
        let (sender, sent) = unbounded();
        let send = move |to, message| sender.send((to, message)).unwrap();
        let mut thread = driver(send, |why| panic!("{why}"));
        let ongoing = Arc::new(thread.operations.begin(Operation::Checkpoint).unwrap());
        let (reply, answer) = bounded(1);
        thread.take(Input::Capture(7, ongoing, reply));
        let (mut counted, mut captures) = (0, 0);
        while captures < SLICES.len() {
            let asked: Vec<_> = sent.try_iter().collect();
            assert!(!asked.is_empty(), "nothing follows");
            for (to, message) in asked {
                let Message::Take(number, step) = message else { panic!("{message:?}") };
                captures += usize::from(step == Step::Capture(7));
                let mut said = taken(to, number, step);
                if let Message::Counted(_, Some(counts)) = &mut said {
                    counts[0].sent[0] += u64::from(counted == 0);
                    counted += 1;
                }
                if (to, step) != (SLICES[1], Step::Capture(7)) {
                    thread.take(Input::Message(to, said));
                }
            }
        }
        assert!(thread.coordinator.has_differed());

        thread.late();
        let number = thread.coordinator.number();
        for slice in SLICES {
            thread.take(Input::Message(slice, Message::GoesOn(number)));
        }
        let Ok(Err(CutError::GivenUp(why))) = answer.try_recv() else { panic!("not given up") };
        assert!(why.starts_with("slice1 did not bring"), "{why}");
    }

    #[test]
    fn slice_that_does_not_go_on_ends_the_vm_with_its_name() {
        let (sender, sent) = unbounded();
        let (failed, failures) = unbounded();
        let send = move |to, message| sender.send((to, message)).unwrap();
        let mut thread = driver(send, move |why| failed.send(why).unwrap());
        thread.take(Input::Pause(bounded(1).0));
        while !thread.coordinator.is_at_rest() {
            for (to, message) in sent.try_iter().collect::<Vec<_>>() {
                let Message::Take(number, step) = message else { panic!("{message:?}") };
                thread.take(Input::Message(to, taken(to, number, step)));
            }
        }
        assert_eq!(thread.deadline(), None, "a pause lasts as long as it is wanted");

        let (reply, resumed) = bounded(1);
        thread.take(Input::Resume(reply));
        let number = thread.coordinator.number();
        thread.take(Input::Message(SLICES[0], Message::GoesOn(number)));
        assert_eq!(thread.deadline(), Some(thread.began + RESUME_LIMIT));
        thread.late();
        assert_eq!(resumed.try_recv(), Ok(Err(CutError::Silent)));
        assert_eq!(thread.deadline(), thread.going_on.map(|since| since + GO_ON_LIMIT));
        assert!(failures.is_empty());
        thread.late();
        let why = failures.try_recv().unwrap();
        assert_eq!(why, "slice1 did not go on within 600s: does its storage answer?");
        assert_eq!(thread.deadline(), None);
    }
}
