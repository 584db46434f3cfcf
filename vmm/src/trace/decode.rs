//! The addresses that an instruction uses.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Register, UsedMemory};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

/// Linear address of an offset in the code segment.
pub(super) fn linear(rip: u64, sregs: &kvm_sregs) -> u64 {
    if sregs.cs.l != 0 { rip } else { sregs.cs.base.wrapping_add(rip) }
}

/// Length of the instruction and the linear addresses of the first and last byte of each of its
/// operands in memory, those that it names and those that it implies. Zero and none if it is not whole.
pub(super) fn operands(code: &[u8], regs: &kvm_regs, sregs: &kvm_sregs) -> (u64, Vec<u64>) {
    let bits = match (sregs.cs.l, sregs.cs.db) {
        (0, 0) => 16,
        (0, _) => 32,
        _ => 64,
    };
    let mut decoder = Decoder::with_ip(bits, code, regs.rip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return (0, Vec::new());
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(&instruction);
    let mut addresses = Vec::new();
    for memory in info.used_memory() {
        let Some(first) = address(memory, regs, sregs) else { continue };
        let size = u64::try_from(memory.memory_size().size()).unwrap_or(0);
        addresses.push(first);
        if size > 1 {
            addresses.push(first.wrapping_add(size - 1));
        }
    }
    (u64::try_from(instruction.len()).unwrap_or(0), addresses)
}

fn address(memory: &UsedMemory, regs: &kvm_regs, sregs: &kvm_sregs) -> Option<u64> {
    memory.virtual_address(0, |register, _, _| {
        if register.is_segment_register() {
            return segment(register, sregs);
        }
        let value = general(register.full_register(), regs)?;
        match register.size() {
            8 => Some(value),
            4 => Some(value & 0xffff_ffff),
            2 => Some(value & 0xffff),
            _ => None,
        }
    })
}

/// Base of a segment. Long mode has only two that count (SDM vol. 1, 3.4.2.1).
fn segment(register: Register, sregs: &kvm_sregs) -> Option<u64> {
    let base = |segment: &kvm_segment| if sregs.cs.l != 0 { 0 } else { segment.base };
    Some(match register {
        Register::FS => sregs.fs.base,
        Register::GS => sregs.gs.base,
        Register::CS => base(&sregs.cs),
        Register::DS => base(&sregs.ds),
        Register::ES => base(&sregs.es),
        Register::SS => base(&sregs.ss),
        _ => return None,
    })
}

fn general(register: Register, regs: &kvm_regs) -> Option<u64> {
    Some(match register {
        Register::RAX => regs.rax,
        Register::RBX => regs.rbx,
        Register::RCX => regs.rcx,
        Register::RDX => regs.rdx,
        Register::RSI => regs.rsi,
        Register::RDI => regs.rdi,
        Register::RSP => regs.rsp,
        Register::RBP => regs.rbp,
        Register::R8 => regs.r8,
        Register::R9 => regs.r9,
        Register::R10 => regs.r10,
        Register::R11 => regs.r11,
        Register::R12 => regs.r12,
        Register::R13 => regs.r13,
        Register::R14 => regs.r14,
        Register::R15 => regs.r15,
        Register::RIP => regs.rip,
        _ => return None,
    })
}
