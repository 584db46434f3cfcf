//! `./x demo --cluster`: three hosts with agents and an orchestrator. A VM that no host has room for boots over two of them; another
//! one ends, and the cluster brings it together on one host by itself, while it answers requests.
//!
//! ```text
//!   agents, orchestrator ─> small VMs: one core is free on two hosts, none on the third
//!     ─> Debian with two vCPUs: an Aggregate VM over these two ─> under load ─> the small VM beside its first slice ends
//!     (of two orchestrators the one that leads is killed before that)
//!     ─> consolidated: all of it on one host ─> under load ─> deleted: all cores are free ─> table, picture
//! ```
//! All is done by the commands of an operator, and `tessera vm explain` says why at each step.

mod certificates;
mod fleet;
mod seen;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::distro::{self, Distro, HTTP_PORT};
use lab::{Lab, Mode};
use outcome::table;
use serde_json::{Value, json};

use crate::demo::panels;
use crate::distro::guest::{Guest, Place};
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::soak::migrate::check_kernel;
use crate::vm::VmOptions;
use crate::vm::arguments::COMMAND_LINE;
use crate::vm::distro::{TAP, command_line};
use crate::vm::prepare::Prepared;
use crate::vm::scenario::text;
pub use fleet::StateIn;
use fleet::{CORES, Fleet, make_images};
use seen::{Part, Seen};

/// Hosts of the cluster.
pub(super) const HOSTS: usize = 3;
/// Memory of each host in MiB, where hosts are machines.
pub(super) const HOST_MEMORY: u32 = 1536;
const VM: &str = "web";
const VM_VCPUS: u16 = 2;
/// Small VMs, and vCPUs of each.
const SMALL: [(&str, u32); 3] = [("large", 2), ("left", 1), ("right", 1)];
/// Seconds of requests between two looks.
const LOOK_SECONDS: u32 = 4;
/// Looks before something is done, and after.
const LOOKS: usize = 3;
/// For Debian to boot, and for the cluster to bring it together; hosts may be emulated.
const BOOT_LIMIT: Duration = Duration::from_secs(3600);
const TOGETHER_LIMIT: Duration = Duration::from_secs(1800);
const FREE_LIMIT: Duration = Duration::from_secs(300);
const COLUMNS: [&str; 4] = ["at s", "what", "where", "requests"];

/// What is wanted of it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Where the picture goes.
    pub svg: Option<PathBuf>,
    /// Where the state of the cluster is.
    pub state: StateIn,
}

/// What the hosts need for it.
pub(super) fn prepare(vm: &mut VmOptions) {
    vm.host_memory = vm.host_memory.max(HOST_MEMORY);
}

/// All that a step needs.
struct Show<'a> {
    lab: &'a Lab,
    distro: &'a Distro,
    fleet: Fleet<'a>,
    progress: &'a Arc<Progress>,
    interrupted: &'a Interrupted,
    began: Instant,
    seen: Vec<Seen>,
    rows: Vec<Vec<String>>,
    /// When something was asked for.
    asked: Vec<std::ops::Range<f64>>,
}

/// Leads the cluster through its story; true when all was good, and the report.
pub(super) fn run(
    wanted: &Cluster,
    prepared: &Prepared,
    lab: &Lab,
    (progress, interrupted): (&Arc<Progress>, &Interrupted),
) -> Result<(bool, Value)> {
    let distro = prepared.distro.as_ref().context("the system that was just built")?;
    let images = make_images(lab)?;
    for (from, name) in [(&prepared.vmlinux, "vmlinux"), (&prepared.initrd, "initrd")] {
        fs::copy(from, images.join(name)).with_context(|| format!("copy {}", from.display()))?;
    }
    lab::convert_to_qcow2(&distro.image, &images.join("disk.qcow2"))?;
    for host in lab.hosts() {
        host.tap(TAP, distro::HOST_ADDRESS)?;
    }
    let program = lab.folder().join("tessera");
    fs::copy(&prepared.program, &program).context("copy tessera")?;
    let fleet = Fleet::start(lab, text(&program)?, wanted.state, progress)?;
    let (began, seen, rows, asked) = (Instant::now(), Vec::new(), Vec::new(), Vec::new());
    let mut show = Show { lab, distro, fleet, progress, interrupted, began, seen, rows, asked };
    let led = show.lead();
    ensure!(!interrupted.is_set(), "interrupted");
    println!("\n{}", table::text(&COLUMNS, &show.rows, 1));
    let problems: Vec<String> = led.err().map(|error| format!("{error:#}")).into_iter().collect();
    for problem in &problems {
        println!("problem: {problem}");
        show.fleet.say_logs();
    }
    if let Some(path) = &wanted.svg {
        let title = format!("An Aggregate VM and its cluster ({})", lab.substrate());
        let end = show.seen.iter().map(|seen| seen.at).fold(1.0, f64::max);
        let svg = panels::svg(&title, &seen::panels(&show.seen), &show.asked, end)?;
        fs::write(path, svg).with_context(|| format!("write {}", path.display()))?;
        progress.say(&format!("picture: {}", path.display()));
    }
    let report = json!({
        "substrate": lab.substrate().to_string(),
        "mode": lab.mode(),
        "passed": problems.is_empty(),
        "problems": problems,
        "seconds": show.began.elapsed().as_secs_f64(),
        "columns": COLUMNS,
        "steps": show.rows,
    });
    Ok((problems.is_empty(), report))
}

impl<'a> Show<'a> {
    fn lead(&mut self) -> Result<()> {
        self.fill()?;
        let clock = clock(self.lab.mode());
        let file = self.fleet.file(VM, &file(VM, VM_VCPUS.into(), &web(clock)))?;
        self.act("apply", &["vm", "apply", "--wait", "-f", &file])?;
        let parts = self.parts()?;
        ensure!(
            parts.len() == 2,
            "no host had room for it, and it is not an Aggregate VM: {parts:?}"
        );
        self.explain()?;
        let guest = self.guest(&parts[0].host)?;
        guest.wait_for(HTTP_PORT, Instant::now() + BOOT_LIMIT, &mut || self.runs())?;
        self.progress.say(&format!("nginx answers after {:.1} s", self.now()));
        for _ in 0..LOOKS {
            self.look(&guest, "over two hosts")?;
        }
        self.fleet.kill_leader()?;
        let beside = self.beside(&parts[0].host)?;
        self.act(&format!("{beside} ends"), &["vm", "delete", &beside])?;
        let until = Instant::now() + TOGETHER_LIMIT;
        while self.parts()?.len() > 1 {
            ensure!(Instant::now() < until, "it was not consolidated: {}", self.explained()?);
            self.look(&guest, "its room is free")?;
        }
        self.explain()?;
        for _ in 0..LOOKS {
            self.look(&guest, "on one host")?;
        }
        check_kernel(&guest)?;
        guest.check_objects()?;
        guest.check_cpus()?;
        let operations = self.fleet.act(&["op", "list"])?;
        operations.lines().for_each(|line| self.progress.say(&format!("  {line}")));
        self.end()
    }

    /// One core is free on two hosts each, and none on the third.
    fn fill(&mut self) -> Result<()> {
        for (name, vcpus) in SMALL {
            let guest = format!("{SMALL_GUEST}{}", clock(self.lab.mode()));
            let file = self.fleet.file(name, &file(name, vcpus, &guest))?;
            self.act(name, &["vm", "apply", "--wait", "-f", &file])?;
            if name == "left" {
                // Else the next one would be put beside it.
                let host = self.host_of(name)?;
                self.fleet.act(&["host", "cordon", &host])?;
            }
        }
        let host = self.host_of("left")?;
        self.fleet.act(&["host", "uncordon", &host])?;
        let seen = self.see(None)?;
        let mut free: Vec<_> = seen.free.iter().map(|(_, cores)| *cores).collect();
        free.sort_unstable();
        ensure!(free == [0, 1, 1], "free cores of the hosts: {:?}", seen.free);
        Ok(())
    }

    /// All is deleted, and all cores are free again.
    fn end(&mut self) -> Result<()> {
        let vms = self.fleet.json(&["vm", "list"])?;
        let names: Vec<_> = vms.as_array().context("a list of VMs")?.iter().collect();
        for name in names.iter().filter_map(|vm| vm["name"].as_str()) {
            self.act(&format!("{name} ends"), &["vm", "delete", name])?;
        }
        let until = Instant::now() + FREE_LIMIT;
        loop {
            let seen = self.see(None)?;
            if seen.parts.is_empty() && seen.free.iter().all(|(_, cores)| *cores == CORES) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "not all cores are free again: {seen:?}");
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// The guest as the host of its first slice reaches it.
    fn guest(&self, host: &str) -> Result<Guest<'a>> {
        let place = self.lab.hosts().find(|it| fleet::name(it) == host);
        let place = place.with_context(|| format!("there is no host {host}"))?;
        Ok(Guest {
            place: Place::Host(place, distro::GUEST_ADDRESS.to_owned()),
            distro: self.distro,
            program: text(&self.lab.own_program()?)?,
            cpus: VM_VCPUS,
            progress: self.progress,
            interrupted: self.interrupted,
        })
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Has the operator do something.
    fn act(&mut self, what: &str, words: &[&str]) -> Result<()> {
        ensure!(!self.interrupted.is_set(), "interrupted");
        let from = self.now();
        self.fleet.act(words)?;
        self.asked.push(from..self.now());
        let seen = self.see(None)?;
        self.row(what, &seen, None);
        Ok(())
    }

    /// Some seconds of requests, all of which must be answered, and where all is then.
    fn look(&mut self, guest: &Guest<'_>, what: &str) -> Result<()> {
        ensure!(!self.interrupted.is_set(), "interrupted");
        self.runs()?;
        let report = guest.load(HTTP_PORT, 2, LOOK_SECONDS)?;
        let ms = |us: u64| f64::from(u32::try_from(us).unwrap_or(u32::MAX)) / 1000.0;
        let latency = (ms(report.latency_us.p50), ms(report.latency_us.p99));
        let seen = self.see(Some(latency))?;
        self.row(what, &seen, Some(report.requests));
        Ok(())
    }

    fn row(&mut self, what: &str, seen: &Seen, requests: Option<u64>) {
        let part = |part: &Part| format!("{}={}:{}", part.vm, part.host, part.vcpus);
        let parts: Vec<_> = seen.parts.iter().map(part).collect();
        let requests = requests.map_or_else(|| "-".to_owned(), |count| count.to_string());
        self.rows.push(vec![format!("{:.1}", seen.at), what.to_owned(), parts.join(" "), requests]);
    }

    fn see(&mut self, latency: Option<(f64, f64)>) -> Result<Seen> {
        let parts = seen::parts(&self.fleet.json(&["vm", "list"])?)?;
        let free = seen::free(&self.fleet.json(&["host", "list"])?)?;
        let seen = Seen { at: self.now(), parts, free, latency };
        self.seen.push(seen.clone());
        Ok(seen)
    }

    /// Where the VM is, its first slice first.
    fn parts(&self) -> Result<Vec<Part>> {
        seen::parts(&self.fleet.json(&["vm", "get", VM])?)
    }

    fn host_of(&self, vm: &str) -> Result<String> {
        let parts = seen::parts(&self.fleet.json(&["vm", "get", vm])?)?;
        Ok(parts.first().with_context(|| format!("{vm} is nowhere"))?.host.clone())
    }

    /// The small VM on this host.
    fn beside(&self, host: &str) -> Result<String> {
        let parts = seen::parts(&self.fleet.json(&["vm", "list"])?)?;
        let found = parts.into_iter().find(|part| part.host == host && part.vm != VM);
        Ok(found.with_context(|| format!("nothing but {VM} is on {host}"))?.vm)
    }

    /// An error when the VM does not run.
    fn runs(&self) -> Result<()> {
        let vm = self.fleet.json(&["vm", "get", VM])?;
        match vm[0]["state"].as_str() {
            Some("RUNNING") => Ok(()),
            state => bail!("{VM} is {}: {}", state.unwrap_or("nothing"), vm[0]["why"]),
        }
    }

    fn explained(&self) -> Result<String> {
        self.fleet.act(&["vm", "explain", VM])
    }

    fn explain(&self) -> Result<()> {
        let said = self.explained()?;
        said.lines().for_each(|line| self.progress.say(&format!("  {line}")));
        Ok(())
    }
}

/// Its initramfs stays at a prompt, and computes nothing.
const SMALL_GUEST: &str = "memory = \"256M\"\nguest.kernel = \"vmlinux\"\nguest.initrd = \"initrd\"\nguest.cmdline = \"console=ttyS0 break=top\"\n";

/// How a guest's clock goes on such hosts.
fn clock(mode: Mode) -> &'static str {
    match mode {
        Mode::Machines | Mode::Replay => "guest.clockPermille = 100\n",
        Mode::Auto | Mode::Namespaces => "",
    }
}

/// What the Debian system is. Its web servers are bound to vCPUs, so nothing else need run on the borrowed one.
fn web(clock: &str) -> String {
    format!(
        "memory = \"512M\"\nslicesMax = 2\nguest.kernel = \"vmlinux\"\nguest.initrd = \"initrd\"\n\
         guest.cmdline = \"{COMMAND_LINE} {}\"\nguest.preset = \"isolate\"\n{clock}[[spec.disks]]\nimage = \"disk.qcow2\"\nformat = \"qcow2\"\n\
         [[spec.nics]]\ntap = \"{TAP}\"\n",
        command_line()
    )
}

/// The file of a VM.
fn file(name: &str, vcpus: u32, rest: &str) -> String {
    format!(
        "apiVersion = \"tessera/v1\"\nkind = \"VirtualMachine\"\nmetadata.name = \"{name}\"\n[spec]\nvcpus = {vcpus}\n{rest}"
    )
}
