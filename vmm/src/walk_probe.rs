//! Do page walks of a guest need *write* access to its page tables on this host?
//!
//! They do with AMD's nested paging (APM vol. 2, 15.25.5: the guest's table accesses count as user
//! writes) and on Intel with accessed and dirty bits in EPT (SDM vol. 3C, the part on these bits).
//! They do not on Intel without the bits, nor with shadow paging, where KVM reads the tables itself.
//! Vendor flags and module parameters do not tell this for every KVM, so a guest is asked:
//!
//! ```text
//!   8 pages, all write-protected:  code | PML4 -> PDPT -> PD -> PT | data | proof
//!   guest: read data, write it to proof and a port, halt  (accessed and dirty bits are set already)
//!   a write to one of the four table pages comes from a page walk: nothing else writes there
//! ```
//!
//! The write to the page `proof` must be seen, or the answer would mean nothing.
//!
//! The calling thread lets each write happen, so the guest always comes to its end. The VM has one
//! thread, which is gone on return.

use crate::interrupts::{InterruptBackEnd, RemoteInterrupts, VcpuEvent};
use crate::machine::{
    Machine, MachineConfig, MachineError, MachineHooks, MemorySlot, StopError, open_kvm, vm_step,
};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::ClockRate;
use crate::vcpu::VcpuError;
use devices::{Bus, ShutdownCause, ShutdownSink};
use dsm::{GuestRam, RamError, WriteWatch, WriteWatchError};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_sregs};
use migrate::PlacementView;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use wire::{Gfn, SliceId, VcpuId};

/// The guest has this long to come to its end, and then its thread to end; 2 s in all.
const GUEST_LIMIT: Duration = Duration::from_millis(1500);
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// The end of the guest is looked for this often while no write comes.
const TICK: Duration = Duration::from_millis(1);
/// More ends than one guest can come to.
const QUEUE: usize = 8;

const VCPU: VcpuId = VcpuId(0);
const PAGES: u64 = 8;
const CODE: Gfn = Gfn(1);
/// PML4, PDPT, PD, PT.
const TABLES: [Gfn; 4] = [Gfn(2), Gfn(3), Gfn(4), Gfn(5)];
const DATA: Gfn = Gfn(6);
const PROOF: Gfn = Gfn(7);
const MARK: u32 = 0x7e55_e4a1;
const PORT: u8 = 0x80;
/// Entry flags: present, writable, accessed, dirty (SDM vol. 3A, 4-level paging).
const ENTRY: u64 = 0x63;
/// Protection, monitor coprocessor, 387, numeric error, write protect, paging.
const CR0: u64 = 0x8001_0033;
const CR4_PAE: u64 = 0x20;
/// Long mode enabled and active.
const EFER: u64 = 0x500;

/// This host cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum WalkProbeError {
    /// No memory for the guest.
    #[error("make the memory of the guest that probes page walks")]
    Memory(#[from] RamError),
    /// No VM.
    #[error("make the VM that probes page walks")]
    Machine(#[from] MachineError),
    /// Its memory cannot be watched.
    #[error("watch the page tables of the guest that probes page walks")]
    Watch(#[from] WriteWatchError),
    /// The guest did not do what it was made for.
    #[error("the guest that probes page walks came to another end: {end}")]
    Strange {
        /// What it did.
        end: String,
    },
    /// A write that did happen was not seen.
    #[error("the guest that probes page walks wrote to memory unseen")]
    Unseen,
    /// The guest never ended.
    #[error("the guest that probes page walks did not end within {GUEST_LIMIT:?}")]
    Late,
    /// Its thread did not end.
    #[error("the VM that probes page walks did not stop")]
    Stop(#[from] StopError),
}

/// How the guest ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Told { port: u16, data: Vec<u8> },
    Shutdown(ShutdownCause),
    Fatal(String),
}

/// Hears of the guest's end. The machine keeps it, and so the memory, as long as itself.
struct Recorder {
    ends: SyncSender<End>,
    _ram: Arc<GuestRam>,
}

impl Recorder {
    fn note(&self, end: End) {
        // Only the first one counts; a full queue has it.
        let _ = self.ends.try_send(end);
    }
}

impl Bus for Recorder {
    fn pio_read(&self, _port: u16, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn pio_write(&self, port: u16, data: &[u8]) {
        self.note(End::Told { port, data: data.to_vec() });
    }
    fn mmio_read(&self, _address: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&self, _address: u64, _data: &[u8]) {}
}

impl RemoteInterrupts for Recorder {
    fn forward(&self, _target: VcpuId, _event: VcpuEvent) {}
}

impl MachineHooks for Recorder {
    fn fatal(&self, error: &VcpuError) {
        self.note(End::Fatal(error.to_string()));
    }
}

impl ShutdownSink for Recorder {
    fn shutdown(&self, cause: ShutdownCause) {
        self.note(End::Shutdown(cause));
    }
}

/// Runs a small guest that never writes to its page tables, and tells whether they were written to.
///
/// # Errors
/// KVM or userfaultfd cannot be used, or the guest did not come to its end in time. Take page walks
/// to write then.
pub fn walks_need_write() -> Result<bool, WalkProbeError> {
    let ram = Arc::new(GuestRam::new(from_ref(&(0..PAGES)))?);
    fill(&ram);
    let (sender, ends) = sync_channel(QUEUE);
    let recorder = Arc::new(Recorder { ends: sender, _ram: Arc::clone(&ram) });
    let machine = machine(&recorder, &ram)?;
    let watch = WriteWatch::new(&ram)?;
    let result =
        machine.start(recorder).map_err(WalkProbeError::from).and_then(|()| observe(watch, &ends));
    machine.stop(STOP_LIMIT)?;
    result
}

/// Code, data, and tables that map the guest's memory to itself.
fn fill(ram: &GuestRam) {
    let mut code = vec![0x48, 0xa1]; // mov rax, [address]
    code.extend((DATA.0 << 12).to_le_bytes());
    code.extend([0x48, 0xa3]); // mov [address], rax
    code.extend((PROOF.0 << 12).to_le_bytes());
    code.extend([0xe7, PORT]); // out port, eax
    code.extend([0xf4, 0xeb, 0xfd]); // hlt, and again
    ram.write(CODE, 0, &code);
    ram.write(DATA, 0, &MARK.to_le_bytes());
    for pair in TABLES.windows(2) {
        ram.write(pair[0], 0, &(pair[1].0 << 12 | ENTRY).to_le_bytes());
    }
    for (at, page) in (0..PAGES).enumerate() {
        ram.write(TABLES[3], at * 8, &(page << 12 | ENTRY).to_le_bytes());
    }
}

fn machine(recorder: &Arc<Recorder>, ram: &GuestRam) -> Result<Machine, WalkProbeError> {
    let supported = open_kvm()?.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let supported = vm_step("read the CPUID of this host", supported)?;
    let slot =
        |(guest_address, host_address, bytes)| MemorySlot { guest_address, host_address, bytes };
    let machine = Machine::new(MachineConfig {
        placement: PlacementView::fixed(SliceId(0), &[SliceId(0)]).map_err(MachineError::from)?,
        memory: ram.slots().into_iter().map(slot).collect(),
        cpuid: vec![supported.as_slice().to_vec()],
        remote: Arc::clone(recorder) as Arc<dyn RemoteInterrupts>,
        shutdown: Arc::clone(recorder) as Arc<dyn ShutdownSink>,
        hooks: Arc::clone(recorder) as Arc<dyn MachineHooks>,
        back_end: InterruptBackEnd::Userspace,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
    })?;
    let sregs = long_mode(machine.sregs(VCPU)?);
    let regs = kvm_regs { rip: CODE.0 << 12, rflags: 2, ..Default::default() };
    machine.set_registers(VCPU, &regs, &sregs)?;
    Ok(machine)
}

/// 64-bit kernel mode with the tables of the probe.
fn long_mode(sregs: kvm_sregs) -> kvm_sregs {
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, l: 0, db: 1, ..code };
    kvm_sregs {
        cr0: CR0,
        cr3: TABLES[0].0 << 12,
        cr4: CR4_PAE,
        efer: EFER,
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        ..sregs
    }
}

/// Lets writes happen until the guest has ended; true when one was to a table.
fn observe(mut watch: WriteWatch<'_>, ends: &Receiver<End>) -> Result<bool, WalkProbeError> {
    let limit = Instant::now() + GUEST_LIMIT;
    let mut written = Vec::new();
    let told = End::Told { port: u16::from(PORT), data: MARK.to_le_bytes().to_vec() };
    while Instant::now() < limit {
        written.extend(watch.take(TICK)?);
        match ends.try_recv() {
            Ok(end) if end == told => {
                tracing::debug!(?written, "pages that the guest wrote to");
                if !written.contains(&PROOF) {
                    return Err(WalkProbeError::Unseen);
                }
                return Ok(written.iter().any(|gfn| TABLES.contains(gfn)));
            }
            Ok(end) => return Err(WalkProbeError::Strange { end: format!("{end:?}") }),
            Err(_) => {}
        }
    }
    Err(WalkProbeError::Late)
}
