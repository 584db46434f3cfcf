//! The pairs of accesses under test, in assembly: no compiler may reorder or merge them.
//!
//! Each pair is one `asm!` block, with or without an MFENCE in the middle.
#![expect(unsafe_code, reason = "inline assembly")]
// UNSAFETY: the accesses must be exactly these instructions in exactly this order.

use std::arch::asm;
use std::sync::atomic::AtomicU64;

/// `[x] = v`.
pub(super) fn store(x: &AtomicU64, v: u64) {
    // SAFETY: one aligned store to an atomic.
    unsafe { asm!("mov [{x}], {v}", x = in(reg) x.as_ptr(), v = in(reg) v, options(nostack)) };
}

/// `[x] = v; [y] = w`.
pub(super) fn store_store(x: &AtomicU64, v: u64, y: &AtomicU64, w: u64, fence: bool) {
    let (x, y) = (x.as_ptr(), y.as_ptr());
    if fence {
        // SAFETY: two aligned stores to atomics.
        unsafe {
            asm!("mov [{x}], {v}", "mfence", "mov [{y}], {w}",
                x = in(reg) x, y = in(reg) y, v = in(reg) v, w = in(reg) w, options(nostack));
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("mov [{x}], {v}", "mov [{y}], {w}",
                x = in(reg) x, y = in(reg) y, v = in(reg) v, w = in(reg) w, options(nostack));
        }
    }
}

/// `[x] = v; [y]`.
pub(super) fn store_load(x: &AtomicU64, v: u64, y: &AtomicU64, fence: bool) -> u64 {
    let (x, y) = (x.as_ptr(), y.as_ptr());
    let seen;
    if fence {
        // SAFETY: an aligned store to and load from atomics.
        unsafe {
            asm!("mov [{x}], {v}", "mfence", "mov {r}, [{y}]",
                x = in(reg) x, y = in(reg) y, v = in(reg) v, r = out(reg) seen, options(nostack));
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("mov [{x}], {v}", "mov {r}, [{y}]",
                x = in(reg) x, y = in(reg) y, v = in(reg) v, r = out(reg) seen, options(nostack));
        }
    }
    seen
}

/// `[x]; [y]`.
pub(super) fn load_load(x: &AtomicU64, y: &AtomicU64, fence: bool) -> (u64, u64) {
    let (x, y) = (x.as_ptr(), y.as_ptr());
    let (first, second);
    if fence {
        // SAFETY: two aligned loads from atomics.
        unsafe {
            asm!("mov {r}, [{x}]", "mfence", "mov {s}, [{y}]",
                x = in(reg) x, y = in(reg) y, r = out(reg) first, s = lateout(reg) second,
                options(nostack));
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("mov {r}, [{x}]", "mov {s}, [{y}]",
                x = in(reg) x, y = in(reg) y, r = out(reg) first, s = lateout(reg) second,
                options(nostack));
        }
    }
    (first, second)
}

/// `[x]; [y] = w`.
pub(super) fn load_store(x: &AtomicU64, y: &AtomicU64, w: u64, fence: bool) -> u64 {
    let (x, y) = (x.as_ptr(), y.as_ptr());
    let seen;
    if fence {
        // SAFETY: an aligned load from and store to atomics.
        unsafe {
            asm!("mov {r}, [{x}]", "mfence", "mov [{y}], {w}",
                x = in(reg) x, y = in(reg) y, w = in(reg) w, r = out(reg) seen, options(nostack));
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("mov {r}, [{x}]", "mov [{y}], {w}",
                x = in(reg) x, y = in(reg) y, w = in(reg) w, r = out(reg) seen, options(nostack));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn pairs_do_their_accesses() {
        for fence in [false, true] {
            let (x, y) = (AtomicU64::new(1), AtomicU64::new(2));
            assert_eq!(load_load(&x, &y, fence), (1, 2));
            assert_eq!(store_load(&x, 3, &y, fence), 2);
            store_store(&x, 4, &y, 5, fence);
            assert_eq!(load_store(&x, &y, 6, fence), 4);
            store(&x, 7);
            assert_eq!((x.load(Ordering::Relaxed), y.load(Ordering::Relaxed)), (7, 6));
        }
    }
}
