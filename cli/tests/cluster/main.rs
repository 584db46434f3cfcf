//! A cluster of two hosts that are none: an agent each, one orchestrator, and a VM of a slice at both, on this machine's KVM. All of it
//! is done as an operator does it, by commands.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the guest of another test, of which this one uses its image")]
#[path = "../../../vmm/tests/kvm_two_slices/guest.rs"]
mod guest;

use needs::Need;
use serde_json::Value;
use std::env::temp_dir;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio, id};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const FILE: &str = r#"
apiVersion = "tessera/v1"
kind = "VirtualMachine"
metadata.name = "web"
[spec]
vcpus = 2
memory = "32M"
slicesMax = 2
guest.kernel = "kernel"
guest.initrd = "initrd"
guest.preset = "none"
"#;

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// The folder of all, and the processes that are started here, without what is left of them.
struct Lab {
    folder: PathBuf,
    agents: Vec<Child>,
    orchestrator: Child,
}

fn spawn(folder: &Path, log: &str, words: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(folder.join(log)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Of a host that has so many of this machine's cores; the others are kept from VMs.
fn agent(folder: &Path, name: &str, has: usize) -> Child {
    let (own, images) = (folder.join(name), folder.join("images"));
    fs::create_dir(&own).unwrap();
    let mut words = vec!["agent".to_owned(), format!("--name={name}")];
    let cores = std::thread::available_parallelism().unwrap().get();
    words.push(format!("--keep-cores={}", cores - has));
    words.extend(["--keep-memory=0", "--slice-address=127.0.0.1"].map(str::to_owned));
    // All hosts have one address here, and a VM has no two slices at one port.
    let first = 18000 + 200 * u16::from(name.as_bytes()[0] - b'a');
    words.push(format!("--slice-ports={first}-{}", first + 199));
    words.extend([option("state", &own.join("s")), option("images", &images)]);
    words.extend([option("checkpoints", &images), option("socket", &own.join("socket"))]);
    spawn(&own, "log", &words)
}

fn orchestrator(folder: &Path) -> Child {
    let store = format!("--store=redb:{}", folder.join("store").display());
    let words = ["orchestrator".to_owned(), store, option("socket", &folder.join("socket"))];
    spawn(folder, "log", &words)
}

impl Lab {
    /// Hosts that have so many cores, and know a kernel.
    fn new(name: &str, hosts: &[(&str, usize)]) -> Self {
        let folder = temp_dir().join(format!("{name}-{}", id()));
        let images = folder.join("images");
        fs::create_dir_all(&images).unwrap();
        fs::write(images.join("kernel"), guest::image(guest::Disk::None)).unwrap();
        fs::write(images.join("initrd"), vec![1; 4 << 20]).unwrap();
        let agents = hosts.iter().map(|(host, cores)| agent(&folder, host, *cores)).collect();
        Self { agents, orchestrator: orchestrator(&folder), folder }
    }

    /// A file of a VM.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn register(&self, host: &str, cores: usize) {
        let agent = format!("unix:{}", self.folder.join(host).join("socket").display());
        self.ok(&["host", "register", host, &agent]);
        until("the host is up", self, || {
            let host = self.json(&["host", "get", host]);
            host[0]["state"] == "UP" && host[0]["free"]["cores"] == cores
        });
    }

    /// It is killed in the middle of whatever it does, and another one begins.
    fn another_orchestrator(&mut self) {
        self.orchestrator.kill().unwrap();
        self.orchestrator.wait().unwrap();
        self.orchestrator = orchestrator(&self.folder);
    }

    fn run(&self, words: &[&str]) -> Output {
        let cluster = format!("unix:{}", self.folder.join("socket").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(words).env("TESSERA_CLUSTER", cluster).output().unwrap()
    }

    /// What it prints.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}\n{}", self.said());
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.ok(&words)).unwrap()
    }

    fn status(&self, words: &[&str]) -> Option<i32> {
        self.run(words).status.code()
    }

    /// The logs of all, for whoever looks why it has failed.
    fn said(&self) -> String {
        let mut logs = vec![self.folder.join("log")];
        for host in ["a", "b", "c"] {
            logs.push(self.folder.join(host).join("log"));
            let slices = fs::read_dir(self.folder.join(host).join("s/slices"));
            logs.extend(slices.into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        let text =
            |path: &PathBuf| fs::read(path).map(|it| String::from_utf8_lossy(&it).into_owned());
        logs.iter().filter_map(|path| text(path).ok()).collect()
    }

    /// Processes of slices, by what they are.
    fn slices(&self, role: &str) -> usize {
        self.processes(role).len()
    }

    /// As if its host ran out of memory.
    fn kill_one(&self, role: &str) {
        let pid = self.processes(role).pop().unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }

    /// Checkpoints in the folder of all hosts.
    fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("images")).unwrap().flatten();
        let folders = entries.filter(|it| it.path().join("manifest").exists());
        folders.map(|it| it.file_name().into_string().unwrap()).collect()
    }

    fn processes(&self, role: &str) -> Vec<String> {
        let path = self.folder.join("").into_os_string().into_encoded_bytes();
        let has = |words: &[u8]| {
            let is_role = words.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes());
            is_role && words.windows(path.len()).any(|part| part == path)
        };
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let found =
            processes.filter(|it| has(&fs::read(it.path().join("cmdline")).unwrap_or_default()));
        found.map(|it| it.file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().chain([&mut self.orchestrator]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Also if the test has failed before the VM was deleted.
        let path = self.folder.join("").into_os_string().into_encoded_bytes();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if words.windows(path.len()).any(|part| part == path) {
                let _ = Command::new("kill").arg("-9").arg(entry.file_name()).status();
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn until(what: &str, lab: &Lab, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}: {}", lab.said());
        sleep(Duration::from_millis(50));
    }
}

fn hosts_of(vm: &Value) -> Vec<String> {
    let parts = vm["placement"].as_array().unwrap();
    let mut hosts: Vec<_> =
        parts.iter().map(|it| it["host"].as_str().unwrap().to_owned()).collect();
    hosts.sort();
    hosts
}

#[test]
fn vm_of_two_hosts_is_applied_explained_and_deleted_while_orchestrators_are_killed() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    // Two vCPUs are on two hosts.
    let mut lab = Lab::new("tsrc", &[("a", 1), ("b", 1)]);
    let file = lab.file("web.toml", FILE);
    let larger = lab.file("larger.toml", &FILE.replace("\"32M\"", "\"64M\""));
    ["a", "b"].iter().for_each(|host| lab.register(host, 1));
    assert_eq!(lab.status(&["vm", "plan", "-f", &file]), Some(1), "something would be done");
    let applied = lab.json(&["vm", "apply", "-f", &file]);
    let uid = applied[0]["uid"].as_str().unwrap().to_owned();

    // In the middle of its start.
    lab.another_orchestrator();
    let running = lab.json(&["vm", "apply", "--wait", "-f", &file]);
    let vm = &running[0];
    assert_eq!((&vm["state"], vm["uid"].as_str()), (&"RUNNING".into(), Some(&uid[..])), "{vm}");
    assert_eq!(hosts_of(vm), ["a", "b"]);
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
    let explained = lab.ok(&["vm", "explain", "web"]);
    assert!(explained.contains("no host has room for all of it"), "{explained}");
    assert_eq!(lab.status(&["vm", "plan", "-f", &file]), Some(0), "nothing is to be done");
    assert_eq!(lab.status(&["vm", "apply", "-f", &larger]), Some(2), "it is another VM");
    assert_eq!(lab.status(&["vm", "get", "other"]), Some(2));
    assert_eq!(lab.ok(&["vm", "list", "-o", "name"]), "web\n");
    assert!(lab.ok(&["vm", "get", "web", "-o", "yaml"]).contains("RUNNING"));

    // While it runs, and in the middle of its end.
    lab.another_orchestrator();
    assert_eq!(lab.json(&["vm", "get", "web"])[0]["life"], vm["life"]);
    lab.ok(&["vm", "delete", "web"]);
    lab.another_orchestrator();
    lab.ok(&["op", "wait", &format!("delete-{uid}")]);
    assert_eq!(lab.ok(&["vm", "list", "-o", "name"]), "\n");
    until("nothing is left", &lab, || {
        let hosts = lab.json(&["host", "list"]);
        let is_free = |host: &Value| host["free"] == host["capacity"] && host["state"] == "UP";
        lab.slices("bootstrap") + lab.slices("companion") == 0
            && hosts.as_array().unwrap().iter().all(is_free)
    });
    lab.ok(&["host", "drain", "a"]);
    lab.ok(&["host", "remove", "a"]);
    assert_eq!(lab.ok(&["host", "list", "-o", "name"]), "b\n");
}

#[test]
fn slices_come_together_by_themselves_while_orchestrators_are_killed() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let mut lab = Lab::new("tsrd", &[("a", 2), ("b", 1), ("c", 1)]);
    let other = FILE.replace("web", "other").replace("vcpus = 2", "vcpus = 1");
    let (web, other) = (lab.file("web.toml", FILE), lab.file("other.toml", &other));
    // One VM has half of the first host, so the next one is on both.
    lab.register("a", 2);
    lab.ok(&["vm", "apply", "--wait", "-f", &other]);
    lab.register("b", 1);
    lab.ok(&["vm", "apply", "--wait", "-f", &web]);
    let before = lab.json(&["vm", "get", "web"]).take();
    let vm = &before[0];
    assert_eq!(hosts_of(vm), ["a", "b"], "{vm}");
    assert_eq!(vm["placement"][0]["host"], "a", "{vm}");
    assert!(lab.ok(&["vm", "explain", "web"]).contains("slice 0 stays on a"));
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (2, 1), "{}", lab.said());

    // The second host is drained: what is there goes to a third one, where the VM has had nothing.
    lab.register("c", 1);
    lab.ok(&["host", "drain", "b"]);
    let drained = lab.json(&["vm", "get", "web"]).take();
    assert_eq!(hosts_of(&drained[0]), ["a", "c"], "{drained}\n{}", lab.said());
    assert_eq!((&drained[0]["state"], &drained[0]["life"]), (&"RUNNING".into(), &vm["life"]));

    // The other one ends: there is room for all of it on the first host.
    lab.ok(&["vm", "delete", "other"]);
    lab.another_orchestrator();
    until("it is on one host", &lab, || {
        let vm = &lab.json(&["vm", "get", "web"])[0];
        hosts_of(vm) == ["a"] && vm["operation"].as_str().is_none_or(str::is_empty)
    });
    lab.another_orchestrator();
    let after = lab.json(&["vm", "get", "web"]).take();
    let now = &after[0];
    assert_eq!((&now["state"], &now["life"]), (&"RUNNING".into(), &vm["life"]), "{now}");
    let explained = lab.ok(&["vm", "explain", "web"]);
    assert!(explained.contains("on fewer hosts"), "{explained}");
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 0), "{}", lab.said());
    until("what it had on the other hosts is free", &lab, || {
        ["b", "c"].iter().all(|host| {
            let host = &lab.json(&["host", "get", host])[0];
            host["state"] == "UP" && host["free"] == host["capacity"]
        })
    });
    let drained = lab.run(&["host", "drain", "a", "--timeout", "1"]);
    let error = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert!(!drained.status.success() && error.contains("its first slice stays"), "{error}");
    lab.ok(&["vm", "delete", "web"]);
    until("nothing is left", &lab, || {
        let hosts = lab.json(&["host", "list"]);
        let is_free = |host: &Value| host["free"] == host["capacity"] && host["state"] == "UP";
        lab.slices("bootstrap") + lab.slices("companion") == 0
            && hosts.as_array().unwrap().iter().all(is_free)
    });
}

#[test]
fn vm_that_lost_a_slice_goes_on_from_its_checkpoint() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let mut lab = Lab::new("tsrk", &[("a", 1), ("b", 1)]);
    ["a", "b"].iter().for_each(|host| lab.register(host, 1));
    let text = format!("{FILE}checkpoint = {{ every = \"10s\", keep = 1 }}\n");
    let file = lab.file("web.toml", &text);
    lab.ok(&["vm", "apply", "--wait", "-f", &file]);
    until("it is written down", &lab, || !lab.checkpoints().is_empty());
    lab.another_orchestrator();
    let first = lab.checkpoints();
    until("it is written down again, and the first one is deleted", &lab, || {
        let now = lab.checkpoints();
        now.len() == 1 && now != first
    });
    for (role, life) in [("companion", 2), ("bootstrap", 3)] {
        let written = lab.checkpoints();
        lab.kill_one(role);
        lab.another_orchestrator();
        let is_back = || {
            let vm = &lab.json(&["vm", "get", "web"])[0];
            vm["state"] == "RUNNING" && vm["life"] == life
        };
        until("it is back", &lab, is_back);
        let explained = lab.ok(&["vm", "explain", "web"]);
        let from = written[0].rsplit('-').next().unwrap();
        assert!(explained.contains("gone on from checkpoint"), "{explained}");
        assert!(explained.contains(from) || lab.checkpoints() != written, "{explained}");
        assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
        until("it is written down again", &lab, || {
            lab.checkpoints().len() == 1 && lab.checkpoints() != written
        });
    }
    lab.ok(&["vm", "delete", "web"]);
    until("nothing is left", &lab, || {
        lab.slices("bootstrap") + lab.slices("companion") == 0 && lab.checkpoints().is_empty()
    });
}

/// As if a host were cut off: its agent is gone, and its slice hears no more of the others when they are fenced.
#[test]
fn vm_goes_on_elsewhere_when_a_host_says_nothing_any_more() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let hosts = ["a", "b", "c"];
    let mut lab = Lab::new("tsrh", &hosts.map(|host| (host, 1)));
    hosts.iter().for_each(|host| lab.register(host, 1));
    let text = format!("{FILE}checkpoint = {{ every = \"10s\", keep = 1 }}\n");
    lab.ok(&["vm", "apply", "--wait", "-f", &lab.file("web.toml", &text)]);
    until("it is written down", &lab, || !lab.checkpoints().is_empty());
    let before = lab.json(&["vm", "get", "web"]).take();
    let lost = before[0]["placement"][1]["host"].as_str().unwrap();
    let agent = &mut lab.agents[hosts.iter().position(|host| *host == lost).unwrap()];
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("it goes on without that host", &lab, || {
        let vm = &lab.json(&["vm", "get", "web"])[0];
        vm["state"] == "RUNNING" && vm["life"] == 2
    });
    let after = lab.json(&["vm", "get", "web"]).take();
    assert!(!hosts_of(&after[0]).contains(&lost.to_owned()), "{after}");
    assert!(lab.ok(&["vm", "explain", "web"]).contains("gone on from checkpoint"));
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
    lab.ok(&["vm", "delete", "web"]);
}
