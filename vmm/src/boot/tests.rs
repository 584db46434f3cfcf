//! Synthetic kernels through the planner.

use super::*;
use devices::acpi::{AcpiConfig, VcpuPlace, build};
use kvm_bindings::{kvm_regs, kvm_sregs};
use proptest::prelude::*;
use std::env;
use std::process;
use vm_memory::GuestMemoryMmap;

const MIB: u64 = 1 << 20;

struct Machine {
    layout: MemoryLayout,
    acpi: AcpiTables,
    generation: GenerationId,
}

impl Machine {
    fn new(sizes_mib: &[u64]) -> Self {
        let sizes: Vec<u64> = sizes_mib.iter().map(|mib| mib * MIB).collect();
        let layout = MemoryLayout::new(&sizes).unwrap();
        let acpi =
            build(&AcpiConfig::new(vec![VcpuPlace { apic_id: 0, node: 0 }], &layout)).unwrap();
        Self { layout, acpi, generation: GenerationId::random().unwrap() }
    }

    fn config<'a>(&'a self, cmdline: &'a str) -> BootConfig<'a> {
        BootConfig {
            kernel: Path::new("kernel"),
            initrd: None,
            cmdline,
            layout: &self.layout,
            boot_node: 0,
            acpi: &self.acpi,
            generation: self.generation,
        }
    }
}

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// A bzImage of one setup sector and 4 KiB of code that wants to be at 16 MiB.
fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 1024 + 4096];
    image[0x1f1] = 1;
    put(&mut image, 0x1f4, &256_u32.to_le_bytes());
    put(&mut image, 0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
    put(&mut image, 0x202, b"HdrS\x0f\x02");
    image[0x211] = 0x81;
    put(&mut image, 0x22c, &0x7fff_ffff_u32.to_le_bytes());
    put(&mut image, 0x236, &3_u16.to_le_bytes());
    put(&mut image, 0x238, &100_u32.to_le_bytes());
    put(&mut image, 0x258, &(16 * MIB).to_le_bytes());
    put(&mut image, 0x260, &0x10_0000_u32.to_le_bytes());
    image[1024 + 0x200] = 0xf4;
    image
}

/// An ELF file with one segment at 16 MiB and a PVH note.
fn elf() -> Vec<u8> {
    let mut image = vec![0; 0x2000];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 18, &62_u16.to_le_bytes());
    put(&mut image, 24, &(16 * MIB + 0x53).to_le_bytes());
    put(&mut image, 32, &64_u64.to_le_bytes());
    put(&mut image, 54, &[56, 0, 2, 0]);
    put(&mut image, 64, &1_u32.to_le_bytes());
    for (offset, value) in [(8, 0x1000), (24, 16 * MIB), (32, 0x1000), (40, 0x8000_u64)] {
        put(&mut image, 64 + offset, &value.to_le_bytes());
    }
    put(&mut image, 120, &4_u32.to_le_bytes());
    put(&mut image, 128, &0x800_u64.to_le_bytes());
    put(&mut image, 152, &40_u64.to_le_bytes());
    // A note of another owner first.
    put(&mut image, 0x800, b"\x04\0\0\0\x01\0\0\0\x12\0\0\0GNU\0\x07\0\0\0");
    put(&mut image, 0x814, b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\x70\0\0\x01");
    image
}

fn kernel_part(plan: &BootPlan) -> &Payload {
    plan.payload.iter().find(|part| part.what == "kernel").unwrap()
}

fn message(result: Result<BootPlan, BootError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn bzimage_is_loaded_where_it_wants() {
    let machine = Machine::new(&[256]);
    let plan = assemble(&machine.config("quiet"), &bzimage(), None).unwrap();
    assert_eq!(plan.state.rip, 16 * MIB + 0x200);
    assert_eq!(plan.state.kernel, KernelKind::BzImage);
    let part = kernel_part(&plan);
    assert_eq!((part.gpa, part.bytes.len(), part.bytes[0x200]), (16 * MIB, 4096, 0xf4));
}

#[test]
fn elf_is_entered_at_its_64_bit_entry_although_it_has_a_pvh_note() {
    let machine = Machine::new(&[256]);
    let plan = assemble(&machine.config("quiet"), &elf(), None).unwrap();
    assert_eq!(plan.state.rip, 16 * MIB + 0x53);
    assert_eq!(plan.state.kernel, KernelKind::Elf);
    assert_eq!(plan.state.pvh_entry, Some(0x100_0070));
    assert_eq!(kernel_part(&plan).bytes.len(), 0x1000);
}

#[test]
fn zero_page_describes_command_line_initrd_map_and_tables() {
    let machine = Machine::new(&[2048, 3072]);
    let plan = assemble(&machine.config("quiet"), &bzimage(), Some(vec![7; 5000])).unwrap();
    let page = &plan.payload.iter().find(|part| part.what == "zero page").unwrap().bytes;
    let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    assert_eq!((page.len(), page[0x210], page[0x1e8], page[0x211]), (4096, 0xff, 6, 1));
    assert_eq!((u32_at(0x228), u64_at(0x70)), (0x2_0000, 0xe_0000));
    assert_eq!((u32_at(0x218), u32_at(0x21c)), (0x7fff_e000, 5000));
    assert_eq!(u64_at(0x2d0 + 5 * 20), 1 << 32);
    assert_eq!(u64_at(0x2d0 + 5 * 20 + 8), 2048 * MIB);
    // Behind the end of this kernel's header there is no header.
    assert!(page[0x26c..0x290].iter().all(|byte| *byte == 0));
}

#[test]
fn initrd_goes_to_the_boot_node_or_else_anywhere() {
    let machine = Machine::new(&[64, 64]);
    let place = |boot_node, len| {
        let config = BootConfig { boot_node, ..machine.config("") };
        let plan = assemble(&config, &bzimage(), Some(vec![1; len])).unwrap();
        plan.payload.last().unwrap().gpa
    };
    assert_eq!(place(0, 4096), 64 * MIB - 4096);
    assert_eq!(place(1, 4097), 128 * MIB - 8192);
    assert_eq!(place(0, 60 << 20), 68 * MIB);
}

#[test]
fn generation_id_lies_where_the_tables_say() {
    let machine = Machine::new(&[64]);
    let plan = assemble(&machine.config(""), &bzimage(), None).unwrap();
    let part = plan.payload.iter().find(|part| part.gpa == 0xd_f010).unwrap();
    assert_eq!((part.what, &part.bytes[..]), ("generation id", &machine.generation.bytes()[..]));
}

#[test]
fn payload_parts_never_overlap() {
    let machine = Machine::new(&[64]);
    for kernel in [&bzimage(), &elf()] {
        let plan = assemble(&machine.config("a b"), kernel, Some(vec![1; 46 << 20])).unwrap();
        let mut ranges = plan.ranges();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
    }
}

#[test]
fn written_memory_holds_the_identity_map() {
    let machine = Machine::new(&[64]);
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 64 << 20)]).unwrap();
    let plan = assemble(&machine.config("quiet"), &bzimage(), None).unwrap();
    plan.write(&memory).unwrap();
    let entry = |gpa: u64| memory.read_obj::<u64>(GuestAddress(gpa)).unwrap();
    for address in [0_u64, 16 * MIB, 0xffe0_0000] {
        let l4 = entry(plan.state.cr3);
        let l3 = entry((l4 & !0xfff) + (address >> 30) * 8);
        let l2 = entry((l3 & !0xfff) + (address >> 21 & 511) * 8);
        assert_eq!(l2, address | 0x83);
    }
    assert_eq!(entry(16 * MIB + 0x200), 0xf4);
}

#[test]
fn applied_state_is_long_mode_and_keeps_the_apic_base() {
    let machine = Machine::new(&[64]);
    let plan = assemble(&machine.config(""), &elf(), None).unwrap();
    let mut sregs = kvm_sregs { apic_base: 0xfee0_0d00, ..kvm_sregs::default() };
    let mut regs = kvm_regs { rax: 1, ..kvm_regs::default() };
    plan.state.apply(&mut sregs, &mut regs);
    assert_eq!((sregs.apic_base, sregs.cs.selector, sregs.cs.l), (0xfee0_0d00, 0x10, 1));
    assert_eq!((sregs.efer, sregs.cr3, regs.rax, regs.rflags), (0x500, PAGE * 9, 0, 2));
    assert_eq!((regs.rip, regs.rsi), (plan.state.rip, 0x7000));
}

#[test]
fn bad_kernels_are_refused_with_a_reason() {
    let machine = Machine::new(&[64]);
    let refuse = |image: &[u8]| message(assemble(&machine.config(""), image, None));
    let changed = |mut image: Vec<u8>, at: usize, byte: u8| {
        image[at] = byte;
        image
    };
    let neither = "kernel is not a kernel: it is neither a bzImage nor an ELF file";
    assert_eq!(refuse(&[]), neither);
    assert_eq!(refuse(&[0; 4096]), neither);
    assert_eq!(refuse(&bzimage()[..0x240]), neither);
    assert!(refuse(&bzimage()[..4096]).ends_with("this bzImage is truncated"));
    assert!(refuse(&changed(bzimage(), 0x236, 0)).ends_with("no 64-bit entry point"));
    assert!(refuse(&elf()[..0x1800]).ends_with("this ELF file is truncated"));
    assert!(refuse(&changed(elf(), 18, 3)).ends_with("not for 64-bit x86"));
    assert!(refuse(&changed(elf(), 27, 9)).ends_with("in none of its segments"));
}

#[test]
fn things_that_do_not_fit_are_refused() {
    let machine = Machine::new(&[32]);
    let config = machine.config("quiet");
    let mut large = bzimage();
    put(&mut large, 0x260, &0x0200_0000_u32.to_le_bytes());
    assert_eq!(
        message(assemble(&config, &large, None)),
        "guest memory is too small for the kernel, which needs 0x1000000..0x3000000"
    );
    let result = assemble(&config, &bzimage(), Some(vec![0; 16 << 20]));
    assert!(matches!(result, Err(BootError::InitrdTooLarge { .. })));
    let long = "x".repeat(101);
    assert_eq!(
        message(assemble(&machine.config(&long), &bzimage(), None)),
        "command line has 101 bytes, the kernel takes at most 100"
    );
    assert!(matches!(
        assemble(&machine.config("a\0b"), &bzimage(), None),
        Err(BootError::CmdlineZero)
    ));
}

#[test]
fn unreadable_files_are_refused_before_anything_is_written() {
    let machine = Machine::new(&[32]);
    let folder = env::temp_dir().join(format!("tessera-boot-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (kernel, empty, missing) =
        (folder.join("kernel"), folder.join("empty"), folder.join("missing"));
    fs::write(&kernel, bzimage()).unwrap();
    fs::write(&empty, b"").unwrap();
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 32 << 20)]).unwrap();
    let try_load = |kernel: &Path, initrd: Option<&Path>| {
        load(&memory, &BootConfig { kernel, initrd, ..machine.config("") })
    };
    let missing_initrd = try_load(&kernel, Some(&missing)).unwrap_err().to_string();
    assert_eq!(missing_initrd, format!("cannot read initrd {}", missing.display()));
    assert!(matches!(try_load(&missing, None), Err(BootError::Read { what: "kernel", .. })));
    assert!(matches!(try_load(&folder, None), Err(BootError::Read { what: "kernel", .. })));
    assert!(matches!(try_load(&kernel, Some(&empty)), Err(BootError::EmptyInitrd { .. })));
    assert_eq!(memory.read_obj::<u64>(GuestAddress(ZERO_PAGE + 0x70)).unwrap(), 0);
    assert!(try_load(&kernel, None).is_ok());
    assert_eq!(memory.read_obj::<u64>(GuestAddress(ZERO_PAGE + 0x70)).unwrap(), 0xe_0000);
    fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_as_kernel_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let machine = Machine::new(&[32]);
        drop(assemble(&machine.config(""), &bytes, None));
    }

    #[test]
    fn damaged_kernel_is_refused_or_stays_within_memory(
        damage in prop::collection::vec((0_usize..0x900, any::<u8>()), 1..8),
        cut in 0_usize..0x2000,
        use_elf: bool,
        whole: bool,
    ) {
        let machine = Machine::new(&[64]);
        let mut image = if use_elf { elf() } else { bzimage() };
        for (at, byte) in damage {
            image[at] = byte;
        }
        if !whole {
            image.truncate(cut);
        }
        if let Ok(plan) = assemble(&machine.config("quiet"), &image, Some(vec![1; 4096])) {
            for range in plan.ranges() {
                prop_assert!(range.start < range.end && range.end <= 64 * MIB);
            }
        }
    }
}
