//! The back end without an interrupt controller in the kernel: every APIC register access is an
//! exit, interrupts go in by `KVM_INTERRUPT`, the timer is a POSIX timer that kicks the vCPU.
//!
//! State of a vCPU:
//! ```text
//!            INIT                     start-up
//!   any ------------> wait for start-up ------> running <---> halted
//!                            power-on -----------^
//! ```
//! The thread of the vCPU owns the APIC; all others only post into its mailbox.

#![expect(unsafe_code, reason = "one ioctl that kvm-ioctls lacks")]
// UNSAFETY: KVM_INTERRUPT has no safe wrapper.

use super::lapic::{Command, Effect, Lapic, TSC_DEADLINE, X2APIC_FIRST, X2APIC_LAST};
use super::mailbox::{Mail, Mailbox};
use super::routing::resolve_from;
use super::saved::{Activity, ApicState, UserspaceApic};
use super::{Interrupts, MsrAnswer, Next, RemoteInterrupts, VcpuApic, VcpuEvent};
use crate::timer_spacing::{SpacingState, TimerSpacing};
use crate::tsc::GuestTsc;
use crate::vcpu::kvm::complete_exit;
use crate::vcpu::signal::KickTimer;
use crate::vcpu::stats::Counters;
use crate::vcpu::{StateError, VcpuCore, VcpuError};
use kvm_bindings::{kvm_debugregs, kvm_interrupt, kvm_regs, kvm_sregs, kvm_vcpu_events};
use kvm_ioctls::VcpuFd;
use migrate::{Invalid, PlacementView, Route};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;
use wire::VcpuId;

const KVMIO: u32 = 0xAE;
ioctl_iow_nr!(KVM_INTERRUPT, KVMIO, 0x86, kvm_interrupt);

/// A sleeping vCPU looks around this often, although every event kicks it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// A deadline is armed for no longer than this, and looked at again then.
const LONGEST_TIMER: Duration = Duration::from_secs(3600);

/// Time to the next kick when one came before the deadline.
const TIMER_RETRY: Duration = Duration::from_millis(1);

/// What the APICs of one machine share.
struct Router {
    /// By vCPU id; those of vCPUs elsewhere stay empty.
    mailboxes: Vec<Mailbox>,
    placement: PlacementView,
    cores: Vec<Arc<VcpuCore>>,
    /// What those begin with that were restored, until their threads take it.
    beginnings: Vec<Mutex<Beginning>>,
    remote: Arc<dyn RemoteInterrupts>,
    /// By vector: level-triggered.
    level: Vec<AtomicBool>,
    clock: Arc<GuestTsc>,
    spacing: TimerSpacing,
}

impl Router {
    fn send(&self, target: VcpuId, event: VcpuEvent) {
        let Some(place) = place_of(target) else { return };
        match (self.placement.route(target), self.mailboxes.get(place)) {
            // A start-up that overtakes its INIT is lost, and so is the vCPU. One of the two may still be on its way by another slice.
            (Route::Here, Some(_)) if event.starts() && self.remote.keeps_order() => {
                self.remote.forward(target, event);
            }
            (Route::Here, Some(_)) => self.post(target, place, event),
            (Route::There(_), Some(_)) => {
                Counters::add(&self.cores[place].counters.interrupts_out);
                self.remote.forward(target, event);
            }
            (Route::Nowhere, _) | (_, None) => {}
        }
    }

    /// Leaves an event for a vCPU that is here. If it has been released meanwhile, the event goes on its way at once.
    fn post(&self, target: VcpuId, place: usize, event: VcpuEvent) {
        self.mailboxes[place].post(event);
        if self.mailboxes[place].is_shut() {
            self.forward_mail(target, place);
        }
    }

    fn forward_mail(&self, target: VcpuId, place: usize) {
        for event in self.mailboxes[place].collect().iter().flat_map(Mail::events) {
            Counters::add(&self.cores[place].counters.interrupts_out);
            self.remote.forward(target, event);
        }
    }

    fn beginning(&self, id: VcpuId) -> MutexGuard<'_, Beginning> {
        let place = usize::try_from(id.0).expect("a vCPU id fits usize");
        self.beginnings[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_level(&self, vector: u8) -> bool {
        self.level[usize::from(vector)].load(Relaxed)
    }
}

/// The back end.
pub(crate) struct Userspace {
    router: Arc<Router>,
}

impl Userspace {
    pub(crate) fn new(
        cores: &[Arc<VcpuCore>],
        placement: PlacementView,
        remote: Arc<dyn RemoteInterrupts>,
        clock: Arc<GuestTsc>,
        spacing: TimerSpacing,
    ) -> Self {
        let mailboxes = cores.iter().map(|core| Mailbox::new(Arc::clone(&core.doorbell))).collect();
        let level = (0..256).map(|_| AtomicBool::new(false)).collect();
        let beginnings = cores.iter().map(|_| Mutex::default()).collect();
        let cores = cores.to_vec();
        let router =
            Router { mailboxes, placement, cores, beginnings, remote, level, clock, spacing };
        Self { router: Arc::new(router) }
    }
}

impl Interrupts for Userspace {
    fn deliver_local(&self, target: VcpuId, event: VcpuEvent) {
        if let Some(place) = place_of(target).filter(|at| *at < self.router.mailboxes.len()) {
            self.router.post(target, place, event);
        }
    }

    fn set_here(&self, id: VcpuId, is_here: bool) {
        let Some(place) = place_of(id) else { return };
        self.router.mailboxes[place].set_shut(!is_here);
        if !is_here {
            self.router.beginning(id).restored = None;
            self.router.forward_mail(id, place);
        }
    }

    fn set_level_vector(&self, vector: u8, level: bool) -> Result<(), io::Error> {
        self.router.level[usize::from(vector)].store(level, Relaxed);
        Ok(())
    }

    fn vcpu_apic(&self, id: VcpuId) -> Result<Box<dyn VcpuApic>, io::Error> {
        Ok(Box::new(UserspaceVcpuApic::new(id, Arc::clone(&self.router))?))
    }

    fn keep_reset_state(&self, id: VcpuId, vcpu: &mut VcpuFd) -> Result<(), StateError> {
        let mut beginning = self.router.beginning(id);
        if beginning.reset.is_none() {
            beginning.reset = Some(Arc::new(ResetState::of(id, vcpu)?));
        }
        Ok(())
    }

    fn restore(&self, id: VcpuId, _vcpu: &mut VcpuFd, state: &ApicState) -> Result<(), StateError> {
        let ApicState::Userspace(UserspaceApic { lapic, activity, nmi_sent }) = state else {
            return Err(
                Invalid::new("apic", "it was in the kernel, here it is in user space").into()
            );
        };
        let lapic = Lapic::restored(id, self.router.clock.true_khz(), lapic)?;
        self.router.beginning(id).restored = Some((lapic, *activity, *nmi_sent));
        Ok(())
    }
}

/// What a vCPU begins with that was restored.
#[derive(Default)]
struct Beginning {
    /// Kept for as long as there is the KVM vCPU: it may be released, and restored again.
    reset: Option<Arc<ResetState>>,
    /// Its APIC, whether it runs, and whether an NMI was sent.
    restored: Option<(Lapic, Activity, bool)>,
}

/// Registers as the kernel made them: what INIT brings back.
struct ResetState {
    sregs: kvm_sregs,
    events: kvm_vcpu_events,
    debug: kvm_debugregs,
}

impl ResetState {
    fn of(id: VcpuId, vcpu: &VcpuFd) -> Result<Self, VcpuError> {
        let error = |action| {
            move |source: kvm_ioctls::Error| VcpuError::Ioctl {
                vcpu: id,
                action,
                source: source.into(),
            }
        };
        Ok(Self {
            sregs: vcpu.get_sregs().map_err(error("read system registers"))?,
            events: vcpu.get_vcpu_events().map_err(error("read pending events"))?,
            debug: vcpu.get_debug_regs().map_err(error("read debug registers"))?,
        })
    }
}

struct UserspaceVcpuApic {
    id: VcpuId,
    core: Arc<VcpuCore>,
    router: Arc<Router>,
    lapic: Lapic,
    spacing: SpacingState,
    timer: KickTimer,
    /// The timer is armed for this guest time; `None` when it is off.
    armed: Option<u64>,
    state: Activity,
    /// An NMI was handed to KVM since the last look whether it was taken.
    nmi_sent: bool,
    reset: Option<Arc<ResetState>>,
}

impl UserspaceVcpuApic {
    fn new(id: VcpuId, router: Arc<Router>) -> Result<Self, io::Error> {
        let place = usize::try_from(id.0).expect("a vCPU id fits usize");
        let core = Arc::clone(&router.cores[place]);
        let (reset, restored) = {
            let mut beginning = router.beginning(id);
            (beginning.reset.clone(), beginning.restored.take())
        };
        let activity = if id.0 == 0 { Activity::Running } else { Activity::PowerOn };
        let khz = router.clock.true_khz();
        let (lapic, state, nmi_sent) =
            restored.unwrap_or_else(|| (Lapic::new(id, khz), activity, false));
        Ok(Self {
            id,
            core,
            lapic,
            spacing: SpacingState::new(router.spacing, khz),
            timer: KickTimer::new()?,
            armed: None,
            state,
            nmi_sent,
            reset,
            router,
        })
    }

    fn error(&self, action: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VcpuError {
        let vcpu = self.id;
        move |source| VcpuError::Ioctl { vcpu, action, source: source.into() }
    }

    /// Takes the mailbox in.
    fn take_mail(&mut self, vcpu: &mut VcpuFd, mail: &Mail) -> Result<(), VcpuError> {
        if mail.init {
            self.lapic.reset();
            self.arm_timer();
            self.state = Activity::WaitForStartup;
        }
        for (word, bits) in (0_u8..8).zip(mail.fixed) {
            for bit in (0_u8..32).filter(|bit| bits >> bit & 1 != 0) {
                let vector = word * 32 + bit;
                self.lapic.raise(vector, self.router.is_level(vector));
            }
        }
        if self.state.waits_for_startup() {
            if let Some(page) = mail.startup {
                self.start_up(vcpu, page)?;
            }
        } else if mail.nmi {
            vcpu.nmi().map_err(self.error("inject an NMI"))?;
            self.nmi_sent = true;
            self.state = Activity::Running;
        }
        Ok(())
    }

    /// Puts the vCPU at the start of real-mode page `page` (SDM vol. 3, 10.1.4 and 11.4.4.1).
    fn start_up(&mut self, vcpu: &mut VcpuFd, page: u8) -> Result<(), VcpuError> {
        // What is left of the last exit must not happen to the new registers.
        complete_exit(self.id, vcpu)?;
        let reset = self.reset.as_ref().expect("prepare() keeps the reset state first");
        let mut sregs = reset.sregs;
        sregs.cs.selector = u16::from(page) << 8;
        sregs.cs.base = u64::from(page) << 12;
        // INIT keeps the APIC mode.
        sregs.apic_base = vcpu.get_sregs().map_err(self.error("read registers"))?.apic_base;
        vcpu.set_vcpu_events(&reset.events).map_err(self.error("reset pending events"))?;
        vcpu.set_debug_regs(&reset.debug).map_err(self.error("reset debug registers"))?;
        vcpu.set_sregs(&sregs).map_err(self.error("reset system registers"))?;
        let regs = kvm_regs { rflags: 2, ..Default::default() };
        vcpu.set_regs(&regs).map_err(self.error("reset registers"))?;
        self.state = Activity::Running;
        Ok(())
    }

    /// Raises the timer's interrupt when it is due and spacing allows it, else arms the kick.
    fn check_timer(&mut self) {
        let now = self.router.clock.now();
        let Some(due) = self.due() else { return };
        if due > now {
            // One that was restored has no kick yet.
            return self.arm_timer();
        }
        if self.lapic.expire_timer(now) {
            // Otherwise it would go on kicking at the retry interval until the guest arms it anew,
            // and each kick restarts a page fault that this vCPU may be waiting in.
            self.timer.arm(Duration::ZERO, Duration::ZERO);
            self.armed = None;
            self.arm_timer();
        }
    }

    /// When the timer interrupt may come.
    fn due(&self) -> Option<u64> {
        self.lapic.timer().due().map(|due| due.max(self.spacing.earliest()))
    }

    fn arm_timer(&mut self) {
        let due = self.due();
        if due == self.armed {
            return;
        }
        self.armed = due;
        let wait = due.map_or(Duration::ZERO, |due| {
            self.router.clock.until(due).clamp(Duration::from_nanos(1), LONGEST_TIMER)
        });
        // The host's clock may run a little ahead of the counter: kick again until it is due.
        self.timer.arm(wait, TIMER_RETRY);
    }

    /// The guest armed the timer: counts a deferral, and the end of the last tick.
    fn timer_written(&mut self) {
        self.spacing.timer_finished(self.router.clock.now());
        let wanted = self.lapic.timer().due();
        if wanted.is_some_and(|due| due < self.spacing.earliest()) {
            Counters::add(&self.core.counters.timer_deferrals);
        }
        self.arm_timer();
    }

    fn send(&mut self, command: Command) {
        let event = VcpuEvent::of(command.message.mode, command.message.vector);
        let vcpus = u32::try_from(self.router.mailboxes.len()).unwrap_or(u32::MAX);
        let (router, me, lapic) = (&self.router, self.id, &mut self.lapic);
        resolve_from(me, command.shorthand, &command.message, vcpus, |target| match event {
            VcpuEvent::Fixed(vector) if target == me => lapic.raise(vector, false),
            _ => router.send(target, event),
        });
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Send(command) => self.send(command),
            Effect::Timer => self.timer_written(),
            Effect::Ended { vector, level, timer } => {
                if timer {
                    self.spacing.timer_eoi(self.router.clock.now());
                    self.arm_timer();
                }
                if level {
                    self.router.remote.end_of_interrupt(vector);
                }
            }
        }
    }

    /// Injects the highest pending interrupt, or asks for an exit as soon as that is possible.
    fn inject(&mut self, vcpu: &mut VcpuFd) -> Result<(), VcpuError> {
        let run = vcpu.get_kvm_run();
        run.request_interrupt_window = 0;
        run.cr8 = u64::from(self.lapic.cr8());
        let Some(vector) = self.lapic.deliverable() else { return Ok(()) };
        if run.ready_for_interrupt_injection == 0 || run.if_flag == 0 {
            run.request_interrupt_window = 1;
            return Ok(());
        }
        self.lapic.accept(vector);
        // One of a higher class may come while this one is handled.
        run.request_interrupt_window = u8::from(self.lapic.deliverable().is_some());
        let interrupt = kvm_interrupt { irq: u32::from(vector) };
        // SAFETY: the kernel reads the structure, which lives until the call returns.
        if unsafe { ioctl_with_ref(vcpu, KVM_INTERRUPT(), &interrupt) } != 0 {
            return Err(self.error("inject an interrupt")(kvm_ioctls::Error::last()));
        }
        Counters::add(&self.core.counters.injected);
        if self.lapic.is_timer_vector(vector) {
            self.spacing.timer_delivered(self.router.clock.now());
        }
        Ok(())
    }

    /// An NMI that came while another was handled may still wait in KVM when the guest halts. Not
    /// every KVM gives it to the guest before the halt is told.
    fn nmi_waits(&mut self, vcpu: &VcpuFd) -> Result<bool, VcpuError> {
        if self.nmi_sent {
            let events = vcpu.get_vcpu_events().map_err(self.error("read pending events"))?;
            self.nmi_sent = events.nmi.pending != 0 || events.nmi.injected != 0;
        }
        Ok(self.nmi_sent)
    }

    fn keep_reset_state(&mut self, vcpu: &VcpuFd) -> Result<(), VcpuError> {
        if self.reset.is_none() {
            let reset = Arc::new(ResetState::of(self.id, vcpu)?);
            self.router.beginning(self.id).reset = Some(Arc::clone(&reset));
            self.reset = Some(reset);
        }
        Ok(())
    }
}

impl VcpuApic for UserspaceVcpuApic {
    fn prepare(&mut self, vcpu: &mut VcpuFd) -> Result<Next, VcpuError> {
        self.take_in(vcpu)?;
        self.check_timer();
        if self.state == Activity::Halted {
            let wakes = self.lapic.deliverable().is_some() && vcpu.get_kvm_run().if_flag != 0;
            if !wakes && !self.nmi_waits(vcpu)? {
                return Ok(Next::Wait(LONGEST_SLEEP));
            }
            self.state = Activity::Running;
        }
        if self.state.waits_for_startup() {
            return Ok(Next::Wait(LONGEST_SLEEP));
        }
        self.inject(vcpu)?;
        Ok(Next::Run)
    }

    fn after_run(&mut self, vcpu: &mut VcpuFd) {
        let cr8 = vcpu.get_kvm_run().cr8;
        self.lapic.set_cr8(cr8.to_le_bytes()[0] & 0xf);
    }

    fn read_msr(&mut self, index: u32) -> MsrAnswer {
        if !is_apic(index) {
            return MsrAnswer::NotMine;
        }
        match self.lapic.read(index, self.router.clock.now()) {
            Ok(value) => MsrAnswer::Value(value),
            Err(_) => MsrAnswer::Fault,
        }
    }

    fn write_msr(&mut self, index: u32, value: u64) -> MsrAnswer {
        if !is_apic(index) {
            return MsrAnswer::NotMine;
        }
        match self.lapic.write(index, value, self.router.clock.now()) {
            Ok(effect) => {
                self.apply(effect);
                MsrAnswer::Value(0)
            }
            Err(_) => MsrAnswer::Fault,
        }
    }

    fn halted(&mut self) {
        self.spacing.timer_finished(self.router.clock.now());
        self.state = Activity::Halted;
    }

    fn settle(&mut self, vcpu: &mut VcpuFd) {
        let run = vcpu.get_kvm_run();
        run.request_interrupt_window = 0;
        run.cr8 = u64::from(self.lapic.cr8());
    }

    fn take_in(&mut self, vcpu: &mut VcpuFd) -> Result<(), VcpuError> {
        self.keep_reset_state(vcpu)?;
        if let Some(mail) = self.router.mailboxes[self.core.place].collect() {
            self.take_mail(vcpu, &mail)?;
        }
        Ok(())
    }

    fn save(&mut self, _vcpu: &VcpuFd) -> Result<ApicState, VcpuError> {
        let (lapic, activity, nmi_sent) = (self.lapic.save(), self.state, self.nmi_sent);
        Ok(ApicState::Userspace(UserspaceApic { lapic, activity, nmi_sent }))
    }
}

fn place_of(id: VcpuId) -> Option<usize> {
    usize::try_from(id.0).ok()
}

fn is_apic(index: u32) -> bool {
    index == TSC_DEADLINE || (X2APIC_FIRST..=X2APIC_LAST).contains(&index)
}

#[cfg(test)]
mod tests;
