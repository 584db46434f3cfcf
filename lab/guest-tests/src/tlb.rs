//! TLB shoot-down: after mprotect or munmap returned on one CPU, no other CPU may still use the
//! old translation.
//!
//! Here the two sides are threads, since they must share one address space. The far thread accesses
//! one page in a loop. When the page goes away under it, the SIGSEGV handler waits until it is back
//! and the access is done again.
//!
//! ```text
//! near: mprotect(R) | read v .. until the far side is blocked: must stay v | mprotect(RW), resume
//! far:  store, store, store ..............SIGSEGV: blocked += 1, spin ............ store, store
//! ```
#![expect(unsafe_code, reason = "a page that comes and goes")]
// UNSAFETY: accesses a page that another thread protects or unmaps, and handles the SIGSEGV.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::arena::{PAGE, spin_until};
use crate::bench::Bench;
use crate::pool::Env;
use crate::sys::{self, Sharing};

/// Address of the page that may fault; a SIGSEGV elsewhere is a crash like any other.
static PAGE_ADDRESS: AtomicUsize = AtomicUsize::new(0);
/// How often the far thread ran into the missing or protected page.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// How often the near thread let it go on.
static RESUMED: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
/// Values read by the far thread below this one come from a page that is gone.
static FLOOR: AtomicU64 = AtomicU64::new(0);
/// The last filled value the far thread read.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// A value the far thread must not have read, or 0.
static BAD: AtomicU64 = AtomicU64::new(0);

/// What the page behind the old one is filled with, so that a reused page is recognised.
const POISON: u64 = 0xdead_0000_0000;

/// Stores must stop when mprotect has returned.
pub(crate) fn protect(bench: &mut Bench) -> Result<String> {
    let count = 5 * u64::from(bench.rounds);
    let mut stores = 0;
    bench.over_threads(protect_job, [count, 0, 0, 0], |values| {
        stores += values[0][0];
        Ok(())
    })?;
    Ok(format!("rounds={count} pairs={} stores={stores}", bench.pairs_text()))
}

/// Reads must see the new page or fault when munmap has returned.
pub(crate) fn unmap(bench: &mut Bench) -> Result<String> {
    let count = 5 * u64::from(bench.rounds);
    let mut faults = 0;
    bench.over_threads(unmap_job, [count, 0, 0, 0], |values| {
        faults += values[0][0];
        Ok(())
    })?;
    Ok(format!("rounds={count} pairs={} faults={faults}", bench.pairs_text()))
}

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid record to a SA_SIGINFO handler.
    let info = unsafe { &*info };
    // SAFETY: the record of a SIGSEGV has the address.
    let address = unsafe { info.si_addr() }.addr();
    let page = PAGE_ADDRESS.load(Ordering::Relaxed);
    if page == 0 || address & !(PAGE - 1) != page {
        // Not ours: fault again with the default action.
        // SAFETY: no handler is given.
        let _ = unsafe { sys::handle_signal(libc::SIGSEGV, None) };
        return;
    }
    let mine = BLOCKED.fetch_add(1, Ordering::AcqRel) + 1;
    spin_until(|| RESUMED.load(Ordering::Acquire) >= mine || STOP.load(Ordering::Relaxed));
}

/// The page under test, and one more; unmapped at the end of a job.
struct Page {
    base: NonNull<u8>,
    spare: NonNull<u8>,
}

impl Page {
    fn new() -> Result<Self> {
        for word in [&BLOCKED, &RESUMED, &FLOOR, &SEEN, &BAD] {
            word.store(0, Ordering::Relaxed);
        }
        STOP.store(false, Ordering::Relaxed);
        let base = sys::map(PAGE, Sharing::Private, None).context("cannot map the page")?;
        let spare = sys::map(PAGE, Sharing::Private, None).context("cannot map the spare page")?;
        PAGE_ADDRESS.store(base.as_ptr().expose_provenance(), Ordering::Release);
        // SAFETY: on_fault keeps to atomics and raw system calls.
        unsafe { sys::handle_signal(libc::SIGSEGV, Some(on_fault)) }
            .context("cannot handle SIGSEGV")?;
        Ok(Self { base, spare })
    }

    fn base() -> *mut u64 {
        ptr::with_exposed_provenance_mut(PAGE_ADDRESS.load(Ordering::Relaxed))
    }

    fn read() -> u64 {
        // SAFETY: mapped, or on_fault waits until it is.
        unsafe { Self::base().read_volatile() }
    }

    fn write(value: u64) {
        // SAFETY: mapped and writable, or on_fault waits until it is.
        unsafe { Self::base().write_volatile(value) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        PAGE_ADDRESS.store(0, Ordering::Relaxed);
        // SAFETY: the far thread has ended. A failure leaves one page mapped, which harms nobody.
        let _ = unsafe { sys::unmap(self.base, PAGE) };
        // SAFETY: only the thread that made it used it.
        let _ = unsafe { sys::unmap(self.spare, PAGE) };
        // SAFETY: no handler is given.
        let _ = unsafe { sys::handle_signal(libc::SIGSEGV, None) };
    }
}

/// Runs the far loop on its CPU beside the near one, and ends it however the near one ended.
fn with_far(env: &Env<'_>, far: fn(), near: impl FnOnce() -> Result<()>) -> Result<()> {
    let cpu = env.size(3);
    thread::scope(|scope| {
        let far = scope.spawn(move || -> Result<()> {
            sys::pin_to(cpu).with_context(|| format!("cannot pin to cpu {cpu}"))?;
            far();
            Ok(())
        });
        let result = near();
        STOP.store(true, Ordering::Release);
        match far.join() {
            Ok(joined) => result.and(joined),
            Err(_) => bail!("the far thread panicked"),
        }
    })
}

fn protect_job(env: &Env<'_>) -> Result<()> {
    let page = Page::new()?;
    with_far(env, store_loop, || {
        let result = (1..=env.args[0]).try_for_each(|round| protect_once(&page, round));
        // Only a writable page lets the far thread end.
        // SAFETY: making it writable disturbs nobody.
        unsafe { sys::protect(page.base, PAGE, true) }.context("mprotect read-write")?;
        result
    })?;
    env.give(0, Page::read());
    Ok(())
}

fn store_loop() {
    let mut value = 0;
    while !STOP.load(Ordering::Acquire) {
        value += 1;
        Page::write(value);
    }
}

fn protect_once(page: &Page, round: u64) -> Result<()> {
    let before = Page::read();
    spin_until(|| Page::read() > before);
    // SAFETY: the far thread is prepared for the SIGSEGV.
    unsafe { sys::protect(page.base, PAGE, false) }.context("mprotect read-only")?;
    let frozen = Page::read();
    let mut now = frozen;
    spin_until(|| {
        now = Page::read();
        now != frozen || BLOCKED.load(Ordering::Acquire) >= round
    });
    ensure!(now == frozen, "round {round}: {now} stored after mprotect returned at {frozen}");
    let after = Page::read();
    ensure!(after == frozen, "round {round}: {after} stored after mprotect returned at {frozen}");
    // SAFETY: making it writable disturbs nobody.
    unsafe { sys::protect(page.base, PAGE, true) }.context("mprotect read-write")?;
    RESUMED.store(round, Ordering::Release);
    Ok(())
}

fn unmap_job(env: &Env<'_>) -> Result<()> {
    let page = Page::new()?;
    Page::write(1);
    with_far(env, load_loop, || {
        (2..=env.args[0] + 1).try_for_each(|value| unmap_once(&page, value))
    })?;
    env.give(0, BLOCKED.load(Ordering::Relaxed));
    Ok(())
}

fn load_loop() {
    while !STOP.load(Ordering::Acquire) {
        let floor = FLOOR.load(Ordering::Acquire);
        let value = Page::read();
        // 0 is the new page before it was filled.
        if value != 0 && (value < floor || value >= POISON) {
            BAD.store(value, Ordering::Release);
            return;
        }
        if value > SEEN.load(Ordering::Relaxed) {
            SEEN.store(value, Ordering::Release);
        }
    }
}

fn unmap_once(page: &Page, value: u64) -> Result<()> {
    let bad = || BAD.load(Ordering::Acquire);
    // The far side has the old page in its TLB.
    spin_until(|| SEEN.load(Ordering::Acquire) == value - 1 || bad() != 0);
    // SAFETY: the far thread is prepared for the SIGSEGV.
    unsafe { sys::unmap(page.base, PAGE) }.context("munmap")?;
    FLOOR.store(value, Ordering::Release);
    // Replaces the spare page of the last round: the page just freed is likely to come back here.
    let spare = page.spare.as_ptr().addr();
    sys::map(PAGE, Sharing::Private, Some(spare)).context("mmap of the poison page")?;
    // SAFETY: mapped just above, writable, used by this thread only.
    unsafe { page.spare.cast::<u64>().write_volatile(POISON + value) };
    // Let the far side run into the hole, but not for ever: it may have been slow.
    for _ in 0..20_000 {
        if BLOCKED.load(Ordering::Acquire) > RESUMED.load(Ordering::Relaxed) || bad() != 0 {
            break;
        }
        std::hint::spin_loop();
    }
    let at = page.base.as_ptr().addr();
    sys::map(PAGE, Sharing::Private, Some(at)).context("mmap of the new page")?;
    Page::write(value);
    // Whoever is blocked, or about to be, may go on: the page is there for good this round.
    RESUMED.store(u64::MAX / 2, Ordering::Release);
    spin_until(|| SEEN.load(Ordering::Acquire) == value || bad() != 0);
    RESUMED.store(BLOCKED.load(Ordering::Acquire), Ordering::Release);
    let bad = bad();
    ensure!(bad == 0, "read {bad:#x} after munmap of the page with {} returned", value - 1);
    Ok(())
}
