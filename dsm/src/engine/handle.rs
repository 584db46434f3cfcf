//! How the rest of the VMM talks to the engine.

use super::command::{Command, Commands, CopyError, OwnCommands, Receiver, Release, Tuning};
use super::waker::Waker;
use crate::observe::{Report, Site, TraceReport, Tracing};
use crossbeam_channel::{self as channel, RecvTimeoutError, Sender, TrySendError, bounded};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::Class;
use wire::{Gfn, SliceId, VcpuId};

/// Commands that may wait for the engine. A sender beyond that blocks until the engine has room.
const COMMANDS_MAX: usize = 4096;
/// For an engine that is to end to have room for being told so.
const STOP_LIMIT: Duration = Duration::from_secs(5);

fn send(to: Receiver, class: Class, frame: Vec<u8>) -> Command {
    Command::Send(Release { to, class, frame })
}

/// A way to reach the engine from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Sender<Command>,
    /// What nobody takes any more.
    left: channel::Receiver<Command>,
    waker: Arc<Waker>,
    pub(crate) own: Arc<OwnCommands>,
}

impl Handle {
    pub(crate) fn pair() -> Result<(Self, Commands, Arc<Waker>), std::io::Error> {
        let waker = Arc::new(Waker::new()?);
        let (commands, receiver) = bounded(COMMANDS_MAX);
        let (left, own) = (receiver.clone(), Arc::default());
        let taken = Commands { receiver, waker: Arc::clone(&waker) };
        Ok((Self { commands, left, waker: Arc::clone(&waker), own }, taken, waker))
    }

    pub(crate) fn post(&self, command: Command) -> bool {
        if self.own.is_here() {
            self.own.push(command);
            self.waker.wake();
            return true;
        }
        let sent = self.commands.send(command).is_ok();
        self.waker.wake();
        sent && self.is_heard()
    }

    /// The same, unless there is no room for so long.
    fn post_within(&self, command: Command, limit: Duration) -> bool {
        if self.own.is_here() {
            return self.post(command);
        }
        let sent = self.commands.send_timeout(command, limit).is_ok();
        self.waker.wake();
        sent && self.is_heard()
    }

    /// Whether there is an engine to take what was sent. If not it is dropped, and its reply with it.
    fn is_heard(&self) -> bool {
        let over = self.waker.is_over();
        if over {
            self.left.try_iter().for_each(drop);
        }
        !over
    }

    /// Posts without waking the engine, unless there is no room; whoever calls rings at the end.
    fn leave(&self, command: Command) -> bool {
        if self.own.is_here() {
            return self.post(command);
        }
        match self.commands.try_send(command) {
            Ok(()) => self.is_heard(),
            Err(TrySendError::Full(command)) => {
                // The engine must make room before this can go on.
                self.waker.wake();
                self.post(command)
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    /// Sends a frame to another slice after this slice's page-table writes are visible there. False
    /// when the engine has stopped.
    #[must_use]
    pub fn send(&self, to: SliceId, class: Class, frame: Vec<u8>) -> bool {
        self.post(send(Receiver::Slice(to), class, frame))
    }

    /// Sends a frame as [`Self::send`] does, to the slice that has this vCPU by then
    /// ([`Uplink::route`](crate::Uplink::route)).
    #[must_use]
    pub fn send_to_vcpu(&self, vcpu: VcpuId, class: Class, frame: Vec<u8>) -> bool {
        self.post(send(Receiver::SliceOf(vcpu), class, frame))
    }

    /// Sends frames in order as [`Self::send`] does, and wakes the engine once for all of them.
    #[must_use]
    pub fn send_all(&self, to: SliceId, class: Class, frames: Vec<Vec<u8>>) -> bool {
        let sent =
            frames.into_iter().all(|frame| self.leave(send(Receiver::Slice(to), class, frame)));
        self.waker.wake();
        sent
    }

    /// Tells the engine the page-table root of a local vCPU (frame of CR3).
    pub fn set_root(&self, vcpu: VcpuId, gfn: Gfn) {
        self.post(Command::Root { vcpu, gfn });
    }

    /// Writes guest memory coherently.
    ///
    /// # Errors
    /// A range without memory, or an engine that does not answer within `limit`.
    pub fn write(&self, address: u64, bytes: Vec<u8>, limit: Duration) -> Result<(), CopyError> {
        self.copy(address, bytes, true, limit).map(drop)
    }

    /// Reads guest memory coherently.
    ///
    /// # Errors
    /// A range without memory, or an engine that does not answer within `limit`.
    pub fn read(&self, address: u64, len: usize, limit: Duration) -> Result<Vec<u8>, CopyError> {
        self.copy(address, vec![0; len], false, limit)
    }

    fn copy(
        &self,
        address: u64,
        bytes: Vec<u8>,
        write: bool,
        limit: Duration,
    ) -> Result<Vec<u8>, CopyError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Copy { address, bytes, write, reply });
        answer.recv_timeout(limit).unwrap_or(Err(CopyError::NoAnswer))
    }

    /// KVM refused a vCPU access to guest memory (`EFAULT`). True when the engine has seen to it
    /// within `limit` and the vCPU may try again.
    #[must_use]
    pub fn refused(&self, limit: Duration) -> bool {
        let (reply, answer) = bounded(1);
        self.post(Command::Refused { reply });
        answer.recv_timeout(limit).is_ok()
    }

    /// A thread of the VMM stores to guest memory, and the mapping refuses it: the engine is asking a
    /// vCPU about that page. True when the thread may try again: the page is on its way, or the engine has not
    /// answered within `limit`. False: the engine has ended.
    #[must_use]
    pub fn wanted(&self, gfn: Gfn, limit: Duration) -> bool {
        let (reply, answer) = bounded(1);
        self.post(Command::Wanted { gfn, reply });
        answer.recv_timeout(limit) != Err(RecvTimeoutError::Disconnected)
    }

    /// The counters, if the engine answers within `limit`.
    #[must_use]
    pub fn report(&self, limit: Duration) -> Option<Report> {
        let until = Instant::now() + limit;
        let (reply, answer) = bounded(1);
        if !self.post_within(Command::Report { reply }, limit) {
            return None;
        }
        answer.recv_deadline(until).ok()
    }

    /// Forgets which pages devices used so far, before any report asked for after this: from then on it counts only
    /// moves of those that they use again, or that the only device does which counts then.
    pub fn forget_device_pages(&self, only: Option<u16>) {
        self.post(Command::ForgetDevicePages { only });
    }

    /// Changes settings, before any report asked for after this.
    pub fn tune(&self, tuning: Tuning) {
        self.post(Command::Tune { tuning });
    }

    /// What is known of each page, if the engine answers within `limit`. Takes the engine about a
    /// millisecond: not for every fault.
    #[must_use]
    pub fn trace(&self, limit: Duration) -> Option<TraceReport> {
        let (reply, answer) = bounded(1);
        self.post(Command::Trace { reply });
        answer.recv_timeout(limit).ok()
    }

    /// Switches the trace of messages and the sampling of vCPUs; faults are always counted.
    pub fn set_trace(&self, tracing: Tracing) {
        self.post(Command::SetTrace { tracing });
    }

    /// Answers [`crate::Uplink::sample_fault`]: this is where the guest waits for the page. Never waits
    /// for the engine; when that has too much to do the sample is dropped.
    pub fn sampled(&self, gfn: Gfn, site: Site) {
        if self.commands.try_send(Command::Sampled { gfn, site }).is_ok() && self.is_heard() {
            self.waker.wake();
        }
    }

    /// Asks the engine to log what it waits for.
    pub fn log_state(&self) {
        self.post(Command::LogState);
    }

    /// The engine has come to a standstill, and nobody waits for it any more: who waits for an answer, or for room, is told that it has
    /// ended, and so is who comes later.
    pub fn abandon(&self) {
        self.waker.end();
        self.left.try_iter().for_each(drop);
    }

    /// Whether the engine has ended, or was abandoned.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.waker.is_over()
    }

    /// Asks the engine to end. One that has no room for that within five seconds is abandoned.
    pub fn stop(&self) {
        self.stop_within(STOP_LIMIT);
    }

    fn stop_within(&self, limit: Duration) {
        if self.commands.send_timeout(Command::Stop, limit).is_err() {
            self.abandon();
        }
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RestError;
    use std::thread;

    fn frame(command: Command) -> u64 {
        let Command::Send(Release { frame, .. }) = command else { panic!("{command:?}") };
        u64::from_le_bytes(frame.try_into().unwrap())
    }

    fn frames(count: u64) -> Vec<Vec<u8>> {
        (0..count).map(|number| number.to_le_bytes().to_vec()).collect()
    }

    #[test]
    fn waker_wakes_once_until_the_engine_looks() {
        let (handle, commands, waker) = Handle::pair().unwrap();
        for _ in 0..2 {
            assert!(handle.send_all(SliceId(1), Class::Bulk, frames(3)));
            assert!(handle.send(SliceId(1), Class::Bulk, 3_u64.to_le_bytes().to_vec()));
            assert_eq!(waker.take_wakes(), Some(1));
            waker.clear();
            let came: Vec<_> = std::iter::from_fn(|| commands.pop()).map(frame).collect();
            assert_eq!(came, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn more_frames_than_there_is_room_for_arrive_in_order() {
        let (handle, commands, waker) = Handle::pair().unwrap();
        let count = 2 * u64::try_from(COMMANDS_MAX).unwrap() + 5;
        let sender = thread::spawn(move || handle.send_all(SliceId(1), Class::Bulk, frames(count)));
        let mut came = 0;
        while came < count {
            // As the engine does: it looks only once it was woken.
            if !waker.is_pending() {
                thread::yield_now();
                continue;
            }
            waker.clear();
            for command in std::iter::from_fn(|| commands.pop()) {
                assert_eq!(frame(command), came);
                came += 1;
            }
        }
        assert!(sender.join().unwrap());
    }

    #[test]
    fn engine_never_waits_for_itself() {
        let (handle, commands, waker) = Handle::pair().unwrap();
        for number in 0..u64::try_from(COMMANDS_MAX).unwrap() {
            assert!(handle.send(SliceId(1), Class::Interrupt, number.to_le_bytes().to_vec()));
        }
        assert_eq!(commands.len(), COMMANDS_MAX);
        waker.clear();
        handle.own.claim();
        assert!(handle.send_all(SliceId(1), Class::Interrupt, frames(2)));
        assert_eq!(waker.take_wakes(), Some(1));
        let came: Vec<_> = std::iter::from_fn(|| handle.own.pop()).map(frame).collect();
        assert_eq!(came, [0, 1]);
    }

    #[test]
    fn thread_that_wants_a_page_tries_again_while_there_is_an_engine() {
        let (handle, commands, _waker) = Handle::pair().unwrap();
        assert!(handle.wanted(Gfn(1), Duration::from_millis(1)), "the engine is slow");
        drop(commands);
        assert!(!handle.wanted(Gfn(1), Duration::from_secs(60)), "it has ended");
    }

    /// An engine that takes the request only later must not stay at rest for good.
    #[test]
    fn rest_that_nobody_waits_for_any_more_is_ended() {
        let (handle, commands, _waker) = Handle::pair().unwrap();
        assert_eq!(handle.rest(Duration::ZERO), Err(RestError::NoAnswer));
        assert!(matches!(commands.pop(), Some(Command::Rest { .. })));
        assert!(matches!(commands.pop(), Some(Command::GoOn)));
    }

    /// Not even for room to ask: whoever ends the VM has to go on.
    #[test]
    fn report_of_an_engine_that_takes_nothing_is_not_waited_for_longer_than_was_said() {
        let (handle, commands, _waker) = Handle::pair().unwrap();
        assert!(handle.report(Duration::ZERO).is_none());
        while commands.len() < COMMANDS_MAX {
            assert!(handle.post(Command::GoOn));
        }
        assert!(handle.report(Duration::from_millis(1)).is_none());
        assert_eq!(commands.len(), COMMANDS_MAX);
    }

    /// An engine that hangs in the kernel, say: its thread is there, and takes nothing.
    #[test]
    fn nobody_waits_for_an_engine_that_was_abandoned() {
        const NEVER: Duration = Duration::from_secs(3600);
        let (handle, commands, _waker) = Handle::pair().unwrap();
        let ask = |address| {
            let handle = handle.clone();
            thread::spawn(move || handle.read(address, 8, NEVER))
        };
        let early = ask(0);
        while commands.len() == 0 {
            thread::yield_now();
        }
        let fill = u64::try_from(COMMANDS_MAX).unwrap() + 2;
        let filling = {
            let handle = handle.clone();
            thread::spawn(move || handle.send_all(SliceId(1), Class::Bulk, frames(fill)))
        };
        while commands.len() < COMMANDS_MAX {
            thread::yield_now();
        }
        assert!(!handle.has_ended());
        handle.stop_within(Duration::ZERO);
        assert!(handle.has_ended());

        assert_eq!(early.join().unwrap(), Err(CopyError::NoAnswer));
        assert!(!filling.join().unwrap());
        assert_eq!(ask(8).join().unwrap(), Err(CopyError::NoAnswer));
        assert!(!handle.send(SliceId(1), Class::Bulk, Vec::new()));
    }

    #[test]
    fn stopped_engine_takes_nothing() {
        let (handle, commands, _waker) = Handle::pair().unwrap();
        drop(commands);
        assert!(!handle.send_all(SliceId(1), Class::Bulk, frames(2)));
    }

    /// Whoever waits when the engine ends, or comes then, is told at once.
    #[test]
    fn nobody_waits_for_an_engine_that_has_ended() {
        const NEVER: Duration = Duration::from_secs(3600);
        for _ in 0..200 {
            let (handle, commands, _waker) = Handle::pair().unwrap();
            let asking = [0, 4096].map(|address| {
                let handle = handle.clone();
                thread::spawn(move || handle.read(address, 8, NEVER))
            });
            let fill = u64::try_from(COMMANDS_MAX).unwrap() + 2;
            let filling =
                thread::spawn(move || handle.send_all(SliceId(1), Class::Bulk, frames(fill)));
            drop(commands);
            for asking in asking {
                assert_eq!(asking.join().unwrap(), Err(CopyError::NoAnswer));
            }
            assert!(!filling.join().unwrap());
        }
    }
}
