//! Commands of the VMM, executed.

use super::command::{Command, CopyError, Tuning};
use super::copying::Copying;
use super::event_loop::Engine;
use crate::error::EngineError;
use dsm_protocol::{Access, Input};

impl Engine {
    /// Executes what the VMM asked for.
    pub(super) fn take_commands(&mut self) -> Result<(), EngineError> {
        // The bell only wakes; the channel holds the commands. What they send goes out together.
        self.bell.silence();
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
        while let Some(command) = self.own_commands.pop().or_else(|| self.commands.pop()) {
            self.execute(command)?;
            self.carry_out()?;
        }
        Ok(())
    }

    fn execute(&mut self, command: Command) -> Result<(), EngineError> {
        match command {
            Command::Send { to, class, frame } => {
                let token = self.token();
                self.releases.insert(token, (to, class, frame));
                self.step(Input::Release { token })?;
            }
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
            Command::LogState => {
                let (backlog, releases) = (self.outbound.backlog.len(), self.releases.len());
                let unrest = self.node.unrest();
                tracing::info!(backlog, releases, copies = self.copies.len(), "memory: {unrest}");
            }
            Command::Stop => self.stopping = true,
        }
        Ok(())
    }

    fn token(&mut self) -> u64 {
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
