//! The simplest use of the library: one process, all vCPUs here, console on standard output.
//!
//! `solo KERNEL INITRD CMDLINE [--vcpus N] [--memory MIB] [--interrupts ghost|userspace]`
//! `[--timer-spacing T] [--clock-rate R] [--limit SECONDS]`. Exit status: 0 power-off or reset,
//! 3 guest panic, 4 time limit, 1 anything else.

use anyhow::{Context, Result, anyhow, bail};
use devices::acpi::{self, AcpiConfig, VcpuPlace};
use devices::layout::MemoryLayout;
use devices::{Chipset, ChipsetConfig, GenerationId, InterruptSink, ShutdownCause, ShutdownSink};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs};
use kvm_ioctls::Kvm;
use migrate::PlacementView;
use std::env::args;
use std::io::{self, Read};
use std::path::Path;
use std::process::exit;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use tessera_vmm::boot::{self, BootConfig};
use tessera_vmm::cmdline::{GuestCmdline, recommended_cmdline};
use tessera_vmm::cpuid::{Cpuid, Topology, for_vcpu};
use tessera_vmm::interrupts::{InterruptBackEnd, NoRemote, RemoteInterrupts, VcpuEvent};
use tessera_vmm::machine::{Machine, MachineConfig, MachineHooks, MemorySlot, host_tsc_khz};
use tessera_vmm::timer_spacing::TimerSpacing;
use tessera_vmm::tsc::ClockRate;
use tessera_vmm::vcpu::VcpuError;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wire::{SliceId, VcpuId};

struct Options {
    kernel: String,
    initrd: String,
    cmdline: String,
    vcpus: u32,
    memory: u64,
    interrupts: InterruptBackEnd,
    timer_spacing: TimerSpacing,
    clock_rate: ClockRate,
    limit: u64,
}

fn options() -> Result<Options> {
    let mut words = args().skip(1);
    let mut next = |what| words.next().with_context(|| format!("{what} is missing"));
    let mut options = Options {
        kernel: next("KERNEL")?,
        initrd: next("INITRD")?,
        cmdline: next("CMDLINE")?,
        vcpus: 1,
        memory: 256,
        interrupts: InterruptBackEnd::Userspace,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
        limit: 120,
    };
    while let Some(option) = words.next() {
        let value = words.next().with_context(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--vcpus" => options.vcpus = value.parse()?,
            "--memory" => options.memory = value.parse()?,
            "--interrupts" => options.interrupts = value.parse()?,
            "--timer-spacing" => options.timer_spacing = value.parse()?,
            "--clock-rate" => options.clock_rate = value.parse()?,
            "--limit" => options.limit = value.parse()?,
            _ => bail!("unknown option {option}"),
        }
    }
    Ok(options)
}

/// Why the machine ends.
enum End {
    Guest(ShutdownCause),
    Fatal(String),
}

struct Events {
    end: SyncSender<End>,
    chipset: OnceLock<Arc<Chipset>>,
}

impl ShutdownSink for Events {
    fn shutdown(&self, cause: ShutdownCause) {
        let _ = self.end.try_send(End::Guest(cause));
    }
}

impl MachineHooks for Events {
    fn fatal(&self, error: &VcpuError) {
        let _ = self.end.try_send(End::Fatal(format!("{:#}", anyhow!(error.to_string()))));
    }
}

impl RemoteInterrupts for Events {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        NoRemote.forward(target, event);
    }

    fn end_of_interrupt(&self, vector: u8) {
        if let Some(chipset) = self.chipset.get() {
            chipset.end_of_interrupt(vector);
        }
    }
}

fn slots(memory: &GuestMemoryMmap, layout: &MemoryLayout) -> Result<Vec<MemorySlot>> {
    let slot = |block: &devices::layout::RamBlock| {
        let host = memory.get_host_address(GuestAddress(block.start))?;
        Ok(MemorySlot {
            guest_address: block.start,
            host_address: host.expose_provenance(),
            bytes: block.len,
        })
    };
    layout.blocks().iter().map(slot).collect()
}

fn guest_memory(layout: &MemoryLayout) -> Result<GuestMemoryMmap> {
    let length = |len| usize::try_from(len).context("memory does not fit the address space");
    let ranges: Result<Vec<_>> = layout
        .blocks()
        .iter()
        .map(|block| Ok((GuestAddress(block.start), length(block.len)?)))
        .collect();
    GuestMemoryMmap::from_ranges(&ranges?).context("map guest memory")
}

fn run(options: &Options) -> Result<i32> {
    let layout = MemoryLayout::new(&[options.memory << 20])?;
    let memory = guest_memory(&layout)?;
    let host = Kvm::new()?.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let base = Cpuid::from_kvm(host.as_slice());
    let told = options.clock_rate.told_khz(host_tsc_khz()?);
    let topology =
        Topology { vcpus: options.vcpus, guest_tsc_khz: Some(told), msi_ext_dest_id: false };
    let (sender, end) = sync_channel(16);
    let events = Arc::new(Events { end: sender, chipset: OnceLock::new() });
    let machine = Machine::new(MachineConfig {
        placement: PlacementView::fixed(
            SliceId(0),
            &vec![SliceId(0); usize::try_from(options.vcpus)?],
        )?,
        memory: slots(&memory, &layout)?,
        cpuid: (0..options.vcpus).map(|id| for_vcpu(&base, id, &topology).to_kvm()).collect(),
        remote: Arc::clone(&events) as Arc<dyn RemoteInterrupts>,
        shutdown: Arc::clone(&events) as Arc<dyn ShutdownSink>,
        hooks: Arc::clone(&events) as Arc<dyn MachineHooks>,
        back_end: options.interrupts,
        timer_spacing: options.timer_spacing,
        clock_rate: options.clock_rate,
    })?;
    let offset = machine.tsc_offset()?;
    machine.set_tsc_offset(offset)?;
    load(options, &machine, &layout, &memory)?;
    let chipset = Arc::new(Chipset::new(ChipsetConfig {
        vcpus: options.vcpus,
        hotplug: None,
        console: Box::new(io::stdout()),
        interrupts: Arc::new(machine.clone()) as Arc<dyn InterruptSink>,
        shutdown: Arc::clone(&events) as Arc<dyn ShutdownSink>,
        clock: machine.clock(),
    }));
    let _ = events.chipset.set(Arc::clone(&chipset));
    feed_console(&chipset);
    machine.start(chipset)?;
    let status = match end.recv_timeout(Duration::from_secs(options.limit)) {
        Ok(End::Guest(ShutdownCause::GuestPanic)) => 3,
        Ok(End::Guest(cause)) => {
            eprintln!("guest: {cause:?}");
            0
        }
        Ok(End::Fatal(error)) => {
            eprintln!("{error}");
            1
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => 4,
    };
    machine.stop(Duration::from_secs(5))?;
    for stats in machine.stats() {
        eprintln!("{stats:?}");
    }
    if status == 4 {
        for id in (0..options.vcpus).map(VcpuId) {
            let kvm_regs { rip, rflags, .. } = machine.regs(id)?;
            eprintln!("{id} rip {rip:#x} rflags {rflags:#x}");
        }
    }
    Ok(status)
}

fn load(
    options: &Options,
    machine: &Machine,
    layout: &MemoryLayout,
    memory: &GuestMemoryMmap,
) -> Result<()> {
    let places = (0..options.vcpus).map(|apic_id| VcpuPlace { apic_id, node: 0 }).collect();
    let tables = acpi::build(&AcpiConfig::new(places, layout))?;
    let cmdline = recommended_cmdline(&GuestCmdline::new(&machine.clock(), &options.cmdline));
    let state = boot::load(
        memory,
        &BootConfig {
            kernel: Path::new(&options.kernel),
            initrd: Some(Path::new(&options.initrd)),
            cmdline: &cmdline,
            layout,
            boot_node: 0,
            acpi: &tables,
            generation: GenerationId::random()?,
        },
    )?;
    let mut sregs = machine.sregs(VcpuId(0))?;
    let mut regs = kvm_regs::default();
    state.apply(&mut sregs, &mut regs);
    machine.set_registers(VcpuId(0), &regs, &sregs)?;
    Ok(())
}

fn feed_console(chipset: &Arc<Chipset>) {
    let chipset = Arc::clone(chipset);
    thread::spawn(move || {
        let mut byte = [0];
        while matches!(io::stdin().read(&mut byte), Ok(1)) {
            chipset.console_input(&byte);
        }
    });
}

fn main() {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let status = options().and_then(|options| run(&options));
    exit(status.unwrap_or_else(|error| {
        eprintln!("solo: {error:#}");
        1
    }));
}
