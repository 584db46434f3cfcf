//! The processes of a cluster on the hosts of a lab: an agent on each, an orchestrator on the first, and the commands that an operator
//! gives there. If the state of the cluster is in etcd that is on the third host, and there is an orchestrator on the second host, too.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Command, Host, HostNumber, Lab, RemoteProcess};
use serde_json::Value;

use super::certificates::{self, AUTHORITY};
use crate::progress::Progress;
use crate::vm::scenario::text;

/// Where orchestrators listen.
const PORT: u16 = 7300;
const AGENT_PORT: u16 = 7400;
const ETCD_PORT: u16 = 2379;
/// In memory of the host: nobody waits for a disk that is emulated.
const ETCD_FOLDER: &str = "/run/tessera-etcd";
/// What both sides of the folder that hosts share are called.
const FOLDER: &str = "cluster";
const IMAGES: &str = "images";
/// Whose certificate commands have.
const OPERATOR: &str = "operator";
/// Cores that each host gives to VMs.
pub(super) const CORES: usize = 2;
/// Memory that each host keeps, as the agent takes it.
const KEEP_MEMORY: &str = "256M";
/// For one command; hosts may be emulated.
const LIMIT: Duration = Duration::from_secs(120);
/// For a command that waits for what it has asked for.
const WAIT_LIMIT: Duration = Duration::from_secs(3600);

/// A cluster that stands. Dropping it kills its processes, and removes their files; slices end with the lab.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    lab: &'a Lab,
    progress: &'a Progress,
    program: String,
    agents: Vec<RemoteProcess>,
    etcd: Option<RemoteProcess>,
    /// By the numbers of their hosts.
    orchestrators: Vec<Orchestrator>,
    /// What the first host calls the files of whoever asks.
    files: [String; 3],
}

/// One that may lead.
#[derive(Debug)]
struct Orchestrator {
    address: String,
    process: RemoteProcess,
}

/// Where the state of the cluster is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateIn {
    /// In a file, for one orchestrator.
    #[default]
    File,
    /// In etcd, for two.
    Etcd,
}

/// The folder that hosts share, as this machine sees it, and as they do.
fn folders(lab: &Lab) -> Result<(PathBuf, PathBuf)> {
    let first = lab.host(HostNumber::new(1)?)?;
    Ok((first.shared()?.join(FOLDER), first.shared_inside()?.join(FOLDER)))
}

/// The folder of images, as this machine sees it; with nothing in it.
pub(super) fn make_images(lab: &Lab) -> Result<PathBuf> {
    let (folder, _) = folders(lab)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let images = folder.join(IMAGES);
    fs::create_dir_all(&images).with_context(|| format!("create {}", images.display()))?;
    Ok(images)
}

/// What an agent and the cluster call a host.
pub(super) fn name(host: &Host<'_>) -> String {
    format!("h{}", host.number())
}

/// The folder of an agent. Its path has few bytes, for there are sockets below.
fn state_of(name: &str) -> String {
    format!("/run/tessera-{name}")
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let orchestrators = self.orchestrators.iter().map(|it| &it.process);
        for process in self.agents.iter().chain(orchestrators).chain(&self.etcd) {
            // What has ended needs no signal.
            drop(process.kill());
        }
        for host in self.lab.hosts() {
            // A host that is a machine takes them along.
            let state = state_of(&name(&host));
            drop(host.run(&Command::new(["rm", "-rf", &state, ETCD_FOLDER]), LIMIT));
        }
    }
}

/// The agent of a host.
fn agent(host: &Host<'_>, program: &str, inside: &Path) -> Result<RemoteProcess> {
    let (name, address) = (name(host), host.address());
    let state = state_of(&name);
    let clean = Command::new(["rm", "-rf", &state]);
    host.output(&clean, LIMIT).context("forget an agent of before")?;
    let cores: usize = host.output(&Command::new(["nproc"]), LIMIT)?.trim().parse()?;
    // Two vCPUs share the one processor of a host that is a machine. With two processors its threads wait for each other by
    // spinning, and on a machine with fewer than all hosts have together that takes the time of the others.
    let (kept, shared) =
        if cores >= CORES { (cores - CORES, 1) } else { (0, CORES.div_ceil(cores.max(1))) };
    ensure!(
        (cores - kept) * shared == CORES,
        "host {name} has {cores} cores, and {CORES} are wanted"
    );
    let file = |name: &str| text(&inside.join(name));
    let words = [
        program.to_owned(),
        "agent".to_owned(),
        format!("--name={name}"),
        format!("--state={state}"),
        format!("--images={}", file(IMAGES)?),
        format!("--checkpoints={}", file(IMAGES)?),
        format!("--listen={address}:{AGENT_PORT}"),
        format!("--certificate={}", file(&format!("{name}.pem"))?),
        format!("--key={}", file(&format!("{name}.key"))?),
        format!("--client-ca={}", file(AUTHORITY)?),
        format!("--slice-address={address}"),
        format!("--keep-cores={kept}"),
        format!("--vcpus-per-core={shared}"),
        format!("--keep-memory={KEEP_MEMORY}"),
    ];
    host.spawn(&Command::new(words))
}

/// etcd on a host, for whoever reaches that.
fn etcd(host: &Host<'_>, folder: &Path, inside: &Path) -> Result<RemoteProcess> {
    let program = "etcd";
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|it| it.is_file());
    let found = found.context("etcd is missing: install the package etcd-server")?;
    fs::copy(&found, folder.join(program)).with_context(|| format!("copy {}", found.display()))?;
    let at = format!("http://{}:{ETCD_PORT}", host.address());
    let words = [
        text(&inside.join(program))?,
        format!("--data-dir={ETCD_FOLDER}"),
        format!("--listen-client-urls={at}"),
        format!("--advertise-client-urls={at}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
    ];
    host.spawn(&Command::new(words))
}

/// An orchestrator on a host.
fn orchestrator(
    host: &Host<'_>,
    (program, store): (&str, &str),
    inside: &Path,
) -> Result<Orchestrator> {
    let file = |name: String| text(&inside.join(name));
    let address = format!("{}:{PORT}", host.address());
    let own = |end| file(format!("{}.{end}", name_of_orchestrator(host)));
    let words = [
        program.to_owned(),
        "orchestrator".to_owned(),
        format!("--store={store}"),
        format!("--name={address}"),
        format!("--listen={address}"),
        format!("--certificate={}", own("pem")?),
        format!("--key={}", own("key")?),
        format!("--client-ca={}", file(AUTHORITY.to_owned())?),
        format!("--agents-ca={}", file(AUTHORITY.to_owned())?),
        format!("--agents-certificate={}", own("pem")?),
        format!("--agents-key={}", own("key")?),
    ];
    Ok(Orchestrator { address, process: host.spawn(&Command::new(words))? })
}

fn name_of_orchestrator(host: &Host<'_>) -> String {
    format!("o{}", host.number())
}

impl<'a> Fleet<'a> {
    /// Starts all, and registers each host.
    pub(super) fn start(
        lab: &'a Lab,
        program: String,
        state: StateIn,
        progress: &'a Progress,
    ) -> Result<Self> {
        let (folder, inside) = folders(lab)?;
        let hosts: Vec<_> = lab.hosts().collect();
        let both = |host: &Host<'_>| {
            let address = host.address();
            [(name(host), address), (name_of_orchestrator(host), address)]
        };
        let mut names: Vec<_> = hosts.iter().flat_map(both).collect();
        names.push((OPERATOR.to_owned(), hosts[0].address()));
        certificates::make(&folder, &names)?;
        let agents = hosts.iter().map(|host| agent(host, &program, &inside));
        let agents = agents.collect::<Result<Vec<_>>>()?;
        let file = |name: &str| text(&inside.join(name));
        let (etcd, store, many) = match state {
            StateIn::File => (None, format!("redb:{}", file("store")?), 1),
            StateIn::Etcd => {
                let last = hosts.last().context("a host for etcd")?;
                let store = format!("etcd:http://{}:{ETCD_PORT}", last.address());
                (Some(etcd(last, &folder, &inside)?), store, 2)
            }
        };
        let orchestrators = hosts.iter().take(many);
        let orchestrators =
            orchestrators.map(|host| orchestrator(host, (&program, &store), &inside));
        let orchestrators = orchestrators.collect::<Result<Vec<_>>>()?;
        let files = [
            file(AUTHORITY)?,
            file(&format!("{OPERATOR}.pem"))?,
            file(&format!("{OPERATOR}.key"))?,
        ];
        let fleet = Self { lab, progress, program, agents, etcd, orchestrators, files };
        fleet.register()?;
        Ok(fleet)
    }

    /// Kills the one that leads, if another one may follow.
    pub(super) fn kill_leader(&mut self) -> Result<()> {
        if self.orchestrators.len() < 2 {
            return Ok(());
        }
        let status = self.json(&["cluster", "status"])?;
        let leader = status["leader"].as_str().context("who leads")?;
        let at = self.orchestrators.iter().position(|it| it.address == leader);
        let at = at.with_context(|| format!("{leader} leads, and is not known"))?;
        let killed = self.orchestrators.remove(at);
        self.progress.say(&format!("the orchestrator at {} is killed: it leads", killed.address));
        killed.process.kill()
    }

    fn register(&self) -> Result<()> {
        let until = Instant::now() + LIMIT;
        for host in self.lab.hosts() {
            let at = format!("https://{}:{AGENT_PORT}", host.address());
            let words = ["host", "register", &name(&host), &at];
            // It may not listen yet.
            while let Err(error) = self.run(&words, LIMIT) {
                ensure!(Instant::now() < until, "{error:#}; {}", self.last_words());
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        loop {
            let hosts = self.json(&["host", "list"])?;
            let up = |host: &&Value| host["state"] == "UP" && host["free"] == host["capacity"];
            let count = hosts.as_array().context("a list of hosts")?.iter().filter(up).count();
            if count == self.lab.hosts().count() {
                return Ok(());
            }
            ensure!(Instant::now() < until, "hosts are not up: {hosts}; {}", self.last_words());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn last_words(&self) -> String {
        let over = self.agents.iter().filter(|agent| agent.is_over()).count();
        let gone = self.orchestrators.iter().filter(|it| it.process.is_over()).count();
        let etcd = self.etcd.as_ref().is_some_and(RemoteProcess::is_over);
        let etcd = if etcd { ", and etcd" } else { "" };
        format!("{gone} orchestrators and {over} agents{etcd} have ended")
    }

    /// What agents and the orchestrator have said, for whoever looks why something has failed.
    pub(super) fn say_logs(&mut self) {
        let agents =
            (1..).zip(&mut self.agents).map(|(number, agent)| (format!("agent {number}"), agent));
        let orchestrators = self.orchestrators.iter_mut();
        let orchestrators =
            orchestrators.map(|it| (format!("orchestrator {}", it.address), &mut it.process));
        let etcd = self.etcd.iter_mut().map(|etcd| ("etcd".to_owned(), etcd));
        for (who, process) in agents.chain(orchestrators).chain(etcd) {
            while let Some(line) = process.next_line(Duration::ZERO) {
                println!("{who}: {}", line.text);
            }
        }
    }

    /// What a command prints, on the first host.
    fn run(&self, words: &[&str], limit: Duration) -> Result<String> {
        let addresses: Vec<&str> = self.orchestrators.iter().map(|it| &it.address[..]).collect();
        let (cluster, [ca, certificate, key]) = (addresses.join(","), &self.files);
        let place = [
            "--cluster",
            &cluster,
            "--cluster-ca",
            ca,
            "--cluster-certificate",
            certificate,
            "--cluster-key",
            key,
        ];
        let all = [&[self.program.as_str()], words, &place].concat();
        let first = self.lab.host(HostNumber::new(1)?)?;
        first.output(&Command::new(all), limit)
    }

    /// Says what an operator would do, and does it.
    pub(super) fn act(&self, words: &[&str]) -> Result<String> {
        self.progress.say(&format!("tessera {}", words.join(" ")));
        self.run(words, WAIT_LIMIT)
    }

    /// What a command says as JSON.
    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        let said = self.run(&[words, &["-o", "json"]].concat(), LIMIT)?;
        serde_json::from_str(&said).with_context(|| format!("read what `{}` says", words.join(" ")))
    }

    /// The file of a VM, in a folder that hosts see.
    pub(super) fn file(&self, name: &str, contents: &str) -> Result<String> {
        let (folder, inside) = folders(self.lab)?;
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, contents).with_context(|| format!("write {}", path.display()))?;
        text(&inside.join(format!("{name}.toml")))
    }
}
