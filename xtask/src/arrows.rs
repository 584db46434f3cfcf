//! Which crate may use which. Dependencies point down only; the picture is in ARCHITECTURE.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::workspace;

/// A crate and those of ours it may use.
const ALLOWED: [(&str, &[&str]); 23] = [
    (
        "tessera",
        &[
            "tessera-vmm",
            "tessera-vm-service",
            "tessera-agent-service",
            "tessera-checkpoint",
            "tessera-cluster-sim",
            "tessera-control",
            "tessera-dsm",
            "tessera-migrate",
            "tessera-orchestrator",
            "tessera-outcome",
            "tessera-scheduler",
            "tessera-store",
            "tessera-transport",
            "tessera-vm-file",
            "tessera-wire",
        ],
    ),
    (
        "tessera-vmm",
        &[
            "tessera-checkpoint",
            "tessera-devices",
            "tessera-dsm",
            "tessera-dsm-protocol",
            "tessera-migrate",
            "tessera-transport",
            "tessera-wire",
        ],
    ),
    ("tessera-devices", &["tessera-migrate", "tessera-wire"]),
    (
        "tessera-dsm",
        &["tessera-dsm-protocol", "tessera-migrate", "tessera-transport", "tessera-wire"],
    ),
    ("tessera-dsm-protocol", &["tessera-migrate", "tessera-wire"]),
    ("tessera-transport", &["tessera-wire"]),
    ("tessera-checkpoint", &["tessera-migrate", "tessera-wire"]),
    ("tessera-migrate", &["tessera-wire"]),
    ("tessera-agent", &["tessera-fail-point", "tessera-scheduler"]),
    (
        "tessera-agent-service",
        &[
            "tessera-agent",
            "tessera-checkpoint",
            "tessera-control",
            "tessera-dsm",
            "tessera-metrics",
            "tessera-scheduler",
            "tessera-vm-service",
            "tessera-vmm",
        ],
    ),
    (
        "tessera-orchestrator",
        &[
            "tessera-control",
            "tessera-fail-point",
            "tessera-metrics",
            "tessera-scheduler",
            "tessera-state",
            "tessera-store",
            "tessera-vm-service",
        ],
    ),
    (
        "tessera-fuzz-targets",
        &[
            "tessera-checkpoint",
            "tessera-cluster-sim",
            "tessera-devices",
            "tessera-dsm-protocol",
            "tessera-migrate",
            "tessera-transport",
            "tessera-vm-file",
            "tessera-vmm",
            "tessera-wire",
        ],
    ),
    ("tessera-cluster-sim", &["tessera-outcome", "tessera-scheduler"]),
    ("tessera-vm-service", &["tessera-control", "tessera-vmm"]),
    ("tessera-control", &[]),
    ("tessera-fail-point", &[]),
    ("tessera-metrics", &[]),
    ("tessera-scheduler", &[]),
    ("tessera-outcome", &[]),
    ("tessera-state", &[]),
    ("tessera-store", &[]),
    ("tessera-vm-file", &[]),
    ("tessera-wire", &[]),
];

/// Crates for development: they may use anything, and nothing that ships uses them.
const TOOLS: [&str; 12] = [
    "tessera-microguest",
    "tessera-dsm-sim",
    "tessera-migrate-sim",
    "tessera-lab",
    "tessera-scenarios",
    "tessera-guest-tests",
    "tessera-model-check",
    "tessera-needs",
    "tessera-benches",
    "tessera-link",
    "tessera-fuzz",
    "xtask",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; none for an ordinary one.
    kind: Option<String>,
    /// Only dependencies on crates of the workspace have one.
    path: Option<String>,
}

/// Every dependency that points where it must not.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>> {
    Ok(wrong_arrows(&metadata(root)?))
}

/// Folders with the sources of the workspace's libraries and programs.
pub(crate) fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let packages = metadata(root)?.packages;
    let targets = packages.iter().flat_map(|package| &package.targets);
    let shipped =
        targets.filter(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin"));
    let folders = shipped.filter_map(|target| Some(target.src_path.parent()?.to_path_buf()));
    let folders: BTreeSet<PathBuf> = folders.filter(|folder| folder.ends_with("src")).collect();
    Ok(folders.into_iter().collect())
}

/// Names of the workspace's benchmarks, as cargo knows them.
pub(crate) fn benchmarks(root: &Path) -> Result<Vec<String>> {
    let packages = metadata(root)?.packages;
    let targets = packages.iter().flat_map(|package| &package.targets);
    let benches = targets.filter(|target| target.kind.iter().any(|kind| kind == "bench"));
    Ok(benches.map(|target| target.name.clone()).collect())
}

fn metadata(root: &Path) -> Result<Metadata> {
    let output = Process::new(workspace::cargo())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("parse what cargo metadata says")
}

fn wrong_arrows(metadata: &Metadata) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        if TOOLS.contains(&name) {
            continue;
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            findings.push(format!("{name} is in no layer; add it to the arrows in xtask"));
            continue;
        };
        // Tests may use whatever helps them.
        let shipped = |dependency: &&Dependency| dependency.kind.as_deref() != Some("dev");
        for dependency in package.dependencies.iter().filter(shipped) {
            if dependency.path.is_some() && !allowed.contains(&dependency.name.as_str()) {
                findings.push(format!("{name} must not use {}", dependency.name));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(json: &str) -> Vec<String> {
        wrong_arrows(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn arrow_that_points_up_is_found() {
        let found = workspace(
            r#"{"packages":[{"name":"tessera-devices","targets":[],"dependencies":[
                {"name":"tessera-dsm","kind":null,"path":"dsm"},
                {"name":"serde","kind":null,"path":null}]}]}"#,
        );

        assert_eq!(found, ["tessera-devices must not use tessera-dsm"]);
    }

    #[test]
    fn tests_may_use_tools_but_shipped_code_may_not() {
        let with = |kind: &str| {
            workspace(&format!(
                r#"{{"packages":[{{"name":"tessera-wire","targets":[],"dependencies":[
                    {{"name":"tessera-lab","kind":{kind},"path":"lab"}}]}}]}}"#
            ))
        };

        assert!(with(r#""dev""#).is_empty());
        assert_eq!(with("null").len(), 1);
    }

    #[test]
    fn crate_without_a_layer_is_found() {
        let found = workspace(r#"{"packages":[{"name":"new","targets":[],"dependencies":[]}]}"#);

        assert_eq!(found.len(), 1);
    }
}
