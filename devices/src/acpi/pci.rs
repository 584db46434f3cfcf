//! What the tables say of PCI: the table MCFG, the host bridge and the reservation of ECAM.
//!
//! There are no ports 0xcf8 and 0xcfc, so a guest must find PCI through ECAM. What Linux needs for that
//! (`arch/x86/pci/mmconfig-shared.c`, 6.1 to 6.12):
//!
//! * The table MCFG, and a `PNP0C02` device whose resources cover the region. `pci_mmcfg_late_init`
//!   takes the region because of that device, before the host bridge is scanned. Without it the region
//!   is refused, whatever E820 says: that is only asked where ports 0xcf8 and 0xcfc work. So the region
//!   is not in E820.
//! * Up to 6.9 an earlier attempt, before there is AML, refuses the region and says "not using ECAM" and
//!   "No config space access function found"; later ones take it unseen. Neither matters.
//! * With no type 1 accesses `raw_pci_read` uses ECAM for the first 256 bytes too.
//! * `_OSC` is not needed: without it Linux leaves hot plug, AER and ASPM to the platform, which has
//!   none. `_PRT` is not needed: no function has an interrupt pin.

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes_of};
use crate::layout::{ECAM_END, ECAM_START, PCI_WINDOW_END, PCI_WINDOW_START};
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, Memory32Fixed, Name, ResourceTemplate,
    Scope,
};
use acpi_tables::mcfg::MCFG;
use acpi_tables::{Aml, AmlSink};

/// Where ECAM is (PCI Firmware Specification 3.3, 4.1.2): segment 0, bus 0.
pub(super) fn mcfg() -> Vec<u8> {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(ECAM_START, 0, 0, 0);
    bytes_of(&mcfg)
}

/// An address below 4 GiB, as all of PCI is.
fn low(address: u64) -> u32 {
    u32::try_from(address).unwrap_or(u32::MAX)
}

/// The host bridge with its bus and its window, and the device that reserves ECAM.
pub(super) fn devices(body: &mut dyn AmlSink) {
    let bus = AddressSpace::new_bus_number(0_u16, 0_u16);
    let (start, end) = (low(PCI_WINDOW_START), low(PCI_WINDOW_END - 1));
    let plain = AddressSpaceCacheable::NotCacheable;
    let window = AddressSpace::new_memory(plain, true, start, end, None);
    let bridge = ResourceTemplate::new(vec![&bus, &window]);
    let ecam = Memory32Fixed::new(true, low(ECAM_START), low(ECAM_END - ECAM_START));
    let reserved = ResourceTemplate::new(vec![&ecam]);
    Scope::new(
        "_SB_".into(),
        vec![
            &Device::new(
                "PCI0".into(),
                vec![
                    &Name::new("_HID".into(), &EISAName::new("PNP0A08")),
                    &Name::new("_CID".into(), &EISAName::new("PNP0A03")),
                    &Name::new("_UID".into(), &0_u8),
                    &Name::new("_SEG".into(), &0_u8),
                    &Name::new("_BBN".into(), &0_u8),
                    &Name::new("_CRS".into(), &bridge),
                ],
            ),
            &Device::new(
                "ECAM".into(),
                vec![
                    &Name::new("_HID".into(), &EISAName::new("PNP0C02")),
                    &Name::new("_UID".into(), &0_u8),
                    &Name::new("_CRS".into(), &reserved),
                ],
            ),
        ],
    )
    .to_aml_bytes(body);
}
