//! One leader, from the beginning of its term to its end.

use super::agents::Agents;
use super::history::{TICKS, forget_history};
use super::load::{LoadError, load};
use crate::decide::{
    Answer, Ask, Call, CallId, Effect, Failure, Input, Orchestrator, Refusal, Reply, Request,
    Settings, Stored, Ticket, Time, Write,
};
use fail_point::FailPoint;
use state::{FormError, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Formatter};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{
    BootTime, CommitError, Key, KeyError, Leadership, Lost, RenewError, Store, Tenure, Txn, keep,
};
use thiserror::Error;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

/// Changes that somebody who watches may be behind.
const CHANGES_MAX: usize = 1024;

/// Names of VMs about which something has changed, by one commit.
pub type Changed = Arc<[Name]>;

/// What the leader knows.
#[derive(Debug)]
pub struct View<'a> {
    /// All of it.
    pub machine: &'a Orchestrator,
    changes: &'a broadcast::Sender<Changed>,
}

impl View<'_> {
    /// All changes from now on. It ends with the leader.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }
}

/// What is asked of a leader.
pub enum Command {
    /// Something is to be done.
    Ask {
        /// By which id, if by any.
        request: Option<Request>,
        /// It is only checked.
        validate_only: bool,
        /// What.
        ask: Box<Ask>,
        /// Who waits. It is dropped if the leader ends before it knows.
        wait: oneshot::Sender<Result<Answer, Refusal>>,
    },
    /// Somebody looks.
    Look(Box<dyn FnOnce(&View<'_>) + Send>),
}

impl Debug for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ask { .. } => "Command::Ask",
            Self::Look(_) => "Command::Look",
        })
    }
}

/// How a leader has ended, when nothing is wrong.
#[derive(Debug)]
pub enum Ended {
    /// Its lease is over.
    Lost(Lost),
    /// The store knows another one.
    Deposed,
    /// It was told to end, or nobody asks any more.
    Closed,
}

/// Why a leader has ended.
#[derive(Debug, Error)]
pub enum LeadError {
    /// It could not begin.
    #[error("begin to lead")]
    Load(#[from] LoadError),
    /// It is not known whether it was written, or it was not.
    #[error("write to the store")]
    Commit(#[from] CommitError),
    /// What it decided cannot be written: a mistake in the program.
    #[error("write what cannot be")]
    Form(#[from] FormError),
    /// The same.
    #[error("write where nothing can be")]
    Key(#[from] KeyError),
    /// A task of it is broken: a mistake in the program.
    #[error("call an agent")]
    Call(#[from] JoinError),
}

/// Whether something has changed when it is done.
fn is_step(effect: &Effect) -> bool {
    match effect {
        Effect::Call { what, .. } => **what != Call::Look,
        Effect::Commit(_) | Effect::Answer { .. } => true,
        Effect::StandDown => false,
    }
}

/// For who looks where a leader has died.
fn words(effect: &Effect) -> String {
    match effect {
        Effect::Commit(writes) => format!("a commit of {} changes", writes.len()),
        Effect::Call { host, what, .. } => {
            let what = format!("{what:?}");
            let name = what.split([' ', '{', '(']).next().unwrap_or_default();
            format!("{name} on {host}")
        }
        Effect::Answer { .. } => "an answer".to_owned(),
        Effect::StandDown => "it stands down".to_owned(),
    }
}

/// How often it looks around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(pub Duration);

/// The time, for the machine.
fn now() -> Time {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Time { ms: BootTime::now().0 / 1_000_000, unix }
}

/// A call that has come to its end, and where it was made.
type Called = (CallId, Name, Result<Reply, Failure>);

struct Leading<'a, S> {
    store: &'a S,
    agents: &'a Agents,
    leadership: &'a Leadership,
    tenure: Tenure,
    machine: Orchestrator,
    calls: JoinSet<Called>,
    waits: BTreeMap<Ticket, oneshot::Sender<Result<Answer, Refusal>>>,
    next: u64,
    changes: broadcast::Sender<Changed>,
    dies: FailPoint,
}

/// Leads until the lease is lost, the store refuses, or it is told to end.
///
/// # Errors
/// What has gone wrong. The store has all that was answered; another leader goes on from there.
pub async fn lead<S: Store>(
    store: &S,
    leadership: &Leadership,
    (settings, pace): (Settings, Pace),
    agents: &Agents,
    commands: &mut mpsc::Receiver<Command>,
    stopped: watch::Receiver<bool>,
) -> Result<Ended, LeadError> {
    let leading = async {
        let objects = load(store).await?;
        let term = state::Term(leadership.term().0);
        let leading = Leading {
            store,
            agents,
            leadership,
            tenure: leadership.tenure(),
            machine: Orchestrator::recover(settings, term, now(), objects),
            calls: JoinSet::new(),
            waits: BTreeMap::new(),
            next: 0,
            changes: broadcast::Sender::new(CHANGES_MAX),
            dies: FailPoint::from_environment(),
        };
        leading.until_it_ends(pace, commands).await
    };
    // Whatever is waited for in it is dropped with it: a commit whose result nobody will know, calls, and those who ask.
    tokio::select! {
        biased;
        lost = keep(store, leadership) => Ok(Ended::Lost(lost)),
        () = vm_service::asked_to_stop(stopped) => Ok(Ended::Closed),
        never = forget_history(store, pace.0.saturating_mul(TICKS)) => match never {},
        ended = leading => ended,
    }
}

impl<S: Store> Leading<'_, S> {
    async fn until_it_ends(
        mut self,
        pace: Pace,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<Ended, LeadError> {
        let mut ticks = interval(pace.0);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let input = tokio::select! {
                Some(ended) = self.calls.join_next() => Some(self.answered(ended?).await),
                command = commands.recv() => match command {
                    Some(command) => self.take(command),
                    None => return Ok(Ended::Closed),
                },
                _ = ticks.tick() => {
                    if let Some(ended) = self.hear_all().await? {
                        return Ok(ended);
                    }
                    Some(Input::Tick)
                }
            };
            let Some(input) = input else { continue };
            let is_tick = input == Input::Tick;
            if let Some(ended) = self.step(input).await? {
                return Ok(ended);
            }
            if is_tick {
                // However long it took: whoever was asked in it has the whole time to the next one.
                ticks.reset();
            }
        }
    }

    /// What has come is heard before time passes: nobody is silent who has answered, however long commits took meanwhile. What comes
    /// now waits, so that time passes at all.
    async fn hear_all(&mut self) -> Result<Option<Ended>, LeadError> {
        let ready: Vec<_> = iter::from_fn(|| self.calls.try_join_next()).collect();
        for ended in ready {
            let input = self.answered(ended?).await;
            if let Some(ended) = self.step(input).await? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    async fn answered(&self, (call, host, result): Called) -> Input {
        let is_known = self.machine.foreign(&host).is_some();
        let is_doubtful = match &result {
            Ok(Reply::Report(report)) => report.foreign.is_some() && !is_known,
            Err(Failure::Deposed) => true,
            _ => false,
        };
        let result = if is_doubtful { self.judged(result).await } else { result };
        Input::Answered { call, result }
    }

    /// A host has heard of a later term. Terms of a store only grow, so if this one leads after the answer has come, nobody of this store
    /// has that term: the host obeys an orchestrator of another one.
    async fn judged(&self, result: Result<Reply, Failure>) -> Result<Reply, Failure> {
        match (self.store.renew(self.leadership).await, result) {
            (Ok(()), Err(_)) => {
                // It was not done. How the host is says the rest.
                Err(Failure::Unreachable("it obeys another orchestrator".to_owned()))
            }
            (Ok(()), report) => report,
            (Err(RenewError::Deposed(_)), _) => Err(Failure::Deposed),
            (Err(RenewError::Unavailable(why)), _) => Err(Failure::Unreachable(why)),
        }
    }

    fn take(&mut self, command: Command) -> Option<Input> {
        match command {
            Command::Ask { request, validate_only, ask, wait } => {
                let ticket = Ticket(self.next);
                self.next += 1;
                self.waits.insert(ticket, wait);
                Some(Input::Asked { ticket, request, validate_only, ask: *ask })
            }
            Command::Look(look) => {
                look(&View { machine: &self.machine, changes: &self.changes });
                None
            }
        }
    }

    /// The lease is over, and who keeps it will say so.
    fn is_over(&self) -> bool {
        !self.tenure.may_decide(BootTime::now())
    }

    async fn step(&mut self, input: Input) -> Result<Option<Ended>, LeadError> {
        if self.is_over() {
            return Ok(Some(Ended::Deposed));
        }
        for effect in self.machine.step(now(), input) {
            if is_step(&effect) {
                self.dies.before(|| words(&effect));
            }
            match effect {
                Effect::Commit(writes) => {
                    let changed = changed(&writes);
                    match self.store.commit(self.txn(writes)?).await {
                        Ok(_) => {}
                        Err(CommitError::Deposed { .. }) => return Ok(Some(Ended::Deposed)),
                        Err(error) => return Err(error.into()),
                    }
                    // It may have taken long. What is not called or answered now, another leader calls and answers.
                    if self.is_over() {
                        return Ok(Some(Ended::Deposed));
                    }
                    if !changed.is_empty() {
                        // Nobody may watch.
                        drop(self.changes.send(changed));
                    }
                }
                Effect::Call { call, host, what } => {
                    let address = self.machine.agent_of(&host).map(str::to_owned);
                    let (agents, term) = (self.agents.clone(), self.machine.term());
                    self.calls.spawn(async move {
                        let result = match address {
                            Some(address) => agents.call(&address, term, &what).await,
                            None => Err(Failure::Unreachable("the host was removed".to_owned())),
                        };
                        (call, host, result)
                    });
                }
                Effect::Answer { ticket, result } => {
                    if let Some(wait) = self.waits.remove(&ticket) {
                        // Whoever asked may be gone.
                        drop(wait.send(result));
                    }
                }
                Effect::StandDown => return Ok(Some(Ended::Deposed)),
            }
        }
        Ok(None)
    }

    fn txn(&self, writes: Vec<Write>) -> Result<Txn, LeadError> {
        let mut txn = Txn::under(store::Term(self.machine.term().0));
        for write in writes {
            txn = match write {
                Write::Put(one) => txn.put(Key::new(&one.key())?, one.to_form()?),
                Write::Delete(key) => txn.delete(Key::new(&key)?),
            };
        }
        Ok(txn)
    }
}

/// VMs about which something is written.
fn changed(writes: &[Write]) -> Changed {
    let of = |write: &Write| match write {
        Write::Put(one) => match &**one {
            Stored::Vm(it) => Some(it.name.clone()),
            Stored::Assignment(it) => Some(it.vm.clone()),
            Stored::Operation(it) => Some(it.vm.clone()),
            Stored::Host(_) | Stored::Secret(_) | Stored::Asked(_) | Stored::Checkpoint(_) => None,
        },
        Write::Delete(key) => {
            let (kind, rest) = key.split_once('/')?;
            let name = rest.split('/').next()?;
            matches!(kind, "vms" | "assignments").then(|| Name::new(name).ok()).flatten()
        }
    };
    let names: BTreeSet<Name> = writes.iter().filter_map(of).collect();
    names.into_iter().collect()
}
