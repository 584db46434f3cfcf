//! ACPI tables (ACPI 6.5): what the guest learns about vCPUs, memory, nodes and fixed registers.
//!
//! The platform is not hardware-reduced: Linux then uses the PM timer and the PM1 registers, and
//! needs no embedded AML for power-off. Choices made for a boot with the least waiting:
//!
//! * No 8042, no VGA: Linux does not probe for a keyboard or a text screen.
//! * The "no CMOS RTC" bit is **clear**. Setting it saves some tens of port reads, but the guest
//!   would start in 1970. The clock here never shows an update in progress, so nothing waits.
//! * The PM timer is 32 bits wide and gives Linux a reference for the frequency of the TSC.
//! * Every vCPU has an x2APIC entry, also those with ids below 255: there is no xAPIC mode.
//! * "Force physical destination mode": without interrupt remapping, logical x2APIC destinations
//!   do not fit in an IOAPIC entry.
//! * vCPUs that can come later are "online capable" and not "enabled", and only then there are processor devices and
//!   their general-purpose event (`acpi/vcpus.rs`).
//! * The generation id of the VM has a device and an event in any case (`acpi/generation.rs`).

mod generation;
mod pci;
mod vcpus;

use crate::gpe::{GPE_BYTES, GPE_PORT};
use crate::ioapic::{IOAPIC_BASE, IOAPIC_ID};
use crate::layout::{ACPI_END, ACPI_START, MemoryLayout, NodeRange};
use crate::pm;
use acpi_tables::aml::{Device, IO, Name, Package, ResourceTemplate, Scope};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::slit::SLIT;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use thiserror::Error;

const OEM_ID: [u8; 6] = *b"TESSRA";
const OEM_TABLE_ID: [u8; 8] = *b"TESSERA ";
const OEM_REVISION: u32 = 1;
/// The interrupt of ACPI events.
pub const SCI_IRQ: u8 = 9;

/// Tables that cannot be built.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AcpiError {
    /// The tables are larger than their area.
    #[error("ACPI tables for {vcpus} vCPUs and {nodes} nodes do not fit in 128 KiB")]
    TooLarge {
        /// Number of vCPUs.
        vcpus: usize,
        /// Number of nodes.
        nodes: u32,
    },
    /// A vCPU or a memory range names a node that does not exist.
    #[error("ACPI tables name node {node}, but there are {nodes} nodes")]
    NoSuchNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// vCPUs that can come later, and none that boots.
    #[error("ACPI tables of {vcpus} vCPUs cannot have {present} of them present")]
    Present {
        /// Number of vCPUs.
        vcpus: usize,
        /// How many are to be present.
        present: u32,
    },
    /// Distances that ACPI does not allow.
    #[error("node distances {local} (local) and {remote} (remote) are not 10 and 11 to 254")]
    Distance {
        /// Within a node.
        local: u8,
        /// Between nodes.
        remote: u8,
    },
}

/// A vCPU and the node of its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuPlace {
    /// x2APIC id.
    pub apic_id: u32,
    /// NUMA node.
    pub node: u32,
}

/// What the tables describe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpiConfig {
    /// The vCPUs; the first is the boot vCPU.
    pub vcpus: Vec<VcpuPlace>,
    /// RAM by node.
    pub memory: Vec<NodeRange>,
    /// Number of nodes.
    pub nodes: u32,
    /// SLIT distance within a node: always 10 (ACPI 6.5, 5.2.17).
    pub local_distance: u8,
    /// SLIT distance between two nodes, 11 to 254.
    pub remote_distance: u8,
    /// There is a PCI bus ([`PciRoot`](crate::pci::PciRoot)).
    pub pci: bool,
    /// How many of the vCPUs, the first ones, the guest has at the start, if others can come later; none: it has all, for
    /// ever.
    pub present: Option<u32>,
}

impl AcpiConfig {
    /// These vCPUs with this memory, at distances 10 and 20, without PCI.
    #[must_use]
    pub fn new(vcpus: Vec<VcpuPlace>, layout: &MemoryLayout) -> Self {
        Self {
            vcpus,
            memory: layout.ranges().to_vec(),
            nodes: layout.nodes(),
            local_distance: 10,
            remote_distance: 20,
            pci: false,
            present: None,
        }
    }

    /// The same machine with a PCI bus.
    #[must_use]
    pub fn with_pci(self) -> Self {
        Self { pci: true, ..self }
    }

    /// The same machine, in which the guest has so many vCPUs at the start and can have the others later.
    #[must_use]
    pub fn with_present(self, present: u32) -> Self {
        Self { present: Some(present), ..self }
    }

    fn check(&self) -> Result<(), AcpiError> {
        let places = self.vcpus.iter().map(|vcpu| vcpu.node);
        let memory = self.memory.iter().map(|range| range.node);
        if let Some(node) = places.chain(memory).find(|&node| node >= self.nodes) {
            return Err(AcpiError::NoSuchNode { node, nodes: self.nodes });
        }
        if let Some(present) = self.present
            && !(1..=self.vcpus.len()).contains(&usize::try_from(present).unwrap_or(usize::MAX))
        {
            return Err(AcpiError::Present { vcpus: self.vcpus.len(), present });
        }
        let (local, remote) = (self.local_distance, self.remote_distance);
        if local != 10 || !(11..=254).contains(&remote) {
            return Err(AcpiError::Distance { local, remote });
        }
        let too_large = AcpiError::TooLarge { vcpus: self.vcpus.len(), nodes: self.nodes };
        // The quadratic and linear tables alone must fit, so that no huge table is ever built.
        let area = usize::try_from(ACPI_END - ACPI_START).unwrap_or(usize::MAX);
        let distances = u64::from(self.nodes) * u64::from(self.nodes);
        if self.vcpus.len() > area / 40 || self.memory.len() > area / 40 {
            return Err(too_large);
        }
        if distances > ACPI_END - ACPI_START { Err(too_large) } else { Ok(()) }
    }
}

/// Finished tables and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpiTables {
    /// Guest-physical address of the RSDP, for `acpi_rsdp_addr` of the zero page.
    pub rsdp_address: u64,
    /// Guest-physical address and content of each table; the ranges do not overlap.
    pub blobs: Vec<(u64, Vec<u8>)>,
}

/// Builds all tables into [`ACPI_START`]..[`ACPI_END`].
///
/// # Errors
///
/// A vCPU or range of a node that does not exist, illegal distances, or more vCPUs and nodes than
/// the area holds.
pub fn build(config: &AcpiConfig) -> Result<AcpiTables, AcpiError> {
    config.check()?;
    // The RSDP comes first, where a guest that scans for it looks first.
    let rsdp_len = u64::try_from(Rsdp::len()).unwrap_or(u64::MAX);
    let mut area = Area { next: ACPI_START + rsdp_len, blobs: Vec::new() };
    let facs = area.place(bytes_of(&FACS::new()));
    let dsdt = area.place(dsdt(config));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let tables = [fadt(facs, dsdt), madt(config), srat(config), slit(config)];
    for table in tables.into_iter().chain(config.pci.then(pci::mcfg)) {
        xsdt.add_entry(area.place(table));
    }
    let xsdt = area.place(bytes_of(&xsdt));
    area.blobs.push((ACPI_START, bytes_of(&Rsdp::new(OEM_ID, xsdt))));
    if area.next > ACPI_END {
        return Err(AcpiError::TooLarge { vcpus: config.vcpus.len(), nodes: config.nodes });
    }
    Ok(AcpiTables { rsdp_address: ACPI_START, blobs: area.blobs })
}

struct Area {
    next: u64,
    blobs: Vec<(u64, Vec<u8>)>,
}

impl Area {
    /// Puts a table at the next multiple of 64 (the FACS needs that) and gives its address.
    fn place(&mut self, bytes: Vec<u8>) -> u64 {
        let address = self.next.next_multiple_of(64);
        self.next = address + u64::try_from(bytes.len()).unwrap_or(u64::MAX / 2);
        self.blobs.push((address, bytes));
        address
    }
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// A table of the header and this body.
fn sdt(signature: [u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table = Sdt::new(signature, 36, revision, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(body);
    table.as_slice().to_vec()
}

/// Sleep state S5, the panic device, the generation id, and PCI and vCPUs that can come if there are any; everything else is
/// fixed hardware.
fn dsdt(config: &AcpiConfig) -> Vec<u8> {
    let mut body = Vec::new();
    let typ = pm::SLEEP_TYPE_S5;
    Name::new("_S5_".into(), &Package::new(vec![&typ, &typ, &0_u8, &0_u8])).to_aml_bytes(&mut body);
    let panic_io = IO::new(pm::PVPANIC_PORT, pm::PVPANIC_PORT, 1, 1);
    let resources = ResourceTemplate::new(vec![&panic_io]);
    Scope::new(
        "_SB_".into(),
        vec![&Device::new(
            "PEVT".into(),
            vec![
                &Name::new("_HID".into(), &"QEMU0001"),
                &Name::new("_CRS".into(), &resources),
                &Name::new("_STA".into(), &0xf_u8),
            ],
        )],
    )
    .to_aml_bytes(&mut body);
    generation::devices(&mut body);
    if config.pci {
        pci::devices(&mut body);
    }
    if config.present.is_some() {
        vcpus::devices(config, &mut body);
    }
    sdt(*b"DSDT", 2, &body)
}

fn port(address: u16, bits: u8, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, bits, 0, access, u64::from(address))
}

/// Fixed registers (ACPI 6.5, 5.2.9).
fn fadt(facs: u64, dsdt: u64) -> Vec<u8> {
    /// Devices on the legacy bus; the other bits are explained in the module documentation.
    const LEGACY_DEVICES: u16 = 1 << 0;
    const NO_VGA: u16 = 1 << 2;
    // The area lies below 1 MiB.
    let low = |address: u64| u32::try_from(address).unwrap_or(0);
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .firmware_ctrl_32(low(facs))
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        // The power button is fixed hardware (its flag would make it a device of the DSDT); no sleep button.
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup)
        .flag(Flags::ForceApicPhysicalDestinationMode);
    fadt.dsdt = low(dsdt).into();
    fadt.x_dsdt = dsdt.into();
    fadt.sci_int = u16::from(SCI_IRQ).into();
    fadt.pm1a_evt_blk = u32::from(pm::PM1_EVENT_PORT).into();
    fadt.pm1_evt_len = 4;
    fadt.x_pm1a_evt_blk = port(pm::PM1_EVENT_PORT, 32, AccessSize::WordAccess);
    fadt.pm1a_cnt_blk = u32::from(pm::PM1_CONTROL_PORT).into();
    fadt.pm1_cnt_len = 2;
    fadt.x_pm1a_cnt_blk = port(pm::PM1_CONTROL_PORT, 16, AccessSize::WordAccess);
    fadt.pm_tmr_blk = u32::from(pm::PM_TIMER_PORT).into();
    fadt.pm_tmr_len = 4;
    fadt.x_pm_tmr_blk = port(pm::PM_TIMER_PORT, 32, AccessSize::DwordAccess);
    fadt.gpe0_blk = u32::from(GPE_PORT).into();
    fadt.gpe0_blk_len = GPE_BYTES;
    fadt.x_gpe0_blk = port(GPE_PORT, 8 * GPE_BYTES, AccessSize::ByteAccess);
    // No C2 and no C3 (ACPI 6.5, table 5.9).
    fadt.p_lvl2_lat = 0xfff.into();
    fadt.p_lvl3_lat = 0xfff.into();
    fadt.century = crate::cmos::CENTURY;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | NO_VGA).into();
    fadt.reset_reg = port(pm::RESET_PORT, 8, AccessSize::ByteAccess);
    fadt.reset_value = pm::RESET_VALUE;
    bytes_of(&fadt.finalize())
}

/// Interrupt controllers (ACPI 6.5, 5.2.12).
fn madt(config: &AcpiConfig) -> Vec<u8> {
    const LOCAL_APIC: u32 = 0xfee0_0000;
    const PCAT_COMPAT: u32 = 1;
    let mut body = Vec::new();
    body.dword(LOCAL_APIC);
    body.dword(PCAT_COMPAT);
    let present = config.present.unwrap_or(u32::MAX);
    for (uid, vcpu) in (0_u32..).zip(&config.vcpus) {
        x2apic(&mut body, vcpu.apic_id, uid, uid < present);
    }
    // Type 1, IOAPIC with the global interrupts from 0.
    body.vec(&[1, 12, IOAPIC_ID, 0]);
    body.dword(IOAPIC_BASE);
    body.dword(0);
    // Type 2, source override: the SCI is active high and edge-triggered. Nothing shares it, and an edge
    // needs no end of interrupt, which would have to travel from the slice of any vCPU.
    body.vec(&[2, 10, 0, SCI_IRQ, SCI_IRQ, 0, 0, 0, 0x05, 0]);
    // Type 10, local x2APIC NMI: LINT1 of every vCPU.
    body.vec(&[10, 12, 0, 0]);
    body.dword(u32::MAX);
    body.vec(&[1, 0, 0, 0]);
    sdt(*b"APIC", 5, &body)
}

/// An entry of type 9, processor local x2APIC (ACPI 6.5, 5.2.12.12).
fn x2apic(body: &mut dyn AmlSink, apic_id: u32, uid: u32, present: bool) {
    const ENABLED: u32 = 1 << 0;
    const ONLINE_CAPABLE: u32 = 1 << 1;
    body.vec(&[9, 16, 0, 0]);
    body.dword(apic_id);
    body.dword(if present { ENABLED } else { ONLINE_CAPABLE });
    body.dword(uid);
}

/// Which node vCPUs and memory are on (ACPI 6.5, 5.2.16).
fn srat(config: &AcpiConfig) -> Vec<u8> {
    const ENABLED: u32 = 1;
    let mut body = Vec::new();
    body.dword(1);
    body.qword(0);
    for vcpu in &config.vcpus {
        // Type 2, processor local x2APIC affinity.
        body.vec(&[2, 24, 0, 0]);
        body.dword(vcpu.node);
        body.dword(vcpu.apic_id);
        body.dword(ENABLED);
        body.qword(0);
    }
    for range in &config.memory {
        // Type 1, memory affinity.
        body.vec(&[1, 40]);
        body.dword(range.node);
        body.word(0);
        body.qword(range.start);
        body.qword(range.len);
        body.dword(0);
        body.dword(ENABLED);
        body.qword(0);
    }
    sdt(*b"SRAT", 3, &body)
}

/// Distances between nodes (ACPI 6.5, 5.2.17).
fn slit(config: &AcpiConfig) -> Vec<u8> {
    let mut slit = SLIT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, config.nodes);
    let nodes = usize::try_from(config.nodes).unwrap_or(0);
    for a in 0..nodes {
        for b in 0..a {
            slit.set_distance(a, b, config.remote_distance);
        }
    }
    bytes_of(&slit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn config(vcpus: u32, sizes_mib: &[u64]) -> AcpiConfig {
        let sizes: Vec<u64> = sizes_mib.iter().map(|mib| mib * MIB).collect();
        let layout = MemoryLayout::new(&sizes).unwrap();
        let nodes = layout.nodes();
        let place = |apic_id| VcpuPlace { apic_id, node: apic_id % nodes };
        AcpiConfig::new((0..vcpus).map(place).collect(), &layout)
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
    }

    fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
    }

    fn table<'a>(tables: &'a AcpiTables, signature: &[u8]) -> &'a [u8] {
        &tables.blobs.iter().find(|(_, bytes)| bytes.starts_with(signature)).unwrap().1
    }

    /// Types of the variable structures from `offset`, walking their lengths to the exact end.
    fn structures(bytes: &[u8], mut offset: usize) -> Vec<u8> {
        let mut types = Vec::new();
        while offset < bytes.len() {
            types.push(bytes[offset]);
            offset += usize::from(bytes[offset + 1]);
        }
        assert_eq!(offset, bytes.len());
        types
    }

    #[test]
    fn tables_every_sdt_has_length_and_checksum() {
        let tables = build(&config(3, &[256, 128])).unwrap();
        for (address, bytes) in &tables.blobs {
            if bytes.starts_with(b"RSD PTR ") {
                assert_eq!((sum(&bytes[..20]), sum(bytes)), (0, 0));
            } else {
                assert_eq!(u32_at(bytes, 4) as usize, bytes.len());
                assert!(bytes.starts_with(b"FACS") || sum(bytes) == 0, "{address:#x}");
            }
        }
    }

    #[test]
    fn tables_are_reachable_from_rsdp() {
        let tables = build(&config(2, &[256, 128])).unwrap();
        let at = |gpa: u64| &tables.blobs.iter().find(|(address, _)| *address == gpa).unwrap().1;
        let xsdt = at(u64_at(at(tables.rsdp_address), 24));
        let listed: Vec<&[u8]> =
            (36..xsdt.len()).step_by(8).map(|offset| &at(u64_at(xsdt, offset))[..4]).collect();
        assert_eq!(listed, [b"FACP", b"APIC", b"SRAT", b"SLIT"]);
        let fadt = table(&tables, b"FACP");
        assert!(at(u64_at(fadt, 140)).starts_with(b"DSDT"));
        assert_eq!(u64::from(u32_at(fadt, 40)), u64_at(fadt, 140));
        assert!(at(u64::from(u32_at(fadt, 36))).starts_with(b"FACS"));
    }

    #[test]
    fn madt_lists_every_vcpu_and_the_ioapic() {
        let tables = build(&config(300, &[64])).unwrap();
        let madt = table(&tables, b"APIC");
        let types = structures(madt, 44);
        assert_eq!(types.iter().filter(|kind| **kind == 9).count(), 300);
        assert_eq!(types[300..], [1, 2, 10]);
        assert_eq!(u32_at(madt, 44 + 299 * 16 + 4), 299);
    }

    #[test]
    fn srat_and_slit_describe_nodes() {
        let tables = build(&config(3, &[2048, 2048, 0])).unwrap();
        let srat = table(&tables, b"SRAT");
        assert_eq!(structures(srat, 48), [2, 2, 2, 1, 1, 1]);
        assert_eq!(u64_at(srat, 48 + 3 * 24 + 40 + 8), 2048 * MIB);
        let slit = table(&tables, b"SLIT");
        assert_eq!(u64_at(slit, 36), 3);
        assert_eq!(slit[44..], [10, 20, 20, 20, 10, 20, 20, 20, 10]);
    }

    #[test]
    fn fadt_fixed_registers_are_where_the_devices_are() {
        let tables = build(&config(1, &[64])).unwrap();
        let fadt = table(&tables, b"FACP");
        assert_eq!((fadt[8], fadt.len()), (6, 276));
        assert_eq!([56, 64, 76].map(|offset| u32_at(fadt, offset)), [0x600, 0x604, 0x608]);
        assert_eq!([fadt[88], fadt[89], fadt[91]], [4, 2, 4]);
        assert_eq!(u16::from_le_bytes([fadt[109], fadt[110]]), 0b101);
        assert_eq!((u64_at(fadt, 120), fadt[128]), (0xcf9, 6));
        assert_eq!((u32_at(fadt, 80), fadt[92], u64_at(fadt, 224)), (0x610, 2, 0x610));
    }

    #[test]
    fn dsdt_has_sleep_state_and_panic_device() {
        let tables = build(&config(1, &[64])).unwrap();
        let dsdt = table(&tables, b"DSDT");
        let has = |needle: &[u8]| dsdt.windows(needle.len()).any(|window| window == needle);
        assert!(has(b"\x08_S5_\x12") && has(b"QEMU0001"));
    }

    /// Each of its objects as ACPI 6.5, 20.2 has it: a name, then what it stands for.
    #[test]
    fn dsdt_says_where_the_generation_id_is_and_how_it_changes() {
        let tables = build(&config(1, &[64])).unwrap();
        let dsdt = table(&tables, b"DSDT");
        let objects: [&[u8]; 6] = [
            b"VGEN\x08_HID\x0dTSRAVGID\0",
            b"\x08_CID\x0dVM_Gen_Counter\0",
            b"\x08_DDN\x0dVM_Gen_Counter\0",
            // A package of two: 0xdf010 and zero.
            b"\x08ADDR\x12\x08\x02\x0c\x10\xf0\x0d\0\0",
            // Serialized, without arguments.
            b"\\_GPE\x14\x13_E01\x08",
            // Notify (\_SB.VGEN, 0x80).
            b"\x86\\\x2e_SB_VGEN\x0a\x80",
        ];
        for object in objects {
            assert!(dsdt.windows(object.len()).any(|window| window == object), "{object:x?}");
        }
    }

    #[test]
    fn pci_is_told_of_only_when_it_is_there() {
        let listed = |config: &AcpiConfig| {
            let tables = build(config).unwrap();
            for (_, bytes) in tables.blobs.iter().filter(|(_, bytes)| bytes.starts_with(b"MCFG")) {
                assert_eq!((sum(bytes), bytes.len(), u32_at(bytes, 4)), (0, 60, 60));
                assert_eq!((u64_at(bytes, 44), u64_at(bytes, 52)), (0xe000_0000, 0));
            }
            let dsdt = table(&tables, b"DSDT");
            let has = |needle: &[u8]| dsdt.windows(needle.len()).any(|window| window == needle);
            // The window is the last of the host bridge's resources: from, to, translation, length.
            let mut window = 0xe010_0000_u32.to_le_bytes().to_vec();
            window.extend([0xefff_ffff, 0, 0x0ff0_0000_u32].map(u32::to_le_bytes).concat());
            let mcfg = tables.blobs.iter().any(|(_, bytes)| bytes.starts_with(b"MCFG"));
            // EISA ids of PNP0A08 and PNP0C02.
            let ids = has(b"\x41\xd0\x0a\x08") && has(b"\x41\xd0\x0c\x02");
            (mcfg, has(b"PCI0"), ids, has(&window))
        };
        let without = config(2, &[256]);
        assert_eq!(listed(&without), (false, false, false, false));
        assert_eq!(listed(&without.with_pci()), (true, true, true, true));
    }

    #[test]
    fn vcpus_that_can_come_are_told_of_only_when_there_are_some() {
        let plain = config(4, &[64]);
        let tables = |config: &AcpiConfig| build(config).unwrap();
        let (without, with) = (tables(&plain), tables(&plain.clone().with_present(3)));
        let flags = |tables: &AcpiTables| {
            [0, 1, 2, 3].map(|vcpu| u32_at(table(tables, b"APIC"), 44 + 16 * vcpu + 8))
        };
        assert_eq!((flags(&without), flags(&with)), ([1; 4], [1, 1, 1, 2]));
        for same in [b"FACP", b"SRAT"] {
            assert_eq!(table(&without, same), table(&with, same));
        }
        let names = |tables: &AcpiTables| {
            let dsdt = table(tables, b"DSDT");
            let has = |name: &str| dsdt.windows(4).any(|window| window == name.as_bytes());
            ["CPUS", "_E00", "C000", "C003", "C004", "_MAT", "_OST"].map(has)
        };
        assert_eq!(names(&without), [false; 7]);
        assert_eq!(names(&with), [true, true, true, true, false, true, true]);
    }

    #[test]
    fn build_impossible_configurations_are_refused() {
        for present in [0, 3] {
            let wrong = config(2, &[64]).with_present(present);
            assert_eq!(build(&wrong), Err(AcpiError::Present { vcpus: 2, present }));
        }
        let mut wrong = config(1, &[64]);
        wrong.vcpus[0].node = 1;
        assert_eq!(build(&wrong), Err(AcpiError::NoSuchNode { node: 1, nodes: 1 }));
        let mut wrong = config(1, &[64]);
        wrong.remote_distance = 10;
        assert!(matches!(build(&wrong), Err(AcpiError::Distance { .. })));
        assert!(matches!(build(&config(3300, &[64])), Err(AcpiError::TooLarge { .. })));
        let mut wrong = config(1, &[64]);
        wrong.nodes = u32::MAX;
        assert!(matches!(build(&wrong), Err(AcpiError::TooLarge { .. })));
    }

    #[test]
    fn tables_of_the_most_vcpus_that_can_come_fit() {
        build(&config(256, &[64; 32]).with_pci().with_present(1)).unwrap();
    }

    proptest! {
        #[test]
        fn tables_any_size_never_overlap(
            vcpus in 0_u32..3000,
            nodes in 1_usize..200,
            present in prop::option::of(0_u32..300),
        ) {
            let sizes = vec![32; nodes];
            let config = AcpiConfig { present, ..config(vcpus, &sizes) };
            if let Ok(mut tables) = build(&config) {
                tables.blobs.sort();
                let mut end = ACPI_START;
                for (address, bytes) in &tables.blobs {
                    prop_assert!(*address >= end);
                    end = address + bytes.len() as u64;
                }
                prop_assert!(end <= ACPI_END);
            }
        }
    }
}
