//! Hosts that are none, and what a user asks of their cluster.

use crate::guest;
use needs::etcd::EtcdProcess;
use serde_json::Value;
use std::env::temp_dir;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio, id};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const FILE: &str = r#"
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
pub(crate) struct Lab {
    pub(crate) folder: PathBuf,
    /// With so many of this machine's cores each.
    hosts: Vec<(String, usize)>,
    /// The first of the ports of its slices.
    ports: u16,
    pub(crate) agents: Vec<Child>,
    orchestrators: Vec<Child>,
    /// The state of the cluster is in a file if there is none.
    pub(crate) etcd: Option<EtcdProcess>,
}

fn spawn(folder: &Path, log: &str, words: &[String]) -> Child {
    begin(folder, log, Command::new(env!("CARGO_BIN_EXE_tessera")).args(words))
}

fn begin(folder: &Path, log: &str, command: &mut Command) -> Child {
    let log = File::options().create(true).append(true).open(folder.join(log)).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Dies before a step of its work, and is there again at once: the shell becomes the second one, and the first one dies with the shell.
/// Whoever ends otherwise than by `abort` is not there again.
const TWICE: &str = "ulimit -c 0; TESSERA_DIES_BEFORE=$0 setpriv --pdeathsig KILL \"$@\"
    [ $? -eq 134 ] || exit 1; echo > \"$DIED\"; exec \"$@\"";

fn spawn_twice(folder: &Path, log: &str, (point, died): (u64, &Path), words: &[String]) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", TWICE, &point.to_string(), env!("CARGO_BIN_EXE_tessera")]);
    begin(folder, log, command.args(words).env("DIED", died))
}

/// Of a host that has so many of this machine's cores; the others are kept from VMs.
fn agent(folder: &Path, ports: u16, host: (&str, usize)) -> Child {
    spawn(&folder.join(host.0), "log", &words_of_agent(folder, ports, host))
}

fn words_of_agent(folder: &Path, ports: u16, (name, has): (&str, usize)) -> Vec<String> {
    let (own, images) = (folder.join(name), folder.join("images"));
    let mut words = vec!["agent".to_owned(), format!("--name={name}")];
    let cores = thread::available_parallelism().unwrap().get();
    words.push(format!("--keep-cores={}", cores - has));
    words.extend(["--keep-memory=0", "--slice-address=127.0.0.1"].map(str::to_owned));
    // All hosts have one address here, and no two slices are at one port.
    let first = ports + 200 * u16::from(name.as_bytes()[0] - b'a');
    words.push(format!("--slice-ports={first}-{}", first + 199));
    words.extend([option("state", &own.join("s")), option("images", &images)]);
    words.extend([option("checkpoints", &images), option("socket", &own.join("socket"))]);
    words
}

/// Where the orchestrator of this number listens.
fn socket(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("socket-{number}"))
}

fn orchestrator(folder: &Path, number: usize, etcd: Option<&EtcdProcess>) -> Child {
    spawn(folder, "log", &words_of_orchestrator(folder, number, etcd))
}

fn words_of_orchestrator(folder: &Path, number: usize, etcd: Option<&EtcdProcess>) -> Vec<String> {
    let file = || format!("--store=redb:{}", folder.join("store").display());
    let store = etcd.map_or_else(file, |etcd| format!("--store=etcd:{}", etcd.endpoint()));
    let mut words = vec!["orchestrator".to_owned(), store, format!("--name=o{number}:7300")];
    words.push(option("socket", &socket(folder, number)));
    // The next one is not to be waited for.
    words.extend(etcd.map(|_| "--lease=2".to_owned()));
    words
}

/// Somebody who watches all VMs.
pub(crate) struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    /// Waits until a VM has this state. States in between may be left out.
    pub(crate) fn waits_for(&self, name: &str, last: &str) {
        let mut states = Vec::new();
        while states.last().is_none_or(|state| state != last) {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|error| panic!("{error} after {states:?}"));
            let vm: Value = serde_json::from_str(&line).unwrap();
            if vm["name"] == name {
                states.push(vm["state"].as_str().unwrap().to_owned());
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who asks a cluster: any of its orchestrators may lead.
#[derive(Clone)]
pub(crate) struct Asker(Vec<PathBuf>);

impl Asker {
    /// Asks all, and gives what the first one says that is no word of who does not lead, or is not there.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let ask = |socket: &PathBuf| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
            command.args(words).env("TESSERA_CLUSTER", format!("unix:{}", socket.display()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut asked: Vec<Child> = self.0.iter().map(ask).collect();
        loop {
            let ended = asked.iter_mut().position(|it| it.try_wait().unwrap().is_some());
            let Some(ended) = ended else {
                sleep(Duration::from_millis(5));
                continue;
            };
            let output = asked.remove(ended).wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            let is_elsewhere = error.contains("NOT_LEADER") || error.contains("nobody answers");
            if !is_elsewhere || asked.is_empty() {
                for mut other in asked {
                    let _ = other.kill();
                    let _ = other.wait();
                }
                return output;
            }
        }
    }
}

impl Lab {
    /// Hosts that have so many cores, and know a kernel.
    pub(crate) fn new(name: &str, hosts: &[(&str, usize)]) -> Self {
        Self::over(name, hosts, None)
    }

    /// The same with two orchestrators, if the state of the cluster is in etcd.
    pub(crate) fn over(name: &str, hosts: &[(&str, usize)], etcd: Option<EtcdProcess>) -> Self {
        static LABS: AtomicU16 = AtomicU16::new(0);
        let ports = 18000 + 600 * LABS.fetch_add(1, Ordering::Relaxed);
        let folder = temp_dir().join(format!("{name}-{}", id()));
        let images = folder.join("images");
        fs::create_dir_all(&images).unwrap();
        fs::write(images.join("kernel"), guest::image(guest::Disk::None)).unwrap();
        fs::write(images.join("initrd"), vec![1; 4 << 20]).unwrap();
        let begin = |(host, cores): &(&str, usize)| {
            fs::create_dir(folder.join(host)).unwrap();
            agent(&folder, ports, (host, *cores))
        };
        let agents = hosts.iter().map(begin).collect();
        let numbers = 0..if etcd.is_some() { 2 } else { 1 };
        let begin = |number| orchestrator(&folder, number, etcd.as_ref());
        let orchestrators = numbers.map(begin).collect();
        let hosts = hosts.iter().map(|(host, cores)| ((*host).to_owned(), *cores)).collect();
        Self { folder, hosts, ports, agents, orchestrators, etcd }
    }

    /// A file of a VM.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn register(&self, host: &str, cores: usize) {
        let agent = format!("unix:{}", self.folder.join(host).join("socket").display());
        self.ok(&["host", "register", host, &agent]);
        until("the host is up", self, || {
            let host = self.json(&["host", "get", host]);
            host[0]["state"] == "UP" && host[0]["free"]["cores"] == cores
        });
    }

    /// It is killed in the middle of whatever it does, and another one begins.
    pub(crate) fn another_orchestrator(&mut self) {
        self.kill_orchestrator(0);
        self.begin_orchestrator(0);
    }

    pub(crate) fn kill_orchestrator(&mut self, number: usize) {
        self.orchestrators[number].kill().unwrap();
        self.orchestrators[number].wait().unwrap();
    }

    pub(crate) fn begin_orchestrator(&mut self, number: usize) {
        self.orchestrators[number] = orchestrator(&self.folder, number, self.etcd.as_ref());
    }

    /// One that dies before a step of this number, and is there again; `has_died` tells.
    pub(crate) fn begin_orchestrator_that_dies(&mut self, number: usize, point: u64) {
        let words = words_of_orchestrator(&self.folder, number, self.etcd.as_ref());
        let died = self.marker();
        self.orchestrators[number] = spawn_twice(&self.folder, "log", (point, &died), &words);
    }

    /// The same of an agent.
    pub(crate) fn begin_agent_that_dies(&mut self, host: usize, point: u64) {
        let (name, cores) = &self.hosts[host];
        let words = words_of_agent(&self.folder, self.ports, (name, *cores));
        let died = self.marker();
        let own = self.folder.join(name);
        self.agents[host] = spawn_twice(&own, "log", (point, &died), &words);
    }

    fn marker(&self) -> PathBuf {
        let died = self.folder.join("died");
        let _ = fs::remove_file(&died);
        died
    }

    /// Whether the one that was to die has.
    pub(crate) fn has_died(&self) -> bool {
        self.folder.join("died").exists()
    }

    /// It stands still, or goes on.
    pub(crate) fn halt_orchestrator(&self, number: usize, halts: bool) {
        let id = self.orchestrators[number].id().to_string();
        let signal = if halts { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    pub(crate) fn kill_agent(&mut self, host: usize) {
        self.agents[host].kill().unwrap();
        self.agents[host].wait().unwrap();
    }

    pub(crate) fn begin_agent(&mut self, host: usize) {
        let (name, cores) = &self.hosts[host];
        self.agents[host] = agent(&self.folder, self.ports, (name, *cores));
    }

    /// No slice, and nothing of any host is taken.
    pub(crate) fn until_nothing_is_left(&self) {
        until("nothing is left", self, || {
            let hosts = self.json(&["host", "list"]);
            let is_free = |host: &Value| host["free"] == host["capacity"] && host["state"] == "UP";
            self.slices("bootstrap") + self.slices("companion") == 0
                && hosts.as_array().unwrap().iter().all(is_free)
        });
    }

    /// Fails if somebody has ended who was not killed.
    pub(crate) fn all_are_there(&mut self) {
        let mut all = self.agents.iter_mut().chain(&mut self.orchestrators);
        let ended = all.find_map(|child| child.try_wait().unwrap());
        assert_eq!(ended, None, "{}", self.said());
    }

    pub(crate) fn asker(&self) -> Asker {
        let numbers = 0..self.orchestrators.len();
        Asker(numbers.map(|number| socket(&self.folder, number)).collect())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.asker().run(words)
    }

    /// `vm list --watch` in lines of JSON, from now on.
    pub(crate) fn watch(&self) -> Watch {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["vm", "list", "--watch", "-o", "json"]);
        command.env("TESSERA_CLUSTER", format!("unix:{}", socket(&self.folder, 0).display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Nobody reads what it says of itself.
        drop(child.stderr.take());
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Watch { child, lines }
    }

    /// What it prints.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}\n{}", self.said());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.ok(&words)).unwrap()
    }

    pub(crate) fn status(&self, words: &[&str]) -> Option<i32> {
        self.run(words).status.code()
    }

    /// The logs of all, for whoever looks why it has failed.
    pub(crate) fn said(&self) -> String {
        let mut logs = vec![self.folder.join("log")];
        for host in ["a", "b", "c"] {
            logs.push(self.folder.join(host).join("log"));
            let slices = fs::read_dir(self.folder.join(host).join("s/slices"));
            logs.extend(slices.into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        // A log that is empty, or not there, may be what has gone wrong.
        let text = |path: &PathBuf| match fs::read(path) {
            Ok(it) => format!("{}:\n{}\n", path.display(), String::from_utf8_lossy(&it)),
            Err(error) => format!("{}: {error}\n", path.display()),
        };
        logs.iter().map(text).collect()
    }

    /// Processes of slices, by what they are.
    pub(crate) fn slices(&self, role: &str) -> usize {
        self.processes(role).len()
    }

    /// As if its host ran out of memory.
    pub(crate) fn kill_one(&self, role: &str) {
        let pid = self.processes(role).pop().unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }

    /// Checkpoints in the folder of all hosts.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("images")).unwrap().flatten();
        let folders = entries.filter(|it| it.path().join("manifest").exists());
        folders.map(|it| it.file_name().into_string().unwrap()).collect()
    }

    fn processes(&self, role: &str) -> Vec<String> {
        processes(&self.folder, role)
    }
}

/// Numbers of the processes of this role that have something in a folder.
pub(crate) fn processes(folder: &Path, role: &str) -> Vec<String> {
    let is_role = |words: &[u8]| words.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes());
    let all = needs::processes::within(folder).into_iter();
    all.filter(|(_, words)| is_role(words)).map(|(number, _)| number).collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().chain(&mut self.orchestrators) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Also if the test has failed before the VM was deleted.
        needs::processes::kill_all(&self.folder);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn until(what: &str, lab: &Lab, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}: {}", lab.said());
        sleep(Duration::from_millis(50));
    }
}

pub(crate) fn hosts_of(vm: &Value) -> Vec<String> {
    let parts = vm["placement"].as_array().unwrap();
    let mut hosts: Vec<_> =
        parts.iter().map(|it| it["host"].as_str().unwrap().to_owned()).collect();
    hosts.sort();
    hosts
}
