//! CPUs and NUMA nodes: what is there, and which CPUs to set against each other.
//!
//! A slice is a NUMA node of the guest, so pairs over two nodes are the ones that cross hosts;
//! they come first, and every CPU is in at least one pair.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::sys;

/// More CPUs than this are left out of the tests (the shared board has fixed slots).
pub(crate) const MOST_CPUS: usize = 64;

/// One CPU and its NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Number in Linux.
    pub(crate) id: usize,
    /// NUMA node in Linux.
    pub(crate) node: usize,
}

/// What the machine looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Online CPUs that this process may use, ascending.
    pub(crate) cpus: Vec<Cpu>,
    /// Nodes with memory, ascending; one at least.
    pub(crate) memory_nodes: Vec<usize>,
}

impl Topology {
    /// Reads sysfs, or asks the scheduler where there is none.
    pub(crate) fn read() -> Result<Self> {
        let mut allowed = sys::allowed_cpus().context("cannot ask for the allowed cpus")?;
        let online = match fs::read_to_string("/sys/devices/system/cpu/online") {
            Ok(text) => parse_list(&text).context("/sys/devices/system/cpu/online")?,
            Err(_) => allowed.clone(),
        };
        if std::process::id() == 1 {
            // `isolcpus=` only takes CPUs out of the default mask; nobody forbids them to init.
            allowed.clone_from(&online);
        }
        let nodes = Path::new("/sys/devices/system/node");
        let read_nodes = |name: &str| {
            fs::read_to_string(nodes.join(name)).ok().and_then(|text| parse_list(&text).ok())
        };
        let mut memory_nodes =
            read_nodes("has_memory").or_else(|| read_nodes("online")).unwrap_or_default();
        if memory_nodes.is_empty() {
            memory_nodes.push(0);
        }
        let mut node_of = BTreeMap::new();
        for node in read_nodes("online").unwrap_or_default() {
            for cpu in read_nodes(&format!("node{node}/cpulist")).unwrap_or_default() {
                node_of.insert(cpu, node);
            }
        }
        let cpus: Vec<_> = online
            .into_iter()
            .filter(|cpu| allowed.contains(cpu))
            .take(MOST_CPUS)
            .map(|id| Cpu { id, node: node_of.get(&id).copied().unwrap_or(0) })
            .collect();
        if cpus.is_empty() {
            bail!("no online cpu may be used");
        }
        Ok(Self { cpus, memory_nodes })
    }

    /// Pairs of indexes into `cpus` that cover every CPU, across nodes where possible.
    pub(crate) fn pairs(&self) -> Vec<[usize; 2]> {
        let count = self.cpus.len();
        let mut covered = vec![false; count];
        let mut pairs = Vec::new();
        for first in 0..count {
            if covered[first] {
                continue;
            }
            let rank = |&other: &usize| {
                let near = self.cpus[other].node == self.cpus[first].node;
                (near, covered[other], other.abs_diff(first))
            };
            let Some(second) = (0..count).filter(|&other| other != first).min_by_key(rank) else {
                break;
            };
            covered[first] = true;
            covered[second] = true;
            pairs.push([first, second]);
        }
        pairs
    }

    /// Groups of four indexes that cover every CPU, neighbours in a group on different nodes
    /// where possible; empty with fewer than four CPUs.
    pub(crate) fn quads(&self) -> Vec<[usize; 4]> {
        let order = self.interleaved();
        let count = order.len();
        if count < 4 {
            return Vec::new();
        }
        let starts = (0..count).step_by(4);
        starts.map(|start| [0, 1, 2, 3].map(|step| order[(start + step) % count])).collect()
    }

    /// Indexes of all CPUs, one of each node in turn.
    fn interleaved(&self) -> Vec<usize> {
        let mut seen = BTreeMap::<usize, usize>::new();
        let mut keyed = Vec::new();
        for (index, cpu) in self.cpus.iter().enumerate() {
            let turn = seen.entry(cpu.node).or_default();
            keyed.push((*turn, cpu.node, index));
            *turn += 1;
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, _, index)| index).collect()
    }
}

/// Parses the kernel's list format: `0-3,5`, or an empty line.
///
/// # Errors
/// The item that is no number or range, or a range of more than 65,536 numbers.
pub(crate) fn parse_list(text: &str) -> Result<Vec<usize>> {
    const WIDEST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for item in text.trim().split(',').filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let parse =
            |part: &str| part.parse::<usize>().with_context(|| format!("bad item {item:?}"));
        let (first, last) = (parse(first)?, parse(last)?);
        if last < first || last - first >= WIDEST || numbers.len() >= WIDEST {
            bail!("bad range {item:?}");
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topology(nodes: &[usize]) -> Topology {
        let cpus = nodes.iter().enumerate().map(|(id, &node)| Cpu { id, node }).collect();
        Topology { cpus, memory_nodes: vec![0] }
    }

    #[test]
    fn list_with_ranges_is_expanded() {
        assert_eq!(parse_list("0-2,5\n").unwrap(), [0, 1, 2, 5]);
        assert_eq!(parse_list("\n").unwrap(), Vec::<usize>::new());
    }

    #[test]
    fn list_with_bad_item_is_refused() {
        for text in ["a", "1-", "3-1", "0-99999999"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_on_two_nodes_cross_them() {
        assert_eq!(topology(&[0, 1]).pairs(), [[0, 1]]);
        assert_eq!(topology(&[0, 0, 1]).pairs(), [[0, 2], [1, 2]]);
        assert_eq!(topology(&[0, 0, 1, 1]).pairs(), [[0, 2], [1, 3]]);
    }

    #[test]
    fn pairs_on_one_node_cover_every_cpu() {
        assert_eq!(topology(&[0, 0, 0]).pairs(), [[0, 1], [2, 1]]);
        assert!(topology(&[0]).pairs().is_empty());
    }

    #[test]
    fn quads_interleave_the_nodes() {
        assert_eq!(topology(&[0, 0, 1, 1]).quads(), [[0, 2, 1, 3]]);
        assert!(topology(&[0, 1, 2]).quads().is_empty());
        assert_eq!(topology(&[0, 1, 2, 3, 4]).quads(), [[0, 1, 2, 3], [4, 0, 1, 2]]);
    }

    proptest! {
        #[test]
        fn list_of_any_text_never_panics(text in "[0-9,a\\- ]{0,40}") {
            let _ = parse_list(&text);
        }

        #[test]
        fn pairs_of_any_topology_cover_every_cpu(nodes in prop::collection::vec(0usize..4, 2..12)) {
            let pairs = topology(&nodes).pairs();
            for cpu in 0..nodes.len() {
                prop_assert!(pairs.iter().any(|pair| pair.contains(&cpu)));
            }
        }
    }
}
