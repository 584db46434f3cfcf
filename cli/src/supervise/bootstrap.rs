//! The supervisor of a VM: does what `migrate::supervise` decides.
//!
//! ```text
//!   signals, child, hosts, checkpoints, the guest that runs ──Event──> main thread ──> Supervisor ──> effects
//! ```

use super::arguments::Supervised;
use super::child::{Child, Exit, News};
use super::former::{self, Begins};
use super::options::OnLost;
use super::passed_on::{of_bootstrap, of_start};
use super::plan::{hosts, plan, policy};
use super::record::{Note, Record};
use super::retired::{self, Done, Retired};
use super::task::{self, End, NotSaved, Save};
use super::{hear_signals, now};
use crate::config::{Who, expand};
use crate::listening::answering;
use crate::log;
use crate::words::{behind, without};
use anyhow::{Context, Result, ensure};
use checkpoint::Key;
use migrate::supervise::{Cause, Effect, Layout, Lives, Place, Reason, Share, Supervisor, Verdict};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use transport::Secret;

/// Status of a supervisor that is stopped while nothing runs.
const STOPPED: u8 = 8;

enum Event {
    Signal,
    Child(News, Option<End>),
    Answers(BTreeSet<u16>),
    /// The guest does, unless its process has ended since; which life of the VM it is.
    Runs(Arc<AtomicBool>, u64),
    /// What a checkpoint is an increment of, or why there is none; how many that were deleted its slices were told of.
    Saved(u64, Result<Option<String>, NotSaved>, usize),
    /// Some are not there any more, or less of them is.
    Deleted(Done),
}

/// A process, and who waits for its guest.
struct Life {
    child: Child,
    is_over: Arc<AtomicBool>,
}

/// All that the main thread has.
struct Driver {
    machine: Supervisor,
    policy: OnLost,
    /// Words of the command line that are a bootstrap's.
    words: Vec<OsString>,
    /// Address of each other host.
    hosts: BTreeMap<u16, SocketAddr>,
    /// The end of the VM's time, if it has one.
    limit: Option<u64>,
    has_devices: bool,
    has_clock: bool,
    control: PathBuf,
    folder: PathBuf,
    /// What the names of its checkpoints begin with.
    prefix: String,
    /// The checkpoint that the VM was restored from in the first place.
    given: Option<PathBuf>,
    key: Option<Arc<Key>>,
    life: Option<Life>,
    /// Which slices of the plan those of the VM are.
    numbers: Vec<u16>,
    /// What the next supervisor is to know, among it the same of each checkpoint.
    record: Record,
    /// The VM has begun before this supervisor did.
    again: bool,
    /// The number of the next checkpoint.
    next: u64,
    /// Numbers of checkpoints whose names somebody else has taken. They are not ours to delete.
    taken: BTreeSet<u64>,
    /// Those that are not needed any more.
    retired: Retired,
    missing: Vec<u16>,
    last: Option<Exit>,
    over: Option<Reason>,
    sender: Sender<Event>,
}

/// Supervises to the end; the exit status.
pub(super) fn run(arguments: Supervised) -> Result<u8> {
    let (sender, events) = channel();
    let given = behind(2);
    let (arguments, words) = match &arguments.bootstrap.config {
        Some(path) => expand(path, &given, Who::Supervisor)?,
        None => (arguments, given),
    };
    let mut driver = Driver::new(arguments, &words, sender.clone())?;
    hear_signals(move || drop(sender.send(Event::Signal)))?;
    let verdict = match driver.again {
        true => driver.machine.begin_again(now(), driver.record.life()),
        false => driver.machine.begin(now()),
    };
    driver.execute(verdict)?;
    driver.supervise(&events)
}

impl Driver {
    fn new(arguments: Supervised, words: &[OsString], sender: Sender<Event>) -> Result<Self> {
        arguments.check()?;
        let Supervised { on_lost, spares, fits, patience, bootstrap } = arguments;
        let control = bootstrap.local.control.clone();
        let control = control.context("a supervisor needs --control, to ask for checkpoints")?;
        let folder = bootstrap.local.checkpoints.clone();
        let folder = folder.context("a supervisor needs --checkpoints, the folder for them")?;
        let folder = absolute(&folder).context("find the folder of checkpoints")?;
        ensure!(folder.is_dir(), "{} is no folder for checkpoints", folder.display());
        ensure!(folder.to_str().is_some(), "the path of the folder of checkpoints is no text");
        let secret = bootstrap.secret_file.as_deref().map(Secret::load).transpose();
        let secret = secret.context("load the VM's secret")?;
        let key = secret.as_ref().map(|secret| Arc::new(secret.derive(Key::of_secret)));
        let key = key.filter(|_| !bootstrap.restore.unauthenticated);
        let plan = plan(&bootstrap, &spares, fits, secret.as_ref())?;
        let hosts = hosts(&bootstrap, spares)?;
        if bootstrap.secret_file.is_none() {
            // Without a secret it has one slice, and no memory engine.
            log::say(
                "supervisor: warning: without --secret-file the guest stands still until each checkpoint is written; \
                 with it, only for a moment",
            );
        }
        bootstrap.companions()?;
        let at = absolute(&control).context("find the control socket")?;
        let Begins { record, shelf, next, again, unfinished } =
            former::begin(&folder, &at, &bootstrap, (secret.as_ref(), key.as_deref()))?;
        let limit = bootstrap.limit.map(|seconds| now().saturating_add(seconds * 1000));
        let given = bootstrap.restore.restore.clone();
        let numbers = (0..).take(plan.slices.len()).collect::<Vec<u16>>();
        let policy = policy(&on_lost, (bootstrap.lease, patience.saturating_mul(1000)));
        let words = of_bootstrap(words);
        let has_clock = without(&words, &["clock"], &[]) != words;
        let driver = Self {
            machine: Supervisor::new(policy, plan, shelf, next),
            policy: on_lost,
            words,
            hosts,
            limit,
            has_devices: !bootstrap.devices.specs().is_empty(),
            has_clock,
            control,
            folder,
            prefix: former::prefix(&record.header.id),
            given,
            key,
            life: None,
            numbers,
            record,
            again,
            next,
            taken: BTreeSet::new(),
            retired: Retired::default(),
            missing: Vec::new(),
            last: None,
            over: None,
            sender,
        };
        if !unfinished.is_empty() {
            driver.beside("delete", move || Event::Deleted(retired::retire(unfinished)))?;
        }
        Ok(driver)
    }

    fn supervise(&mut self, events: &Receiver<Event>) -> Result<u8> {
        while self.over.is_none() {
            let due = self.machine.due();
            let event = match due {
                None => Some(events.recv().context("wait for events")?),
                Some(due) => {
                    let wait = Duration::from_millis(due.saturating_sub(now()));
                    match events.recv_timeout(wait) {
                        Ok(event) => Some(event),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(error) => return Err(error).context("wait for events"),
                    }
                }
            };
            let verdict = match event {
                Some(event) => self.take(event),
                None => self.machine.passed(now()),
            };
            self.execute(verdict)?;
        }
        let reason = self.over.unwrap_or(Reason::Stopped);
        log::say(&format!("supervisor: {reason}"));
        if reason == Reason::Ended(Cause::Overtaken)
            && let Err(error) = self.record.set_aside()
        {
            tracing::error!("the next supervisor will take the VM back: {error:#}");
        }
        if reason.is_end() {
            drop(retired::bury(self.retired.end()));
            if let Err(error) = self.record.remove() {
                tracing::error!("the next supervisor will go on with this VM: {error:#}");
            }
        }
        let last = self.last.filter(|_| reason != Reason::Stopped);
        Ok(last.map_or(STOPPED, Exit::status))
    }

    fn take(&mut self, event: Event) -> Verdict {
        let now = now();
        match event {
            Event::Signal => self.machine.stop(),
            // The next life does not run because the one before did.
            Event::Runs(is_over, _) if is_over.load(Ordering::SeqCst) => Vec::new(),
            Event::Runs(_, life) => {
                self.machine.runs(now, life);
                self.note(false);
                log::say("supervisor: the VM runs");
                Vec::new()
            }
            Event::Answers(answering) => {
                // Before, a companion whose slice is about to stop does not wait yet.
                if now >= self.machine.fenced_at() {
                    self.tell_missing(&answering);
                }
                self.machine.answers(now, &answering)
            }
            Event::Child(News::Halted(halted), _) => {
                self.machine.halted(now, halted);
                Vec::new()
            }
            Event::Child(News::Ended(exit), end) => self.ended((exit, end), now),
            Event::Saved(number, Ok(base), told) => {
                tracing::info!("supervisor: checkpoint {} is there", self.path(number).display());
                self.note(true);
                self.bury(told);
                let base = base.and_then(|name| name.strip_prefix(&self.prefix)?.parse().ok());
                self.machine.committed(now, number, base)
            }
            Event::Deleted(done) => {
                self.retired.add(done);
                Vec::new()
            }
            Event::Saved(number, Err(NotSaved { why, is_taken }), _) => {
                let path = self.path(number);
                tracing::warn!("supervisor: no checkpoint {}: {why}", path.display());
                if is_taken {
                    self.taken.insert(number);
                }
                self.machine.not_committed(now, number)
            }
        }
    }

    fn ended(&mut self, (exit, end): (Exit, Option<End>), now: u64) -> Verdict {
        self.last = Some(exit);
        if let Some(life) = self.life.take() {
            life.is_over.store(true, Ordering::SeqCst);
        }
        let End { cause, waits_for } = end.unwrap_or_else(|| End::of(Cause::Lost));
        let verdict = self.machine.ended(now, cause);
        if self.machine.is_over() {
            return verdict;
        }
        let at_least = self.machine.fenced_at().max(self.machine.due().unwrap_or(0));
        let at_least = at_least.saturating_sub(now);
        let again = format!("and runs again when {at_least} ms have passed at the earliest");
        log::say(&match waits_for {
            Some(what) => format!(
                "supervisor: the VM was refused ({exit}), and waits for {what}; it is tried again and again, {again}"
            ),
            None => {
                format!("supervisor: the VM has ended ({exit}); it is to be started again, {again}")
            }
        });
        verdict
    }

    /// What the next supervisor is to know. This one goes on without it.
    fn note(&mut self, has_saved: bool) {
        let (next, slices) = (self.next, self.numbers.clone());
        let (life, has_saved) = (self.machine.life(), has_saved || self.record.has_saved());
        if let Err(error) = self.record.note(Note { next, slices, has_saved, life }) {
            tracing::warn!("a supervisor that starts after this one may not go on: {error:#}");
        }
    }

    /// Slices know of so many more checkpoints that they are not there any more.
    fn bury(&mut self, told: usize) {
        let paths = self.retired.told(told);
        if !paths.is_empty()
            && let Err(error) = self.beside("bury", move || Event::Deleted(retired::bury(paths)))
        {
            tracing::warn!("what is left of old checkpoints stays: {error:#}");
        }
    }

    fn tell_missing(&mut self, answering: &BTreeSet<u16>) {
        let missing = self.machine.plan().missing(answering);
        if missing != self.missing && !missing.is_empty() {
            let of = |slice: &u16| self.hosts.get(slice).map(ToString::to_string);
            let hosts: Vec<_> = missing.iter().filter_map(of).collect();
            log::say(&format!("supervisor: no companion waits at {}", hosts.join(", ")));
        }
        self.missing = missing;
    }

    fn execute(&mut self, verdict: Verdict) -> Result<()> {
        let deleted = verdict.iter().filter_map(|effect| match effect {
            Effect::Delete(number) if !self.taken.contains(number) => Some(self.path(*number)),
            _ => None,
        });
        let mut deleted: Vec<_> = deleted.collect();
        if !deleted.is_empty() {
            deleted.extend(self.retired.take_left());
            self.beside("delete", move || Event::Deleted(retired::retire(deleted)))?;
        }
        for effect in verdict {
            match effect {
                Effect::Ask => {
                    let hosts: Vec<_> = self.hosts.iter().map(|(host, at)| (*host, *at)).collect();
                    self.beside("ask", move || Event::Answers(answering(&hosts)))?;
                }
                Effect::Start { from, lazy, fenced_at, lives, layout } => {
                    self.start((from, lazy, fenced_at, lives), &layout)?;
                }
                Effect::Checkpoint { number, base } => self.save(number, base.is_some())?,
                Effect::Late { number, since } => self.tell_late(number, since),
                Effect::Stop => self.life.iter().for_each(|life| life.child.ask_to_stop()),
                Effect::Kill => self.life.iter().for_each(|life| life.child.signal(Signal::KILL)),
                Effect::Over(reason) => self.over = Some(reason),
                Effect::Delete(_) => {}
            }
        }
        Ok(())
    }

    fn tell_late(&self, number: u64, since: u64) {
        let (path, seconds) = (self.path(number), now().saturating_sub(since) / 1000);
        tracing::warn!(
            number,
            seconds,
            "supervisor: checkpoint {} is still not written after {seconds} s, and the next ones wait for it: what the guest does is \
             lost with a slice",
            path.display()
        );
    }

    fn save(&mut self, number: u64, incremental: bool) -> Result<()> {
        let OnLost { compress, no_disk_guarantee, .. } = self.policy;
        let (control, path, key) = (self.control.clone(), self.path(number), self.key.clone());
        let released = self.retired.numbers();
        let told = released.len();
        let save = Save { control, path, key, incremental, compress, no_disk_guarantee, released };
        self.next = number + 1;
        self.beside("checkpoint", move || Event::Saved(number, save.write(), told))
    }

    fn start(
        &mut self,
        (from, lazy, fenced_at, lives): (Option<u64>, bool, u64, Option<Lives>),
        Layout(places): &Layout,
    ) -> Result<()> {
        let path = from.map(|number| self.path(number));
        let place = |place: &Place| match self.hosts.get(&place.host) {
            Some(address) => format!("slice {} at {address}", place.slice),
            None => "slice 0 here".to_owned(),
        };
        let on: Vec<_> = places.iter().map(place).collect();
        let how = match &path {
            Some(path) => format!("goes on from {}", path.display()),
            None => "begins".to_owned(),
        };
        log::say(&format!("supervisor: the VM {how}: {}", on.join(", ")));
        let mut words = self.words_for(from, path.as_deref(), places);
        words.extend(lazy.then(|| "--lazy".into()));
        if from.is_some() && now() < fenced_at {
            words.extend(["--fenced-at".into(), fenced_at.to_string().into()]);
        }
        if let Some(Lives { last, next }) = lives {
            words.extend(["--lives".into(), format!("{last}:{next}").into()]);
        }
        self.numbers = places.iter().map(|place| place.slice).collect();
        self.note(false);
        let (sender, key) = (self.sender.clone(), self.key.clone());
        let record = self.record.path.clone();
        let child = Child::start(&words, move |news| {
            let cause = match news {
                News::Ended(exit) => {
                    let how = (exit, now() >= fenced_at);
                    Some(task::end(how, path.as_deref(), key.as_deref(), &record))
                }
                News::Halted(_) => None,
            };
            drop(sender.send(Event::Child(news, cause)));
        })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (control, over, sender) = (self.control.clone(), is_over.clone(), self.sender.clone());
        task::beside("runs", move || {
            if let Some(life) = task::runs(&control, &over)
                && !over.load(Ordering::SeqCst)
            {
                drop(sender.send(Event::Runs(over, life)));
            }
        })?;
        self.life = Some(Life { child, is_over });
        Ok(())
    }

    /// What a bootstrap is started with.
    fn words_for(&self, from: Option<u64>, path: Option<&Path>, places: &[Place]) -> Vec<OsString> {
        let mut words = vec![OsString::from("bootstrap")];
        words.extend(of_start(&self.words, from.is_some()));
        for place in places {
            words.extend(["--slice".into(), self.slice(place).into()]);
        }
        let numbers: Vec<_> = places.iter().map(|place| place.slice).collect();
        let were = self.were(from, &numbers);
        if !were.iter().copied().eq(0..u16::try_from(were.len()).unwrap_or(u16::MAX)) {
            let were: Vec<_> = were.iter().map(ToString::to_string).collect();
            words.extend(["--slices-were".into(), were.join(",").into()]);
        }
        if let Some(path) = path {
            words.extend(["--restore".into(), path.into()]);
            // Whoever looks at the guest's clock after a loss wants to know what time it is.
            if !self.has_clock {
                words.extend(["--clock", "catch-up"].map(OsString::from));
            }
        }
        if let Some(limit) = self.limit {
            let seconds = limit.saturating_sub(now()).div_ceil(1000).max(1);
            words.extend(["--limit".into(), seconds.to_string().into()]);
        }
        words
    }

    /// Which slices these are for the devices: of the plan if the command line says what devices there are, else of the checkpoint.
    fn were(&self, from: Option<u64>, numbers: &[u16]) -> Vec<u16> {
        // The one that was given has those of the plan.
        let saved = from.filter(|number| *number > 0);
        let saved = saved.and_then(|number| self.record.slices_of(number));
        match saved.filter(|_| !self.has_devices) {
            None => numbers.to_vec(),
            Some(saved) => {
                let at = |of: &u16| (0..).zip(saved).find(|(_, other)| *other == of);
                // One that the checkpoint does not have has no devices in it either.
                numbers.iter().map(|of| at(of).map_or(u16::MAX, |(at, _)| at)).collect()
            }
        }
    }

    fn slice(&self, place: &Place) -> String {
        let Share { vcpus, spare_vcpus, memory } = place.share;
        let at =
            self.hosts.get(&place.host).map_or_else(|| "local".to_owned(), ToString::to_string);
        format!("{at},cpus={vcpus},max-cpus={},memory={memory}", vcpus + spare_vcpus)
    }

    fn path(&self, number: u64) -> PathBuf {
        match &self.given {
            Some(given) if number == 0 => given.clone(),
            _ => self.folder.join(format!("{}{number}", self.prefix)),
        }
    }

    /// Has something done that takes time, and ends with an event.
    fn beside(&self, name: &str, work: impl FnOnce() -> Event + Send + 'static) -> Result<()> {
        let sender = self.sender.clone();
        task::beside(name, move || drop(sender.send(work())))
    }
}
