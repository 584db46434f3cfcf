//! A guest that leaves its way tells so at once, with where it was.
//!
//! Memory is full of `int3`, so a wild jump is an exception, and each vector that nobody sends has a handler that keeps the
//! registers, tells, and stays.

use crate::assembler::Code;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// A vector came that nobody sends.
pub(crate) const PORT_STRAY: u16 = 0x9a;

const INT3: u8 = 0xcc;
/// Where the handlers are: a call for each vector, so that it is on the stack, then what they have in common.
const SEGMENT: u16 = 0x1000;
const CALL: u16 = 3;
const COMMON: u16 = CALL * 256;
/// Where they keep SP (below which the registers lie), SS, DS, CR0 and CR4.
const KEPT: u16 = 0x400;

/// Fills memory, of which the counters' page is zero, before anything else is put there.
pub(crate) fn put(memory: &GuestMemoryMmap, counters: u64, ram: usize) {
    let write = |at: u64, bytes: &[u8]| {
        memory.write_slice(bytes, GuestAddress(at)).expect("it lies in RAM");
    };
    write(0, &vec![INT3; ram]);
    write(counters, &[0; 0x1000]);
    let segment = u64::from(SEGMENT) << 4;
    for vector in 0..256_u16 {
        let at = CALL * vector;
        let [low, high] = (COMMON - at - CALL).to_le_bytes();
        write(segment + u64::from(at), &[0xe8, low, high]);
        let [at, segment] = [at, SEGMENT].map(u16::to_le_bytes);
        write(u64::from(vector) * 4, &[at, segment].concat());
    }
    let keep = |code: Code, instruction: &[u8], at| {
        code.bytes(&[0x2e]).bytes(instruction).bytes(&u16::to_le_bytes(KEPT + at)) // cs:
    };
    let code = Code::default().bytes(&[0x66, 0x60]); // pushad
    let code = keep(code, &[0x89, 0x26], 0); // mov [KEPT], sp
    let code = keep(code, &[0x8c, 0x16], 2); // mov [KEPT + 2], ss
    let code = keep(code, &[0x8c, 0x1e], 4).bytes(&[0x0f, 0x20, 0xc0]); // mov [KEPT + 4], ds ; mov eax, cr0
    let code = keep(code, &[0x66, 0xa3], 8).bytes(&[0x0f, 0x20, 0xe0]); // mov [KEPT + 8], eax ; mov eax, cr4
    let code = keep(code, &[0x66, 0xa3], 12); // mov [KEPT + 12], eax
    let [port, _] = PORT_STRAY.to_le_bytes();
    let code = code.bytes(&[0xe6, port, 0xfa, 0xf4, 0xeb, 0xfd]); // out ; cli ; hlt ; jmp back to hlt
    write(segment + u64::from(COMMON), &code.0);
}

/// What the handlers have kept.
pub(crate) fn told(memory: &GuestMemoryMmap) -> String {
    let word = |at: u64| memory.read_obj::<u16>(GuestAddress(at)).expect("it lies in RAM");
    let long = |at: u64| memory.read_obj::<u32>(GuestAddress(at)).expect("it lies in RAM");
    let kept = (u64::from(SEGMENT) << 4) + u64::from(KEPT);
    let [sp, ss, ds] = [0, 2, 4].map(|at| word(kept + at));
    let at = (u64::from(ss) << 4) + u64::from(sp);
    let [di, si, bp, _, bx, dx, cx, ax] = [0, 4, 8, 12, 16, 20, 24, 28].map(|n| long(at + n));
    let [after, ip, cs, flags] = [32, 34, 36, 38].map(|n| word(at + n));
    let (vector, [cr0, cr4]) = (after.wrapping_sub(CALL) / CALL, [8, 12].map(|at| long(kept + at)));
    format!(
        "vector {vector:#x} at {cs:x}:{ip:x}, flags {flags:x}, stack {ss:x}:{:x}, ds {ds:x}, cr0 {cr0:x}, cr4 {cr4:x}, \
         eax {ax:x}, ebx {bx:x}, ecx {cx:x}, edx {dx:x}, esi {si:x}, edi {di:x}, ebp {bp:x}",
        sp.wrapping_add(40)
    )
}
