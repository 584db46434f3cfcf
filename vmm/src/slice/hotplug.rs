//! vCPUs that the guest gets or gives back: what is asked of it, and the wait for its answer.
//!
//! ```text
//!   a number of vCPUs --steps--> one vCPU after another: add or remove --chipset--> guest --> it has, or has not, the vCPU
//!                                                                             \--> it refuses, or says nothing: the rest is not asked
//! ```
//! All vCPUs run or wait on their slices from the start, and where is up to `relocation`. Here is only what the guest knows of them,
//! which the platform devices keep (`devices/src/hotplug.rs`), so of the slice that coordinates.

use super::channels::Channels;
use super::operations::{Busy, Operation};
use super::refusing::{Explains, invalid};
use crate::control::{PlugsVcpus, Progress, Reason, Refusal as Refused, VcpusAnswer};
use devices::{Plug, PlugError, PlugState};
use std::fmt;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::VcpuId;

/// The guest's time to answer about one vCPU.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Between looks whether it has.
const POLL: Duration = Duration::from_millis(10);

/// Why the guest does not have the vCPUs that it should have.
#[derive(Debug, Error)]
enum HotplugError {
    /// Nothing was begun: something else goes on.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Nothing was begun: there is no guest, or it is another slice's.
    #[error("the VM is over, or another slice coordinates it now (tessera vm show)")]
    Elsewhere,
    /// Nothing was begun: the VM was started without.
    #[error(
        "this VM has the vCPUs of its start for ever: start it with max-cpus= for a slice to have more, or fewer, later"
    )]
    Never,
    /// Nothing was begun: more than exist, or none.
    #[error("this guest can have 1 to {0} vCPUs: max-cpus= of its slices said so at the start")]
    Number(usize),
    /// It has not been asked.
    #[error("{0}; have the same number of vCPUs again once it is gone, or ask for fewer first")]
    Plug(#[from] PlugError),
    /// It was asked.
    #[error("{0}")]
    Refused(Refusal),
    /// It was asked, and still is.
    #[error(
        "the guest has not answered about vCPU {vcpu} for {} s and is still asked: it is booting, or busy, or \
         its kernel has no ACPI CPU hot-plug (Linux: CONFIG_ACPI_HOTPLUG_CPU); tessera vm cpus shows what comes of it",
        ANSWER_LIMIT.as_secs()
    )]
    Silent {
        /// The vCPU.
        vcpu: u32,
    },
}

impl Explains for HotplugError {
    fn reason(&self) -> Reason {
        match self {
            Self::Busy(busy) => busy.reason(),
            Self::Elsewhere => Reason::NotLeader { leader: None },
            Self::Never => Reason::Unsupported,
            Self::Number(_) => invalid("count"),
            Self::Plug(_) | Self::Refused(_) => Reason::GuestRefused,
            Self::Silent { .. } => Reason::Silent,
        }
    }
}

/// What the guest said no to.
#[derive(Debug)]
struct Refusal {
    step: Step,
    status: u8,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step: Step { vcpu, add }, status } = self;
        if *add {
            return write!(
                f,
                "the guest has not taken vCPU {vcpu} (status {status:#x} of _OST): its kernel's log says why; Linux \
                 has no more CPUs than nr_cpus= or possible_cpus= on its command line allow"
            );
        }
        write!(
            f,
            "the guest keeps vCPU {vcpu} (status {status:#x} of _OST): its kernel's log says why; see in the guest \
             whether it can be taken off line: echo 0 > /sys/devices/system/cpu/cpu{vcpu}/online"
        )
    }
}

/// One thing that is asked of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    vcpu: u32,
    /// It is to have it; else to give it back.
    add: bool,
}

/// What there is to do so that the guest has so many vCPUs: the lowest come first and stay longest, what is under way is
/// brought to an end.
fn steps(plugs: &[Plug], count: u32) -> Result<Vec<Step>, HotplugError> {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    if !(1..=plugs.len()).contains(&wanted) {
        return Err(HotplugError::Number(plugs.len()));
    }
    let all = || (0u32..).zip(plugs.iter().map(|plug| plug.state));
    let in_guest = |state: PlugState| {
        matches!(state, PlugState::Announced | PlugState::Adding | PlugState::Present)
    };
    // One that the guest is giving back comes last: it cannot be had until it is gone.
    let rank = |state| match state {
        state if in_guest(state) => 0,
        PlugState::Leaving => 2,
        _ => 1,
    };
    let mut ranked: Vec<(u32, PlugState)> = all().collect();
    ranked.sort_by_key(|(vcpu, state)| (rank(*state), *vcpu));
    let (stay, go) = ranked.split_at(wanted);
    let adds = stay.iter().filter(|(_, state)| *state != PlugState::Present);
    let adds = adds.map(|(vcpu, _)| Step { vcpu: *vcpu, add: true });
    let removes = go.iter().rev().filter(|(_, state)| *state != PlugState::Absent);
    let removes = removes.map(|(vcpu, _)| Step { vcpu: *vcpu, add: false });
    Ok(removes.chain(adds).collect())
}

/// Has the guest get and give back vCPUs. It does not keep the VM alive.
#[derive(Debug)]
pub(super) struct Hotplugs(pub(super) Weak<Channels>);

impl Hotplugs {
    fn set(&self, count: u32, tell: &mut dyn FnMut(Progress)) -> Result<VcpusAnswer, HotplugError> {
        let channels = self.0.upgrade().ok_or(HotplugError::Elsewhere)?;
        let _ongoing = channels.operations.begin(Operation::Hotplug)?;
        let steps = steps(&plugs(&channels)?, count)?;
        let total = steps.len();
        for (done, step) in steps.into_iter().enumerate() {
            let what = if step.add { "is added" } else { "is taken back" };
            tell(Progress { done, total, next: format!("vCPU {} {what}", step.vcpu) });
            run(&channels, step)?;
        }
        Ok(answer(&plugs(&channels)?))
    }

    fn look(&self) -> Result<VcpusAnswer, HotplugError> {
        let channels = self.0.upgrade().ok_or(HotplugError::Elsewhere)?;
        Ok(answer(&plugs(&channels)?))
    }
}

impl PlugsVcpus for Hotplugs {
    fn vcpus(&self) -> Result<VcpusAnswer, Refused> {
        self.look().map_err(|error| error.refusal())
    }

    fn set_vcpus(
        &self,
        count: u32,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<VcpusAnswer, Refused> {
        self.set(count, tell).map_err(|error| error.refusal())
    }
}

fn plugs(channels: &Channels) -> Result<Vec<Plug>, HotplugError> {
    let chipset = channels.chipset.load();
    let chipset = chipset.as_ref().ok_or(HotplugError::Elsewhere)?;
    chipset.plugs().ok_or(HotplugError::Never)
}

/// Asks the guest, and waits until it has done it.
fn run(channels: &Channels, step: Step) -> Result<(), HotplugError> {
    let Step { vcpu, add } = step;
    {
        let chipset = channels.chipset.load();
        let chipset = chipset.as_ref().ok_or(HotplugError::Elsewhere)?;
        // Nothing moves meanwhile. The node of a slice has its number; a vCPU that is at home for a while is of its own one.
        let own = channels.borrowed.own_slice(VcpuId(vcpu));
        let place = own.or_else(|| channels.placement.load().slice_of(VcpuId(vcpu)));
        let node = place.map_or(u8::MAX, |slice| u8::try_from(slice.0).unwrap_or(u8::MAX));
        if add { chipset.add_vcpu(vcpu, node) } else { chipset.remove_vcpu(vcpu) }?;
    }
    let ends = (PlugState::Present, PlugState::Absent);
    let (done, undone) = if add { ends } else { (ends.1, ends.0) };
    let end = Instant::now() + ANSWER_LIMIT;
    loop {
        let plugs = plugs(channels)?;
        let plug = usize::try_from(vcpu).ok().and_then(|vcpu| plugs.get(vcpu)).copied();
        match plug.unwrap_or_default() {
            Plug { state, .. } if state == done => return Ok(()),
            Plug { state, refusal, .. } if state == undone => {
                return Err(HotplugError::Refused(Refusal { step, status: refusal }));
            }
            _ if Instant::now() > end => return Err(HotplugError::Silent { vcpu }),
            _ => thread::sleep(POLL),
        }
    }
}

fn answer(plugs: &[Plug]) -> VcpusAnswer {
    let mut answer = VcpusAnswer::default();
    for (vcpu, plug) in (0u32..).zip(plugs) {
        let list = match plug.state {
            PlugState::Present => &mut answer.present,
            PlugState::Announced | PlugState::Adding => &mut answer.coming,
            PlugState::Asked | PlugState::Leaving => &mut answer.leaving,
            PlugState::Absent => &mut answer.absent,
        };
        list.push(vcpu);
    }
    answer
}

#[cfg(test)]
mod tests;
