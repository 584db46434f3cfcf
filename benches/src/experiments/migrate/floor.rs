//! What no hand-over goes below: the state of a vCPU is read and set, and frames go there and back.

use crate::carrier::Carrier;
use crate::echo::Echo;
use crate::experiments::CORES;
use crate::raw::Waiting;
use crate::samples::Samples;
use anyhow::{Context, Result};
use devices::{ShutdownCause, ShutdownSink};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Kvm;
use std::sync::Arc;
use std::time::Instant;
use vmm::interrupts::{InterruptBackEnd, NoRemote};
use vmm::machine::{Machine, MachineConfig, MachineHooks};
use vmm::timer_spacing::TimerSpacing;
use vmm::tsc::ClockRate;
use vmm::vcpu::VcpuError;
use wire::{SliceId, VcpuId};

/// A frame without a payload, nearly.
const FRAME_BYTES: usize = 64;
const TRIPS: u64 = 20;

/// Nothing runs, so nothing is told.
struct Nobody;

impl MachineHooks for Nobody {
    fn fatal(&self, _: &VcpuError) {}
}

impl ShutdownSink for Nobody {
    fn shutdown(&self, _: ShutdownCause) {}
}

/// Times of reading, and of setting, the state of a vCPU that has never run, of a machine of its own.
///
/// # Errors
/// KVM refuses.
pub(super) fn get_and_set(back_end: InterruptBackEnd, times: usize) -> Result<[Samples; 2]> {
    let cpuid = Kvm::new()?.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("read CPUID")?;
    let (id, nobody) = (VcpuId(0), Arc::new(Nobody));
    let machine = Machine::new(MachineConfig {
        placement: migrate::PlacementView::fixed(SliceId(0), &[SliceId(0)])?,
        memory: Vec::new(),
        cpuid: vec![cpuid.as_slice().to_vec()],
        remote: Arc::new(NoRemote),
        shutdown: Arc::clone(&nobody) as _,
        hooks: nobody,
        back_end,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
    })?;
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..times {
        let begin = Instant::now();
        let state = machine.save_vcpu(id)?;
        found[0].push(nanoseconds(begin));
        let begin = Instant::now();
        machine.restore_vcpu(&state)?;
        found[1].push(nanoseconds(begin));
    }
    Ok(found.map(Samples::new))
}

/// Times of a round trip of a small frame between threads that sleep meanwhile, as engines do that expect nothing.
///
/// # Errors
/// The transport fails.
pub(super) fn round_trip(carrier: Carrier, times: usize) -> Result<Samples> {
    let mut echo = Echo::new(carrier, FRAME_BYTES, Waiting::Asleep, CORES)?;
    let trip = |_| Ok(echo.trips(TRIPS)?.as_secs_f64() * 1e9 / f64::from(u32::try_from(TRIPS)?));
    Ok(Samples::new((0..times).map(trip).collect::<Result<_>>()?))
}

fn nanoseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e9
}
