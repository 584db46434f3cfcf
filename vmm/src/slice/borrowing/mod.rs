//! When vCPUs of other slices are there, and when at home, on the bootstrap's slice: [`migrate::borrowed`] says it, this has them go and come.
//!
//! ```text
//!   After:    all at home ──so long──> each to its own slice ──> over
//!   Adaptive: a window ──loads of all slices──> [Adaptive] ──the other side──> each of them there ──> a window ...
//!             a move that is refused because something else goes on ──a pause──> again
//!             nothing is borrowed any more, or another slice coordinates ──> over
//! ```
//! A kernel that boots, and the services that it starts, run hundreds of short programs, each of which costs a vCPU of another slice hundreds of
//! page faults and gains nothing there (decision 77). The guest's tables say from the start where the vCPUs will be. Moves are asked for as people
//! ask for them, at the desk; whatever people move is theirs from then on.

mod loads;
mod setting;

pub(super) use loads::own_load;
pub use setting::{Borrow, BorrowError};

use super::BOOTSTRAP;
use super::channels::Channels;
use super::spec::Shape;
use crate::control::{Answer, Desk, MoveVcpuRequest, Reason, Request};
use crate::machine::Machine;
use loads::Meter;
use migrate::borrowed::{Adaptive, Borrowed, Side};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use wire::{SliceId, VcpuId};

/// Until a move that was refused is tried again: at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How often a move is tried that fails while nothing else goes on.
const TRIES: u32 = 8;
/// Between two looks whether somebody has moved a vCPU.
const LOOK: Duration = Duration::from_secs(1);
/// For the slice to coordinate its VM.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// Sees to it from now on. `restored`: the VM goes on from a checkpoint, with its vCPUs on their slices.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start(
    borrow: Borrow,
    (channels, machine): (&Arc<Channels>, Machine),
    desk: &Desk,
    (shape, restored): (&Shape, bool),
) -> io::Result<()> {
    let side = if restored { Side::Away } else { Side::Home };
    let rule = match borrow {
        Borrow::Always => return Ok(()),
        Borrow::After(_) if restored => return Ok(()),
        Borrow::After(after) => Rule::Once(Instant::now() + after),
        Borrow::Adaptive(window) => {
            let cores = shape.own_vcpus();
            Rule::Adaptive { policy: Adaptive::new(side, cores), window }
        }
    };
    *channels.borrowed.lock() =
        Some(Borrowed::new(&shape.placement, BOOTSTRAP, side, shape.present));
    let keeper = Keeper {
        rule,
        again: AGAIN.0,
        failed: 0,
        said: String::new(),
        channels: Arc::downgrade(channels),
        desk: desk.clone(),
        machine,
    };
    thread::Builder::new().name("borrowing".into()).spawn(move || keeper.run()).map(drop)
}

/// When they go.
enum Rule {
    /// Away, at this time.
    Once(Instant),
    /// As their loads say.
    Adaptive { policy: Adaptive, window: Duration },
}

/// Why it ends.
enum Over {
    /// There is nothing to do any more.
    Done,
    /// The VM is over, or another slice coordinates it: people have things done to it.
    Elsewhere,
}

struct Keeper {
    rule: Rule,
    again: Duration,
    /// Times that the next move has failed.
    failed: u32,
    /// Why the last move was not made: a reason is told once.
    said: String,
    channels: Weak<Channels>,
    desk: Desk,
    machine: Machine,
}

impl Keeper {
    fn run(mut self) {
        let over = self.wait_to_coordinate().and_then(|()| self.keep());
        if let Some(channels) = self.channels.upgrade() {
            *channels.borrowed.lock() = None;
        }
        if matches!(over, Err(Over::Elsewhere)) {
            tracing::info!(
                "--borrow moves no vCPU any more: the VM is over, or another slice coordinates it"
            );
        }
    }

    fn channels(&self) -> Result<Arc<Channels>, Over> {
        self.channels.upgrade().ok_or(Over::Elsewhere)
    }

    fn coordinates(&self) -> bool {
        let is_over = self.channels.upgrade().is_none_or(|channels| channels.cut.is_over());
        !is_over && self.desk.look().is_some_and(|look| look.leads)
    }

    fn wait_to_coordinate(&self) -> Result<(), Over> {
        let end = Instant::now() + BEGIN_LIMIT;
        while !self.coordinates() {
            if Instant::now() > end {
                tracing::warn!(
                    "this slice does not coordinate its VM after {BEGIN_LIMIT:?}: vCPUs stay where they are"
                );
                return Err(Over::Done);
            }
            self.channels()?;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn keep(&mut self) -> Result<(), Over> {
        loop {
            let side = self.wanted()?;
            loop {
                if !self.coordinates() {
                    return Err(Over::Elsewhere);
                }
                let channels = self.channels()?;
                let Some((vcpu, to)) = next(&channels, side)? else { break };
                drop(channels);
                self.bring(vcpu, to, side)?;
            }
            if side == Side::Away && matches!(self.rule, Rule::Once(_)) {
                tracing::info!("the guest has booted at home: its vCPUs are on their slices now");
                return Err(Over::Done);
            }
        }
    }

    /// Waits for a moment, or a window; where they are to be then.
    fn wanted(&mut self) -> Result<Side, Over> {
        match &mut self.rule {
            Rule::Once(at) => {
                let left = at.saturating_duration_since(Instant::now());
                thread::sleep(left.min(LOOK));
                Ok(if left > LOOK { Side::Home } else { Side::Away })
            }
            Rule::Adaptive { policy, window } => {
                let (window, channels) = (*window, self.channels.clone());
                let mut meter = Meter::new(channels, &self.machine);
                let Some(load) = meter.window(window).ok_or(Over::Elsewhere)? else {
                    return Ok(policy.side());
                };
                tracing::debug!(?load, ?policy, "a window");
                if policy.observe(&load) {
                    let goes = match policy.side() {
                        Side::Away => "go to their slices".to_owned(),
                        Side::Home => {
                            format!("come home for {} windows at least", policy.hold_off())
                        }
                    };
                    tracing::info!(
                        "borrowed vCPUs {goes}: in the last {:?} all vCPUs ran for {:?}, waited {:?} for a processor and {:?} for pages",
                        load.length,
                        load.run,
                        load.delayed,
                        load.waited,
                    );
                }
                Ok(policy.side())
            }
        }
    }

    /// The next vCPU has all of its tries.
    fn begin_anew(&mut self) {
        (self.again, self.failed) = (AGAIN.0, 0);
    }

    /// Has a vCPU move, or waits until that can be tried again.
    fn bring(&mut self, vcpu: VcpuId, to: SliceId, side: Side) -> Result<(), Over> {
        let request = MoveVcpuRequest { vcpu: vcpu.0, slice: to.0 };
        let answer = self.desk.ask(&Request::MoveVcpu(request), &mut |_| ());
        let channels = self.channels()?;
        let is_there = || channels.placement.load().slice_of(vcpu) == Some(to);
        let Answer::Refused(refusal) = answer else {
            moved(&channels, vcpu, side);
            self.begin_anew();
            return Ok(());
        };
        let waits = matches!(refusal.reason, Reason::Busy(_) | Reason::Paused);
        self.failed += u32::from(!waits);
        match refusal.reason {
            Reason::Over | Reason::NotLeader { .. } => return Err(Over::Elsewhere),
            // What was not heard of may have been done.
            _ if is_there() => {
                moved(&channels, vcpu, side);
                self.begin_anew();
            }
            reason if waits || may_pass(&reason) && self.failed < TRIES => {
                if self.said != refusal.message {
                    tracing::info!("{vcpu} does not go to {to} yet: {}", refusal.message);
                    self.said = refusal.message;
                }
                drop(channels);
                thread::sleep(self.again);
                self.again = (self.again * 2).min(AGAIN.1);
            }
            _ => {
                tracing::warn!(
                    "{vcpu} stays where it is, for it cannot go to {to}: {}; tessera vm move tries again",
                    refusal.message
                );
                self.begin_anew();
                if let Some(group) = &mut *channels.borrowed.lock() {
                    group.refused(vcpu);
                }
            }
        }
        Ok(())
    }
}

/// The next move, after a look at where everything is.
fn next(channels: &Channels, side: Side) -> Result<Option<(VcpuId, SliceId)>, Over> {
    let mut group = channels.borrowed.lock();
    let group = group.as_mut().ok_or(Over::Done)?;
    for (vcpu, why) in group.observe(&channels.placement.load()) {
        tracing::info!("{vcpu} stays where it is from now on: {why}");
    }
    if group.is_empty() { Err(Over::Done) } else { Ok(group.next(side)) }
}

fn moved(channels: &Channels, vcpu: VcpuId, side: Side) {
    if let Some(group) = &mut *channels.borrowed.lock() {
        group.moved(vcpu, side);
    }
}

/// Whether it is worth some more tries although nothing else goes on.
fn may_pass(reason: &Reason) -> bool {
    matches!(reason, Reason::Silent | Reason::EngineSilent | Reason::Partly { .. } | Reason::Failed)
}
