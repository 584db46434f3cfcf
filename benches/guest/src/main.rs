//! The microguest: a vCPU enters here in user mode (CPL 3), asks for a job, does it, asks again.
//!
//! Everything runs at CPL 3, exception handlers too: that is native speed on VMX and SVM, and also
//! where KVM emulates the kernel's mode (facts: native-guest). Interrupts are never used; an
//! exception is an error and is told to the benchmark program.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "entry, port writes and exception stubs of a guest")]
// UNSAFETY: this is the whole software of the guest; addresses are fixed by `layout`.

mod calls;

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;
use microguest::layout::{PORT_EXCEPTION, PORT_READY};
use microguest::{Job, run};

// Stubs of the 32 exceptions, VECTOR_BYTES apart, in a section of their own that the benchmark
// program finds at the start of the image (see `link.ld`). The number goes to a port; there is no way
// back. The gates are trap gates: with interrupt gates a processor at CPL 3 could never take an
// interrupt again.
global_asm!(
    ".section .vectors, \"ax\"",
    ".set number, 0",
    ".rept 32",
    ".balign 16",
    "mov al, number",
    "out {port}, al",
    "2: jmp 2b",
    ".set number, number + 1",
    ".endr",
    port = const PORT_EXCEPTION,
);

#[unsafe(no_mangle)]
extern "C" fn _start(job: *mut Job) -> ! {
    loop {
        // SAFETY: a port write that ends in the benchmark program, which fills the job.
        unsafe { asm!("out {}, al", const PORT_READY, in("al") 0u8) };
        // SAFETY: the benchmark program passes the address of this processor's job, and
        // touches it only while this processor waits in the port write.
        let job = unsafe { &mut *job };
        // SAFETY: the benchmark program names memory that is mapped.
        unsafe { run(job) };
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: exception number 255 stands for a panic.
        unsafe { asm!("out {}, al", const PORT_EXCEPTION, in("al") 255u8) };
    }
}
