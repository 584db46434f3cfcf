//! A guest that boots on the bootstrap's slice, and whose vCPUs go to their own slices a while later.
//!
//! ```text
//!   all vCPUs on the bootstrap's slice ──so long──> the first that is still there and not to be ──moves──> the next ... ─> over
//!                                                        └──refused: something else goes on──a pause──┘
//! ```
//! A kernel that boots, and the services that it starts, run hundreds of short programs, each of which costs a vCPU of another slice hundreds of
//! page faults and gains nothing there. The guest's tables say from the start where the vCPUs will be. Whoever moves a vCPU meanwhile has it where it
//! was moved to. Nothing here decides anything: it asks as people do, at the desk.

use super::BOOTSTRAP;
use crate::control::{Answer, Desk, MoveVcpuRequest, Request};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use wire::{SliceId, VcpuId};

/// Between two tries of a move that was refused: the VM is paused, say, or a host does not answer for a moment.
const AGAIN: Duration = Duration::from_secs(2);
/// Tries of all moves together. After that it is left to people, who are told.
const TRIES: usize = 300;

/// Has these vCPUs go to their slices after so long.
///
/// # Errors
/// There is no thread for it.
pub(super) fn leave_later(
    desk: &Desk,
    vcpus: Vec<(VcpuId, SliceId)>,
    after: Duration,
) -> io::Result<()> {
    let (desk, end) = (desk.clone(), Instant::now() + after);
    let run = move || {
        thread::sleep(end.saturating_duration_since(Instant::now()));
        leave(&desk, &vcpus);
    };
    thread::Builder::new().name("boot-at-home".into()).spawn(run).map(drop)
}

fn leave(desk: &Desk, vcpus: &[(VcpuId, SliceId)]) {
    for _ in 0..TRIES {
        // The VM is over, or another slice coordinates it: somebody has things done to it.
        let Some(look) = desk.look().filter(|look| look.leads) else { return };
        let is_at_home = |vcpu: VcpuId| {
            let slices = look.placement.slices.iter();
            let own = slices.filter(|slice| slice.slice == BOOTSTRAP.0);
            own.flat_map(|slice| &slice.vcpus).any(|it| *it == vcpu.0)
        };
        let Some((vcpu, slice)) = vcpus.iter().find(|(vcpu, _)| is_at_home(*vcpu)) else {
            tracing::info!("the guest has booted at home: its vCPUs are on their slices now");
            return;
        };
        let request = MoveVcpuRequest { vcpu: vcpu.0, slice: slice.0 };
        if let Answer::Refused(refusal) = desk.ask(&Request::MoveVcpu(request), &mut |_| ()) {
            tracing::info!("{vcpu} does not go to {slice} yet: {}", refusal.message);
            thread::sleep(AGAIN);
        }
    }
    tracing::warn!(
        "vCPUs have stayed where the guest has booted: tessera vm move brings them to their slices"
    );
}
