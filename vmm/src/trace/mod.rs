//! Where the guest is while a vCPU waits for a page: instruction, and address that it uses.
//!
//! ```text
//!   engine: a fault is due --Uplink--> Machine::sample_fault --kick--> vCPU leaves KVM_RUN
//!      ^                                                                  | registers
//!      +--Handle::sampled-- a fitting Site <--decode, walk-- MachineHooks::fault_seen
//! ```
//!
//! The kick ends a `KVM_RUN` that sleeps in the fault, before the page can have come, for only the engine
//! maps it: the instruction pointer is that of the access. Nobody waits for anybody. The guest's memory
//! is only looked at through the mapping that never faults, where this slice has, or had, the page.
//! What is out of date there cannot mislead: an address counts only if it leads to the page in question.

mod decode;
mod walk;

use dsm::{GuestRam, Site, Touch};
use kvm_bindings::{kvm_regs, kvm_sregs};
use walk::Walk;
use wire::{Gfn, VcpuId};

/// Longest instruction (SDM vol. 2, 2.3.11), bytes.
const INSTRUCTION_MAX: usize = 15;
const PAGE: u64 = 4096;

/// Guest-physical memory that can be read without waiting.
pub trait Memory {
    /// Copies bytes that do not leave their page from a guest-physical address on; false where there
    /// are none.
    fn peek(&self, address: u64, out: &mut [u8]) -> bool;
}

impl Memory for GuestRam {
    fn peek(&self, address: u64, out: &mut [u8]) -> bool {
        usize::try_from(address % PAGE)
            .is_ok_and(|at| Self::peek(self, Gfn(address / PAGE), at, out))
    }
}

/// What a vCPU does that waits for a page.
#[must_use]
pub fn site(
    memory: &impl Memory,
    vcpu: VcpuId,
    gfn: Gfn,
    regs: &kvm_regs,
    sregs: &kvm_sregs,
) -> Site {
    let (touch, address) = find(memory, gfn, regs, sregs);
    Site {
        rip: regs.rip,
        user: sregs.cs.dpl == 3,
        touch,
        address,
        gs: sregs.gs.base,
        vcpu: vcpu.0,
        count: 0,
    }
}

fn find(
    memory: &impl Memory,
    gfn: Gfn,
    regs: &kvm_regs,
    sregs: &kvm_sregs,
) -> (Touch, Option<u64>) {
    let walk = |address| Walk::of(memory, sregs, address);
    let start = decode::linear(regs.rip, sregs);
    let mut code = Vec::with_capacity(INSTRUCTION_MAX);
    let mut fetches = Vec::new();
    while code.len() < INSTRUCTION_MAX {
        let address = start.wrapping_add(u64::try_from(code.len()).expect("at most 15"));
        let walked = walk(address);
        let rest = usize::try_from(PAGE - address % PAGE).expect("at most a page");
        let mut piece = [0; INSTRUCTION_MAX];
        let piece = &mut piece[..rest.min(INSTRUCTION_MAX - code.len())];
        let read = walked.physical.is_some_and(|physical| memory.peek(physical, piece));
        fetches.push((address, walked));
        if !read {
            break;
        }
        code.extend_from_slice(piece);
    }
    let (length, operands) = decode::operands(&code, regs, sregs);
    let data: Vec<_> = operands.into_iter().map(|address| (address, walk(address))).collect();
    // What lies behind the instruction is not fetched.
    fetches.truncate(if start % PAGE + length > PAGE || length == 0 { 2 } else { 1 });
    let on_page = |(address, walk): &(u64, Walk)| {
        walk.physical.is_some_and(|physical| physical / PAGE == gfn.0).then_some(*address)
    };
    let by_table = |(address, walk): &(u64, Walk)| walk.uses(gfn).then_some(*address);
    let all = || data.iter().chain(&fetches);
    if let Some(address) = data.iter().find_map(on_page) {
        (Touch::Data, Some(address))
    } else if let Some(address) = fetches.iter().find_map(on_page) {
        (Touch::Code, Some(address))
    } else if let Some(address) = all().find_map(by_table) {
        (Touch::Walk, Some(address))
    } else {
        (Touch::Unknown, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_bindings::kvm_segment;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Pages by frame.
    #[derive(Debug, Default)]
    struct Pages(BTreeMap<u64, Vec<u8>>);

    impl Memory for Pages {
        fn peek(&self, address: u64, out: &mut [u8]) -> bool {
            let at = usize::try_from(address % PAGE).unwrap();
            let Some(page) = self.0.get(&(address / PAGE)) else { return false };
            out.copy_from_slice(&page[at..at + out.len()]);
            true
        }
    }

    impl Pages {
        fn put(&mut self, address: u64, bytes: &[u8]) {
            let page = self.0.entry(address / PAGE).or_insert_with(|| vec![0; 4096]);
            let at = usize::try_from(address % PAGE).unwrap();
            page[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn map(&mut self, address: u64, frame: u64) {
            // Tables in frames 1 to 4; one chain is enough for addresses of one 2 MiB range.
            let shifts = [(1u64, 39), (2, 30), (3, 21)];
            for (table, shift) in shifts {
                let at = (address >> shift & 511) * 8;
                self.put(table * PAGE + at, &(((table + 1) * PAGE) | 3).to_le_bytes());
            }
            let at = (address >> 12 & 511) * 8;
            self.put(4 * PAGE + at, &((frame * PAGE) | 3).to_le_bytes());
        }
    }

    fn long_mode() -> kvm_sregs {
        let code = kvm_segment { l: 1, ..Default::default() };
        kvm_sregs {
            cr0: 0x8000_0001,
            cr3: PAGE,
            cr4: 0x20,
            efer: 0x500,
            cs: code,
            ..Default::default()
        }
    }

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const DATA: u64 = 0xffff_ffff_8100_5000;

    fn guest(code: &[u8]) -> Pages {
        let mut pages = Pages::default();
        pages.map(CODE, 10);
        pages.map(DATA, 11);
        pages.put(10 * PAGE, code);
        pages
    }

    fn touch(pages: &Pages, gfn: u64, regs: &kvm_regs) -> (Touch, Option<u64>) {
        let site = site(pages, VcpuId(3), Gfn(gfn), regs, &long_mode());
        assert_eq!((site.vcpu, site.rip, site.user), (3, regs.rip, false));
        (site.touch, site.address)
    }

    #[test]
    fn data_code_and_tables_are_told_apart() {
        // lock cmpxchg [rdi+rsi*4+0x10], ecx
        let pages = guest(&[0xf0, 0x0f, 0xb1, 0x4c, 0xb7, 0x10]);
        let regs = kvm_regs { rip: CODE, rdi: DATA, rsi: 0x20, ..Default::default() };
        let address = DATA + 0x20 * 4 + 0x10;
        assert_eq!(touch(&pages, 11, &regs), (Touch::Data, Some(address)));
        assert_eq!(touch(&pages, 10, &regs), (Touch::Code, Some(CODE)));
        assert_eq!(touch(&pages, 4, &regs), (Touch::Walk, Some(address)));
        assert_eq!(touch(&pages, 99, &regs), (Touch::Unknown, None));
    }

    #[test]
    fn operands_by_segment_instruction_pointer_and_stack_are_found() {
        // mov rax, gs:[0x28]; mov eax, [rip+0x4ffa]; push rax
        let by_gs = guest(&[0x65, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0]);
        let mut sregs = long_mode();
        sregs.gs.base = DATA;
        let regs = kvm_regs { rip: CODE, rsp: DATA + 8, ..Default::default() };
        let found = site(&by_gs, VcpuId(0), Gfn(11), &regs, &sregs);
        assert_eq!((found.touch, found.address, found.gs), (Touch::Data, Some(DATA + 0x28), DATA));
        let by_rip = guest(&[0x8b, 0x05, 0xfa, 0x4f, 0, 0]);
        assert_eq!(touch(&by_rip, 11, &regs), (Touch::Data, Some(DATA)));
        assert_eq!(touch(&guest(&[0x50]), 11, &regs), (Touch::Data, Some(DATA)));
    }

    #[test]
    fn second_page_of_an_access_is_found() {
        // mov rax, [rdi], across the end of the page before
        let mut pages = guest(&[0x48, 0x8b, 0x07]);
        pages.map(DATA + PAGE, 12);
        let regs = kvm_regs { rip: CODE, rdi: DATA + PAGE - 4, ..Default::default() };
        assert_eq!(touch(&pages, 12, &regs), (Touch::Data, Some(DATA + PAGE + 3)));
    }

    #[test]
    fn code_that_is_not_here_is_still_the_page_in_question() {
        let mut pages = guest(&[]);
        pages.0.remove(&10);
        let regs = kvm_regs { rip: CODE + 0xffc, ..Default::default() };
        assert_eq!(touch(&pages, 10, &regs), (Touch::Code, Some(CODE + 0xffc)));
    }

    proptest! {
        /// Neither code nor tables are to be trusted: they are the guest's.
        #[test]
        fn any_memory_and_registers_are_survived(
            code in prop::collection::vec(any::<u8>(), 0..64),
            tables in prop::collection::vec((1u64..5, 0u64..512, any::<u64>()), 0..64),
            rip: u64, rdi: u64, cr0: u64, cr4: u64, efer: u64, cr3: u64, l in 0u8..2, db in 0u8..2,
        ) {
            let mut pages = guest(&code);
            for (table, at, entry) in tables {
                pages.put(table * PAGE + at * 8, &entry.to_le_bytes());
            }
            let cs = kvm_segment { l, db, ..Default::default() };
            for (rip, cr3) in [(CODE, PAGE), (rip, cr3)] {
                let regs = kvm_regs { rip, rdi, rax: rdi, rsp: rdi, ..Default::default() };
                let sregs = kvm_sregs { cr0, cr3, cr4, efer, cs, ..Default::default() };
                for sregs in [sregs, long_mode()] {
                    let _ = site(&pages, VcpuId(0), Gfn(11), &regs, &sregs);
                }
            }
        }
    }
}
