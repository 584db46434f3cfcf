//! One slice on its way into a running VM, seen from the bootstrap.
//!
//! ```text
//!  invited ─answer─> agreed ─measure_clock, commit─> committed ─meet─> met ─admit─> a member
//!     └─────────────┴──────────── abort, cancel, drop ──┴───────────────┴─> as if nothing had been
//! ```

use super::bootstrap::{Answer, BootstrapMesh, check_blob};
use super::context::{MeshContext, PARTING};
use super::error::MeshError;
use super::membership::{Membership, Roster, summons};
use super::summons::Summons;
use crate::clock::ClockEstimate;
use crate::config::CarrierKind;
use crate::control::{Control, Member, cut};
use crate::link::PeerLink;
use crate::one_line;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::SliceId;

/// For a companion that was started just now to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(3);
const LISTEN_AGAIN: Duration = Duration::from_millis(50);

/// A newcomer that was called. Dropping this ends its wait.
#[derive(Debug)]
pub struct Invitation<'a> {
    mesh: BootstrapMesh,
    kind: CarrierKind,
    newcomer: SliceId,
    address: SocketAddr,
    summons: Vec<(SliceId, Summons)>,
    roster: &'a mut Roster,
    met: bool,
}

impl Membership {
    /// On the bootstrap: calls a companion at `address` to be one slice more, and gives it its assignment. Its
    /// number is one that no slice of this VM ever had. There is one invitation at a time: two newcomers
    /// would not know of each other. One that does not listen yet is waited for, for some seconds.
    ///
    /// # Errors
    /// This slice is not the bootstrap; number, address or blob cannot be used; the companion cannot be reached or
    /// refuses the handshake. Nothing has changed then.
    pub fn invite(
        &mut self,
        slice: SliceId,
        address: SocketAddr,
        blob: &[u8],
        deadline: Instant,
    ) -> Result<Invitation<'_>, MeshError> {
        let (local, kind) = (self.context.local, self.kind());
        let roster = self.roster.as_mut().ok_or(MeshError::NotTheBootstrap { local })?;
        let members = roster.with(Member { slice, address: Some(address) })?;
        let listens_by = deadline.min(Instant::now() + LISTEN_LIMIT);
        let mesh = loop {
            let (context, members) = (self.context.clone(), members.clone());
            match BootstrapMesh::invite(context, members, slice, blob, deadline) {
                Err(error) if does_not_listen(&error) && Instant::now() < listens_by => {
                    sleep(LISTEN_AGAIN);
                }
                other => break other?,
            }
        };
        Ok(Invitation::new(mesh, &self.context, (kind, slice, address), roster))
    }
}

fn does_not_listen(error: &MeshError) -> bool {
    let refused = |source: &io::Error| source.kind() == io::ErrorKind::ConnectionRefused;
    matches!(error, MeshError::Connect { source, .. } if refused(source))
}

impl<'a> Invitation<'a> {
    fn new(
        mesh: BootstrapMesh,
        context: &MeshContext,
        (kind, newcomer, address): (CarrierKind, SliceId, SocketAddr),
        roster: &'a mut Roster,
    ) -> Self {
        let called = roster.companions();
        let one = |member| Some((member, summons(context, member, newcomer, address)?));
        let summons = called.filter_map(one).collect();
        Self { mesh, kind, newcomer, address, summons, roster, met: false }
    }

    /// Waits until the newcomer agreed (with a blob) or refused (with a text).
    ///
    /// # Errors
    /// It went away, said something else, or nothing in time.
    pub fn answer(&mut self, deadline: Instant) -> Result<Answer, MeshError> {
        let slice = self.newcomer;
        let mut answers = self.mesh.gather(deadline)?;
        answers.pop().map(|(_, answer)| answer).ok_or(MeshError::Missing { slice })
    }

    /// As [`BootstrapMesh::measure_clock`], with the newcomer. After `answer`, before `commit`.
    ///
    /// # Errors
    /// No rounds, or the newcomer went away.
    pub fn measure_clock(
        &mut self,
        rounds: u32,
        clock: &dyn Fn() -> u64,
        deadline: Instant,
    ) -> Result<ClockEstimate, MeshError> {
        self.mesh.measure_clock(self.newcomer, rounds, clock, deadline)
    }

    /// Tells the newcomer that it is wanted, with a last blob. It takes calls from now on.
    ///
    /// # Errors
    /// It went away, or the blob is too large.
    pub fn commit(&mut self, blob: &[u8], deadline: Instant) -> Result<(), MeshError> {
        self.mesh.commit(blob, deadline)
    }

    /// What each present companion needs for [`Membership::meet`](super::Membership::meet), ascending. To be brought
    /// to them after `commit` and before `meet` is waited for.
    #[must_use]
    pub fn summons(&self) -> &[(SliceId, Summons)] {
        &self.summons
    }

    /// Calls the newcomer as the other members do, and waits until it says that it has a link to each of them. That
    /// each of them has one too, they say themselves.
    ///
    /// # Errors
    /// Some member and the newcomer cannot reach each other; the newcomer was told that it is off.
    pub fn meet(&mut self, deadline: Instant) -> Result<PeerLink, MeshError> {
        match self.mesh.meet(self.kind, self.newcomer, self.address, deadline) {
            Ok(link) => {
                self.met = true;
                Ok(link)
            }
            Err(error) => {
                self.mesh.tell_abort(&one_line(&error));
                Err(error)
            }
        }
    }

    /// For another thread to end the wait of `meet`.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn cancel(&self) -> Result<Cancel, MeshError> {
        self.mesh.control().map(Cancel)
    }

    /// Starts the newcomer's transport, and tells it how the VM stands, in at most [`BLOB_BYTES_MAX`](crate::BLOB_BYTES_MAX)
    /// bytes that mean nothing here: it is a member, and the next invitation can come. After `meet`, when all members
    /// have said that they have a link, best when all have added it. Its lease runs on all of them then.
    ///
    /// # Errors
    /// The newcomer went away, or there are too many bytes; its number stays free. One that goes away at this very moment
    /// is lost like any peer.
    pub fn admit(mut self, state: &[u8], deadline: Instant) -> Result<(), MeshError> {
        if !self.met {
            return Err(MeshError::OutOfOrder { step: "admit before meet" });
        }
        check_blob(state)?;
        self.mesh.check_waiting(deadline)?;
        self.mesh.tell_all(&Control::State(state.to_vec()), deadline)?;
        self.mesh.tell_all(&Control::Go(self.kind), deadline)?;
        self.roster.admit(Member { slice: self.newcomer, address: Some(self.address) });
        Ok(())
    }

    /// Tells the newcomer that it is off, and why.
    pub fn abort(self, text: &str) {
        self.mesh.abort(text);
    }
}

/// Ends an invitation from another thread.
#[derive(Debug)]
pub struct Cancel(TcpStream);

impl Cancel {
    /// Tells the newcomer that it is off, and why. It hangs up then, which ends the waits of all that
    /// called it. A newcomer that is gone needs no message.
    pub fn tell(mut self, text: &str) {
        // Best effort: whoever waits has a deadline.
        let _ = Control::Abort(cut(text)).send(&mut self.0, Instant::now() + PARTING);
    }
}
