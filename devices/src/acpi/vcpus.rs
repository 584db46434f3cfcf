//! What the DSDT says of vCPUs that can come and go (ACPI 6.5, 8.4): a device for each, and the methods that ask the
//! registers of [`hotplug`](crate::hotplug).
//!
//! ```text
//!   GPE 0 --> \_GPE._E00 --> \_SB.CPUS.CSCN: while there is a request: Notify its device, check (1) or eject request (3)
//!   guest --> Cnnn._STA, _PXM, _EJ0, _OST --> CSTA, CPXM, CEJ0, COST: select the vCPU, then read or write
//! ```
//! Only in a machine in which a vCPU can come. What Linux needs (`drivers/acpi/acpi_processor.c`, `processor_core.c`, 6.12):
//!
//! * `_MAT` with an *enabled* entry: it is asked once `_STA` says that the vCPU is there, before the MADT, whose entry stays
//!   "online capable" for ever.
//! * All objects from the start. `_STA` is read anew at each notification.
//! * `_PXM` is asked each time that a CPU is added, so a vCPU that has moved while the guest did not have it comes at its new
//!   node. It is not asked again while the guest has it.
//! * `_OST` is told what came of a notification. `_EJ0` follows when the CPU is offline and forgotten.
//!
//! Methods of two vCPUs may run at once: a mutex keeps the selection together with what follows.

use super::{AcpiConfig, VcpuPlace, x2apic};
use crate::hotplug::{HOTPLUG_BYTES, HOTPLUG_PORT, NO_REQUEST};
use acpi_tables::aml::{
    Acquire, And, Arg, BufferData, Device, EISAName, Equal, Field, FieldAccessType, FieldEntry,
    FieldLockRule, FieldUpdateRule, IO, If, Local, Method, MethodCall, Mutex, Name, NotEqual,
    Notify, OpRegion, OpRegionSpace, Or, Path, Release, ResourceTemplate, Return, Scope, ShiftLeft,
    ShiftRight, Store, While,
};
use acpi_tables::{Aml, AmlSink};

/// Wait for a mutex for ever.
const FOR_EVER: u16 = 0xffff;

/// The name of a vCPU's device: `C000` and up, in hexadecimal digits.
fn name(vcpu: u32) -> Path {
    Path::new(&format!("C{vcpu:03X}"))
}

/// Devices of all vCPUs with what they call, and the event that has them looked at.
pub(super) fn devices(config: &AcpiConfig, body: &mut dyn AmlSink) {
    let vcpus: Vec<Vcpu> =
        (0..).zip(&config.vcpus).map(|(id, place)| Vcpu { id, place: *place }).collect();
    let cid = EISAName::new("PNP0A05");
    let (hid, cid) = (Name::new("_HID".into(), &"ACPI0010"), Name::new("_CID".into(), &cid));
    let notify = NotifyOf(&vcpus);
    let mut inside: Vec<&dyn Aml> = vec![&hid, &cid, &Registers, &notify];
    inside.extend(vcpus.iter().map(|vcpu| vcpu as &dyn Aml));
    Scope::new("_SB_".into(), vec![&Reserved, &Device::new("CPUS".into(), inside)])
        .to_aml_bytes(body);
    let scan = MethodCall::new("\\_SB_.CPUS.CSCN".into(), vec![]);
    let event = Method::new("_E00".into(), 0, true, vec![&scan]);
    Scope::new("\\_GPE".into(), vec![&event]).to_aml_bytes(body);
}

/// The device that keeps the registers' ports free of others.
struct Reserved;

impl Aml for Reserved {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let ports = IO::new(HOTPLUG_PORT, HOTPLUG_PORT, 1, HOTPLUG_BYTES);
        let ports = ResourceTemplate::new(vec![&ports]);
        let hid = EISAName::new("PNP0C02");
        Device::new(
            "CREG".into(),
            vec![
                &Name::new("_HID".into(), &hid),
                &Name::new("_UID".into(), &1_u8),
                &Name::new("_CRS".into(), &ports),
            ],
        )
        .to_aml_bytes(sink);
    }
}

/// The registers, and the methods that use them.
struct Registers;

impl Aml for Registers {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let (select, request) = (Path::new("CSEL"), Path::new("CREQ"));
        let (state, answer) = (Path::new("CSTT"), Path::new("CANS"));
        let place = Path::new("CNOD");
        OpRegion::new("CRGN".into(), OpRegionSpace::SystemIO, &HOTPLUG_PORT, &HOTPLUG_BYTES)
            .to_aml_bytes(sink);
        let register = |name: &[u8; 4]| FieldEntry::Named(*name, 32);
        Field::new(
            "CRGN".into(),
            FieldAccessType::DWord,
            FieldLockRule::NoLock,
            FieldUpdateRule::WriteAsZeroes,
            [b"CSEL", b"CREQ", b"CSTT", b"CANS", b"CNOD"].map(register).to_vec(),
        )
        .to_aml_bytes(sink);
        Mutex::new("CLCK".into(), 0).to_aml_bytes(sink);
        let (lock, unlock) = (Acquire::new("CLCK".into(), FOR_EVER), Release::new("CLCK".into()));
        let (arg0, arg1, local) = (Arg(0), Arg(1), Local(0));
        let choose = Store::new(&select, &arg0);
        let read = Store::new(&local, &state);
        let give = Return::new(&local);
        Method::new("CSTA".into(), 1, true, vec![&lock, &choose, &read, &unlock, &give])
            .to_aml_bytes(sink);
        let node = Store::new(&local, &place);
        Method::new("CPXM".into(), 1, true, vec![&lock, &choose, &node, &unlock, &give])
            .to_aml_bytes(sink);
        let eject = Store::new(&state, &1_u8);
        Method::new("CEJ0".into(), 1, true, vec![&lock, &choose, &eject, &unlock])
            .to_aml_bytes(sink);
        // Arguments: the vCPU, and event and status of _OST.
        let (arg2, moved) = (Arg(2), Local(1));
        let event = ShiftLeft::new(&moved, &arg1, &16_u8);
        let status = And::new(&local, &arg2, &0xffff_u16);
        let both = Or::new(&local, &local, &moved);
        let tell = Store::new(&answer, &local);
        Method::new(
            "COST".into(),
            3,
            true,
            vec![&event, &status, &both, &lock, &choose, &tell, &unlock],
        )
        .to_aml_bytes(sink);
        let take = Store::new(&local, &request);
        let vcpu = And::new(&moved, &local, &0xffff_u16);
        let notification = ShiftRight::new(&local, &local, &16_u8);
        let notify = MethodCall::new("CTFY".into(), vec![&moved, &local]);
        let some = NotEqual::new(&local, &NO_REQUEST);
        let each = While::new(&some, vec![&vcpu, &notification, &notify, &take]);
        Method::new("CSCN".into(), 0, true, vec![&lock, &take, &each, &unlock]).to_aml_bytes(sink);
    }
}

/// `CTFY`, arguments vCPU and notification: notifies the vCPU's device.
struct NotifyOf<'a>(&'a [Vcpu]);

impl Aml for NotifyOf<'_> {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let cases: Vec<NotifyCase> = self.0.iter().map(|vcpu| NotifyCase(vcpu.id)).collect();
        let cases = cases.iter().map(|case| case as &dyn Aml).collect();
        Method::new("CTFY".into(), 2, true, cases).to_aml_bytes(sink);
    }
}

struct NotifyCase(u32);

impl Aml for NotifyCase {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let (vcpu, notification, device) = (Arg(0), Arg(1), name(self.0));
        let tell = Notify::new(&device, &notification);
        If::new(&Equal::new(&vcpu, &self.0), vec![&tell]).to_aml_bytes(sink);
    }
}

/// The device of a vCPU.
struct Vcpu {
    id: u32,
    place: VcpuPlace,
}

impl Aml for Vcpu {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let Self { id, place } = self;
        let mut entry = Vec::new();
        x2apic(&mut entry, place.apic_id, *id, true);
        let entry = BufferData::new(entry);
        let state = MethodCall::new("CSTA".into(), vec![id]);
        let state = Return::new(&state);
        let eject = MethodCall::new("CEJ0".into(), vec![id]);
        let (event, status) = (Arg(0), Arg(1));
        let answer = MethodCall::new("COST".into(), vec![id, &event, &status]);
        let (hid, uid) = (Name::new("_HID".into(), &"ACPI0007"), Name::new("_UID".into(), id));
        let pxm = MethodCall::new("CPXM".into(), vec![id]);
        let pxm = Return::new(&pxm);
        let pxm = Method::new("_PXM".into(), 0, true, vec![&pxm]);
        let sta = Method::new("_STA".into(), 0, true, vec![&state]);
        let mat = Name::new("_MAT".into(), &entry);
        let ost = Method::new("_OST".into(), 3, true, vec![&answer]);
        let ej0 = Method::new("_EJ0".into(), 1, true, vec![&eject]);
        let mut inside: Vec<&dyn Aml> = vec![&hid, &uid, &pxm, &sta, &mat, &ost];
        // vCPU 0 has booted the guest and stays.
        if *id != 0 {
            inside.push(&ej0);
        }
        Device::new(name(*id), inside).to_aml_bytes(sink);
    }
}
