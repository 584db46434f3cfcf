//! The thread of an agent.

use super::{AskError, Asker, Message};
use crate::decide::{
    Agent, Asked, Effect, End, Found, Input, Journal, Phase, Process, Request, Settings, Slice,
    SliceName, Term, Ticket, Token,
};
use crate::journal::{JournalError, JournalFile, Opened};
use crate::processes::{Processes, end, is_there, watch};
use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, never, select, tick, unbounded};
use fail_point::FailPoint;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Reservations expire, and a journal that could not be written is tried again.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    settings: Settings,
    agent: Agent,
    /// Nothing is begun before this has been done.
    first: Vec<Effect>,
    file: JournalFile,
    processes: Processes,
    /// Ends of slices; there are no more of them than slices.
    tell: Sender<Input>,
    news: Receiver<Input>,
    /// Processes whose end is told here, and was not heard yet: each counts as there until it is.
    watched: BTreeMap<Token, Process>,
    /// Why slices could not be started, until that is recorded.
    not_started: BTreeMap<Token, End>,
    /// Who waits for an answer.
    tickets: BTreeMap<Ticket, Asker>,
    next_ticket: u64,
    /// What a restart of the host means is not recorded yet.
    host_restarted: bool,
    /// Why nothing can be recorded.
    sick: Option<String>,
    seen: Arc<ArcSwap<Journal>>,
    dies: FailPoint,
}

impl Worker {
    pub(super) fn new(
        settings: Settings,
        opened: Opened,
        processes: Processes,
        seen: Arc<ArcSwap<Journal>>,
    ) -> io::Result<Self> {
        let Opened { file, journal, host_restarted } = opened;
        let found = found(&processes, &journal, &BTreeMap::new(), host_restarted)?;
        let (agent, first) = Agent::recover(settings, journal, now(), &found);
        let (tell, news) = unbounded();
        Ok(Self {
            settings,
            agent,
            first,
            file,
            processes,
            tell,
            news,
            watched: BTreeMap::new(),
            not_started: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            host_restarted,
            sick: None,
            seen,
            dies: FailPoint::from_environment(),
        })
    }

    /// Until somebody has it end, or nobody can ask any more.
    pub(super) fn work(mut self, asked: &Receiver<Message>) {
        let first = std::mem::take(&mut self.first);
        self.begin(first);
        let (all_news, nothing, ticks) = (self.news.clone(), never(), tick(TICK));
        loop {
            // What cannot be recorded is not heard.
            let news = if self.sick.is_none() { &all_news } else { &nothing };
            select! {
                recv(asked) -> message => match message {
                    Ok(Message(Some((term, request, asker)))) => self.take(term, request, asker),
                    Ok(Message(None)) | Err(_) => break,
                },
                recv(news) -> input => input.into_iter().for_each(|input| self.hear(input)),
                recv(ticks) -> _ => self.tick(),
            }
        }
        // Who has asked meanwhile has no answer.
        while asked.try_recv().is_ok() {}
    }

    fn take(&mut self, term: Term, request: Request, asker: Asker) {
        if let Some(why) = &self.sick {
            return asker.tell(Err(AskError::Journal(why.clone())));
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tickets.insert(ticket, asker);
        self.step(Input::Asked(Asked { term, ticket, request }));
    }

    /// Does what follows from what was found.
    fn begin(&mut self, effects: Vec<Effect>) {
        self.carry(effects);
        if self.sick.is_none() && self.host_restarted {
            match self.file.confirm_boot() {
                Ok(()) => self.host_restarted = false,
                Err(error) => self.fall_sick(&error),
            }
        }
        self.watch_all();
    }

    /// Takes news, which are told once: those that could not be recorded are heard again when they can be.
    fn hear(&mut self, news: Input) {
        self.step(news.clone());
        if self.sick.is_some() {
            let _ = self.tell.send(news);
        } else if let Input::Ended(token, _) = news {
            self.watched.remove(&token);
            self.not_started.remove(&token);
        }
    }

    fn step(&mut self, input: Input) {
        let effects = self.agent.step(now(), input);
        self.carry(effects);
    }

    fn tick(&mut self) {
        if self.sick.is_some() {
            return self.begin_again();
        }
        self.watch_all();
        self.step(Input::Tick);
    }

    /// Carries effects out, in their order. If something cannot be recorded, nothing after it is done.
    fn carry(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.dies.before(|| effect.word());
            match effect {
                Effect::Record(entries) => {
                    if let Err(error) = self.file.record(&entries) {
                        return self.fall_sick(&error);
                    }
                    self.seen.store(Arc::new(self.agent.journal().clone()));
                }
                Effect::Start { slice, token, order, .. } => self.start(slice, token, &order.words),
                Effect::End { process, manner, .. } => end(process, manner),
                Effect::Answer { ticket, result } => {
                    if let Some(asker) = self.tickets.remove(&ticket) {
                        asker.tell(result.map_err(AskError::Refused));
                    }
                }
            }
        }
    }

    /// Tells this thread of the end of a slice.
    fn hears_of(&self, token: Token) -> impl FnOnce(End) + Send + use<> {
        let tell = self.tell.clone();
        move |end| {
            // It fails once the agent has ended.
            let _ = tell.send(Input::Ended(token, end));
        }
    }

    fn start(&mut self, slice: SliceName, token: Token, words: &[String]) {
        let news = match self.processes.start(slice, token, words, self.hears_of(token)) {
            Ok(process) => {
                self.watched.insert(token, process);
                Input::Started(token, process)
            }
            Err(error) => {
                let end = End::NotStarted(error.to_string());
                self.not_started.insert(token, end.clone());
                Input::Ended(token, end)
            }
        };
        let _ = self.tell.send(news);
    }

    /// Hears of the ends of slices that a former agent has started, of those of which nobody does yet.
    fn watch_all(&mut self) {
        let all = self.agent.journal().slices.values();
        let running: Vec<_> = all
            .filter_map(|slice| match slice.phase {
                Phase::Running(process) => Some((slice.token, process)),
                _ => None,
            })
            .filter(|(token, _)| !self.watched.contains_key(token))
            .collect();
        for (token, process) in running {
            match watch(process, self.hears_of(token)) {
                Ok(()) => drop(self.watched.insert(token, process)),
                // It is tried again: what cannot be watched has not ended.
                Err(error) => tracing::warn!(%error, "a slice cannot be watched"),
            }
        }
    }

    fn fall_sick(&mut self, error: &JournalError) {
        let cause =
            std::error::Error::source(error).map_or_else(String::new, |it| format!(": {it}"));
        let why = format!("{error}{cause}");
        tracing::error!("the journal cannot be written, slices go on and nothing is begun: {why}");
        for asker in std::mem::take(&mut self.tickets).into_values() {
            asker.tell(Err(AskError::Journal(why.clone())));
        }
        self.sick = Some(why);
    }

    /// As after a kill: from what is on the disk, and what runs. Of what has ended meanwhile the end is heard after this, with its status.
    fn begin_again(&mut self) {
        let journal = match self.file.reopen() {
            Ok(journal) => journal,
            Err(error) => return self.fall_sick(&error),
        };
        let found = match found(&self.processes, &journal, &self.watched, self.host_restarted) {
            Ok(found) => found,
            Err(error) => return tracing::error!(%error, "processes of slices cannot be found"),
        };
        let found = Found { ended: self.not_started.clone(), ..found };
        let (agent, effects) = Agent::recover(self.settings, journal, now(), &found);
        self.agent = agent;
        self.sick = None;
        self.begin(effects);
        if self.sick.is_none() {
            self.seen.store(Arc::new(self.agent.journal().clone()));
            tracing::warn!("the journal can be written again");
        }
    }
}

/// What there is of the slices of a journal.
fn found(
    of: &Processes,
    journal: &Journal,
    watched: &BTreeMap<Token, Process>,
    host_restarted: bool,
) -> io::Result<Found> {
    let mut processes = BTreeMap::new();
    let is_unknown =
        |slice: &Slice| slice.phase == Phase::Starting && !watched.contains_key(&slice.token);
    // What was being started is known by what it carries only.
    if journal.slices.values().any(is_unknown) && !host_restarted {
        processes = of.find()?;
    }
    for slice in journal.slices.values() {
        match (&slice.phase, watched.get(&slice.token)) {
            (Phase::Starting | Phase::Running(_), Some(process)) if !host_restarted => {
                processes.insert(slice.token, *process);
            }
            (Phase::Running(process), None) if !host_restarted && is_there(*process)? => {
                processes.insert(slice.token, *process);
            }
            (Phase::Starting, _) => {}
            // A child of it may carry the same.
            (Phase::Running(_) | Phase::Ended(_), _) => drop(processes.remove(&slice.token)),
        }
    }
    Ok(Found { host_restarted, processes, ..Found::default() })
}

/// Milliseconds of the clock that goes on while the host sleeps.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}
