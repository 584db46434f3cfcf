//! The coordinator calls a newcomer, and has all slices call it.
//!
//! ```text
//!   Inviter --invite--> Invited: it agrees --commit--> it builds its machine --meet--> all have links --admit, in a cut--> it begins
//!                          \------------------------------ dropped, or a failure ------------> as if nothing had been
//! ```

use super::{JOIN_LIMIT, JoinFailure, MEET_LIMIT};
use crate::cpuid::{intersect, lacks};
use crate::machine::Machine;
use crate::slice::SliceError;
use crate::slice::channels::Channels;
use crate::slice::host::HostFacts;
use crate::slice::join_link::Met;
use crate::slice::negotiation::{
    ANSWER_LIMIT, Begins, CLOCK_ROUNDS, Launch, Proposal, START_LIMIT, align_clock, compare_clock,
};
use crate::slice::one_line;
use crate::slice::spec::{Interrupts, VmSpec};
use crate::tsc::host_ticks;
use crossbeam_channel::Receiver;
use dsm::Replicate;
use migrate::plan::Offer;
use migrate::{Change, Placement, PlacementState};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;
use transport::{Cancel, Invitation, Membership};
use wire::{Control, SLICES_MAX, SliceId};

/// What the bootstrap's slice needs to call newcomers.
#[derive(Debug)]
pub(in crate::slice) struct Inviter {
    pub(in crate::slice) spec: VmSpec,
    pub(in crate::slice) launch: Launch,
    /// Frequency of its counter.
    pub(in crate::slice) tsc_khz: u32,
    pub(in crate::slice) machine: Machine,
}

/// A newcomer that agrees, and waits to be told whether it is wanted.
#[derive(Debug)]
pub(in crate::slice) struct Invited<'a> {
    pub(in crate::slice) slice: SliceId,
    /// What its host offers.
    pub(in crate::slice) offer: Offer,
    inviter: &'a Inviter,
    invitation: Invitation<'a>,
}

impl Inviter {
    /// Calls a companion at this address, which is to join a VM of these slices.
    ///
    /// # Errors
    /// It is not there, refuses, or its host cannot run a slice of this VM; it was told so.
    pub(in crate::slice) fn invite<'a>(
        &'a self,
        membership: &'a mut Membership,
        there: &[SliceId],
        (number, address): (Option<u16>, SocketAddr),
    ) -> Result<Invited<'a>, JoinFailure> {
        membership.keep(|slice| there.contains(&slice));
        let next = membership.next_slice().filter(|slice| slice.0 < SLICES_MAX);
        let next = next.ok_or(JoinFailure::Full)?;
        let slice = number.map_or(next, SliceId);
        if slice < next || slice.0 >= SLICES_MAX {
            return Err(JoinFailure::Number { slice, next });
        }
        let proposal = Proposal { spec: self.spec.clone(), begins: Begins::Join };
        let (blob, deadline) = (serde_json::to_vec(&proposal)?, Instant::now() + ANSWER_LIMIT);
        let mut invitation = membership.invite(slice, address, &blob, deadline)?;
        match self.agree(&mut invitation, slice) {
            Ok(offer) => Ok(Invited { slice, offer, inviter: self, invitation }),
            Err(error) => {
                invitation.abort(&one_line(&error));
                Err(error)
            }
        }
    }

    fn agree(&self, invitation: &mut Invitation<'_>, slice: SliceId) -> Result<Offer, JoinFailure> {
        let blob = invitation.answer(Instant::now() + ANSWER_LIMIT)?;
        let blob = blob.map_err(|cause| SliceError::Refused { slice, cause })?;
        let facts: HostFacts =
            serde_json::from_slice(&blob).map_err(|error| SliceError::Blob(slice, error))?;
        self.check(slice, &facts)
    }

    /// What a host offers that can run a slice of the VM. One that lacks features of its processors can have memory.
    fn check(&self, slice: SliceId, facts: &HostFacts) -> Result<Offer, JoinFailure> {
        compare_clock(self.tsc_khz, (slice, facts.tsc_khz))?;
        let Launch { cpuid, interrupts, page_tables, .. } = &self.launch;
        if *interrupts == Interrupts::Ghost && !facts.ghosts.is_empty() {
            return Err(SliceError::Ghosts { slice, cause: facts.ghosts.clone() }.into());
        }
        if facts.walks_write && page_tables.scope() == Replicate::Nothing {
            return Err(JoinFailure::PageTables);
        }
        let common = intersect(&[cpuid.clone(), facts.cpuid.clone()]).map_err(SliceError::from)?;
        let lacks = lacks(cpuid, &common);
        Ok(Offer { lacks, ..facts.offered.of_slice(slice, &self.spec.devices) })
    }
}

impl Invited<'_> {
    /// As the bootstrap agrees with a companion when the VM starts: the clock, and where everything is, here with the
    /// newcomer in this placement. It builds its machine then.
    ///
    /// # Errors
    /// It is gone.
    pub(in crate::slice) fn commit(&mut self, placement: &Placement) -> Result<(), JoinFailure> {
        let Self { slice, inviter, invitation, .. } = self;
        let measure = || {
            let deadline = Instant::now() + START_LIMIT;
            invitation.measure_clock(CLOCK_ROUNDS, &host_ticks, deadline)
        };
        let own = inviter.machine.clock().offset();
        let (offset, clock) = align_clock(measure, own, inviter.tsc_khz)?;
        let place = usize::from(slice.0);
        let mut launch = inviter.launch.clone();
        // Those between are of slices that it has nothing to do with.
        launch.tsc_offsets.resize(place, 0);
        launch.tsc_offsets.push(offset);
        launch.clocks.resize(place, (0, 0));
        launch.clocks.push(clock);
        launch.joins = Some(PlacementState::from(&placement.next(&[Change::Join(*slice)])?));
        let blob = serde_json::to_vec(&launch)?;
        Ok(invitation.commit(&blob, Instant::now() + START_LIMIT)?)
    }

    /// Has all slices call it, this one among them, and waits for them.
    ///
    /// # Errors
    /// One does not reach it; it was told.
    pub(in crate::slice) fn meet(&mut self, channels: &Channels) -> Result<(), JoinFailure> {
        let deadline = Instant::now() + MEET_LIMIT;
        let (id, met) = channels.joining.summon();
        let cancel = self.invitation.cancel()?;
        let mut waiting = BTreeSet::new();
        for (member, summons) in self.invitation.summons() {
            channels.send(*member, &Control::Summons { id, bytes: summons.encode()? });
            waiting.insert(*member);
        }
        thread::scope(|scope| {
            let others = scope.spawn(move || wait_for_all(&met, waiting, (cancel, deadline)));
            let own = self.invitation.meet(deadline);
            if own.is_err() {
                channels.joining.wait_for_nobody();
            }
            // It does not panic; if it did, the process would end.
            let others = others.join().unwrap_or(Ok(()));
            channels.joining.wait_for_nobody();
            // What another slice says is the better reason.
            others?;
            channels.joining.put_link(own?);
            Ok(())
        })
    }

    /// In a cut in which all slices have taken it into their transports: it begins with what this one has left for it.
    ///
    /// # Errors
    /// It has gone away.
    pub(in crate::slice) fn admit(self, channels: &Channels) -> Result<(), JoinFailure> {
        let state = channels.joining.take_state().ok_or(JoinFailure::Uncalled)?;
        Ok(self.invitation.admit(&state, Instant::now() + JOIN_LIMIT / 10)?)
    }

    /// It is off.
    pub(in crate::slice) fn abort(self, why: &str) {
        self.invitation.abort(why);
    }
}

/// Waits until all have called the newcomer. The first that has not ends the wait of all.
fn wait_for_all(
    met: &Receiver<Met>,
    mut waiting: BTreeSet<SliceId>,
    (cancel, deadline): (Cancel, Instant),
) -> Result<(), JoinFailure> {
    while let Some(first) = waiting.first().copied() {
        let failure = match met.recv_deadline(deadline) {
            Ok((slice, Ok(()))) => {
                waiting.remove(&slice);
                continue;
            }
            Ok((slice, Err(why))) => JoinFailure::Unmet { slice, why },
            // This slice has not reached it, and says why.
            Err(error) if error.is_disconnected() => return Ok(()),
            Err(_) => JoinFailure::Silent(first),
        };
        cancel.tell(&one_line(&failure));
        return Err(failure);
    }
    Ok(())
}
