//! `./x lab`: hosts for a person to use.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use lab::{Command, Config, Disk, HostNumber, LabState, Mode, Stream, daemon};
use outcome::table;
use scenarios::links::rdma::{self, RdmaOptions};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};
use signal_hook::iterator::Signals;

use crate::workspace;

#[derive(Subcommand)]
pub(crate) enum LabVerb {
    /// Bring hosts up and wait until all of them answer
    Up(UpOptions),
    /// Run a command in a host; its output streams, its exit code comes back, ctrl-c ends it
    Exec(ExecOptions),
    /// Cut a host off from the network
    Cut(HostOptions),
    /// Connect a host again
    Heal(HostOptions),
    /// End a host as a power cut would
    Kill(HostOptions),
    /// Run the transport's conformance tests over RDMA (soft-RoCE) in a host of their own
    Rdma(RdmaOptions),
    /// Say which hosts there are
    Status(NameOptions),
    /// End the lab and everything in it
    Down(NameOptions),
    /// Say where the guest kernel's files are
    Kernel,
    /// Build the guest's initramfs and say where it is
    Image,
}

#[derive(Args)]
pub(crate) struct NameOptions {
    /// Name of the lab; labs of different names stand side by side
    #[arg(long, default_value = "default", env = "TESSERA_LAB")]
    name: String,
}

#[derive(Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    name: NameOptions,
    /// Number of hosts
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Memory of each host in MiB (where hosts are machines)
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// Processors of each host (where hosts are machines; more than 1 is less stable)
    #[arg(long, default_value_t = 1)]
    smp: u32,
    /// How hosts are made
    #[arg(long, value_enum, default_value_t = ModeName::Auto)]
    mode: ModeName,
    /// Give every host an RDMA device (soft-RoCE)
    #[arg(long)]
    rdma: bool,
    /// End the lab when nobody uses it for this many minutes
    #[arg(long, default_value_t = daemon::DEFAULT_IDLE.as_secs() / 60)]
    idle: u64,
    /// A disk of a host as HOST:IMAGE; the image is never written to. With `,speed=4` it moves 4 MB/s at most,
    /// with `,keep` what the host writes is kept in a qcow2 file in the lab's folder
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<Disk>,
    /// How many seconds a host may take to boot
    #[arg(long, default_value_t = 180)]
    boot_limit: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    /// Namespaces where the processor has VMX or SVM, QEMU machines elsewhere
    Auto,
    /// A QEMU machine for each host
    Machines,
    /// Namespaces in one QEMU machine under -icount
    Replay,
    /// Namespaces of this machine
    Namespaces,
}

#[derive(Args)]
pub(crate) struct HostOptions {
    #[command(flatten)]
    name: NameOptions,
    /// Number of the host
    host: HostNumber,
}

#[derive(Args)]
pub(crate) struct ExecOptions {
    #[command(flatten)]
    name: NameOptions,
    /// Number of the host
    host: HostNumber,
    /// Environment variables to add, NAME=VALUE
    #[arg(long = "env", short = 'e', value_parser = parse_variable)]
    variables: Vec<(String, String)>,
    /// Working folder in the host
    #[arg(long = "folder", short = 'C')]
    folder: Option<String>,
    /// Program and arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl UpOptions {
    fn config(&self) -> Config {
        Config {
            name: self.name.name.clone(),
            hosts: self.hosts,
            memory_mib: self.memory,
            processors: self.smp,
            mode: match self.mode {
                ModeName::Auto => Mode::Auto,
                ModeName::Machines => Mode::Machines,
                ModeName::Replay => Mode::Replay,
                ModeName::Namespaces => Mode::Namespaces,
            },
            rdma: self.rdma,
            boot_limit: Duration::from_secs(self.boot_limit),
            disks: self.disks.clone(),
        }
    }

    /// The command line of a daemon with these options.
    fn arguments(&self) -> Vec<String> {
        let mode = self.mode.to_possible_value().map(|value| value.get_name().to_owned());
        let options = [
            ("--name", self.name.name.clone()),
            ("--hosts", self.hosts.to_string()),
            ("--memory", self.memory.to_string()),
            ("--smp", self.smp.to_string()),
            ("--mode", mode.unwrap_or_default()),
            ("--idle", self.idle.to_string()),
            ("--boot-limit", self.boot_limit.to_string()),
        ];
        let disks = self.disks.iter().map(|disk| ("--disk", disk.to_string()));
        let options =
            options.into_iter().chain(disks).flat_map(|(name, value)| [name.to_owned(), value]);
        let rdma = self.rdma.then(|| "--rdma".to_owned());
        ["lab-daemon".to_owned()].into_iter().chain(options).chain(rdma).collect()
    }
}

pub(crate) fn run(verb: LabVerb) -> Result<ExitCode> {
    match verb {
        LabVerb::Up(options) => up(&options)?,
        LabVerb::Exec(options) => return exec(options),
        LabVerb::Rdma(options) => return rdma::run(&options),
        LabVerb::Cut(options) => daemon::cut(&options.name.name, options.host)?,
        LabVerb::Heal(options) => daemon::heal(&options.name.name, options.host)?,
        LabVerb::Kill(options) => daemon::kill(&options.name.name, options.host)?,
        LabVerb::Status(options) => print_state(&options.name, &daemon::status(&options.name)?)?,
        LabVerb::Down(options) => {
            let was_up = daemon::down(&options.name)?;
            let name = options.name;
            println!(
                "{}",
                if was_up {
                    format!("lab '{name}' ended")
                } else {
                    format!("no lab '{name}' was up")
                }
            );
        }
        LabVerb::Image => {
            let kernel = lab::guest_kernel(&|line| eprintln!("lab: {line}"))?;
            println!("{}", lab::guest_image(&workspace::root()?, &kernel)?.path.display());
        }
        LabVerb::Kernel => {
            let kernel = lab::guest_kernel(&|line| eprintln!("lab: {line}"))?;
            let modules = format!("{}/lib/modules/{}", kernel.root.display(), kernel.version);
            let rows = [
                ("version", kernel.version),
                ("vmlinuz", kernel.vmlinuz.display().to_string()),
                ("vmlinux", kernel.vmlinux.display().to_string()),
                ("config", kernel.config.display().to_string()),
                ("System.map", kernel.system_map.display().to_string()),
                ("modules", modules),
            ];
            print!("{}", table::text(&[], &rows.map(|(name, is)| vec![name.to_owned(), is]), 2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(options: &UpOptions) -> Result<()> {
    println!("lab: substrate {}", lab::substrate());
    let name = &options.name.name;
    let state = daemon::start(name, &options.arguments(), &|line| println!("lab: {line}"))?;
    print_state(name, &state)?;
    println!(
        "`./x lab down{}` ends it; unused for {} minutes it ends itself",
        if name == "default" { String::new() } else { format!(" --name {name}") },
        options.idle
    );
    Ok(())
}

fn print_state(name: &str, state: &LabState) -> Result<()> {
    println!("lab '{name}' on {}, logs in {}", state.substrate, daemon::folder(name)?.display());
    for host in &state.hosts {
        let process =
            host.process.map_or_else(String::new, |process| format!(", process {process}"));
        let health = match (host.alive, host.cut) {
            (false, _) => "dead",
            (true, true) => "cut off",
            (true, false) => "up",
        };
        println!("host {}: {}, {health}{process}", host.number, host.address);
        for (name, folder, inside) in [
            ("job folder", &host.job, &host.job_inside),
            ("folder of all hosts", &host.shared, &host.shared_inside),
        ] {
            println!("  {name} {} is {} inside", folder.display(), inside.display());
        }
    }
    Ok(())
}

fn exec(options: ExecOptions) -> Result<ExitCode> {
    let command = Command {
        arguments: options.command,
        environment: options.variables,
        folder: options.folder,
    };
    let mut exec = daemon::exec(&options.name.name, options.host, &command)?;
    let mut handle = exec.handle()?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    thread::spawn(move || {
        for (count, _) in signals.forever().enumerate() {
            // The first asks the command to end, the next ends it.
            let number = if count == 0 { SIGTERM } else { SIGKILL };
            if handle.signal(number).is_err() {
                return;
            }
        }
    });
    let status = exec.stream(|from, bytes| {
        // A closed pipe at our own output is no reason to leave the command without its end.
        drop(match from {
            Stream::Out => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
            Stream::Error => io::stderr().write_all(bytes),
        });
    })?;
    Ok(ExitCode::from(u8::try_from(status.shell_code() & 0xff).unwrap_or(u8::MAX)))
}

/// Is the background process of `lab up`. What goes wrong is in its log, where `up` reads it.
pub(crate) fn daemon(options: &UpOptions) -> ExitCode {
    match daemon::run(&options.config(), Duration::from_secs(options.idle * 60)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
