//! A Debian system of its own on this host, which is thrown away: systemd in namespaces, over a copy on write of the host's files.
//!
//! ```text
//!   a group of its own (cgroup) --unshare: mounts, processes, network, names--> overlay over /, /dev with the devices that VMs need
//!     --pivot--> systemd, process 1 --nsenter--> commands ... --killed--> all of it is gone
//! ```
//! Nothing of the host can be changed in it: its files are the lower part of the overlay, and settings of the kernel can only be read.

use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SYSTEMD: &str = "/lib/systemd/systemd";
const NAMESPACES: [&str; 6] = ["--mount", "--pid", "--cgroup", "--net", "--ipc", "--uts"];
const LIMIT: Duration = Duration::from_secs(120);
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// `$0` is a folder for what is written, `$1` what is given to the system.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$0"
mkdir "$0/changed" "$0/work" "$0/root"
root=$0/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/changed,workdir=$0/work" "$root"
mkdir -p "$root/srv"
cp -r "$1" "$root/srv/given"
mount -t proc proc "$root/proc"
mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/net"
for device in null zero full random urandom tty kvm userfaultfd; do
    [ ! -e "/dev/$device" ] || cp -a "/dev/$device" "$root/dev/"
done
[ ! -e /dev/net/tun ] || cp -a /dev/net/tun "$root/dev/net/"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
echo h1 > "$root/etc/hostname"
echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
: > "$root/etc/fstab"
for unit in systemd-firstboot systemd-timesyncd systemd-networkd systemd-networkd-wait-online systemd-resolved systemd-logind \
    systemd-sysctl systemd-modules-load systemd-udevd systemd-random-seed networking; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=tessera PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
"#;

/// Whether this host lets such a system be made, or why not.
pub(crate) fn possible() -> Result<(), String> {
    if !geteuid().is_root() {
        return Err("a system of its own needs root".into());
    }
    if !Path::new(SYSTEMD).exists() {
        return Err(format!("there is no {SYSTEMD}"));
    }
    if groups().is_none() {
        return Err("no cgroup2 is mounted".into());
    }
    let tried = Command::new("unshare").args(NAMESPACES).args(["--fork", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("start unshare: {error}")),
    }
}

/// Where groups of processes of version 2 are.
fn groups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// It runs for as long as this is there.
pub(crate) struct System {
    unshare: Child,
    group: PathBuf,
    log: PathBuf,
    first: Pid,
}

impl System {
    /// Waits until it has booted.
    pub(crate) fn boot(folder: &Path, given: &Path) -> Self {
        let group = groups().unwrap().join(format!("tessera-try-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let (writes, log) = (folder.join("system"), folder.join("log"));
        fs::create_dir(&writes).unwrap();
        let enter = "echo $$ > \"$0/cgroup.procs\" && exec unshare \"$@\"";
        let file = File::create(&log).unwrap();
        let mut unshare = Command::new("sh")
            .args(["-c", enter])
            .arg(&group)
            .args(NAMESPACES)
            .args(["--fork", "--kill-child", "sh", "-c", BOOT])
            .args([&writes, given])
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let end = Instant::now() + LIMIT;
        let first = loop {
            if let Some(first) = only_child(unshare.id()) {
                break first;
            }
            let ended = unshare.try_wait().unwrap();
            let said = || fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "{}", said());
            sleep(Duration::from_millis(20));
        };
        let mut system = Self { unshare, group, log, first };
        while system.out(&["systemctl", "is-active", "basic.target"]) != "active\n" {
            let ended = system.unshare.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{}", system.said());
            sleep(Duration::from_millis(100));
        }
        system
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["-a", "-t", &self.first.as_raw_nonzero().to_string(), "--"]).args(words);
        command.env_clear().env("PATH", PATH).env("DEBIAN_FRONTEND", "noninteractive");
        command.env("TESSERA_CLUSTER", "unix:/run/tessera/cluster.sock");
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// What it prints, however it ends.
    pub(crate) fn out(&self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.run(words).stdout).into_owned()
    }

    /// What it prints; it must be done.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, error) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        let out = String::from_utf8_lossy(&out).into_owned();
        assert!(output.status.success(), "{words:?}: {out}{error}\n{}", self.said());
        out
    }

    pub(crate) fn append(&self, path: &str, text: &str) {
        self.ok(&["sh", "-c", "printf %s \"$1\" >> \"$0\"", path, text]);
    }

    /// Gives devices to whom rules of udev say: there is no udev.
    pub(crate) fn take_rules(&self, rules: &Path) {
        let text = fs::read_to_string(rules).unwrap();
        let rules: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(!rules.is_empty());
        for rule in rules {
            let value = |key: &str| {
                let after = rule.split(", ").find_map(|part| part.strip_prefix(key)).unwrap();
                after.trim_matches('"').to_owned()
            };
            let device = format!("/dev/{}", value("KERNEL=="));
            self.ok(&["chgrp", &value("GROUP="), &device]);
            self.ok(&["chmod", &value("MODE="), &device]);
        }
    }

    /// What has been logged, for whoever looks why it has failed.
    pub(crate) fn said(&self) -> String {
        let boot = fs::read_to_string(&self.log).unwrap_or_default();
        boot + &self.out(&["journalctl", "--no-pager", "-n", "60"])
            + &self.out(&["sh", "-c", "cat /var/lib/tessera/agent/slices/*.log"])
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // All others end with process 1.
        let _ = kill_process(self.first, Signal::KILL);
        let _ = self.unshare.wait();
        remove_group(&self.group);
    }
}

fn only_child(process: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    Pid::from_raw(children.split(' ').next()?.parse().ok()?)
}

/// Groups are removed from below.
fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    // Its last process may be about to end.
    let end = Instant::now() + Duration::from_secs(10);
    while fs::remove_dir(group).is_err() && group.exists() && Instant::now() < end {
        sleep(Duration::from_millis(20));
    }
}
