//! What a VM file says.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Address, Borrow, Mac, Name, Path, Period, Size};

/// The version of the file's form.
pub const API_VERSION: &str = "tessera/v1";

/// A virtual machine, as a user wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmFile {
    /// Which form the file has.
    pub api_version: ApiVersion,
    /// What it describes.
    pub kind: Kind,
    /// Which VM it is.
    pub metadata: Metadata,
    /// What is wanted of it.
    pub spec: Spec,
}

/// The only version so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ApiVersion {
    /// `tessera/v1`
    #[default]
    #[serde(rename = "tessera/v1")]
    V1,
}

/// The only kind so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Kind {
    /// A VM.
    #[default]
    VirtualMachine,
}

/// Which VM it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Its name: 1 to 63 small letters, digits and '-', which neither begins nor ends it.
    pub name: Name,
    /// Words by which it can be chosen among others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What is wanted of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// All of its vCPUs.
    #[schemars(range(min = 1, max = 256))]
    pub vcpus: u16,
    /// All of its memory: 512M, 2G or bytes; at least 32 MiB, a multiple of 2 MiB.
    pub memory: Size,
    /// How much its vCPUs share, which bounds how it is split.
    #[serde(default)]
    pub class: Class,
    /// When it is to run.
    #[serde(default)]
    pub run: Run,
    /// At most so many slices; as the class has it unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub slices_max: Option<u16>,
    /// What it boots.
    pub guest: Guest,
    /// Its disks, in the order in which the guest sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// Its network devices, in the order in which the guest sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// It has a source of randomness.
    #[serde(default)]
    pub rng: bool,
    /// When it is written down, and how often; never unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// When vCPUs of other slices than the first are used: always, after:SECONDS, adaptive or adaptive:SECONDS. An orchestrator takes `always` only.
    #[serde(default, skip_serializing_if = "Borrow::is_always")]
    pub borrow: Borrow,
    /// Where it runs, for a VM without an orchestrator; the bootstrap's own slice first. An orchestrator refuses this: it
    /// chooses itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// How much the vCPUs of a VM share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// Jobs that have nothing to do with each other.
    Independent,
    /// A server of requests.
    Requests,
    /// Not known.
    #[default]
    Default,
    /// Threads of one program: never split.
    Shared,
}

/// When a VM is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Run {
    /// It is started again, however it ends.
    Always,
    /// It is started again if it was lost, and not if its guest ended it.
    #[default]
    RerunOnFailure,
    /// It runs once.
    Once,
    /// It does not run.
    Halted,
}

/// What a VM boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guest {
    /// Kernel: bzImage or ELF.
    pub kernel: Path,
    /// Initial RAM disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<Path>,
    /// Command line of the kernel; it follows the words of the preset. `console=ttyS0` unless given.
    #[serde(default = "serial_line")]
    pub cmdline: String,
    /// What is added to the command line when the VM has vCPUs of several hosts.
    #[serde(default)]
    pub preset: Preset,
    /// Guest milliseconds per real second, for emulated hosts; 1000 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_permille: Option<u16>,
}

fn serial_line() -> String {
    "console=ttyS0".to_owned()
}

/// What the guest's kernel is told about vCPUs of other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Preset {
    /// Programs run on every vCPU without being bound.
    #[default]
    Spread,
    /// Programs run on vCPUs of other hosts only if they are bound to them.
    Isolate,
    /// Nothing.
    None,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// The image: a file or block device on the host that has it.
    pub image: Path,
    /// The guest only reads it.
    #[serde(default)]
    pub readonly: bool,
    /// Its format, which is never guessed.
    #[serde(default)]
    pub format: DiskFormat,
    /// Number of the slice whose host has it. With an orchestrator only 0.
    #[serde(default)]
    pub slice: u16,
    /// Slices whose hosts reach the same image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<Standby>,
}

/// The format of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DiskFormat {
    /// As the guest sees it.
    #[default]
    Raw,
    /// QEMU's.
    Qcow2,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Nic {
    /// The tap interface on the host that has it.
    pub tap: Path,
    /// Its address; one is made unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Number of the slice whose host has it. With an orchestrator only 0.
    #[serde(default)]
    pub slice: u16,
    /// Slices whose hosts have a tap in the same network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<Standby>,
}

/// Where a disk or a network device may go when the slice that has it is drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Standby {
    /// Number of the slice.
    pub slice: u16,
    /// What the image or the tap is called there; the same unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Path>,
}

/// When a VM is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// Once in so long: 30s, 10m, 2h, 1d or seconds.
    pub every: Period,
    /// So many of them stay.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u16,
}

/// With one, there would be none while the next is written.
const fn two() -> u16 {
    2
}

/// A slice of a VM without an orchestrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slice {
    /// Where its companion listens: HOST:PORT. The first slice has none: it is the bootstrap's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// vCPUs that run there.
    pub vcpus: u16,
    /// vCPUs that wait there until the guest is told of them, and those that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus_max: Option<u16>,
    /// Memory whose home it is: a multiple of 2 MiB; it may be 0.
    pub memory: Size,
}
