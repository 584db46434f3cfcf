//! What is about to happen to a vCPU: exceptions and interrupts that are being delivered, NMI, SMI and triple fault
//! (`struct kvm_vcpu_events`); its debug registers; whether it runs.

use kvm_bindings::{
    KVM_MP_STATE_AP_RESET_HOLD, KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED,
    KVM_MP_STATE_RUNNABLE, KVM_MP_STATE_UNINITIALIZED, KVM_VCPUEVENT_VALID_NMI_PENDING,
    KVM_VCPUEVENT_VALID_PAYLOAD, KVM_VCPUEVENT_VALID_SHADOW, KVM_VCPUEVENT_VALID_SMM,
    KVM_VCPUEVENT_VALID_TRIPLE_FAULT, kvm_debugregs, kvm_vcpu_events,
    kvm_vcpu_events__bindgen_ty_1, kvm_vcpu_events__bindgen_ty_2, kvm_vcpu_events__bindgen_ty_3,
    kvm_vcpu_events__bindgen_ty_4, kvm_vcpu_events__bindgen_ty_5,
};
use migrate::Invalid;
use serde::{Deserialize, Serialize};

/// The vector of NMI, which is no exception to KVM.
const NMI_VECTOR: u8 = 2;
/// After STI and after MOV SS: the two reasons why the next instruction is not interrupted.
const SHADOW_BITS: u8 = 3;

/// How far an exception has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The vCPU has yet to take it; its payload is not in its registers yet.
    Pending,
    /// It is being delivered.
    Injected,
}

/// An exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// 0 to 31.
    pub vector: u8,
    /// How far it has come.
    pub stage: Stage,
    /// What it pushes, if it pushes any.
    pub error_code: Option<u32>,
    /// For CR2 or DR6, if it is not there yet.
    pub payload: Option<u64>,
}

/// An interrupt that left the APIC and is being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// Its vector.
    pub vector: u8,
    /// By an instruction of the guest.
    pub soft: bool,
}

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of KVM's structure")]
pub struct Events {
    /// An exception on its way.
    pub exception: Option<Exception>,
    /// An interrupt on its way.
    pub interrupt: Option<Interrupt>,
    /// The next instruction is not interrupted: bit 0 after MOV SS, bit 1 after STI.
    pub shadow: u8,
    /// An NMI is being delivered.
    pub nmi_injected: bool,
    /// NMIs that wait: two at most.
    pub nmi_pending: u8,
    /// The vCPU is in its NMI handler.
    pub nmi_masked: bool,
    /// The vCPU is in system management mode.
    pub smm: bool,
    /// An SMI waits.
    pub smi_pending: bool,
    /// The SMI came within an NMI handler.
    pub smm_inside_nmi: bool,
    /// An INIT came in system management mode, and waits for its end.
    pub latched_init: bool,
    /// The vCPU will shut down.
    pub triple_fault: bool,
}

impl Events {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "events", why);
        if let Some(exception) = self.exception {
            let known = exception.vector < 32 && exception.vector != NMI_VECTOR;
            unless(known, "no exception has this vector")?;
        }
        unless(self.shadow & !SHADOW_BITS == 0, "the interrupt shadow has 2 bits")?;
        unless(self.nmi_pending <= 2, "more than two NMIs wait")?;
        let inside = self.smm_inside_nmi || self.latched_init;
        unless(!inside || self.smm, "an SMI handler that is none")
    }
}

impl From<kvm_vcpu_events> for Events {
    fn from(from: kvm_vcpu_events) -> Self {
        let is = |flag: u8| flag != 0;
        let kvm_vcpu_events { exception, interrupt, nmi, smi, flags, .. } = from;
        // Without payloads KVM says pending and injected of the same exception.
        let stage = match (is(exception.injected), is(exception.pending)) {
            (true, _) => Some(Stage::Injected),
            (false, true) => Some(Stage::Pending),
            (false, false) => None,
        };
        let has_payload =
            is(from.exception_has_payload) && flags & KVM_VCPUEVENT_VALID_PAYLOAD != 0;
        let exception = stage.map(|stage| Exception {
            vector: exception.nr,
            stage,
            error_code: is(exception.has_error_code).then_some(exception.error_code),
            payload: has_payload.then_some(from.exception_payload),
        });
        let soft = is(interrupt.soft);
        let fault = flags & KVM_VCPUEVENT_VALID_TRIPLE_FAULT != 0 && is(from.triple_fault.pending);
        Self {
            exception,
            interrupt: is(interrupt.injected).then_some(Interrupt { vector: interrupt.nr, soft }),
            shadow: interrupt.shadow,
            nmi_injected: is(nmi.injected),
            nmi_pending: nmi.pending,
            nmi_masked: is(nmi.masked),
            smm: is(smi.smm),
            smi_pending: is(smi.pending),
            smm_inside_nmi: is(smi.smm_inside_nmi),
            // KVM says so of any INIT that the vCPU has yet to take. That one is still in the APIC, and would come twice.
            latched_init: is(smi.latched_init) && is(smi.smm),
            triple_fault: fault,
        }
    }
}

/// Without the page of a start-up: KVM never tells it, and takes the start-up before it tells whether the vCPU runs.
impl From<Events> for kvm_vcpu_events {
    fn from(from: Events) -> Self {
        let mut flags =
            KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SHADOW | KVM_VCPUEVENT_VALID_SMM;
        let mut events = Self {
            interrupt: kvm_vcpu_events__bindgen_ty_2 {
                injected: u8::from(from.interrupt.is_some()),
                nr: from.interrupt.map_or(0, |interrupt| interrupt.vector),
                soft: u8::from(from.interrupt.is_some_and(|interrupt| interrupt.soft)),
                shadow: from.shadow,
            },
            nmi: kvm_vcpu_events__bindgen_ty_3 {
                injected: u8::from(from.nmi_injected),
                pending: from.nmi_pending,
                masked: u8::from(from.nmi_masked),
                pad: 0,
            },
            smi: kvm_vcpu_events__bindgen_ty_4 {
                smm: u8::from(from.smm),
                pending: u8::from(from.smi_pending),
                smm_inside_nmi: u8::from(from.smm_inside_nmi),
                latched_init: u8::from(from.latched_init),
            },
            ..Self::default()
        };
        if let Some(Exception { vector, stage, error_code, payload }) = from.exception {
            events.exception = kvm_vcpu_events__bindgen_ty_1 {
                injected: u8::from(stage == Stage::Injected),
                nr: vector,
                has_error_code: u8::from(error_code.is_some()),
                pending: u8::from(stage == Stage::Pending),
                error_code: error_code.unwrap_or(0),
            };
            events.exception_has_payload = u8::from(payload.is_some());
            events.exception_payload = payload.unwrap_or(0);
            // Only these need a KVM that knows payloads.
            if stage == Stage::Pending || payload.is_some() {
                flags |= KVM_VCPUEVENT_VALID_PAYLOAD;
            }
        }
        if from.triple_fault {
            flags |= KVM_VCPUEVENT_VALID_TRIPLE_FAULT;
            events.triple_fault = kvm_vcpu_events__bindgen_ty_5 { pending: 1 };
        }
        Self { flags, ..events }
    }
}

/// Debug registers (SDM vol. 3, chapter 19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debug {
    /// DR0 to DR3.
    pub addresses: [u64; 4],
    /// What happened.
    pub dr6: u64,
    /// What is watched.
    pub dr7: u64,
}

impl Debug {
    /// As an INIT leaves them (SDM vol. 3, table 10-1).
    pub const AFTER_INIT: Self = Self { addresses: [0; 4], dr6: 0xffff_0ff0, dr7: 0x400 };

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let short = (self.dr6 | self.dr7) >> 32 == 0;
        Invalid::unless(short, "debug", "DR6 and DR7 have 32 bits")
    }
}

impl From<kvm_debugregs> for Debug {
    fn from(from: kvm_debugregs) -> Self {
        Self { addresses: from.db, dr6: from.dr6, dr7: from.dr7 }
    }
}

impl From<Debug> for kvm_debugregs {
    fn from(Debug { addresses, dr6, dr7 }: Debug) -> Self {
        Self { db: addresses, dr6, dr7, ..Self::default() }
    }
}

/// Whether the vCPU runs (`KVM_GET_MP_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Running {
    /// It runs guest code.
    Runnable,
    /// It waits for an INIT.
    Uninitialized,
    /// It waits for a start-up.
    InitReceived,
    /// It waits for an interrupt.
    Halted,
    /// It waits for its hypervisor to start it (AMD SEV-ES).
    ResetHold,
}

impl Running {
    /// By KVM's number; none for the states of other architectures, and for the start-up, which KVM takes but does not
    /// tell.
    #[must_use]
    pub fn from_kvm(state: u32) -> Option<Self> {
        Some(match state {
            KVM_MP_STATE_RUNNABLE => Self::Runnable,
            KVM_MP_STATE_UNINITIALIZED => Self::Uninitialized,
            KVM_MP_STATE_INIT_RECEIVED => Self::InitReceived,
            KVM_MP_STATE_HALTED => Self::Halted,
            KVM_MP_STATE_AP_RESET_HOLD => Self::ResetHold,
            _ => return None,
        })
    }

    /// KVM's number.
    #[must_use]
    pub fn to_kvm(self) -> u32 {
        match self {
            Self::Runnable => KVM_MP_STATE_RUNNABLE,
            Self::Uninitialized => KVM_MP_STATE_UNINITIALIZED,
            Self::InitReceived => KVM_MP_STATE_INIT_RECEIVED,
            Self::Halted => KVM_MP_STATE_HALTED,
            Self::ResetHold => KVM_MP_STATE_AP_RESET_HOLD,
        }
    }
}
