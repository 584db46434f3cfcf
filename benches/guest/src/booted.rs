//! What programs of the guests that start by `mover/boot.s` call: words of memory, the counter, and its system calls.

use core::arch::{asm, x86_64::_rdtsc};
use core::sync::atomic::AtomicU64;

const SERIAL: u16 = 0x3f8;

pub(crate) fn now() -> u64 {
    // SAFETY: user code may read the counter.
    unsafe { _rdtsc() }
}

pub(crate) fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: all addresses here are those of mapped words.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(at as usize) }
}

/// A system call of `boot.s`; what it gives.
pub(crate) fn call(kind: u64, index: u32, value: u64) -> u64 {
    let given;
    // SAFETY: the kernel writes a register, uses a port, or writes five words at `value`.
    unsafe {
        asm!("ud2", inout("rax") kind => given, in("edi") index, in("rsi") value);
    }
    given
}

pub(crate) fn port(number: u16, value: u8) {
    call(2, number.into(), value.into());
}

pub(crate) fn read_port(number: u16) -> u64 {
    call(3, number.into(), 0)
}

pub(crate) fn put(byte: u8) {
    port(SERIAL, byte);
}

pub(crate) fn number(value: u64) {
    put(b' ');
    let digits = (16 - value.leading_zeros() / 4).max(1);
    for digit in (0..digits).rev() {
        let digit = (value >> (4 * digit) & 15) as u8;
        put(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit });
    }
}

pub(crate) fn rest() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
