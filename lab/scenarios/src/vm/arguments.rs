//! The command line of the slice that starts the guest.

use anyhow::{Context, Result};
use lab::{Host, Mode};

use super::companion::PORT;
use super::distro;
use super::options::VmOptions;
use super::prepare::Prepared;
use super::scenario::{REPORT, Scenario, inside, text};

/// Rate of the guest's clock on emulated machines, where a page fault costs some ten times more of the
/// guest's time than on real ones.
const EMULATED_CLOCK_RATE: &str = "0.1";
/// Base of the guest's command line; tessera adds what its machine needs.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off \
                            cryptomgr.notests 8250.nr_uarts=1";

impl Scenario<'_> {
    /// Words of `tessera bootstrap`, as its host sees what they name.
    pub(super) fn arguments(&self, first: &Host<'_>) -> Result<Vec<String>> {
        let share = self.share();
        let mut words = self.role("bootstrap")?;
        words.extend(self.options.supervise.iter().flatten().cloned());
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--secret-file", inside(first, "vm.key")?);
        if let Some(checkpoint) = &self.options.restore {
            option("--restore", checkpoint.clone());
        } else {
            let Prepared { vmlinuz, vmlinux, .. } = self.prepared;
            option("--kernel", text(if self.options.bzimage { vmlinuz } else { vmlinux })?);
            option("--initrd", text(&self.prepared.initrd)?);
            option("--cmdline", self.command_line());
            if let Some(preset) = &self.options.guest_preset {
                option("--guest-preset", preset.clone());
            }
            if let Some(rate) = self.clock_rate() {
                option("--guest-clock-rate", rate);
            }
        }
        let with_memory = self.layout.slices() - self.options.device_slices;
        for ((slice, host), vcpus) in self.hosts().iter().enumerate().zip(self.layout.vcpus()) {
            let share = if slice >= with_memory { 0 } else { share };
            let place = match slice {
                0 => "local".to_owned(),
                _ => format!("{}:{PORT}", host.address()),
            };
            let most = match self.options.spare {
                0 => String::new(),
                spare => format!(",max-cpus={}", vcpus + spare),
            };
            option("--slice", format!("{place},cpus={vcpus}{most},memory={share}M"));
        }
        option("--limit", self.options.timeout().to_string());
        option("--report", inside(first, REPORT)?);
        if !self.options.bootstrap.iter().any(|word| word.starts_with("--control")) {
            option("--control", self.control(first.number()));
        }
        if let Some(interrupts) = self.interrupts {
            option("--interrupts", interrupts.name().to_owned());
        }
        if let Some(kind) = &self.options.page_tables {
            option("--page-tables", kind.clone());
        }
        if let Some(list) = &self.options.transport {
            option("--transport", list.clone());
        }
        if self.prepared.distro.is_some() {
            let (slice, host) = self.with_devices()?;
            words.extend(distro::devices(&host, slice, self.options.system_disk.as_deref())?);
        }
        words.extend(self.options.bootstrap.iter().cloned());
        Ok(words)
    }

    /// The program, in one of its roles, with a supervisor if it is to have one.
    pub(super) fn role(&self, name: &str) -> Result<Vec<String>> {
        let mut words = vec![self.program()?];
        words.extend(self.options.supervise.as_ref().map(|_| "supervise".to_owned()));
        words.push(name.to_owned());
        Ok(words)
    }

    fn clock_rate(&self) -> Option<String> {
        let emulated = self.lab.mode() == Mode::Machines;
        let default = emulated.then(|| EMULATED_CLOCK_RATE.to_owned());
        self.options.guest_clock_rate.clone().or(default)
    }

    /// Seconds of the guest's clock for each second.
    pub(crate) fn guest_clock(&self) -> Result<f64> {
        let Some(rate) = self.clock_rate() else { return Ok(1.0) };
        let clock = rate.parse().ok().filter(|clock| (0.001..=1000.0).contains(clock));
        clock.with_context(|| format!("--guest-clock-rate {rate} is no rate"))
    }

    fn command_line(&self) -> String {
        let VmOptions { tests, rounds, stress, cmdline, .. } = self.options;
        if self.prepared.distro.is_some() {
            let line = format!("{COMMAND_LINE} {} {cmdline}", distro::command_line());
            return line.trim_end().to_owned();
        }
        let tests = tests.as_deref().unwrap_or("all");
        let mut line = format!("{COMMAND_LINE} tessera.tests={tests} tessera.rounds={rounds}");
        if let Some(stress) = stress {
            line.push_str(&format!(" tessera.stress={stress}"));
        }
        format!("{line} {cmdline}").trim_end().to_owned()
    }
}
