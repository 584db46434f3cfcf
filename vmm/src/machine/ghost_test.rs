//! Does this host's KVM treat parked vCPUs as ghosts need it? Asked with a small VM of two ghosts.

use super::{Machine, MachineConfig, MachineError, MachineHooks, StopError, open_kvm, vm_step};
use crate::interrupts::{InterruptBackEnd, RemoteInterrupts, VcpuEvent};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::ClockRate;
use crate::vcpu::VcpuError;
use devices::{Bus, ShutdownCause, ShutdownSink};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use migrate::PlacementView;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::{SliceId, VcpuId};

/// Each event has this long to come out of a ghost.
const PATIENCE: Duration = Duration::from_secs(2);
/// More events than the test sends.
const QUEUE: usize = 64;

/// Ghosts do not work here; use the user-space back end.
#[derive(Debug, thiserror::Error)]
pub enum GhostTestError {
    /// The test's own VM could not be made.
    #[error("cannot make the VM that tests ghosts")]
    Machine(#[from] MachineError),
    /// An event did not come out, or another did.
    #[error("ghost of {vcpu} was sent {sent:?} and told {told:?} (fatal: {fatal:?})")]
    Wrong {
        /// Which.
        vcpu: VcpuId,
        /// What went in.
        sent: VcpuEvent,
        /// What came out in time.
        told: Option<(VcpuId, VcpuEvent)>,
        /// The error that ended the ghost, if one did.
        fatal: Option<String>,
    },
    /// A ghost's thread did not end.
    #[error("a ghost did not end")]
    Stop(#[from] StopError),
}

/// What the ghosts tell.
type Told = Receiver<(VcpuId, VcpuEvent)>;

struct Recorder {
    events: SyncSender<(VcpuId, VcpuEvent)>,
    fatal: Mutex<Option<String>>,
}

impl RemoteInterrupts for Recorder {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        // A full queue means that the test has failed already.
        let _ = self.events.try_send((target, event));
    }
}

impl MachineHooks for Recorder {
    fn fatal(&self, error: &VcpuError) {
        *self.fatal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }
}

impl ShutdownSink for Recorder {
    fn shutdown(&self, _cause: ShutdownCause) {}
}

struct NoBus;

impl Bus for NoBus {
    fn pio_read(&self, _port: u16, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn pio_write(&self, _port: u16, _data: &[u8]) {}
    fn mmio_read(&self, _address: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&self, _address: u64, _data: &[u8]) {}
}

/// The host's CPUID with APIC ids and x2APIC for each of `vcpus`.
fn test_cpuid(vcpus: u32) -> Result<Vec<Vec<kvm_cpuid_entry2>>, MachineError> {
    let supported = open_kvm()?.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let supported = vm_step("read the CPUID of this host", supported)?;
    let for_one = |id: u32| {
        let mut entries = supported.as_slice().to_vec();
        for entry in &mut entries {
            match entry.function {
                1 => {
                    entry.ebx = entry.ebx & 0x00ff_ffff | id << 24;
                    entry.ecx |= 1 << 21;
                }
                0xb | 0x1f => entry.edx = id,
                _ => {}
            }
        }
        entries
    };
    Ok((0..vcpus).map(for_one).collect())
}

/// Sends every kind of event to ghosts of a VM of its own and checks that each is told.
///
/// # Errors
/// When one is not, within seconds: the machine must use the user-space back end on this host.
pub fn ghost_self_test() -> Result<(), GhostTestError> {
    let (machine, recorder, told) = start()?;
    let result = exchange(&machine, &recorder, &told);
    machine.stop(PATIENCE)?;
    result
}

/// A machine of two ghosts, which are parked, and what they tell.
fn start() -> Result<(Machine, Arc<Recorder>, Told), GhostTestError> {
    let (sender, told) = sync_channel(QUEUE);
    let recorder = Arc::new(Recorder { events: sender, fatal: Mutex::new(None) });
    let machine = Machine::new(MachineConfig {
        placement: PlacementView::fixed(SliceId(0), &[SliceId(1); 2])
            .map_err(MachineError::from)?,
        memory: Vec::new(),
        cpuid: test_cpuid(2)?,
        remote: Arc::clone(&recorder) as Arc<dyn RemoteInterrupts>,
        shutdown: Arc::clone(&recorder) as Arc<dyn ShutdownSink>,
        hooks: Arc::clone(&recorder) as Arc<dyn MachineHooks>,
        back_end: InterruptBackEnd::Ghost,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
    })?;
    machine.start(Arc::new(NoBus))?;
    Ok((machine, recorder, told))
}

fn exchange(machine: &Machine, recorder: &Recorder, told: &Told) -> Result<(), GhostTestError> {
    let (boot, other) = (VcpuId(0), VcpuId(1));
    let steps = [
        (boot, VcpuEvent::Fixed(0x55)),
        (boot, VcpuEvent::Nmi),
        (boot, VcpuEvent::Fixed(0xfd)),
        // Its vCPU may have been started where this ghost does not see it.
        (other, VcpuEvent::Fixed(0x41)),
        (other, VcpuEvent::Init),
        (other, VcpuEvent::Startup(0x9a)),
        (other, VcpuEvent::Fixed(0x31)),
        (other, VcpuEvent::Nmi),
        (other, VcpuEvent::Init),
        (other, VcpuEvent::Startup(0)),
        (other, VcpuEvent::Fixed(0x31)),
    ];
    for (vcpu, sent) in steps {
        machine.shared.interrupts.deliver_local(vcpu, sent);
        let answer = told.recv_timeout(PATIENCE).ok();
        if answer != Some((vcpu, sent)) {
            let fatal = recorder.fatal.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(GhostTestError::Wrong { vcpu, sent, told: answer, fatal });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::RestError;
    use super::*;
    use needs::Need;

    const SHORT: Duration = Duration::from_millis(100);
    const ROUNDS: u8 = 50;

    #[test]
    fn kvm_ghosts_tell_every_kind_of_event() {
        if !needs::has(Need::Kvm, open_kvm()) {
            return;
        }
        ghost_self_test().unwrap();
    }

    /// A vCPU that was restored sends at once. Interrupts of one that went on from a checkpoint were lost.
    #[test]
    fn kvm_ghosts_take_what_is_sent_as_soon_as_the_machine_has_started() {
        if !needs::has(Need::Kvm, open_kvm()) {
            return;
        }
        for round in 0..ROUNDS {
            let (machine, _recorder, told) = start().unwrap();
            // The one that was started last has had least time.
            for vcpu in [VcpuId(1), VcpuId(0)] {
                let event = VcpuEvent::Fixed(0x40 + round);
                machine.shared.interrupts.deliver_local(vcpu, event);
                assert_eq!(told.recv_timeout(PATIENCE), Ok((vcpu, event)), "round {round}");
            }
            machine.stop(PATIENCE).unwrap();
        }
    }

    #[test]
    fn kvm_rest_leaves_nothing_in_a_ghost_and_it_goes_on_afterwards() {
        if !needs::has(Need::Kvm, open_kvm()) {
            return;
        }
        let (machine, _recorder, told) = start().unwrap();
        for round in 0..ROUNDS {
            let sent: Vec<_> = [VcpuId(0), VcpuId(1)]
                .into_iter()
                .flat_map(|vcpu| {
                    let vectors = (0..12).map(|n| VcpuEvent::Fixed(0x30 + n * 16 + round % 16));
                    vectors.chain([VcpuEvent::Nmi]).map(move |event| (vcpu, event))
                })
                .collect();
            sent.iter().for_each(|(vcpu, event)| {
                machine.shared.interrupts.deliver_local(*vcpu, *event);
            });
            let rest = machine.rest(PATIENCE).unwrap();
            let all: Vec<_> = told.try_iter().collect();
            drop(rest);
            assert_eq!(all.len(), sent.len(), "round {round}: {all:?}");
            assert!(sent.iter().all(|event| all.contains(event)), "round {round}: {all:?}");
        }
        machine.stop(PATIENCE).unwrap();
    }

    #[test]
    fn kvm_ghost_that_waits_for_its_start_up_is_named_and_does_not_lose_it() {
        if !needs::has(Need::Kvm, open_kvm()) {
            return;
        }
        let (machine, _recorder, told) = start().unwrap();
        let vcpu = VcpuId(1);
        for page in 1..ROUNDS {
            machine.shared.interrupts.deliver_local(vcpu, VcpuEvent::Init);
            assert_eq!(told.recv_timeout(PATIENCE), Ok((vcpu, VcpuEvent::Init)));
            if page == 1 {
                let error = machine.rest(SHORT).unwrap_err();
                assert_eq!(error, RestError::Ghosts { ghosts: vec![vcpu], limit: SHORT });
            }
            let start = VcpuEvent::Startup(page);
            machine.shared.interrupts.deliver_local(vcpu, start);
            let rest = machine.rest(PATIENCE).unwrap();
            assert_eq!(told.try_recv(), Ok((vcpu, start)));
            drop(rest);
        }
        machine.stop(PATIENCE).unwrap();
    }
}
