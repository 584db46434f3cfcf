//! The processes of a cluster on the hosts of a lab: an agent on each, an orchestrator on the first, and the commands that an operator
//! gives there.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Command, Host, HostNumber, Lab, RemoteProcess};
use serde_json::Value;

use super::certificates::{self, AUTHORITY};
use crate::progress::Progress;
use crate::vm::scenario::text;

/// Where the first host's commands reach the orchestrator.
const SOCKET: &str = "/run/tessera-cluster.sock";
const AGENT_PORT: u16 = 7400;
/// What both sides of the folder that hosts share are called.
const FOLDER: &str = "cluster";
const IMAGES: &str = "images";
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
    orchestrator: RemoteProcess,
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
        for process in self.agents.iter().chain([&self.orchestrator]) {
            // What has ended needs no signal.
            drop(process.kill());
        }
        for host in self.lab.hosts() {
            // A host that is a machine takes them along.
            drop(host.run(&Command::new(["rm", "-rf", &state_of(&name(&host)), SOCKET]), LIMIT));
        }
    }
}

impl<'a> Fleet<'a> {
    /// Starts all, and registers each host.
    pub(super) fn start(lab: &'a Lab, program: String, progress: &'a Progress) -> Result<Self> {
        let (folder, inside) = folders(lab)?;
        let mut names: Vec<_> = lab.hosts().map(|host| (name(&host), host.address())).collect();
        let first = lab.host(HostNumber::new(1)?)?;
        names.push(("orchestrator".to_owned(), first.address()));
        certificates::make(&folder, &names)?;
        let file = |name: String| text(&inside.join(name));
        let agents = lab.hosts().map(|host| {
            let (name, address) = (name(&host), host.address());
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
            let words = [
                program.clone(),
                "agent".to_owned(),
                format!("--name={name}"),
                format!("--state={state}"),
                format!("--images={}", file(IMAGES.to_owned())?),
                format!("--checkpoints={}", file(IMAGES.to_owned())?),
                format!("--listen={address}:{AGENT_PORT}"),
                format!("--certificate={}", file(format!("{name}.pem"))?),
                format!("--key={}", file(format!("{name}.key"))?),
                format!("--client-ca={}", file(AUTHORITY.to_owned())?),
                format!("--slice-address={address}"),
                format!("--keep-cores={kept}"),
                format!("--vcpus-per-core={shared}"),
                format!("--keep-memory={KEEP_MEMORY}"),
            ];
            host.spawn(&Command::new(words))
        });
        let agents = agents.collect::<Result<Vec<_>>>()?;
        let store = file("store".to_owned())?;
        let words = [
            program.clone(),
            "orchestrator".to_owned(),
            format!("--store=redb:{store}"),
            format!("--socket={SOCKET}"),
            format!("--agents-ca={}", file(AUTHORITY.to_owned())?),
            format!("--agents-certificate={}", file("orchestrator.pem".to_owned())?),
            format!("--agents-key={}", file("orchestrator.key".to_owned())?),
        ];
        let orchestrator = first.spawn(&Command::new(words))?;
        let fleet = Self { lab, progress, program, agents, orchestrator };
        fleet.register()?;
        Ok(fleet)
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
        let stands = if self.orchestrator.is_over() { "has ended" } else { "runs" };
        format!("the orchestrator {stands}, and {over} agents have ended")
    }

    /// What agents and the orchestrator have said, for whoever looks why something has failed.
    pub(super) fn say_logs(&mut self) {
        let agents =
            (1..).zip(&mut self.agents).map(|(number, agent)| (format!("agent {number}"), agent));
        for (who, process) in agents.chain([("orchestrator".to_owned(), &mut self.orchestrator)]) {
            while let Some(line) = process.next_line(Duration::ZERO) {
                println!("{who}: {}", line.text);
            }
        }
    }

    /// What a command prints, on the first host.
    fn run(&self, words: &[&str], limit: Duration) -> Result<String> {
        let cluster = format!("unix:{SOCKET}");
        let all = [&[self.program.as_str()], words, &["--cluster", &cluster]].concat();
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
