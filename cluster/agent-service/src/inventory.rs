//! What the host has, and what it can do: looked at once, when the agent begins.

use crate::order::UNIT;
use kvm_ioctls::Kvm;
use scheduler::Resources;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The version of KVM's interface since 2007.
const KVM_API: i32 = 12;

/// A NUMA node, as far as slices may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Cores and memory.
    pub capacity: Resources,
}

/// Something that slices need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ability {
    /// What.
    pub name: &'static str,
    /// None if it is there; else why not, and what to do.
    pub why_not: Option<String>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Nodes, ascending.
    pub nodes: Vec<Node>,
    /// Another one after each start.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's model.
    pub cpu_model: String,
    /// Features that all of its CPUs have, ascending.
    pub cpu_features: Vec<String>,
    /// What it can do.
    pub abilities: Vec<Ability>,
}

impl Inventory {
    /// Looks at this host, which keeps so much for itself.
    ///
    /// # Errors
    /// The kernel does not show what it has.
    pub fn look(keep: Resources) -> io::Result<Self> {
        let mut inventory = Self::read(Path::new("/"), keep)?;
        inventory.abilities = vec![kvm(), userfaultfd(), rdma(Path::new("/sys/class/infiniband"))];
        Ok(inventory)
    }

    /// What slices may have altogether.
    #[must_use]
    pub fn capacity(&self) -> Resources {
        self.nodes.iter().fold(Resources::NONE, |all, node| all.plus(node.capacity))
    }

    /// The same, where so many vCPUs may have each core that is not kept.
    #[must_use]
    pub fn shared_by(mut self, vcpus: u32) -> Self {
        for node in &mut self.nodes {
            node.capacity.cores = node.capacity.cores.saturating_mul(vcpus);
        }
        self
    }

    fn read(root: &Path, keep: Resources) -> io::Result<Self> {
        let text = |path: &str| {
            let read = fs::read_to_string(root.join(path));
            read.map_err(|error| io::Error::new(error.kind(), format!("/{path}: {error}")))
        };
        let (cpu_model, cpu_features) = cpus(&text("proc/cpuinfo")?);
        let mut nodes = nodes(root)?;
        // A kernel without NUMA shows no nodes.
        if nodes.is_empty() {
            let cores = cores(root, &text("sys/devices/system/cpu/online")?)?;
            let memory = memory("proc/meminfo", &text("proc/meminfo")?)?;
            nodes.push(Node { number: 0, capacity: Resources::new(cores, memory) });
        }
        let mut left = keep;
        for node in &mut nodes {
            let kept = left.least(node.capacity);
            (left, node.capacity) = (left.minus(kept), node.capacity.minus(kept));
        }
        Ok(Self {
            nodes,
            boot_id: text("proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            kernel: text("proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpu_model,
            cpu_features,
            abilities: Vec::new(),
        })
    }
}

fn nodes(root: &Path) -> io::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return Ok(nodes) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let Some(number) = number else { continue };
        let read = |file: &str| fs::read_to_string(entry.path().join(file));
        let cores = cores(root, &read("cpulist")?)?;
        let memory = memory("a node's meminfo", &read("meminfo")?)?;
        nodes.push(Node { number, capacity: Resources::new(cores, memory) });
    }
    nodes.sort_by_key(|node| node.number);
    Ok(nodes)
}

/// Cores of these CPUs: threads of one core are one.
fn cores(root: &Path, list: &str) -> io::Result<u32> {
    let mut cores = BTreeSet::new();
    for cpu in numbers(list) {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match fs::read_to_string(root.join(path)) {
            Ok(siblings) => cores.insert(numbers(&siblings).next().unwrap_or(cpu)),
            // It is off line.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
    }
    Ok(u32::try_from(cores.len()).unwrap_or(u32::MAX))
}

/// Numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> impl Iterator<Item = u32> {
    /// More CPUs than Linux knows.
    const CPUS_MAX: u32 = 1 << 16;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?.min(CPUS_MAX))
    });
    ranges.flatten()
}

/// Units of the memory that a file such as `/proc/meminfo` tells of.
fn memory(name: &str, text: &str) -> io::Result<u32> {
    let line = text.lines().find(|line| line.contains("MemTotal:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().rev().nth(1)?.parse::<u64>().ok());
    let units = kib.and_then(|kib| u32::try_from(kib / (UNIT / 1024)).ok());
    units.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: no MemTotal")))
}

/// The model, and the features that all have.
fn cpus(text: &str) -> (String, Vec<String>) {
    let values = |key: &'static str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.filter(move |(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let mut all = values("flags").map(|line| line.split(' ').collect::<BTreeSet<_>>());
    let first = all.next().unwrap_or_default();
    let common = all.fold(first, |common, other| &common & &other);
    let model = values("model name").next().unwrap_or_default();
    (model.to_owned(), common.into_iter().map(str::to_owned).collect())
}

/// An error and what it comes from.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A VM can be made.
fn kvm() -> Ability {
    let works = Kvm::new().and_then(|kvm| kvm.create_vm().map(|_| kvm.get_api_version()));
    let why_not = match works {
        Ok(KVM_API) => None,
        Ok(version) => Some(format!("KVM has version {version} of its interface, not {KVM_API}")),
        Err(error) => Some(format!(
            "no VM can be made with /dev/kvm ({error}): load kvm_intel or kvm_amd, and let this user open it"
        )),
    };
    Ability { name: "kvm", why_not }
}

/// Pages can be waited for.
fn userfaultfd() -> Ability {
    let why_not = dsm::check_host().err().map(|error| in_full(&error));
    Ability { name: "userfaultfd", why_not }
}

/// A port of an RDMA device is up.
fn rdma(devices: &Path) -> Ability {
    let below = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let ports: Vec<_> =
        below(devices).iter().flat_map(|device| below(&device.join("ports"))).collect();
    let is_up = |port: &&PathBuf| {
        fs::read_to_string(port.join("state")).is_ok_and(|state| state.contains("ACTIVE"))
    };
    let why_not = match (ports.len(), ports.iter().find(is_up)) {
        (_, Some(_)) => None,
        (0, None) => Some("there is no RDMA device (/sys/class/infiniband)".to_owned()),
        (ports, None) => Some(format!("none of {ports} ports of RDMA devices is ACTIVE")),
    };
    Ability { name: "rdma", why_not }
}

#[cfg(test)]
mod tests;
