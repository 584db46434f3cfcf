//! What the compiler calls where it wants to fill or copy memory; there is no C library in a guest.

use core::arch::asm;

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(start: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the compiler names memory that it may write.
    unsafe {
        asm!("rep stosb", inout("rdi") start => _, inout("rcx") bytes => _, in("eax") value);
    }
    start
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the compiler names memory that it may read and write, not overlapping.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") bytes => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    let differs: u8;
    // SAFETY: the compiler names memory that it may read. Nothing to compare is the same.
    unsafe {
        asm!("cmp rcx, rcx", "repe cmpsb", "setne al", inout("rdi") one => _, inout("rsi") other => _,
            inout("rcx") bytes => _, out("al") differs);
    }
    i32::from(differs)
}
