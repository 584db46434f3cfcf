//! Hosts that are network namespaces, on this machine or in one QEMU machine.
//!
//! ```text
//!   namespace PREFIX-1 ── eth0 ═ veth ═ port1 ─┐
//!   namespace PREFIX-2 ── eth0 ═ veth ═ port2 ─┴─ bridge, in the namespace PREFIX-switch
//! ```
//! The bridge has a namespace of its own, so nothing appears in the machine's network. All commands,
//! also those that build the network, go through one agent: a thread of this process, or the agent of
//! the QEMU machine.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::agent;
use crate::cache;
use crate::command::Command;
use crate::disk;
use crate::host_number::HostNumber;
use crate::hosts::{Config, HostState, Hosts, SHARED};
use crate::machine::{Kit, Machine, MachineConfig};
use crate::machines::devices;
use crate::remote::{Channel, RemoteProcess};

const SETUP_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Member {
    job: PathBuf,
    job_inside: PathBuf,
    /// As the member sees them.
    disks: Vec<PathBuf>,
    /// Copies of images that nobody wants afterwards.
    copies: Vec<PathBuf>,
    cut: AtomicBool,
    dead: AtomicBool,
}

/// N namespaces on one bridge.
#[derive(Debug)]
pub(crate) struct Namespaces {
    channel: Channel,
    prefix: String,
    members: Vec<Member>,
    /// The folder that all share, as the machine and as the members see it.
    shared: [PathBuf; 2],
    machine: Option<(Machine, Kit)>,
}

impl Namespaces {
    /// Namespaces of this machine.
    pub(crate) fn on_machine(config: &Config, folder: &Path) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
        let (near, far) = UnixStream::pair().context("make a socket pair")?;
        thread::Builder::new()
            .name("lab-agent".to_owned())
            .spawn(move || {
                let writer = far.try_clone().map(Box::new);
                if let Ok(writer) = writer {
                    // Ends with an error when the lab closes the stream in the middle of a frame.
                    drop(agent::serve(far, writer, true));
                }
            })
            .context("start the agent of the namespaces")?;
        let channel = Channel::connect("this machine", near, SETUP_LIMIT)?;
        let jobs = HostNumber::first(config.hosts).map(|host| {
            let job = folder.join(format!("host-{host}/job"));
            (job.clone(), job)
        });
        let mut members = members(jobs)?;
        for (member, host) in members.iter_mut().zip(HostNumber::first(config.hosts)) {
            // Nothing stands between a namespace and a file: it gets a copy of its own.
            for (number, disk) in config.disks_of(host).iter().enumerate() {
                let file = folder.join(format!("host-{host}/disk-{number}.img"));
                disk::copy(disk, &file)?;
                if !disk.keep {
                    member.copies.push(file.clone());
                }
                member.disks.push(file);
            }
        }
        let shared = folder.join(SHARED);
        Self::build((channel, &config.name), members, [shared.clone(), shared], None)
    }

    /// Namespaces in one QEMU machine under `-icount`.
    pub(crate) fn in_replay(config: &Config, folder: &Path, say: &dyn Fn(&str)) -> Result<Self> {
        let kit = Kit::prepare(folder, say)?;
        let machine = MachineConfig {
            number: 1,
            memory_mib: config.memory_mib,
            processors: config.processors,
            address: None,
            rdma: false,
            counted: true,
            folder: folder.to_owned(),
            // Virtual time is several times slower than the clock on the wall.
            boot_limit: config.boot_limit * 5,
            disks: config.disks.clone(),
        };
        say("booting the replay machine (its time follows the instruction count)");
        let machine = Machine::boot(&kit, &machine, say)?;
        let jobs = HostNumber::first(config.hosts).map(|host| {
            let name = format!("host-{host}");
            (machine.files.job.join(&name), Path::new("/job").join(&name))
        });
        let mut members = members(jobs)?;
        for (disk, device) in config.disks.iter().zip(devices(config.disks.len())) {
            if let Some(member) = members.get_mut(disk.host.index()) {
                member.disks.push(device);
            }
        }
        let channel = machine.channel.clone();
        let shared = [machine.files.job.join(SHARED), Path::new("/job").join(SHARED)];
        Self::build((channel, &config.name), members, shared, Some((machine, kit)))
    }

    fn build(
        (channel, name): (Channel, &str),
        members: Vec<Member>,
        shared: [PathBuf; 2],
        machine: Option<(Machine, Kit)>,
    ) -> Result<Self> {
        fs::create_dir_all(&shared[0])
            .with_context(|| format!("create {}", shared[0].display()))?;
        let namespaces = Self { channel, prefix: prefix(name), members, shared, machine };
        // From here on a failure runs `drop`, which removes what was made.
        namespaces.sweep();
        namespaces.channel.run(&Command::shell(namespaces.network()), SETUP_LIMIT)?;
        Ok(namespaces)
    }

    fn namespace(&self, host: HostNumber) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn member(&self, host: HostNumber) -> Result<&Member> {
        self.members.get(host.index()).with_context(|| format!("there is no host {host}"))
    }

    /// A shell script that builds namespaces, bridge and links.
    fn network(&self) -> String {
        let switch = format!("{}-switch", self.prefix);
        let mut script = format!(
            "set -e\nip netns add {switch}\nip -n {switch} link add bridge type bridge\n\
             ip -n {switch} link set bridge up\n"
        );
        for host in HostNumber::first(self.members.len()) {
            let (own, address) = (self.namespace(host), host.address());
            script.push_str(&format!(
                "ip netns add {own}\n\
                 ip -n {switch} link add port{host} type veth peer name eth0 netns {own}\n\
                 ip -n {switch} link set port{host} master bridge up\n\
                 ip -n {own} link set lo up\n\
                 ip -n {own} address add {address}/24 dev eth0\n\
                 ip -n {own} link set eth0 up\n"
            ));
        }
        script
    }

    /// Ends every process in the namespaces and removes them; works on a lab that is half there.
    fn sweep(&self) {
        // The agent may be gone with its machine, and the namespaces with it.
        drop(self.channel.run(&Command::shell(sweep_script(&self.prefix)), SETUP_LIMIT));
    }
}

/// Members with their job folders, as the machine and as the member sees them. The folders are made.
fn members(jobs: impl Iterator<Item = (PathBuf, PathBuf)>) -> Result<Vec<Member>> {
    jobs.map(|(job, job_inside)| {
        fs::create_dir_all(&job).with_context(|| format!("create {}", job.display()))?;
        let (cut, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Member { job, job_inside, disks: Vec::new(), copies: Vec::new(), cut, dead })
    })
    .collect()
}

/// Removes what a lab of this name left on this machine when its owner was killed.
pub(crate) fn sweep_machine(name: &str) -> Result<()> {
    let script = sweep_script(&prefix(name));
    cache::run("sh", &["-c", &script], SETUP_LIMIT).map(drop)
}

fn prefix(name: &str) -> String {
    format!("tessera-{name}")
}

fn sweep_script(prefix: &str) -> String {
    // The pattern keeps off a lab whose name only begins like this one.
    format!(
        "for path in /run/netns/{prefix}-*; do\n\
         name=${{path##*/}}\n\
         case ${{name#{prefix}-}} in\n\
         switch | [0-9] | [0-9][0-9])\n\
         ip netns pids $name | xargs -r kill -9\nip netns delete $name ;;\n\
         esac\ndone\n"
    )
}

impl Hosts for Namespaces {
    fn count(&self) -> usize {
        self.members.len()
    }

    fn spawn(&self, host: HostNumber, command: &Command) -> Result<RemoteProcess> {
        ensure!(!self.member(host)?.dead.load(Ordering::SeqCst), "host {host} was killed");
        let mut inside = command.clone();
        let enter = ["ip", "netns", "exec", &self.namespace(host)].map(str::to_owned);
        inside.arguments.splice(0..0, enter);
        self.channel.spawn(&inside)
    }

    fn cut(&self, host: HostNumber) -> Result<()> {
        let member = self.member(host)?;
        let line = format!("ip -n {}-switch link set port{host} down", self.prefix);
        self.channel.run(&Command::shell(line), SETUP_LIMIT)?;
        member.cut.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn heal(&self, host: HostNumber) -> Result<()> {
        let member = self.member(host)?;
        let line = format!("ip -n {}-switch link set port{host} up", self.prefix);
        self.channel.run(&Command::shell(line), SETUP_LIMIT)?;
        member.cut.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn kill(&self, host: HostNumber) -> Result<()> {
        let member = self.member(host)?;
        member.dead.store(true, Ordering::SeqCst);
        let line = format!(
            "ip -n {}-switch link set port{host} down\nip netns pids {} | xargs -r kill -9",
            self.prefix,
            self.namespace(host)
        );
        self.channel.run(&Command::shell(line), SETUP_LIMIT).map(drop)
    }

    fn state(&self, host: HostNumber) -> Result<HostState> {
        let member = self.member(host)?;
        let machine = self.machine.as_ref().map(|(machine, _)| machine);
        Ok(HostState {
            number: host,
            address: host.address(),
            alive: self.channel.is_alive() && !member.dead.load(Ordering::SeqCst),
            cut: member.cut.load(Ordering::SeqCst),
            process: machine.map(|machine| machine.process),
            job: member.job.clone(),
            job_inside: member.job_inside.clone(),
            shared: self.shared[0].clone(),
            shared_inside: self.shared[1].clone(),
            console: machine.map(|machine| machine.files.console.clone()),
            disks: member.disks.clone(),
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if self.machine.is_none() {
            self.sweep();
        }
        for copy in self.members.iter().flat_map(|member| &member.copies) {
            // The next lab of this name removes what is left of this one.
            drop(fs::remove_file(copy));
        }
        self.channel.close();
    }
}
