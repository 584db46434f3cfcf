//! The guest: a kernel of its own for two vCPUs, as an ELF image.
//!
//! ```text
//!   vCPU 0: long mode --INIT, start-up--> both: count, add to a page of both, interrupt the other one, use devices
//!           power button --stop flag--> both stop; vCPU 0 compares all counts --'!' or '?'--> power off
//! ```
//! A vCPU sends its next interrupt when the other one has counted the last one. So a lost interrupt is one that
//! everybody waits for from then on, and so is one that was counted twice.

/// Letters on the serial line: a vCPU has gone around some loops, has had some interrupts counted, has read some times.
pub(crate) const LOOPS: [u8; 2] = *b"ab";
pub(crate) const SENT: [u8; 2] = *b"AB";
pub(crate) const READS: [u8; 2] = *b"rs";
/// All counts agree, or they do not.
pub(crate) const AGREE: u8 = b'!';
pub(crate) const DIFFER: u8 = b'?';
/// What has no business here: an exception; a read that failed.
pub(crate) const EXCEPTION: u8 = b'E';
pub(crate) const NOT_READ: u8 = b'D';
/// What the guest does with its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// It has none.
    None,
    /// Each vCPU reads the first sector, which must be what was there at the start.
    Reads,
    /// Each vCPU writes a sector of its own and reads it, in turns. What it reads must be what it has written last.
    Writes,
}

/// What the disk is full of.
pub(crate) const ON_DISK: u8 = 0x5a;

/// Memory that each slice is home of.
pub(crate) const SLICE_BYTES: u64 = 16 << 20;
/// A page of each vCPU, with its counts and its stack; its home is the other slice. And the page of both.
const OWN: [u32; 2] = [0x110_0000, 0x20_0000];
const SHARED: u32 = 0x110_1000;
/// And one with the queue of the disk that a vCPU uses.
const QUEUES: [u32; 2] = [0x110_2000, 0x20_1000];
pub(crate) const PAGES: [u32; 5] = [OWN[0], OWN[1], SHARED, QUEUES[0], QUEUES[1]];

/// In a vCPU's page: rounds; interrupts that it has sent; interrupts that it was sent.
const ROUNDS: u32 = 0;
const SENDS: u32 = 8;
const COUNTED: u32 = 16;
/// In the page of both: the rounds of both; vCPU 1 is there; both are to stop; vCPU 1 has stopped.
const TOGETHER: u32 = SHARED;
const UP: u32 = SHARED + 8;
const STOP: u32 = SHARED + 16;
const STOPPED: u32 = SHARED + 24;

/// In a queue's page: descriptors; driver and device area, with their indices; a request's header (virtio 1.3, 5.2.6: 0 for
/// a read, of sector 0), its status and its data.
const DRIVER_AREA: u32 = 0x100;
const ASKED: u32 = 0x102;
const DEVICE_AREA: u32 = 0x200;
const ANSWERED: u32 = 0x202;
const HEADER: u32 = 0x300;
const STATUS: u32 = 0x310;
/// The number that was written last.
const LAST: u32 = 0x320;
const DATA: u32 = 0x800;
/// Sizes of the three, and their descriptors' flags and successors (virtio 1.3, 2.7.5).
const DESCRIPTORS: [(u32, u32, u32); 3] =
    [(HEADER, 16, 1 << 16 | 1), (DATA, 512, 2 << 16 | 3), (STATUS, 1, 2)];
/// The disk: its command register (PCI 6.2.2), and its structures where it has them at power-on (virtio 1.3, 4.1.4.3).
const COMMAND: u32 = 0xe000_8004;
const COMMON: u32 = 0xe010_0000;
const DEVICE_FEATURE_SELECT: u32 = COMMON;
const DRIVER_FEATURE_SELECT: u32 = COMMON + 8;
const DRIVER_FEATURE: u32 = COMMON + 12;
const DEVICE_STATUS: u32 = COMMON + 20;
const QUEUE_SELECT: u32 = COMMON + 22;
const QUEUE_SIZE: u32 = COMMON + 24;
const QUEUE_ENABLE: u32 = COMMON + 28;
const QUEUE_AREAS: u32 = COMMON + 32;
const NOTIFY: u32 = COMMON + 0x3000;

const VECTOR: u32 = 0x51;
/// Registers of the local APIC in x2APIC mode (SDM vol. 3, "x2APIC Register Address Space").
const EOI: u32 = 0x80b;
const SVR: u32 = 0x80f;
const ICR: u32 = 0x830;
const INIT: u32 = 0x4500;
const STARTUP: u32 = 0x4600;
/// Where vCPU 1 starts, in real mode, and the page of it.
const START: u32 = 0x1_0000;
const START_PAGE: u32 = START >> 12;
/// The first page table and the descriptors of the boot (`tessera_vmm::boot`): code is 0x10, data 0x18.
const PML4: u32 = 0x9000;
const GDT: u32 = 0x500;

/// Ports: the serial line's data and status; the high bytes of ACPI's PM1 status, enable and control.
const SERIAL: u16 = 0x3f8;
const SERIAL_STATUS: u16 = 0x3fd;
const PM1_STATUS: u16 = 0x601;
const PM1_ENABLE: u16 = 0x603;
const PM1_CONTROL: u16 = 0x605;
const IOAPIC: u32 = 0xfec0_0000;

/// The image, from this address on.
const IMAGE: u32 = 0x10_0000;
const CODE: [u32; 2] = [IMAGE, IMAGE + 0x1000];
const START_CODE: u32 = IMAGE + 0x2000;
const IDT_POINTERS: [u32; 2] = [IMAGE + 0x2800, IMAGE + 0x2810];
const IDTS: [u32; 2] = [IMAGE + 0x3000, IMAGE + 0x4000];
const HANDLERS: [u32; 2] = [IMAGE + 0x5000, IMAGE + 0x5080];
const EXCEPTION_HANDLER: u32 = IMAGE + 0x5100;
const END: u32 = IMAGE + 0x6000;

/// Code by hand. Memory is named by its address, below 2 GiB.
#[derive(Default)]
struct Code(Vec<u8>);

impl Code {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn wrmsr(self, index: u32, low: u32, high: u32) -> Self {
        let code = self.bytes(&[0xb9]).number(index); // mov ecx, index
        let code = code.bytes(&[0xb8]).number(low); // mov eax, low
        code.bytes(&[0xba]).number(high).bytes(&[0x0f, 0x30]) // mov edx, high ; wrmsr
    }

    /// inc qword [at]
    fn count(self, at: u32) -> Self {
        self.bytes(&[0x48, 0xff, 0x04, 0x25]).number(at)
    }

    /// mov dx, port
    fn port(self, port: u16) -> Self {
        self.bytes(&[0x66, 0xba]).bytes(&port.to_le_bytes())
    }

    /// mov al, value ; out dx, al
    fn out(self, port: u16, value: u8) -> Self {
        self.port(port).bytes(&[0xb0, value, 0xee])
    }

    /// in al, dx
    fn input(self, port: u16) -> Self {
        self.port(port).bytes(&[0xec])
    }

    /// mov rax, [one] ; cmp rax, [other]
    fn compare(self, one: u32, other: u32) -> Self {
        self.bytes(&[0x48, 0x8b, 0x04, 0x25])
            .number(one)
            .bytes(&[0x48, 0x3b, 0x04, 0x25])
            .number(other)
    }

    /// mov rax, [from] ; mov [to], rax
    fn copy(self, from: u32, to: u32) -> Self {
        let code = self.bytes(&[0x48, 0x8b, 0x04, 0x25]).number(from);
        code.bytes(&[0x48, 0x89, 0x04, 0x25]).number(to)
    }

    /// cmp byte [at], 0
    fn compare_zero(self, at: u32) -> Self {
        self.bytes(&[0x80, 0x3c, 0x25]).number(at).bytes(&[0])
    }

    /// test byte [at], bits
    fn test(self, at: u32, bits: u8) -> Self {
        self.bytes(&[0xf6, 0x04, 0x25]).number(at).bytes(&[bits])
    }

    /// mov dword [at], value
    fn store(self, at: u32, value: u32) -> Self {
        self.bytes(&[0xc7, 0x04, 0x25]).number(at).number(value)
    }

    /// The same for a register of a device, at any address and of this width: mov esi, at ; mov [rsi], value
    fn register(self, at: u32, value: &[u8]) -> Self {
        let code = self.bytes(&[0xbe]).number(at);
        let code = match value.len() {
            1 => code.bytes(&[0xc6, 0x06]),
            2 => code.bytes(&[0x66, 0xc7, 0x06]),
            _ => code.bytes(&[0xc7, 0x06]),
        };
        code.bytes(value)
    }

    /// Leaves `inner` out if the condition holds.
    fn unless(self, condition: Condition, inner: impl FnOnce(Self) -> Self) -> Self {
        let inner = inner(Self::default()).0;
        let length = i32::try_from(inner.len()).expect("it is short");
        self.jump(condition, length).bytes(&inner)
    }

    /// Repeats `inner` as long as the condition holds after it.
    fn again_while(self, condition: Condition, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        let code = inner(self);
        let length = i32::try_from(code.0.len() + 6 - start).expect("it is short");
        code.jump(condition, -length)
    }

    /// A jump of 6 bytes.
    fn jump(self, condition: Condition, distance: i32) -> Self {
        self.bytes(&[0x0f, condition as u8]).bytes(&distance.to_le_bytes())
    }

    /// hlt, for ever
    fn sleep(self) -> Self {
        self.bytes(&[0xf4, 0xeb, 0xfd])
    }
}

/// Second bytes of jumps.
#[derive(Clone, Copy)]
enum Condition {
    Equal = 0x84,
    Unequal = 0x85,
}
use Condition::{Equal, Unequal};

/// From real mode, with only its code segment set, to the code of vCPU 1.
fn start_code() -> Code {
    // Behind the code: the limit and base of the descriptors.
    const POINTER: u16 = 0x60;
    let code = Code::default().bytes(&[0xfa, 0x2e, 0x66, 0x0f, 0x01, 0x16]); // cli ; lgdt cs:[POINTER]
    let code = code.bytes(&POINTER.to_le_bytes());
    // mov eax, PAE ; mov cr4, eax ; mov eax, PML4 ; mov cr3, eax
    let code = code.bytes(&[0x66, 0xb8]).number(0x20).bytes(&[0x0f, 0x22, 0xe0]);
    let code = code.bytes(&[0x66, 0xb8]).number(PML4).bytes(&[0x0f, 0x22, 0xd8]);
    // EFER.LME: mov ecx, EFER ; mov eax, LME ; xor edx, edx ; wrmsr
    let code = code.bytes(&[0x66, 0xb9]).number(0xc000_0080).bytes(&[0x66, 0xb8]).number(0x100);
    let code = code.bytes(&[0x66, 0x31, 0xd2, 0x0f, 0x30]);
    // mov eax, CR0 as the boot has it ; mov cr0, eax ; jmp 0x10:CODE
    let code = code.bytes(&[0x66, 0xb8]).number(0x8005_0033).bytes(&[0x0f, 0x22, 0xc0]);
    let mut code = code.bytes(&[0x66, 0xea]).number(CODE[1]).bytes(&[0x10, 0]);
    assert!(code.0.len() <= POINTER.into());
    code.0.resize(POINTER.into(), 0);
    code.bytes(&[31, 0]).number(GDT)
}

/// Stack, interrupts and APIC of a vCPU.
fn prologue(code: Code, vcpu: usize) -> Code {
    let code = code.bytes(&[0x48, 0xc7, 0xc4]).number(OWN[vcpu] + 0x1000); // mov rsp, top of its page
    let code = code.bytes(&[0x0f, 0x01, 0x1c, 0x25]).number(IDT_POINTERS[vcpu]); // lidt
    code.wrmsr(SVR, 0x1ff, 0)
}

/// Copies the start code down, has the power button heard, and starts vCPU 1.
fn boot(code: Code) -> Code {
    let length = u32::try_from(start_code().0.len()).expect("it is short");
    let code = code.bytes(&[0xfc, 0xbe]).number(START_CODE).bytes(&[0xbf]).number(START); // cld ; mov esi, edi
    let code = code.bytes(&[0xb9]).number(length).bytes(&[0xf3, 0xa4]); // mov ecx ; rep movsb
    let code = code.out(PM1_ENABLE, 1).wrmsr(ICR, INIT, 1).wrmsr(ICR, STARTUP | START_PAGE, 1);
    code.again_while(Equal, |code| code.compare_zero(UP))
}

/// Puts the disk to use, with a queue for each vCPU.
fn start_disk(code: Code, disk: Disk) -> Code {
    let code = code.register(COMMAND, &[6, 0]).register(DEVICE_STATUS, &[3]);
    // Several queues (bit 12), and VERSION_1 (bit 32).
    let features = [(0, 1 << 12), (1, 1)];
    let code = features.iter().fold(code, |code, (half, bits): &(u32, u32)| {
        let code = code.register(DRIVER_FEATURE_SELECT, &half.to_le_bytes());
        code.register(DRIVER_FEATURE, &bits.to_le_bytes())
    });
    let code =
        (0u8..).zip(QUEUES).fold(code.register(DEVICE_STATUS, &[11]), |code, (number, page)| {
            let descriptors = (0..).zip(DESCRIPTORS);
            let code = descriptors.fold(code, |code, (number, (at, bytes, rest))| {
                let descriptor = page + 16 * number;
                code.store(descriptor, page + at)
                    .store(descriptor + 8, bytes)
                    .store(descriptor + 12, rest)
            });
            let code = code.store(page + DRIVER_AREA, 1); // no interrupts
            let code = match disk {
                Disk::Writes => code.store(page + HEADER + 8, number.into()),
                // As if a request had been answered.
                _ => code.store(page + DATA, ON_DISK.into()),
            };
            let code = code.register(QUEUE_SELECT, &[number, 0]).register(QUEUE_SIZE, &[8, 0]);
            let areas = [page, page + DRIVER_AREA, page + DEVICE_AREA];
            let code = (0..).zip(areas).fold(code, |code, (area, at)| {
                code.register(QUEUE_AREAS + 8 * area, &at.to_le_bytes())
            });
            code.register(QUEUE_ENABLE, &[1, 0])
        });
    code.register(DEVICE_STATUS, &[15])
}

/// Whether the last request has its answer: movzx eax, word [answered] ; cmp ax, [asked]
fn is_answered(code: Code, page: u32) -> Code {
    let code = code.bytes(&[0x0f, 0xb7, 0x04, 0x25]).number(page + ANSWERED);
    code.bytes(&[0x66, 0x3b, 0x04, 0x25]).number(page + ASKED)
}

/// Stops where the last request has failed, or has not brought what is on the disk.
fn check_answer(code: Code, page: u32) -> Code {
    let stop = |code: Code| code.out(SERIAL, NOT_READ).sleep();
    let code = code.compare_zero(page + STATUS).unless(Equal, stop);
    // cmp byte [data], what must be there
    code.bytes(&[0x80, 0x3c, 0x25]).number(page + DATA).bytes(&[ON_DISK]).unless(Equal, stop)
}

/// Has the next request made if the last one has its answer.
fn read_disk(code: Code, vcpu: usize) -> Code {
    let page = QUEUES[vcpu];
    let queue = u32::try_from(vcpu).expect("0 or 1");
    is_answered(code, page).unless(Unequal, |code| {
        let code = check_answer(code, page).store(page + STATUS, 0xff).store(page + DATA, 0);
        let code = code.bytes(&[0x66, 0xff, 0x04, 0x25]).number(page + ASKED); // inc word [asked]
        let code = code.register(NOTIFY + 4 * queue, &queue.to_le_bytes()[..2]);
        code.test(page + ASKED, 1).unless(Unequal, |code| code.out(SERIAL, READS[vcpu]))
    })
}

/// A request's type is 1 for a write, and then its data is not for the device to write.
fn set_type(code: Code, page: u32, is_write: bool) -> Code {
    let (kind, flags) = if is_write { (1, 2 << 16 | 1) } else { (0, 2 << 16 | 3) };
    code.store(page + HEADER, kind).store(page + 16 + 12, flags)
}

/// Stops where the last request has failed, or was a read (an even one) of something else than was written.
fn check_written(code: Code, page: u32) -> Code {
    let stop = |code: Code| code.out(SERIAL, NOT_READ).sleep();
    let code = code.compare_zero(page + STATUS).unless(Equal, stop);
    code.test(page + ASKED, 1)
        .unless(Unequal, |code| code.compare(page + DATA, page + LAST).unless(Equal, stop))
}

/// Has the next request made if the last one has its answer: a write of the next number after a read, and the other way
/// round.
fn write_disk(code: Code, vcpu: usize) -> Code {
    let page = QUEUES[vcpu];
    let queue = u32::try_from(vcpu).expect("0 or 1");
    is_answered(code, page).unless(Unequal, |code| {
        let code = check_written(code, page);
        let code = code.test(page + ASKED, 1).unless(Unequal, |code| {
            let code = code.count(page + LAST).copy(page + LAST, page + DATA);
            set_type(code, page, true)
        });
        let code = code
            .test(page + ASKED, 1)
            .unless(Equal, |code| set_type(code.store(page + DATA, 0), page, false));
        let code = code.store(page + STATUS, 0xff);
        let code = code.bytes(&[0x66, 0xff, 0x04, 0x25]).number(page + ASKED); // inc word [asked]
        let code = code.register(NOTIFY + 4 * queue, &queue.to_le_bytes()[..2]);
        code.test(page + ASKED, 1).unless(Unequal, |code| code.out(SERIAL, READS[vcpu]))
    })
}

/// Waits for the last answer, and looks at it.
fn finish_disk(code: Code, vcpu: usize, disk: Disk) -> Code {
    let page = QUEUES[vcpu];
    let code = code.again_while(Unequal, |code| is_answered(code, page));
    if disk == Disk::Writes { check_written(code, page) } else { check_answer(code, page) }
}

/// Uses devices of the bootstrap slice, by ports and by memory, and changes a register that all slices have.
fn devices(code: Code, vcpu: usize, disk: Disk) -> Code {
    let code = if disk != Disk::None {
        let select = u32::try_from(vcpu).expect("0 or 1").to_le_bytes();
        code.register(DEVICE_FEATURE_SELECT, &select)
    } else {
        code
    };
    let code = code.out(SERIAL, LOOPS[vcpu]).input(SERIAL_STATUS);
    let code = code.bytes(&[0xb0, 0, 0xe6, 0x70, 0xe4, 0x71]); // CMOS: mov al, 0 ; out 0x70, al ; in al, 0x71
    let code = code.bytes(&[0xbe]).number(IOAPIC).bytes(&[0x8b, 0x06]); // mov esi, IOAPIC ; mov eax, [rsi]
    if vcpu == 1 {
        return code;
    }
    // test al, 1
    code.input(PM1_STATUS).bytes(&[0xa8, 1]).unless(Equal, |code| code.count(STOP))
}

fn rounds(code: Code, vcpu: usize, disk: Disk) -> Code {
    let (own, other) = (OWN[vcpu], OWN[1 - vcpu]);
    let receiver = u32::try_from(1 - vcpu).expect("0 or 1");
    let code = code.again_while(Equal, |code| {
        let code = code.count(own + ROUNDS).bytes(&[0xf0]).count(TOGETHER); // the second one with lock
        let code = code.compare(other + COUNTED, own + SENDS).unless(Unequal, |code| {
            let code = code.count(own + SENDS).wrmsr(ICR, VECTOR, receiver);
            code.test(own + SENDS, 1).unless(Unequal, |code| code.out(SERIAL, SENT[vcpu]))
        });
        let code = code.test(own + ROUNDS, 15).unless(Unequal, |code| devices(code, vcpu, disk));
        let code = match disk {
            Disk::None => code,
            Disk::Reads => read_disk(code, vcpu),
            Disk::Writes => write_disk(code, vcpu),
        };
        code.compare_zero(STOP)
    });
    if disk == Disk::None { code } else { finish_disk(code, vcpu, disk) }
}

/// Waits until nothing is missing, and tells whether additions were lost.
fn compare_counts(code: Code) -> Code {
    let wait = |code: Code, one, other| code.again_while(Unequal, |code| code.compare(one, other));
    let code = code.again_while(Equal, |code| code.compare_zero(STOPPED));
    let code = wait(code, OWN[0] + SENDS, OWN[1] + COUNTED);
    let code = wait(code, OWN[1] + SENDS, OWN[0] + COUNTED);
    // mov rax, [first] ; add rax, [second] ; cmp rax, [both]
    let code = code.bytes(&[0x48, 0x8b, 0x04, 0x25]).number(OWN[0] + ROUNDS);
    let code = code.bytes(&[0x48, 0x03, 0x04, 0x25]).number(OWN[1] + ROUNDS);
    let code = code.bytes(&[0x48, 0x3b, 0x04, 0x25]).number(TOGETHER);
    let code = code.port(SERIAL).bytes(&[0xb0, AGREE]); // mov keeps the flags
    let code = code.unless(Equal, |code| code.bytes(&[0xb0, DIFFER])).bytes(&[0xee]); // out dx, al
    code.out(PM1_CONTROL, 0x34).sleep() // SLP_EN, sleep type 5
}

fn vcpu_code(vcpu: usize, disk: Disk) -> Code {
    const STI: u8 = 0xfb;
    let code = Code::default();
    if vcpu == 0 {
        let code = prologue(code, 0);
        let code = boot(if disk == Disk::None { code } else { start_disk(code, disk) });
        return compare_counts(rounds(code.bytes(&[STI]), 0, disk));
    }
    let code = code.bytes(&[0x66, 0xb8, 0x18, 0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0]); // ds, es, ss: 0x18
    rounds(prologue(code, 1).count(UP).bytes(&[STI]), 1, disk).count(STOPPED).sleep()
}

fn handler(vcpu: usize) -> Code {
    let code = Code::default().bytes(&[0x50, 0x51, 0x52]).count(OWN[vcpu] + COUNTED); // push rax, rcx, rdx
    code.wrmsr(EOI, 0, 0).bytes(&[0x5a, 0x59, 0x58, 0x48, 0xcf]) // pop them ; iretq
}

/// Gates of exceptions and of the one interrupt (SDM vol. 3, "64-Bit Mode IDT").
fn idt(vcpu: usize) -> Vec<u8> {
    let gate = |vector: u32| {
        let handler = match vector {
            0..32 => EXCEPTION_HANDLER,
            VECTOR => HANDLERS[vcpu],
            _ => return [0; 16],
        };
        let [low, second, third, high] = handler.to_le_bytes();
        [low, second, 0x10, 0, 0, 0x8e, third, high, 0, 0, 0, 0, 0, 0, 0, 0]
    };
    (0..256).flat_map(gate).collect()
}

fn idt_pointer(vcpu: usize) -> Vec<u8> {
    [&[0xff, 0x0f], &u64::from(IDTS[vcpu]).to_le_bytes()[..]].concat()
}

/// The image as a file (ELF-64 object file format, version 1.5): a header, a program header and one segment.
pub(crate) fn image(disk: Disk) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let exception = Code::default().out(SERIAL, EXCEPTION).sleep();
    let mut memory = vec![0; usize::try_from(END - IMAGE).expect("it is small")];
    let mut put = |at: u32, bytes: &[u8], end: u32| {
        assert!(
            bytes.len() <= usize::try_from(end - at).expect("it is small"),
            "too long: {at:#x}"
        );
        let at = usize::try_from(at - IMAGE).expect("it is small");
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for vcpu in [0, 1] {
        put(CODE[vcpu], &vcpu_code(vcpu, disk).0, CODE[vcpu] + 0x1000);
        put(IDT_POINTERS[vcpu], &idt_pointer(vcpu), IDT_POINTERS[vcpu] + 0x10);
        put(IDTS[vcpu], &idt(vcpu), IDTS[vcpu] + 0x1000);
        put(HANDLERS[vcpu], &handler(vcpu).0, HANDLERS[vcpu] + 0x80);
    }
    put(START_CODE, &start_code().0, IDT_POINTERS[0]);
    put(EXCEPTION_HANDLER, &exception.0, END);

    let length = u64::from(END - IMAGE);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // an executable file, for x86-64
    for field in [u64::from(IMAGE), 64, 0] {
        file.extend(field.to_le_bytes()); // entry, program headers, no sections
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]); // to be loaded, with all rights
    for field in [HEADERS, IMAGE.into(), IMAGE.into(), length, length, 0x1000] {
        file.extend(field.to_le_bytes());
    }
    file.extend(memory);
    file
}

/// A qcow2 image (version 3) of an empty disk of 1 MiB: head, table and block of reference counts, first level, a cluster each.
pub(crate) fn qcow2() -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    let mut bytes = vec![0; 4 * CLUSTER];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let cluster = |number: u64| (number << 16).to_be_bytes();
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &(1_u64 << 20).to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &cluster(3));
    put(48, &cluster(1));
    put(56, &1_u32.to_be_bytes());
    // Counts have 2^4 bits; the head has 104 bytes.
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(CLUSTER, &cluster(2));
    (0..4).for_each(|counted| put(2 * CLUSTER + 2 * counted, &1_u16.to_be_bytes()));
    bytes
}
