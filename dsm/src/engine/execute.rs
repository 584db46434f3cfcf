//! Commands of the VMM, executed.

use super::command::{Command, CopyError, Release, Tuning};
use super::copying::Copying;
use super::event_loop::Engine;
use crate::error::EngineError;
use dsm_protocol::{Access, Input};

/// Frames that one flush is for, at most. The rest waits for the next: senders could go on for ever.
const RELEASES_MAX: usize = 64;
/// Steps of commands before faults and frames are looked at again: a guest that sends interrupts without end would keep the
/// engine from them, and from its lease.
const COMMANDS_MAX: usize = 64;

impl Engine {
    /// Executes what the VMM asked for.
    pub(super) fn take_commands(&mut self) -> Result<(), EngineError> {
        // The waker only wakes; the channel holds the commands. What they send goes out together.
        self.waker.clear();
        let corked = self.commands.len() > 1;
        if corked {
            self.outbound.transport.cork(true);
        }
        let result = self.take_commands_corked();
        if corked {
            self.outbound.transport.cork(false);
        }
        result
    }

    fn take_commands_corked(&mut self) -> Result<(), EngineError> {
        for _ in 0..COMMANDS_MAX {
            let Some(command) = self.pop_command() else { return Ok(()) };
            self.execute(command)?;
            self.carry_out()?;
        }
        // There may be more.
        self.waker.wake();
        Ok(())
    }

    fn pop_command(&mut self) -> Option<Command> {
        let taken = self.next_command.take();
        taken.or_else(|| self.own_commands.pop()).or_else(|| self.commands.pop())
    }

    /// Releases a frame and those that wait right behind it, in one step: all need the same flush.
    fn release(&mut self, first: Release) -> Result<(), EngineError> {
        let start = self.next_token + 1;
        let mut frame = Some(first);
        for _ in 0..RELEASES_MAX {
            let Some(release) = frame.take() else { break };
            let token = self.token();
            self.releases.insert(token, release);
            match self.pop_command() {
                Some(Command::Send(release)) => frame = Some(release),
                command => self.next_command = command,
            }
        }
        if let Some(release) = frame {
            self.next_command = Some(Command::Send(release));
        }
        self.step(Input::Release { tokens: start..self.next_token + 1 })
    }

    fn execute(&mut self, command: Command) -> Result<(), EngineError> {
        match command {
            Command::Send(release) => self.release(release)?,
            Command::Copy { address, bytes, write, reply } => {
                let copying = Copying { address, done: 0, bytes, write, reply };
                self.next_piece(copying)?;
            }
            // The guest chooses its root, and may choose one without memory.
            Command::Root { vcpu, gfn } if self.node.home(gfn).is_some() => {
                self.classifier.set_root(vcpu, gfn);
                self.step(Input::Root { vcpu, gfn })?;
            }
            Command::Root { .. } => {}
            Command::Refused { reply } => {
                self.refused()?;
                let _ = reply.send(());
            }
            Command::Wanted { gfn, reply } => {
                self.store.end_probe(gfn)?;
                self.fault(gfn, Access::Write)?;
                let _ = reply.send(());
            }
            Command::Report { reply } => {
                // Whoever asked may have given up.
                let _ = reply.send(self.report());
            }
            Command::ForgetDevicePages { only } => self.store.ram.forget_device_pages(only),
            Command::Tune { tuning } => self.tune(tuning),
            Command::Trace { reply } => {
                let _ = reply.send(self.trace.report(self.now()));
            }
            Command::SetTrace { tracing } => self.trace.set(tracing),
            Command::Sampled { gfn, site } => self.trace.sampled(gfn, site),
            Command::Rest { limit, reply } => self.begin_rest(limit, reply)?,
            Command::Count { reply } => {
                let _ = reply.send(self.count());
            }
            Command::Save { reply } => {
                let _ = reply.send(self.save());
            }
            Command::GoOn => self.end_rest()?,
            Command::MoveHome(home_move) => self.begin_home_move(home_move)?,
            Command::PullHome(pull) => self.begin_pull(pull)?,
            Command::MayPartWith { slice, reply } => {
                let _ = reply.send(self.may_part_with(slice));
            }
            Command::PartWith { slice, reply } => {
                let _ = reply.send(self.part_with(slice)?);
            }
            Command::AddPeer { link, reply } => {
                let _ = reply.send(self.add_peer(link));
            }
            Command::RemovePeer { slice, reply } => self.remove_peer(slice, &reply),
            Command::MayJoinWith { slice, reply } => {
                let _ = reply.send(self.may_join_with(slice));
            }
            Command::JoinWith { slice, reply } => {
                let _ = reply.send(self.join_with(slice)?);
            }
            Command::Protect { reply } => self.begin_protection(reply),
            Command::Freeze { here, reply } => {
                let _ = reply.send(self.freeze(&here));
            }
            Command::Unprotect => self.store.end_protection(),
            Command::LogState => {
                let (backlog, releases) = (self.outbound.backlog.len(), self.releases.len());
                let unrest = self.node.unrest();
                tracing::info!(backlog, releases, copies = self.copies.len(), "memory: {unrest}");
            }
            Command::Stop => self.stopping = true,
        }
        Ok(())
    }

    pub(super) fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn next_piece(&mut self, copying: Copying) -> Result<(), EngineError> {
        if copying.done == copying.bytes.len() {
            let _ = copying.reply.send(Ok(copying.bytes));
            return Ok(());
        }
        let (gfn, _, _) = copying.piece();
        if self.node.home(gfn).is_none() {
            let _ = copying.reply.send(Err(CopyError::NoMemory(gfn.0 * 4096)));
            return Ok(());
        }
        let want = if copying.write { Access::Write } else { Access::Read };
        let token = self.token();
        self.copies.insert(token, copying);
        self.step(Input::Pin { gfn, want, token })
    }

    /// The page of a copy is here: copy the piece and go on with the next.
    pub(super) fn pinned(&mut self, token: u64) -> Result<(), EngineError> {
        let Some(mut copying) = self.copies.remove(&token) else { return Ok(()) };
        let (gfn, offset, len) = copying.piece();
        let piece = copying.done..copying.done + len;
        if copying.write {
            self.store.before_store(gfn)?;
            self.store.ram.write(gfn, offset, &copying.bytes[piece]);
        } else {
            self.store.ram.read(gfn, offset, &mut copying.bytes[piece]);
        }
        copying.done += len;
        self.step(Input::Unpin { gfn })?;
        self.next_piece(copying)
    }

    fn tune(&mut self, tuning: Tuning) {
        if let Some(policy) = tuning.hold {
            self.node.set_hold(policy);
        }
        if let Some(on) = tuning.correlation_prefetch {
            self.prefetcher.set_correlation(on);
        }
    }
}
