//! What a run tells afterwards: one report per slice, and the whole.

use super::spec::PageTables;
use crate::machine::HandoverTimes;
use crate::vcpu::VcpuStats;
use devices::delegate::Counts;
use dsm::Report;
use serde::{Deserialize, Serialize};

/// What one slice did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceReport {
    /// Number of the slice; 0 is the bootstrap.
    pub slice: u16,
    /// Name of its host.
    pub host: String,
    /// Its vCPUs.
    pub vcpus: Vec<u32>,
    /// Memory that it is home of, MiB.
    pub memory_mib: u64,
    /// What its private memory is made of.
    #[serde(default)]
    pub memory_kind: String,
    /// Guest memory that is mapped in huge pages here, MiB.
    #[serde(default)]
    pub huge_mib: u64,
    /// Counters of the distributed memory.
    #[serde(flatten)]
    pub memory: Report,
    /// Interrupts that came from other slices.
    pub interrupts_in: u64,
    /// Interrupts sent to other slices.
    pub interrupts_out: u64,
    /// Device accesses sent to the coordinator.
    pub device_calls: u64,
    /// How far this slice's guest clock was ahead of the coordinator's when it was measured last.
    pub clock_skew_ns: i64,
    /// The measurement cannot be further off than this: half of the best round trip.
    pub clock_bound_ns: u64,
    /// By how much it stepped forward since the start to stay with the others.
    #[serde(default)]
    pub clock_stepped_ns: u64,
    /// What went between its devices and front ends and those of other slices; none in a VM without devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Counts>,
    /// Where the time of the moves of its vCPUs went.
    #[serde(default)]
    pub handovers: HandoverTimes,
    /// Counters of the vCPUs, as JSON.
    pub vcpu_stats: serde_json::Value,
}

impl SliceReport {
    pub(crate) fn set_vcpu_stats(&mut self, stats: &[VcpuStats]) {
        self.vcpu_stats = serde_json::to_value(stats).unwrap_or_default();
    }
}

/// A slice that was lost while the VM went on, and the devices with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostSlice {
    /// Its number.
    pub slice: u16,
    /// What was seen of it, one line.
    pub cause: String,
}

/// What a VM did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// How it ended, one line.
    pub ending: String,
    /// Exit status that goes with it.
    pub status: u8,
    /// Seconds from the start of the vCPUs to the end.
    pub seconds: f64,
    /// Interrupt back end.
    pub interrupts: String,
    /// How page tables were kept.
    pub page_tables: PageTables,
    /// Slices with nothing but devices that were lost meanwhile.
    #[serde(default)]
    pub lost_devices: Vec<LostSlice>,
    /// The slices, by number. A lost slice has no counters.
    pub slices: Vec<SliceReport>,
}
