//! A running Debian guest seen from outside: over HTTP and ssh, from wherever its network is reached.
//! The same looks at it serve a plain QEMU machine and a VM over several hosts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::distro::{CPU_PORT, Distro, HTTP_PORT, OBJECTS};
use lab::http::{Fetched, LoadReport};
use lab::{Command, Host, Stream};

use crate::interrupt::Interrupted;
use crate::progress::Progress;

/// Between tries to reach a server that is not there yet.
const RETRY: Duration = Duration::from_secs(2);
/// For one command or fetch; a VM over emulated hosts is slow.
const STEP_LIMIT: Duration = Duration::from_secs(300);
const SSH_PORT: u16 = 22;
/// Options of ssh on a host of a lab: one login for all commands, since a slow guest computes for many
/// seconds at each.
const SHARED_LOGIN: [&str; 3] =
    ["ControlMaster=auto", "ControlPath=/tmp/tessera-ssh-%C", "ControlPersist=3600"];

/// Where the guest is reached from.
#[derive(Clone, Debug)]
pub(crate) enum Place<'a> {
    /// This machine; ports of the guest are ports of 127.0.0.1.
    Here(BTreeMap<u16, u16>),
    /// A host of a lab, which has the guest's network at a tap device.
    Host(Host<'a>, String),
}

/// A guest and the way to it.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) distro: &'a Distro,
    /// This program, as the place sees it.
    pub(crate) program: String,
    /// CPUs that the guest should have.
    pub(crate) cpus: u16,
    pub(crate) progress: &'a Progress,
    pub(crate) interrupted: &'a Interrupted,
}

impl Guest<'_> {
    fn address(&self, port: u16) -> Result<(String, u16)> {
        match &self.place {
            Place::Here(ports) => {
                let port =
                    ports.get(&port).with_context(|| format!("nothing leads to port {port}"))?;
                Ok(("127.0.0.1".to_owned(), *port))
            }
            Place::Host(_, address) => Ok((address.clone(), port)),
        }
    }

    pub(crate) fn url(&self, port: u16, object: &str) -> Result<String> {
        let (address, port) = self.address(port)?;
        Ok(format!("http://{address}:{port}/{object}"))
    }

    /// Runs a command at the place; its output, or an error with what it said.
    pub(crate) fn run(&self, words: &[String], limit: Duration) -> Result<String> {
        let (good, status, out, error) = match &self.place {
            Place::Here(_) => {
                let output = Process::new("timeout")
                    .args(["-k", "5", &limit.as_secs().max(1).to_string()])
                    .args(words)
                    .stdin(Stdio::null())
                    .output()
                    .context("start a command by timeout")?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (out, error) = (text(&output.stdout), text(&output.stderr));
                (output.status.success(), output.status.to_string(), out, error)
            }
            Place::Host(host, _) => {
                let mut process = host.spawn(&Command::new(words))?;
                let mut go_on = || {
                    ensure!(!self.interrupted.is_set(), "interrupted");
                    Ok(())
                };
                let (status, lines) = process
                    .collect_while(limit, &mut go_on)
                    .with_context(|| format!("run `{}` on host {}", words[0], host.number()))?;
                let of = |stream| {
                    let lines = lines.iter().filter(|line| line.stream == stream);
                    lines.map(|line| format!("{}\n", line.text)).collect::<String>()
                };
                (status.success(), status.to_string(), of(Stream::Out), of(Stream::Error))
            }
        };
        ensure!(good, "`{}` ended with {status}: {}{}", words[0], out.trim(), error.trim());
        Ok(out)
    }

    /// Runs a shell line in the guest as root.
    pub(crate) fn ssh(&self, line: &str) -> Result<String> {
        self.ssh_within(line, STEP_LIMIT)
    }

    /// The same with another limit.
    pub(crate) fn ssh_within(&self, line: &str, limit: Duration) -> Result<String> {
        let (address, port) = self.address(SSH_PORT)?;
        let mut words = self.distro.ssh(&address, port, line);
        if matches!(self.place, Place::Host(..)) {
            words.splice(
                1..1,
                SHARED_LOGIN.into_iter().flat_map(|option| ["-o", option]).map(str::to_owned),
            );
        }
        self.run(&words, limit).context("log in by ssh")
    }

    /// Puts a program of this machine into the guest.
    pub(crate) fn put(&self, program: &Path, to: &str) -> Result<()> {
        let (address, port) = self.address(SSH_PORT)?;
        let line = format!("cat >{to}.new && chmod 755 {to}.new && mv {to}.new {to}");
        let words = self.distro.ssh(&address, port, &line);
        let from =
            program.to_str().with_context(|| format!("{} is not UTF-8", program.display()))?;
        // The first word after the script is its $0.
        let head = ["sh", "-c", "exec \"$@\" <\"$0\"", from].map(str::to_owned);
        let all: Vec<_> = head.into_iter().chain(words).collect();
        self.run(&all, STEP_LIMIT).map(drop).with_context(|| format!("put {from} into the guest"))
    }

    /// Ends the shared login, so that the next command logs in anew.
    pub(crate) fn forget_login(&self) {
        let Ok((address, port)) = self.address(SSH_PORT) else { return };
        let mut words = self.distro.ssh(&address, port, "true");
        let options = SHARED_LOGIN.into_iter().flat_map(|option| ["-o", option]);
        words.splice(1..1, ["-O", "exit"].into_iter().chain(options).map(str::to_owned));
        // There may be none.
        drop(self.run(&words, STEP_LIMIT));
    }

    fn fetch(&self, urls: &[String]) -> Result<Vec<Fetched>> {
        let limit = STEP_LIMIT.as_secs().to_string();
        let head = [&self.program, "http", "fetch", "--limit", &limit].map(ToOwned::to_owned);
        let words: Vec<_> = head.iter().chain(urls).cloned().collect();
        let out = self.run(&words, STEP_LIMIT * u32::try_from(urls.len())?)?;
        out.lines()
            .map(|line| serde_json::from_str(line).context("read a fetch's result"))
            .collect()
    }

    /// Tries until a server answers; `alive` tells whether there is still something to wait for.
    pub(crate) fn wait_for(
        &self,
        port: u16,
        until: Instant,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let url = self.url(port, OBJECTS[0].name)?;
        let words = [&self.program, "http", "fetch", "--limit", "20", &url].map(ToOwned::to_owned);
        loop {
            let error = match self.run(&words, STEP_LIMIT) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if self.interrupted.is_set() {
                bail!("interrupted");
            }
            alive()?;
            if Instant::now() > until {
                return Err(error).context("the guest's web server does not answer");
            }
            thread::sleep(RETRY);
        }
    }

    /// Fetches every object from every server and compares.
    pub(crate) fn check_objects(&self) -> Result<()> {
        for port in [HTTP_PORT].into_iter().chain((0..self.cpus).map(|cpu| CPU_PORT + cpu)) {
            let urls = OBJECTS
                .iter()
                .map(|object| self.url(port, object.name))
                .collect::<Result<Vec<_>>>()?;
            let fetched = self.fetch(&urls)?;
            ensure!(fetched.len() == OBJECTS.len(), "{} answers", fetched.len());
            for (object, got) in OBJECTS.iter().zip(&fetched) {
                ensure!(got.status == 200, "{}: status {}", got.url, got.status);
                let right = got.bytes == object.bytes as u64 && got.sha256 == object.sha256();
                ensure!(right, "{}: {} bytes with SHA-256 {}", got.url, got.bytes, got.sha256);
            }
            let each: Vec<_> = OBJECTS
                .iter()
                .zip(&fetched)
                .map(|(object, got)| format!("{} {} ms", object.name, got.microseconds / 1000))
                .collect();
            self.progress
                .say(&format!("port {port}: all objects as they should be: {}", each.join(", ")));
        }
        Ok(())
    }

    /// A short load on one server, told but not judged.
    pub(crate) fn load(&self, port: u16, connections: usize, seconds: u32) -> Result<LoadReport> {
        let url = self.url(port, OBJECTS[0].name)?;
        let (connections, seconds) = (connections.to_string(), seconds.to_string());
        let words = [&self.program, "http", "load", "--connections", &connections].into_iter();
        let words = words.chain(["--seconds", &seconds, &url]).map(ToOwned::to_owned);
        let out = self.run(&words.collect::<Vec<_>>(), STEP_LIMIT)?;
        let report: LoadReport =
            serde_json::from_str(out.trim()).context("read a load's result")?;
        let (rate, latency) = (report.requests_per_second, report.latency_us);
        self.progress.say(&format!(
            "port {port}, {}: {rate:.1} requests/s, latency p50 {} ms, p99 {} ms, {} errors",
            OBJECTS[0].name,
            latency.p50 / 1000,
            latency.p99 / 1000,
            report.errors
        ));
        ensure!(
            report.errors == 0,
            "{} of the load's requests failed: {:?}",
            report.errors,
            report.first_error
        );
        Ok(report)
    }

    /// Runs a program on every CPU, and looks where the servers with one CPU are.
    pub(crate) fn check_cpus(&self) -> Result<()> {
        let said = self.ssh(CPUS)?;
        let found = CpuReport::read(&said)?;
        self.progress.say(&format!(
            "ssh: {} CPUs; a program ran on each of {:?}, a web server is bound to each of {:?}",
            found.online, found.ran, found.servers
        ));
        let all: Vec<_> = (0..self.cpus).collect();
        ensure!(found.online == self.cpus, "{} of {} CPUs are online", found.online, self.cpus);
        ensure!(found.ran == all, "programs ran on CPUs {:?} only", found.ran);
        ensure!(found.servers == all, "web servers are bound to CPUs {:?} only", found.servers);
        Ok(())
    }

    /// Asks systemd whether all is well, waiting for the end of the boot.
    pub(crate) fn check_system(&self) -> Result<()> {
        let said = self.ssh(
            "systemctl is-system-running --wait || true; systemctl --failed --plain --no-legend; \
                             systemd-analyze time | head -n 1; uname -r",
        )?;
        self.progress.say(&format!("ssh: {}", said.trim().replace('\n', "; ")));
        ensure!(said.lines().next() == Some("running"), "systemd says: {}", said.trim());
        Ok(())
    }

    /// Asks the guest to power off.
    pub(crate) fn power_off(&self) -> Result<()> {
        // The guest may end before ssh does.
        self.ssh("systemctl start --no-block poweroff.target").map(drop)
    }
}

/// Prints what [`CpuReport`] reads. Field 39 of `stat` is the CPU that a process ran on last
/// (proc(5)); `awk` reads its own.
const CPUS: &str = "echo online $(nproc --all); \
    for cpu in /sys/devices/system/cpu/cpu[0-9]*; do n=${cpu##*cpu}; \
    echo ran $n $(taskset -c $n awk '{print $39}' /proc/self/stat); \
    master=$(systemctl show -p MainPID --value nginx-cpu@$n); \
    for worker in $(pgrep -P $master); do \
    echo server $n $(awk '/^Cpus_allowed_list/ {print $2}' /proc/$worker/status); done; done";

/// What the guest said about its CPUs.
#[derive(Debug, Default, PartialEq, Eq)]
struct CpuReport {
    online: u16,
    /// CPUs on which a program ran that was sent there.
    ran: Vec<u16>,
    /// CPUs with a web server bound to them alone.
    servers: Vec<u16>,
}

impl CpuReport {
    fn read(said: &str) -> Result<Self> {
        let mut report = Self::default();
        for line in said.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["online", count] => report.online = count.parse().context("number of CPUs")?,
                ["ran", cpu, on] if cpu == on => report.ran.push(cpu.parse()?),
                ["server", cpu, on] if cpu == on => report.servers.push(cpu.parse()?),
                _ => {}
            }
        }
        report.ran.sort_unstable();
        report.servers.sort_unstable();
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_on_another_cpu_than_asked_does_not_count() {
        let said = "online 2\nran 0 0\nserver 0 0\nran 1 0\nserver 1 0-1\n";

        let report = CpuReport::read(said).unwrap();

        assert_eq!(report, CpuReport { online: 2, ran: vec![0], servers: vec![0] });
    }
}
