//! The kick: the one signal that takes a vCPU thread out of `KVM_RUN` or out of its sleep.
//!
//! The signal is blocked in every vCPU thread and open only inside `KVM_RUN`
//! (`KVM_SET_SIGNAL_MASK`), so no other system call of the thread is ever interrupted, and a kick
//! that comes just before `KVM_RUN` is still pending there and ends it at once: nothing is lost.
//! A `KVM_RUN` that sleeps in a userfaultfd fault is ended too; the fault is raised again later.

#![expect(unsafe_code, reason = "signals, POSIX timers and one ioctl that kvm-ioctls lacks")]
// UNSAFETY: the C library's signal and timer calls take raw pointers to plain structures.

use kvm_ioctls::VcpuFd;
use std::io::{Error, Result};
use std::mem::zeroed;
use std::process::id;
use std::ptr::{from_ref, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

const KVMIO: u32 = 0xAE;
/// `struct kvm_signal_mask` without its flexible array.
type SignalMaskHead = u32;
ioctl_iow_nr!(KVM_SET_SIGNAL_MASK, KVMIO, 0x8b, SignalMaskHead);

const KICK: i32 = libc::SIGUSR1;

/// `struct kvm_signal_mask` with the eight bytes of a kernel signal set.
#[repr(C)]
struct SignalMask {
    len: u32,
    set: [u8; 8],
}

fn check(result: i32) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn kick_set() -> libc::sigset_t {
    // SAFETY: a signal set is plain memory, and all zeroes is a valid one.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: `set` is a signal set of our own.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: as above.
    unsafe { libc::sigaddset(&raw mut set, KICK) };
    set
}

extern "C" fn ignore(_signal: i32) {}

/// A kick can reach a thread that took over the number of a vCPU thread that just ended. It must
/// not end the process then.
fn make_harmless() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a sigaction is plain memory, and all zeroes is a valid one.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = ignore as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` lives until the call returns; the handler does nothing.
        unsafe { libc::sigaction(KICK, &raw const action, null_mut()) };
    });
}

/// Prepares the calling thread: the kick is blocked but inside `KVM_RUN` of `vcpu`.
///
/// # Errors
/// The kernel refuses.
pub fn prepare_thread(vcpu: &VcpuFd) -> Result<()> {
    make_harmless();
    let set = kick_set();
    // SAFETY: `set` lives until the call returns.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut()) };
    if result != 0 {
        return Err(Error::from_raw_os_error(result));
    }
    // Inside KVM_RUN nothing is blocked.
    let open = SignalMask { len: 8, set: [0; 8] };
    // SAFETY: the kernel reads a length and that many bytes behind it, which `open` holds.
    check(unsafe { ioctl_with_ref(vcpu, KVM_SET_SIGNAL_MASK(), &open) })
}

/// Forgets the kicks that are pending for the calling thread.
pub fn drain() {
    while wait(Duration::ZERO) {}
}

/// Sleeps until a kick or the end of `limit`; true after a kick.
pub(crate) fn wait(limit: Duration) -> bool {
    let set = kick_set();
    let limit = timespec(limit);
    // SAFETY: both structures live until the call returns; no siginfo is asked for.
    unsafe { libc::sigtimedwait(from_ref(&set), null_mut(), from_ref(&limit)) == KICK }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Where the thread of a vCPU can be kicked.
#[derive(Debug, Default)]
pub struct Doorbell {
    tid: AtomicI32,
}

impl Doorbell {
    /// The calling thread is the one to kick from now on.
    pub fn attach(&self) {
        // SAFETY: gettid has no conditions.
        let tid = unsafe { libc::gettid() };
        self.tid.store(tid, Ordering::SeqCst);
    }

    /// No thread is to be kicked any more.
    pub fn detach(&self) {
        self.tid.store(0, Ordering::SeqCst);
    }

    /// Thread number, or `None` while no thread runs.
    #[must_use]
    pub fn tid(&self) -> Option<i32> {
        Some(self.tid.load(Ordering::SeqCst)).filter(|tid| *tid != 0)
    }

    /// Kicks the thread. Does nothing while there is none.
    pub fn ring(&self) {
        if let Some(tid) = self.tid() {
            let process = id().cast_signed();
            // SAFETY: tgkill takes numbers only; a thread that is gone gives an error.
            unsafe { libc::syscall(libc::SYS_tgkill, process, tid, KICK) };
        }
    }
}

/// A timer that kicks the thread that made it.
#[derive(Debug)]
pub(crate) struct KickTimer(libc::timer_t);

// SAFETY: a timer number may be used from any thread.
unsafe impl Send for KickTimer {}

impl KickTimer {
    /// A disarmed timer for the calling thread.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: a sigevent is plain memory, and all zeroes is a valid one.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = KICK;
        // SAFETY: gettid has no conditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = null_mut();
        // SAFETY: both pointers are to variables of this function.
        check(unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        })?;
        Ok(Self(timer))
    }

    /// Kicks once after `first`, then every `interval` when that is not zero. A zero `first`
    /// disarms the timer.
    pub(crate) fn arm(&self, first: Duration, interval: Duration) {
        let value = libc::itimerspec { it_interval: timespec(interval), it_value: timespec(first) };
        // SAFETY: the timer is ours until drop, and `value` lives until the call returns.
        unsafe { libc::timer_settime(self.0, 0, from_ref(&value), null_mut()) };
    }
}

impl Drop for KickTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and this is its last use.
        unsafe { libc::timer_delete(self.0) };
    }
}

const _: () = assert!(size_of::<SignalMask>() == 12, "no padding before the signal set");

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn block_kick() {
        make_harmless();
        let set = kick_set();
        // SAFETY: `set` lives until the call returns.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, from_ref(&set), null_mut()) };
    }

    #[test]
    fn kick_before_the_wait_is_not_lost() {
        block_kick();
        let doorbell = Arc::new(Doorbell::default());
        doorbell.attach();
        doorbell.ring();
        assert!(wait(Duration::from_secs(60)));
        assert!(!wait(Duration::ZERO));
    }

    #[test]
    fn detached_doorbell_rings_nobody() {
        block_kick();
        let doorbell = Doorbell::default();
        doorbell.attach();
        doorbell.detach();
        doorbell.ring();
        assert!(!wait(Duration::ZERO));
    }

    #[test]
    fn timer_kicks_its_own_thread() {
        block_kick();
        let timer = KickTimer::new().unwrap();
        timer.arm(Duration::from_nanos(1), Duration::ZERO);
        assert!(wait(Duration::from_secs(60)));
    }
}
