//! Where VMs were over time, as the cluster says it. Pure.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::demo::panels::{Line, Panel, float, steps};

/// vCPUs of a VM on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) vm: String,
    pub(super) host: String,
    pub(super) vcpus: usize,
}

/// What was seen at a moment, in seconds from the start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) at: f64,
    pub(super) parts: Vec<Part>,
    /// Cores that each host has free.
    pub(super) free: Vec<(String, usize)>,
    /// p50 and p99 of requests that were answered just before, in milliseconds.
    pub(super) latency: Option<(f64, f64)>,
}

/// Parts of VMs by what `tessera vm list` says, in order of their slices.
pub(super) fn parts(vms: &Value) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for vm in vms.as_array().context("a list of VMs")? {
        let name = vm["name"].as_str().context("a VM without a name")?;
        for place in vm["placement"].as_array().context("a VM without a placement")? {
            let host = place["host"].as_str().context("a part without a host")?.to_owned();
            let vcpus = place["vcpus"].as_array().context("a part without vCPUs")?.len();
            parts.push(Part { vm: name.to_owned(), host, vcpus });
        }
    }
    Ok(parts)
}

/// Free cores by what `tessera host list` says.
pub(super) fn free(hosts: &Value) -> Result<Vec<(String, usize)>> {
    let free = |host: &Value| {
        let name = host["name"].as_str().context("a host without a name")?.to_owned();
        let cores = host["free"]["cores"].as_u64().context("a host without free cores")?;
        Ok((name, usize::try_from(cores)?))
    };
    hosts.as_array().context("a list of hosts")?.iter().map(free).collect()
}

/// A panel of each host with a line of each VM, and one of the latencies.
pub(super) fn panels(seen: &[Seen]) -> Vec<Panel> {
    let mut names: Vec<_> = seen.iter().flat_map(|it| &it.parts).map(|it| it.vm.clone()).collect();
    names.sort();
    names.dedup();
    let line = |name: &str, points| Line { name: name.to_owned(), points };
    let on = |vm: &str, host: &str| {
        let count = |it: &Seen| {
            let here = it.parts.iter().filter(|part| part.vm == vm && part.host == host);
            (it.at, Some(here.map(|part| part.vcpus).sum()))
        };
        let counts: Vec<_> = seen.iter().map(count).collect();
        line(vm, steps(&counts, |count| float(count.unwrap_or(0))))
    };
    let free_of = |host: &str| {
        let free = |it: &Seen| {
            let found = it.free.iter().find(|(name, _)| name == host);
            (it.at, found.map(|(_, cores)| *cores))
        };
        let counts: Vec<_> = seen.iter().map(free).collect();
        line("free", steps(&counts, |count| float(count.unwrap_or(0))))
    };
    let mut hosts: Vec<_> = seen.iter().flat_map(|it| &it.free).map(|it| it.0.clone()).collect();
    hosts.sort();
    hosts.dedup();
    let latency = |of: fn((f64, f64)) -> f64| {
        seen.iter().filter_map(|it| Some((it.at, of(it.latency?)))).collect()
    };
    let lines = vec![line("p99", latency(|it| it.1)), line("p50", latency(|it| it.0))];
    let mut panels =
        vec![Panel { title: "HTTP latency of the Aggregate VM, ms".to_owned(), lines, labels: 5 }];
    panels.extend(hosts.iter().map(|host| {
        let lines = names.iter().map(|vm| on(vm, host)).chain([free_of(host)]).collect();
        Panel { title: format!("vCPUs on {host}"), lines, labels: 3 }
    }));
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_cluster_says_is_read() {
        let vms = json!([
            { "name": "web", "placement": [
                { "host": "h1", "vcpus": [0], "memoryBytes": 1 },
                { "host": "h2", "vcpus": [1], "memoryBytes": 1 },
            ] },
            { "name": "waits", "placement": [] },
        ]);
        let part = |host: &str| Part { vm: "web".to_owned(), host: host.to_owned(), vcpus: 1 };
        assert_eq!(parts(&vms).unwrap(), [part("h1"), part("h2")]);
        assert!(parts(&json!([{ "name": "x" }])).is_err());
        let hosts = json!([{ "name": "h1", "free": { "cores": 2 } }]);
        assert_eq!(free(&hosts).unwrap(), [("h1".to_owned(), 2)]);
        assert!(free(&json!([{ "name": "h1", "free": null }])).is_err());
    }

    #[test]
    fn vm_that_is_consolidated_leaves_one_host_and_grows_on_the_other() {
        let part = |host: &str, vcpus| Part { vm: "web".to_owned(), host: host.to_owned(), vcpus };
        let free = |one, two| vec![("h1".to_owned(), one), ("h2".to_owned(), two)];
        let seen = [
            Seen {
                at: 0.0,
                parts: vec![part("h1", 1), part("h2", 1)],
                free: free(1, 0),
                latency: None,
            },
            Seen {
                at: 5.0,
                parts: vec![part("h1", 2)],
                free: free(0, 1),
                latency: Some((1.0, 9.0)),
            },
        ];
        let panels = panels(&seen);
        assert_eq!(panels.len(), 3);
        assert_eq!(panels[0].lines[0].points, [(5.0, 9.0)]);
        assert_eq!(panels[1].title, "vCPUs on h1");
        assert_eq!(panels[1].lines[0].points, [(0.0, 1.0), (5.0, 1.0), (5.0, 2.0)]);
        assert_eq!(panels[2].lines[0].points, [(0.0, 1.0), (5.0, 1.0), (5.0, 0.0)]);
        assert_eq!(panels[2].lines[1].points, [(0.0, 0.0), (5.0, 0.0), (5.0, 1.0)]);
    }
}
