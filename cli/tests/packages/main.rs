//! The Debian package: what is in it, whether systemd knows its units and how exposed they are, and, in a system of its own on this host, that it
//! is installed, runs a VM as its units say, and is purged.
//!
//! The package is made here of what `cli/Cargo.toml` lists and the program that is tested; `./x packages --try` names the one that cargo-deb has
//! made by `TESSERA_PACKAGE`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the guest of another test, of which this one uses its image")]
#[path = "../../../vmm/tests/kvm_two_slices/guest.rs"]
mod guest;
mod package;
mod system;

use needs::Need;
use package::{Package, packaging};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use system::System;

/// A folder of a test, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tessera-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All but manuals.
const FILES: [&str; 23] = [
    "etc/tessera/agent.env",
    "etc/tessera/orchestrator.env",
    "usr/bin/tessera",
    "usr/lib/systemd/system/tessera-agent.service",
    "usr/lib/systemd/system/tessera-orchestrator.service",
    "usr/lib/sysusers.d/tessera.conf",
    "usr/lib/tmpfiles.d/tessera.conf",
    "usr/lib/udev/rules.d/60-tessera.rules",
    "usr/share/bash-completion/completions/tessera",
    "usr/share/doc/tessera/api.md",
    "usr/share/doc/tessera/checkpoints.md",
    "usr/share/doc/tessera/cluster.md",
    "usr/share/doc/tessera/glossary.md",
    "usr/share/doc/tessera/guest-parameters.md",
    "usr/share/doc/tessera/install.md",
    "usr/share/doc/tessera/metrics.md",
    "usr/share/doc/tessera/operations.md",
    "usr/share/doc/tessera/options.md",
    "usr/share/doc/tessera/quick-start.md",
    "usr/share/doc/tessera/tracing.md",
    "usr/share/doc/tessera/vm-file.md",
    "usr/share/fish/vendor_completions.d/tessera.fish",
    "usr/share/zsh/vendor-completions/_tessera",
];
const MANUALS: &str = "usr/share/man/man1/";

#[test]
fn package_has_these_files_and_no_other() {
    let folder = Folder::new("package-files");
    let package = Package::get(&folder.0);
    let (manuals, files): (BTreeSet<String>, BTreeSet<String>) =
        package.files().into_iter().partition(|file| file.starts_with(MANUALS));

    assert_eq!(files, FILES.map(str::to_owned).into());
    for verb in ["", "-agent", "-orchestrator", "-vm", "-vm-apply", "-host-drain", "-bootstrap"] {
        assert!(manuals.contains(&format!("{MANUALS}tessera{verb}.1")), "{verb}: {manuals:?}");
    }
    for hidden in ["-check-forms", "-markdown-help", "-package-files"] {
        assert!(!manuals.contains(&format!("{MANUALS}tessera{hidden}.1")), "{hidden}");
    }
}

#[test]
fn completions_and_manuals_are_of_the_options() {
    let folder = Folder::new("package-help");
    let program = env!("CARGO_BIN_EXE_tessera");
    let made = Command::new(program).arg("package-files").arg(&folder.0).status().unwrap();
    assert!(made.success());

    let bash = folder.0.join("complete/tessera.bash");
    assert!(Command::new("bash").arg("-n").arg(&bash).status().unwrap().success());
    for file in ["tessera.bash", "_tessera", "tessera.fish"] {
        let text = fs::read_to_string(folder.0.join("complete").join(file)).unwrap();
        assert!(text.contains("orchestrator") && text.contains("slice-address"), "{file}");
    }
    let manual = fs::read_to_string(folder.0.join("man/tessera-agent.1")).unwrap();
    assert!(manual.contains(".TH tessera-agent 1") && manual.contains("slice"), "{manual}");
}

#[test]
fn units_are_known_to_systemd_and_little_exposed() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        needs::skip("there is no systemd-analyze");
        return;
    }
    let folder = Folder::new("package-units");
    // Tenths: what an agent may do beyond this, its slices need (devices, priorities, memory that stays).
    for (unit, most) in [("tessera-agent.service", 18), ("tessera-orchestrator.service", 13)] {
        let text = fs::read_to_string(packaging().join(unit)).unwrap();
        let here = text.replace("/usr/bin/tessera", env!("CARGO_BIN_EXE_tessera"));
        assert_ne!(text, here);
        let path = folder.0.join(unit);
        fs::write(&path, here).unwrap();
        let verified =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        let verified = verified.unwrap();
        // A key that it does not know is a warning.
        let said = String::from_utf8_lossy(&verified.stderr);
        let of_it: Vec<&str> = said.lines().filter(|line| line.contains(unit)).collect();
        assert!(verified.status.success() && of_it.is_empty(), "{unit}: {said}");

        let judged = Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true", &format!("--threshold={most}")])
            .arg(&path)
            .env("SYSTEMD_COLORS", "0")
            .output()
            .unwrap();
        let table = String::from_utf8_lossy(&judged.stdout);
        let figure = table.lines().find(|line| line.contains("Overall exposure")).unwrap();
        println!("{figure}");
        assert!(judged.status.success(), "more than {most} tenths: {table}");
    }
}

const VM: &str = r#"
apiVersion = "tessera/v1"
kind = "VirtualMachine"
metadata.name = "web"
[spec]
vcpus = 1
memory = "32M"
guest.kernel = "kernel"
guest.initrd = "initrd"
guest.preset = "none"
"#;
const IMAGES: &str = "/var/lib/tessera/images";
const AGENT: &str = "tessera-agent.service";
const ORCHESTRATOR: &str = "tessera-orchestrator.service";
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn package_is_installed_runs_a_vm_and_is_purged() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    if let Err(reason) = system::possible() {
        needs::skip(&reason);
        return;
    }
    let folder = Folder::new("package");
    let package = Package::get(&folder.0);
    let given = folder.0.join("given");
    fs::create_dir(&given).unwrap();
    fs::rename(&package.path, given.join("tessera.deb")).unwrap();
    fs::write(given.join("kernel"), guest::image(guest::Disk::None)).unwrap();
    fs::write(given.join("initrd"), vec![1; 1 << 20]).unwrap();
    fs::write(given.join("web.toml"), VM).unwrap();
    let system = System::boot(&folder.0, &given);

    install(&system);
    let slice = run_a_vm(&system);
    outlives(&system, slice);
    system.ok(&["tessera", "vm", "delete", "web"]);
    until("the slice has ended", &system, || slices(&system).is_empty());
    purge(&system);
}

fn until(what: &str, system: &System, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}: {}", system.said());
        sleep(Duration::from_millis(100));
    }
}

/// Nothing runs before it has settings, and without them the agent says what is missing.
fn install(system: &System) {
    system.ok(&["dpkg", "-i", "/srv/given/tessera.deb"]);
    assert!(system.ok(&["id", "tessera"]).contains("(kvm)"));
    for unit in [AGENT, ORCHESTRATOR] {
        assert_eq!(system.out(&["systemctl", "is-enabled", unit]), "disabled\n");
        assert_eq!(system.out(&["systemctl", "is-active", unit]), "inactive\n");
    }
    system.take_rules(&packaging().join("udev.rules"));
    assert!(!system.run(&["systemctl", "start", AGENT]).status.success());
    let said = system.ok(&["journalctl", "--no-pager", "-u", AGENT]);
    assert!(said.contains("--slice-address"), "{said}");
}

/// As docs/install.md says; the process of its slice.
fn run_a_vm(system: &System) -> u32 {
    let settings = "TESSERA_SLICE_ADDRESS=127.0.0.1\nTESSERA_HOST=h1\nTESSERA_AGENT_OPTIONS='--keep-cores 0 --keep-memory 0'\n";
    system.append("/etc/tessera/agent.env", settings);
    system.ok(&["systemctl", "start", AGENT, ORCHESTRATOR]);
    for file in ["kernel", "initrd"] {
        let from = format!("/srv/given/{file}");
        system.ok(&["install", "-o", "tessera", "-m", "600", &from, IMAGES]);
    }
    system.ok(&["tessera", "host", "register", "h1", "unix:/run/tessera/agent.sock"]);
    until("the host is up", system, || {
        let hosts = system.ok(&["tessera", "host", "list", "-o", "json"]);
        let hosts: Value = serde_json::from_str(&hosts).unwrap();
        hosts[0]["state"] == "UP"
    });
    system.ok(&["tessera", "vm", "apply", "--wait", "-f", "/srv/given/web.toml"]);
    assert_eq!(state(system), "RUNNING");
    let slices = slices(system);
    assert_eq!(slices.len(), 1, "{}", system.said());
    for process in [slices[0], main_process(system, AGENT), main_process(system, ORCHESTRATOR)] {
        let status = system.ok(&["cat", &format!("/proc/{process}/status")]);
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        assert!(!status.contains("Uid:\t0"), "{status}");
    }
    // It has both because rules say so: it may neither make devices nor read those of others.
    let table = system.ok(&["tessera", "host", "get", "h1", "-o", "json"]);
    assert!(table.contains("UP"), "{table}");
    slices[0]
}

/// A VM runs on when its agent is restarted, and when the package is installed again.
fn outlives(system: &System, slice: u32) {
    for command in [["systemctl", "restart", AGENT], ["dpkg", "-i", "/srv/given/tessera.deb"]] {
        let before = main_process(system, AGENT);
        system.ok(&command);
        assert_ne!(main_process(system, AGENT), before, "{command:?}");
        until("the VM is known to run", system, || state(system) == "RUNNING");
        assert_eq!(slices(system), [slice], "{command:?}: {}", system.said());
    }
}

/// Images and the user stay.
fn purge(system: &System) {
    system.ok(&["systemctl", "enable", AGENT]);
    system.ok(&["dpkg", "-r", "tessera"]);
    assert_ne!(system.out(&["systemctl", "is-active", AGENT]), "active\n");
    let is_there = |path: &str| system.run(&["test", "-e", path]).status.success();
    assert!(is_there("/etc/tessera/agent.env") && is_there("/var/lib/tessera/agent"));
    system.ok(&["dpkg", "-P", "tessera"]);
    let left = ["/run/tessera", "/var/lib/tessera/agent", "/var/lib/tessera/orchestrator"];
    for path in FILES.map(|file| format!("/{file}")).into_iter().chain(left.map(str::to_owned)) {
        assert!(!is_there(&path), "{path}");
    }
    let link = "/etc/systemd/system/multi-user.target.wants/tessera-agent.service";
    assert!(!system.run(&["test", "-L", link]).status.success());
    assert!(!is_there("/etc/tessera") && is_there(&format!("{IMAGES}/kernel")));
}

fn state(system: &System) -> String {
    let output = system.run(&["tessera", "vm", "get", "web", "-o", "json"]);
    let vm: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    vm[0]["state"].as_str().unwrap_or_default().to_owned()
}

fn main_process(system: &System, unit: &str) -> u32 {
    system.ok(&["systemctl", "show", "-p", "MainPID", "--value", unit]).trim().parse().unwrap()
}

/// Processes of the agent's unit that are not the agent.
fn slices(system: &System) -> Vec<u32> {
    let agent = main_process(system, AGENT);
    let path = Path::new("/sys/fs/cgroup/system.slice").join(AGENT).join("cgroup.procs");
    let all = system.ok(&["cat", path.to_str().unwrap()]);
    let all = all.lines().map(|line| line.parse::<u32>().unwrap());
    all.filter(|process| *process != agent).collect()
}
