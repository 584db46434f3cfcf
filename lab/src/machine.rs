//! One QEMU machine: start it, wait for its agent, end it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Sender, bounded};

use crate::agent::PORT_NAME;
use crate::disk::{self, Disk};
use crate::hosts::{PROGRAM, SHARED};
use crate::initrd;
use crate::kernel::KernelFiles;
use crate::packages::{self, Packages};
use crate::remote::Channel;
use crate::switch;

/// How long QEMU may take to connect to the agent's socket.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Name of the soft-RoCE device of a host.
const RDMA_DEVICE: &str = "rxe0";
/// Lines of a log that an error shows.
const TAIL: usize = 5;

/// What all machines of a lab have in common.
#[derive(Debug)]
pub(crate) struct Kit {
    packages: Packages,
    kernel: KernelFiles,
    initrd: PathBuf,
    agent: PathBuf,
    keeper: Keeper,
}

/// How one machine is made.
#[derive(Clone, Debug)]
pub(crate) struct MachineConfig {
    /// Number of the host, counted from 1.
    pub(crate) number: usize,
    pub(crate) memory_mib: u32,
    pub(crate) processors: u32,
    /// Address with prefix length, and a port of the switch; none for a machine without network.
    pub(crate) address: Option<String>,
    /// Add a soft-RoCE device to its network device.
    pub(crate) rdma: bool,
    /// Let virtual time follow the instruction count.
    pub(crate) counted: bool,
    /// The lab's folder: sockets are here, files of the machine in `host-N/`.
    pub(crate) folder: PathBuf,
    pub(crate) boot_limit: Duration,
    pub(crate) disks: Vec<Disk>,
}

/// A machine that runs.
#[derive(Debug)]
pub(crate) struct Machine {
    child: Mutex<Child>,
    pub(crate) process: u32,
    pub(crate) channel: Channel,
    pub(crate) files: Files,
}

/// Files of one machine.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// Shared with the host, where it is `/job`.
    pub(crate) job: PathBuf,
    /// Shared with all hosts, where it is `/shared`.
    pub(crate) shared: PathBuf,
    /// What the host's kernel printed.
    pub(crate) console: PathBuf,
    /// What QEMU printed.
    pub(crate) log: PathBuf,
}

impl Files {
    fn of(folder: &Path, number: usize) -> Self {
        let own = folder.join(format!("host-{number}"));
        let job = own.join("job");
        let shared = folder.join(SHARED);
        Self { job, shared, console: own.join("console.log"), log: own.join("qemu.log") }
    }
}

impl Kit {
    /// Gets everything ready; the agent is a copy of the running program, so that a rebuild of it
    /// does not pull the file away under the hosts.
    pub(crate) fn prepare(folder: &Path, say: &dyn Fn(&str)) -> Result<Self> {
        let packages = packages::prepare(say)?;
        let kernel = KernelFiles::in_package(&packages.host_kernel)?;
        let initrd = initrd::host_initrd(&kernel)?;
        let agent = folder.join(PROGRAM);
        let own = std::env::current_exe().context("find the running program")?;
        fs::copy(&own, &agent).with_context(|| format!("copy {}", own.display()))?;
        Ok(Self { packages, kernel, initrd, agent, keeper: Keeper::start()? })
    }

    fn process(&self, config: &MachineConfig, files: &Files, agent: &Path) -> Result<Process> {
        let mut process = qemu(&self.packages);
        if config.counted {
            process.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
        } else {
            process.args(["-accel", "tcg,thread=multi"]);
        }
        process.args(["-cpu", "EPYC,+svm,+npt,+invtsc", "-machine", "q35"]);
        process.args(["-m", &config.memory_mib.to_string()]);
        process.args(["-smp", &config.processors.to_string()]);
        process.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        process.arg("-serial").arg(format!("file:{}", packages::text(&files.console)?));
        process.arg("-kernel").arg(&self.kernel.vmlinuz).arg("-initrd").arg(&self.initrd);
        for (name, path, options) in [
            ("root", Path::new("/"), ",readonly=on"),
            ("live", Path::new("/"), ",readonly=on"),
            ("job", files.job.as_path(), ""),
            ("shared", files.shared.as_path(), ""),
        ] {
            let path = packages::text(path)?;
            let share =
                format!("local,id={name},path={path},security_model=none,multidevs=remap{options}");
            process.arg("-fsdev").arg(share);
            process.arg("-device").arg(format!("virtio-9p-pci,fsdev={name},mount_tag={name}"));
        }
        process.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        process.arg("-chardev").arg(format!("socket,id=agent,path={}", packages::text(agent)?));
        process.arg("-device").arg(format!("virtserialport,chardev=agent,name={PORT_NAME}"));
        if config.address.is_some() {
            network(&mut process, config)?;
        }
        disks(&mut process, config, files)?;
        process.arg("-append").arg(self.command_line(config)?);
        let log =
            File::create(&files.log).with_context(|| format!("create {}", files.log.display()))?;
        process.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(process)
    }

    fn command_line(&self, config: &MachineConfig) -> Result<String> {
        // tsc=reliable and clocksource=tsc: on a host whose TSC it distrusts, KVM moves the guest's TSC.
        let mut line = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off tsc=reliable \
                        clocksource=tsc"
            .to_owned();
        let own = [
            ("host", config.number.to_string()),
            ("kernel", packages::text(&self.kernel.root)?.to_owned()),
            ("agent", packages::text(&self.agent)?.to_owned()),
            ("address", config.address.clone().unwrap_or_default()),
            ("disks", config.disks.len().to_string()),
            ("rdma", if config.rdma { RDMA_DEVICE } else { "" }.to_owned()),
        ];
        for (name, value) in own {
            if value.contains(char::is_whitespace) {
                bail!("'{value}' has a space, which a kernel command line cannot carry");
            }
            line.push_str(&format!(" tessera.{name}={value}"));
        }
        Ok(line)
    }
}

/// A QEMU out of the packages, without machine options. It ends with the thread that starts it.
pub(crate) fn qemu(packages: &Packages) -> Process {
    let mut process = Process::new("setpriv");
    process.args(["--pdeathsig", "KILL", "--"]);
    process.arg(packages.qemu.join("usr/bin/qemu-system-x86_64"));
    for folder in ["usr/share/qemu", "usr/share/seabios"] {
        process.arg("-L").arg(packages.qemu.join(folder));
    }
    // Firmware that the newer packages do not carry comes from the machine's own.
    process.args(["-L", "/usr/share/qemu", "-L", "/usr/share/seabios"]);
    process
}

/// The value of `-drive` for a file. With `snapshot` nothing is written to the file.
pub(crate) fn drive(id: &str, file: &str, format: &str, snapshot: bool) -> Result<String> {
    if file.contains(',') {
        bail!("'{file}' has a comma, which an option of QEMU cannot carry");
    }
    let snapshot = if snapshot { "on" } else { "off" };
    Ok(format!(
        "file={file},format={format},if=none,id={id},snapshot={snapshot},discard=unmap,aio=threads"
    ))
}

fn disks(process: &mut Process, config: &MachineConfig, files: &Files) -> Result<()> {
    let folder = files.job.parent().context("folder of a host")?;
    // Where QEMU puts what a snapshot has written: not into memory.
    process.env("TMPDIR", folder);
    for (number, disk) in config.disks.iter().enumerate() {
        let disk::Backing { file, format, snapshot } = disk::for_machine(disk, folder, number)?;
        let id = format!("disk-{number}");
        let mut words = drive(&id, packages::text(&file)?, format, snapshot)?;
        if let Some(speed) = disk.speed {
            write!(words, ",throttling.bps-total={}", u64::from(speed) * 1_000_000)?;
        }
        process.arg("-drive").arg(words);
        process.arg("-device").arg(format!("virtio-blk-pci,drive={id},serial={id}"));
    }
    Ok(())
}

fn network(process: &mut Process, config: &MachineConfig) -> Result<()> {
    let port = config.number - 1;
    let (own, peer) = switch::socket_paths(&config.folder, port);
    process.arg("-netdev").arg(format!(
        "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        packages::text(&own)?,
        packages::text(&peer)?
    ));
    let mac = switch::mac(port);
    process.arg("-device").arg(format!("virtio-net-pci,netdev=net,mac={mac},romfile="));
    Ok(())
}

impl Machine {
    /// Boots a machine and waits for its agent; one that fails is tried once more, because an emulated
    /// boot hangs once in a hundred on a busy machine.
    pub(crate) fn boot(kit: &Kit, config: &MachineConfig, say: &dyn Fn(&str)) -> Result<Self> {
        match Self::try_boot(kit, config) {
            Ok(machine) => Ok(machine),
            Err(error) => {
                say(&format!("host {}: {error:#}; trying once more", config.number));
                Self::try_boot(kit, config)
            }
        }
    }

    fn try_boot(kit: &Kit, config: &MachineConfig) -> Result<Self> {
        let files = Files::of(&config.folder, config.number);
        for folder in [&files.job, &files.shared] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let socket = config.folder.join(format!("host-{}-agent.sock", config.number));
        for path in [&socket, &switch::socket_paths(&config.folder, config.number - 1).0] {
            // A leftover of a machine that was killed; usually there is none.
            drop(fs::remove_file(path));
        }
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
        let mut child = kit.keeper.spawn(kit.process(config, &files, &socket)?)?;
        let connected = accept(&listener, &mut child).and_then(|stream| {
            Channel::connect(&format!("host {}", config.number), stream, config.boot_limit)
        });
        drop(fs::remove_file(&socket));
        match connected {
            Ok(channel) => {
                Ok(Self { process: child.id(), child: Mutex::new(child), channel, files })
            }
            Err(error) => {
                end(&mut child);
                let advice = format!(
                    "host {} did not start; read {} (its console) and {} (QEMU){}",
                    config.number,
                    files.console.display(),
                    files.log.display(),
                    tails(&files)
                );
                Err(anyhow!("{error:#}; {advice}"))
            }
        }
    }

    /// Ends the machine as a power cut would.
    pub(crate) fn kill(&self) {
        end(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// False once QEMU has ended or the agent is gone.
    pub(crate) fn is_alive(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(child.try_wait(), Ok(None)) && self.channel.is_alive()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end(child: &mut Child) {
    // Both fail only for a process that is gone already.
    drop(child.kill());
    drop(child.wait());
}

fn accept(listener: &UnixListener, child: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true).context("prepare the agent socket")?;
    let until = Instant::now() + CONNECT_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("prepare the agent stream")?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("accept QEMU's connection"),
        }
        if let Some(status) = child.try_wait().context("look after QEMU")? {
            bail!("QEMU ended with {status}");
        }
        if Instant::now() > until {
            bail!("QEMU did not connect within {CONNECT_LIMIT:?}");
        }
        thread::sleep(POLL);
    }
}

/// The last lines of both logs, for an error message.
fn tails(files: &Files) -> String {
    let mut text = String::new();
    for (name, path) in [("console", &files.console), ("QEMU", &files.log)] {
        let content = fs::read(path).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        // QEMU always warns about the parts of the processor model that it does not emulate.
        let telling =
            |line: &&str| !line.trim().is_empty() && !line.contains("TCG doesn't support");
        let lines: Vec<_> = content.lines().filter(telling).collect();
        for line in &lines[lines.len().saturating_sub(TAIL)..] {
            text.push_str(&format!("\n  {name}: {}", line.trim()));
        }
    }
    text
}

type Request = (Process, Sender<io::Result<Child>>);

/// Starts processes from one thread that lives as long as the lab: a parent-death signal is sent when
/// the *thread* that started the process ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    requests: Sender<Request>,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self> {
        let (requests, received) = bounded::<Request>(16);
        thread::Builder::new()
            .name("lab-keeper".to_owned())
            .spawn(move || {
                for (mut process, reply) in received {
                    // The asker waits for the answer, so it is there.
                    drop(reply.send(process.spawn()));
                }
            })
            .context("start the keeper of the lab's processes")?;
        Ok(Self { requests })
    }

    pub(crate) fn spawn(&self, process: Process) -> Result<Child> {
        let (reply, answer) = bounded(1);
        self.requests.send((process, reply)).map_err(|_| anyhow!("the lab is ending"))?;
        answer.recv().context("the lab is ending")?.context("start QEMU by setpriv")
    }
}

/// Everything a lab may leave in its folder that is no log: removed when it ends.
pub(crate) fn remove_sockets(folder: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}
