//! What the DSDT says of the VM's generation id: where it is, and the event that has it read again.
//!
//! What Linux needs (`drivers/virt/vmgenid.c`, 5.18 to 6.12): one of the ids `VMGENCTR` and `VM_GEN_COUNTER`, as which it
//! reads the `_CID` of the specification, in capitals; `ADDR`, the address in two halves; notification 0x80. The
//! specification wants a `_HID` of the maker's own, and a `_DDN`.

use crate::layout::GENERATION_ADDRESS;
use acpi_tables::aml::{Device, Method, Name, Notify, Package, Path, Scope};
use acpi_tables::{Aml, AmlSink};

/// The name of the specification.
const COUNTER: &str = "VM_Gen_Counter";
/// Notification "status change", the first of those that are a device's own (ACPI 6.5, 5.6.6).
const CHANGED: u8 = 0x80;

/// The device, and the method of [`Event::Generation`](crate::gpe::Event).
pub(super) fn devices(body: &mut dyn AmlSink) {
    let [low, high] = [GENERATION_ADDRESS & 0xffff_ffff, GENERATION_ADDRESS >> 32];
    Scope::new(
        "_SB_".into(),
        vec![&Device::new(
            "VGEN".into(),
            vec![
                &Name::new("_HID".into(), &"TSRAVGID"),
                &Name::new("_CID".into(), &COUNTER),
                &Name::new("_DDN".into(), &COUNTER),
                &Name::new("ADDR".into(), &Package::new(vec![&low, &high])),
            ],
        )],
    )
    .to_aml_bytes(body);
    let device = Path::new("\\_SB_.VGEN");
    let tell = Notify::new(&device, &CHANGED);
    let event = Method::new("_E01".into(), 0, true, vec![&tell]);
    Scope::new("\\_GPE".into(), vec![&event]).to_aml_bytes(body);
}
