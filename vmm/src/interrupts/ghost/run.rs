//! The thread of one ghost.
//!
//! ```text
//!            +------------------- drained ----------------+
//!            v                                              |
//!   --> Parked --interrupt--> Draining (names each vector) -+
//!         ^  |                   |
//!         |  +------- INIT ------+--> Starting
//!         +---------- start-up ----------+
//! ```
//! A ghost is Parked from the beginning, even if its vCPU has not been started yet: the vCPU may be
//! started by one of its own slice, and no other slice's ghosts would hear of it. (A ghost that
//! waited for INIT with its APIC off lost every interrupt then; the guest hung in its first TLB
//! shoot-down between the second and the third slice.) What is forwarded to a vCPU too early is
//! dropped by that vCPU's own APIC.
//!
//! Starting and Parked are both KVM's UNINITIALIZED, in which `KVM_RUN` sleeps and runs
//! nothing; what arrives ends it with `EAGAIN`. INIT then shows as INIT_RECEIVED. Start-up shows
//! as nothing at all: in Starting, an `EAGAIN` that is no INIT and no NMI *is* the start-up, and
//! its vector comes out when KVM is told SIPI_RECEIVED. Only Draining runs code, the stub, for the
//! few instructions that it takes to name each pending vector. A timer ends a drain that hangs on
//! an INIT, and wakes idle ghosts now and then in case a wake-up was lost.
//!
//! A ghost may take over a KVM vCPU that has run here (see `takeover`), which is Parked or Starting then, and it ends when
//! its vCPU is about to come here, while it is Parked.
//!
//! One gap is left: INIT *and* start-up, both within one drain, run the guest's start-up code here.
//! Linux sends INIT only to CPUs that it has taken off line, long after their last interrupt. If it
//! happens, the ghost fails with an error that says so.
//!
//! The start-up must come by the ghost that had the INIT, so no vCPU leaves a slice of which a ghost is Starting, for some
//! seconds: its move is given up. Not seen is one that leaves in the instants between its INIT and the ghost's wake-up, or
//! between the INIT and the start-up of a vCPU of its own slice, which has no ghost there: that vCPU does not start.

use super::call::GhostCall;
use super::stub::{CODE_SELECTOR, PORT_DRAINED, PORT_NMI, PORT_VECTOR, StubRegion};
use super::takeover::{self, SVR, SVR_ENABLED};
use crate::interrupts::{RemoteInterrupts, VcpuEvent};
use crate::vcpu::kvm::{complete_exit, rip, run_error, set_msr};
use crate::vcpu::signal::{self, KickTimer};
use crate::vcpu::stats::Counters;
use crate::vcpu::{VcpuCore, VcpuError, port, sample};
use kvm_bindings::{
    KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE, KVM_MP_STATE_SIPI_RECEIVED,
    KVM_MP_STATE_UNINITIALIZED, KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SMM,
    kvm_mp_state,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// A drain that takes longer is looked at.
const DRAIN_KICK: Duration = Duration::from_millis(1);
/// An idle ghost is looked at this often. Each look takes the processor from a vCPU that may run there.
const IDLE_KICK: Duration = Duration::from_secs(1);
/// Lowest vector that an APIC delivers; below are exceptions.
const FIRST_VECTOR: u8 = 16;
/// `EAGAIN` in a row without any reason that is known.
const MOST_RIDDLES: u32 = 1000;
/// The interrupt-request registers in the page of an APIC: 32 bits in each 16 bytes.
const IRR: Range<usize> = 0x200..0x280;
const IRR_STRIDE: usize = 16;
/// Code segment after a reset of the boot vCPU.
const RESET_SELECTOR: u16 = 0xf000;

/// What the KVM vCPU was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is new.
    New,
    /// It has run, or was restored, here.
    Vcpu {
        /// Its saved state has had an INIT and waits for the start-up.
        waits_for_startup: bool,
    },
}

/// The stand-in of one vCPU.
#[derive(Debug)]
pub(crate) struct Ghost {
    core: Arc<VcpuCore>,
    region: Arc<StubRegion>,
    call: Arc<GhostCall>,
    before: Before,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Starting,
    Parked,
    Draining,
}

impl Ghost {
    pub(super) fn new(core: Arc<VcpuCore>, region: Arc<StubRegion>, before: Before) -> Self {
        let call = Arc::new(GhostCall::new(Arc::clone(&core)));
        Self { core, region, call, before }
    }

    /// By which it is asked whether anything waits in it.
    pub(crate) fn call(&self) -> Arc<GhostCall> {
        Arc::clone(&self.call)
    }

    /// Forwards interrupts to `remote` until `stop` is set and the thread is kicked. Calls `online` when none that is sent from then on
    /// is lost.
    pub(crate) fn run(
        self,
        (remote, stop): (&dyn RemoteInterrupts, &AtomicBool),
        fd: &mut VcpuFd,
        online: impl FnOnce(),
    ) -> Result<(), VcpuError> {
        let action = "make the timer of its ghost";
        let vcpu = self.core.id;
        let timer = KickTimer::new().map_err(|source| VcpuError::Ioctl { vcpu, action, source })?;
        timer.arm(IDLE_KICK, IDLE_KICK);
        let mut ghost =
            GhostLoop { ghost: self, remote, stop, timer, mode: Mode::Parked, riddles: 0 };
        let begun = match ghost.ghost.before {
            Before::New => {
                let begun = ghost.go_online(fd);
                online();
                begun
            }
            Before::Vcpu { waits_for_startup } => {
                // Its APIC takes what is sent all the while, and keeps it.
                online();
                ghost.take_over(fd, waits_for_startup)
            }
        };
        let result = begun.and_then(|()| ghost.run(fd));
        ghost.ghost.call.end();
        result
    }
}

struct GhostLoop<'a> {
    ghost: Ghost,
    remote: &'a dyn RemoteInterrupts,
    stop: &'a AtomicBool,
    timer: KickTimer,
    mode: Mode,
    riddles: u32,
}

impl GhostLoop<'_> {
    fn run(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let core = Arc::clone(&self.ghost.core);
        while !self.stop.load(SeqCst) {
            if self.mode == Mode::Parked && self.ghost.call.leaves() {
                return Ok(());
            }
            if self.ghost.call.is_asked() {
                self.answer(fd)?;
            }
            Counters::add(&core.counters.runs);
            match fd.run() {
                Ok(VcpuExit::IoOut(..)) => {
                    Counters::add(&core.counters.exits_io);
                    self.port_written(fd)?;
                }
                // The vCPU ends the interrupt itself, where it is.
                Ok(VcpuExit::IoapicEoi(_)) => Counters::add(&core.counters.exits_eoi),
                Ok(other) => {
                    let what = format!("unexpected exit {other:?}");
                    return Err(self.strange(fd, what));
                }
                Err(error) if error.errno() == libc::EINTR => {
                    Counters::add(&core.counters.exits_kicked);
                    signal::drain();
                    sample::tell(&core, fd, true);
                    self.kicked(fd)?;
                }
                Err(error) if error.errno() == libc::EAGAIN => {
                    Counters::add(&core.counters.exits_again);
                    self.woken(fd)?;
                }
                Err(error) => return Err(run_error(core.id, fd, error.into())),
            }
        }
        Ok(())
    }

    fn strange(&self, fd: &VcpuFd, what: String) -> VcpuError {
        VcpuError::Ghost { vcpu: self.ghost.core.id, what, rip: rip(fd) }
    }

    fn error(&self, action: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VcpuError {
        let vcpu = self.ghost.core.id;
        move |source| VcpuError::Ioctl { vcpu, action, source: source.into() }
    }

    fn forward(&self, event: VcpuEvent) {
        Counters::add(&self.ghost.core.counters.interrupts_out);
        self.remote.forward(self.ghost.core.id, event);
    }

    fn state(&self, fd: &VcpuFd) -> Result<u32, VcpuError> {
        let state = fd.get_mp_state().map_err(self.error("read the state of its ghost"))?;
        Ok(state.mp_state)
    }

    fn set_state(&self, fd: &VcpuFd, mp_state: u32) -> Result<(), VcpuError> {
        fd.set_mp_state(kvm_mp_state { mp_state }).map_err(self.error("set the state of its ghost"))
    }

    fn port_written(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let (_, port, _, data) = port::decode(fd);
        let value = data.first().copied().unwrap_or(0);
        match port {
            PORT_VECTOR if value >= FIRST_VECTOR => self.forward(VcpuEvent::Fixed(value)),
            PORT_VECTOR => return Err(self.strange(fd, format!("exception {value}"))),
            PORT_NMI => self.forward(VcpuEvent::Nmi),
            PORT_DRAINED => return self.park(fd),
            _ => return Err(self.strange(fd, format!("write to port {port:#x}"))),
        }
        Ok(())
    }

    /// Everything pending was told: sleep again. An INIT that just came must not be covered.
    fn park(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        if self.interrupted_drain(fd)? {
            return Ok(());
        }
        self.set_state(fd, KVM_MP_STATE_UNINITIALIZED)?;
        Counters::add(&self.ghost.core.counters.ghost_parks);
        self.mode = Mode::Parked;
        self.timer.arm(IDLE_KICK, IDLE_KICK);
        Ok(())
    }

    /// `KVM_RUN` gave `EAGAIN`.
    fn woken(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        match self.state(fd)? {
            KVM_MP_STATE_INIT_RECEIVED => self.init(fd),
            KVM_MP_STATE_RUNNABLE => self.init_and_start(fd),
            _ if self.take_nmi(fd)? => Ok(()),
            _ => match self.mode {
                Mode::Parked => {
                    self.set_state(fd, KVM_MP_STATE_RUNNABLE)?;
                    self.mode = Mode::Draining;
                    Counters::add(&self.ghost.core.counters.ghost_wakes);
                    self.riddles = 0;
                    self.timer.arm(DRAIN_KICK, DRAIN_KICK);
                    Ok(())
                }
                Mode::Starting => self.start(fd),
                Mode::Draining => self.riddle(fd),
            },
        }
    }

    /// Somebody asks whether anything waits in the ghost. What does is told in the usual way, and then it is asked again.
    fn answer(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        // In Starting, to look for the state would drop a start-up that waits.
        if self.mode != Mode::Parked {
            return Ok(());
        }
        if self.state(fd)? != KVM_MP_STATE_UNINITIALIZED {
            return self.kicked(fd);
        }
        if !self.is_anything_pending(fd)? {
            self.ghost.call.answer();
        }
        Ok(())
    }

    /// Whether the APIC holds a vector, or the vCPU an NMI.
    fn is_anything_pending(&self, fd: &VcpuFd) -> Result<bool, VcpuError> {
        let events = fd.get_vcpu_events().map_err(self.error("read events of its ghost"))?;
        let apic = fd.get_lapic().map_err(self.error("read the local APIC of its ghost"))?;
        let mut requests = apic.regs[IRR].chunks(IRR_STRIDE).flat_map(|word| &word[..4]);
        Ok(events.nmi.pending != 0 || events.nmi.injected != 0 || requests.any(|byte| *byte != 0))
    }

    /// Nothing that is known woke the ghost. It may happen, but not for ever.
    fn riddle(&mut self, fd: &VcpuFd) -> Result<(), VcpuError> {
        self.riddles += 1;
        if self.riddles > MOST_RIDDLES {
            return Err(self.strange(fd, format!("woken without cause while {:?}", self.mode)));
        }
        Ok(())
    }

    /// A kick: by the timer, or because the machine stops.
    fn kicked(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        match self.state(fd)? {
            KVM_MP_STATE_INIT_RECEIVED => self.init(fd),
            KVM_MP_STATE_RUNNABLE if self.mode != Mode::Draining => self.init_and_start(fd),
            _ if self.mode == Mode::Draining => self.interrupted_drain(fd).map(drop),
            _ => Ok(()),
        }
    }

    /// Takes an INIT, or INIT and start-up, that came during a drain. When the guest's start-up
    /// code has begun to run here, nothing can be trusted any more.
    fn interrupted_drain(&mut self, fd: &mut VcpuFd) -> Result<bool, VcpuError> {
        if self.state(fd)? == KVM_MP_STATE_INIT_RECEIVED {
            self.init(fd)?;
            Counters::add(&self.ghost.core.counters.ghost_parks);
            return Ok(true);
        }
        let sregs = fd.get_sregs().map_err(self.error("read registers of its ghost"))?;
        if sregs.cs.selector == CODE_SELECTOR {
            return Ok(false);
        }
        if rip(fd) != 0 && sregs.cs.selector != RESET_SELECTOR {
            return Err(self.strange(fd, "start-up code of the guest ran".to_owned()));
        }
        self.init_and_start(fd)?;
        Counters::add(&self.ghost.core.counters.ghost_parks);
        Ok(true)
    }

    /// A parked ghost cannot take an NMI itself; it shows as pending. In state Parked the drain
    /// names it like a vector.
    fn take_nmi(&self, fd: &VcpuFd) -> Result<bool, VcpuError> {
        if self.mode == Mode::Parked {
            return Ok(false);
        }
        let mut events = fd.get_vcpu_events().map_err(self.error("read events of its ghost"))?;
        if events.nmi.pending == 0 {
            return Ok(false);
        }
        events.nmi.pending = 0;
        events.flags |= KVM_VCPUEVENT_VALID_NMI_PENDING;
        // Otherwise KVM would take back an INIT that came since they were read.
        events.flags &= !KVM_VCPUEVENT_VALID_SMM;
        fd.set_vcpu_events(&events).map_err(self.error("set events of its ghost"))?;
        self.forward(VcpuEvent::Nmi);
        Ok(true)
    }

    /// The KVM vCPU was run or restored here, and is to be a ghost from now on.
    fn take_over(&mut self, fd: &mut VcpuFd, waits: bool) -> Result<(), VcpuError> {
        match self.state(fd)? {
            KVM_MP_STATE_INIT_RECEIVED if waits => self.wait_for_start(fd),
            KVM_MP_STATE_INIT_RECEIVED => self.init(fd),
            KVM_MP_STATE_RUNNABLE if waits => self.started(fd),
            KVM_MP_STATE_RUNNABLE => self.init_and_start(fd),
            _ => {
                takeover::clear(self.ghost.core.id, fd)?;
                self.go_online(fd)
            }
        }
    }

    /// INIT came: the real vCPU resets, the ghost waits for the start-up.
    fn init(&mut self, fd: &VcpuFd) -> Result<(), VcpuError> {
        self.wait_for_start(fd)?;
        self.forward(VcpuEvent::Init);
        Ok(())
    }

    fn wait_for_start(&mut self, fd: &VcpuFd) -> Result<(), VcpuError> {
        // A kick together with the start-up would hide it: KVM drops the start-up of a vCPU that
        // it believes uninitialized, and EINTR would not tell. So no kick may be on its way, nor
        // pending, when KVM is entered next; a stop that is forgotten here shows in its flag.
        self.timer.arm(Duration::ZERO, Duration::ZERO);
        self.ghost.call.set_shy(true);
        signal::drain();
        self.set_state(fd, KVM_MP_STATE_UNINITIALIZED)?;
        self.mode = Mode::Starting;
        Ok(())
    }

    /// The start-up came: make KVM tell its vector.
    fn start(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        self.set_state(fd, KVM_MP_STATE_SIPI_RECEIVED)?;
        if self.state(fd)? != KVM_MP_STATE_RUNNABLE {
            self.set_state(fd, KVM_MP_STATE_UNINITIALIZED)?;
            return self.riddle(fd);
        }
        self.started(fd)
    }

    /// INIT and start-up came together; or INIT to the boot vCPU, which knows no start-up.
    fn init_and_start(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        self.forward(VcpuEvent::Init);
        self.started(fd)
    }

    /// KVM has put the ghost at its start-up page. The ghost is made ready before the real vCPU
    /// starts, since interrupts for it may follow at once.
    fn started(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let sregs = fd.get_sregs().map_err(self.error("read registers of its ghost"))?;
        let selector = sregs.cs.selector;
        self.go_online(fd)?;
        if selector != RESET_SELECTOR {
            self.forward(VcpuEvent::Startup(selector.to_be_bytes()[0]));
        }
        Ok(())
    }

    /// Loads the stub, enables the APIC and parks.
    fn go_online(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let action = "load the stub of its ghost";
        let vcpu = self.ghost.core.id;
        // Only a runnable vCPU finishes its last exit.
        self.set_state(fd, KVM_MP_STATE_RUNNABLE)?;
        complete_exit(vcpu, fd)?;
        let mut sregs = fd.get_sregs().map_err(self.error(action))?;
        let regs = self.ghost.region.registers(vcpu.0, &mut sregs);
        fd.set_sregs(&sregs).map_err(self.error(action))?;
        fd.set_regs(&regs).map_err(self.error(action))?;
        let enable = |source: io::Error| VcpuError::Ioctl { vcpu, action, source };
        set_msr(fd, SVR, SVR_ENABLED).map_err(enable)?;
        self.set_state(fd, KVM_MP_STATE_UNINITIALIZED)?;
        self.mode = Mode::Parked;
        self.ghost.call.set_shy(false);
        self.timer.arm(IDLE_KICK, IDLE_KICK);
        Ok(())
    }
}
