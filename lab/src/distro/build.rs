//! Builds the system: mmdebstrap installs the packages into a folder, `inside.sh` sets it up, mke2fs
//! makes a disk out of the folder. Nothing is mounted on the machine but by mmdebstrap in a mount
//! namespace of its own, and nothing of a build that failed stays.

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::recipe::System;
use super::{Distro, objects};
use crate::{cache, kernel, packages};

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const IMAGE_LIMIT: Duration = Duration::from_secs(600);
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// How often somebody who waits is told how far it is.
const TELL: Duration = Duration::from_secs(15);
/// Lines of mmdebstrap's log that an error shows.
const TAIL: usize = 12;
/// What mmdebstrap says at the start of each of its steps.
const STEP: &str = "I: ";

/// Builds into a folder beside `folder` and puts it in place when everything is there.
pub(super) fn build(system: System, root: &Path, folder: &Path, say: &dyn Fn(&str)) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the root file system has files of several users: build it as root (`sudo ./x distro build`)"
    );
    for (program, package) in
        [("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs"), ("ssh-keygen", "openssh-client")]
    {
        let found = cache::run("sh", &["-c", &format!("command -v {program}")], SHORT_LIMIT);
        ensure!(found.is_ok(), "{program} is missing; install the package {package}");
    }
    let start = Instant::now();
    say("building the guest's Debian root file system (once for each recipe, some minutes)");
    let work = root.join("new");
    cache::remove_folder(&work)?;
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    let built = steps(system, &work, say);
    if built.is_err() {
        // The log is what the person needs; the half-made system is not.
        drop(cache::remove_folder(&work.join("root")));
    }
    built?;
    cache::remove_folder(&work.join("root"))?;
    fs::rename(&work, folder).with_context(|| format!("put {} in place", folder.display()))?;
    say(&format!("built {} in {} s", folder.display(), start.elapsed().as_secs()));
    Ok(())
}

fn steps(system: System, work: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let files = Distro::in_folder(work);
    let key = packages::text(&files.key)?;
    cache::run(
        "ssh-keygen",
        &["-q", "-t", "ed25519", "-N", "", "-C", "tessera", "-f", key],
        SHORT_LIMIT,
    )?;
    let root = work.join("root");
    install(system, work, &root, say)?;
    say("writing the disk image");
    let (from, image) = (packages::text(&root)?, packages::text(&files.image)?);
    cache::run("mke2fs", &system.image_arguments(from, image), IMAGE_LIMIT)?;
    let boot = root.join("boot");
    copy_only(&boot, "vmlinuz-", &files.vmlinuz)?;
    copy_only(&boot, "initrd.img-", &files.initrd)?;
    let packed = fs::read(&files.vmlinuz).context("read the kernel")?;
    let elf = kernel::elf_kernel(&packed).context("take the ELF kernel out of the bzImage")?;
    fs::write(&files.vmlinux, elf).context("write the ELF kernel")?;
    let own = root.join("etc/ssh/ssh_host_ed25519_key.pub");
    let own = fs::read_to_string(&own).with_context(|| format!("read {}", own.display()))?;
    fs::write(&files.known_hosts, format!("tessera {}\n", own.trim())).context("write known_hosts")
}

/// Copies the only file of a folder whose name begins like this.
fn copy_only(folder: &Path, prefix: &str, to: &Path) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    let [file] = found.as_slice() else {
        bail!(
            "{} files are called {prefix}* in {}; one was expected",
            found.len(),
            folder.display()
        );
    };
    fs::copy(file, to).with_context(|| format!("copy {}", file.display())).map(drop)
}

/// Runs mmdebstrap into `root`.
fn install(system: System, work: &Path, root: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let given = work.join("given");
    objects::write(&given.join("www"))?;
    for (at, text) in system.scripts().iter().enumerate() {
        let script = given.join(script(at));
        fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
    }
    fs::copy(work.join("id_ed25519.pub"), given.join("id_ed25519.pub")).context("copy the key")?;
    let sources = packages::guest_sources()?;
    let mut arguments = system.arguments(&sources.backports);
    // The cache may be readable by its owner only; apt's own user could not read there.
    arguments.push("--aptopt=APT::Sandbox::User \"root\"".to_owned());
    arguments.push("--mode=root".to_owned());
    let given = packages::text(&given)?;
    let mut hooks = vec![
        "mkdir -p \"$1/tmp/tessera\"".to_owned(),
        format!("copy-in {given}/id_ed25519.pub /tmp/tessera"),
        format!("sync-in {given}/www /var/www"),
    ];
    for script in (0..system.scripts().len()).map(script) {
        hooks.push(format!("copy-in {given}/{script} /tmp/tessera"));
        hooks.push(format!("chroot \"$1\" sh /tmp/tessera/{script}"));
    }
    hooks.push("rm -rf \"$1/tmp/tessera\"".to_owned());
    arguments.extend(hooks.into_iter().map(|hook| format!("--customize-hook={hook}")));
    arguments.extend([sources.codename, packages::text(root)?.to_owned()]);
    arguments.extend(sources.lines);
    watch(&arguments, &work.join("mmdebstrap.log"), say)?;
    cache::remove_folder(Path::new(given))
}

/// Name of a script's file.
fn script(at: usize) -> String {
    format!("setup-{at}.sh")
}

/// Runs mmdebstrap to its end and says now and then which step it is at.
fn watch(arguments: &[String], log: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let file = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
    let mut child = Process::new("timeout")
        .args(["-k", "30", &BUILD_LIMIT.as_secs().to_string(), "mmdebstrap"])
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("share the log")?)
        .stderr(file)
        .spawn()
        .context("start mmdebstrap")?;
    let (start, mut told, mut last) = (Instant::now(), Instant::now(), String::new());
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for mmdebstrap")? {
            break status;
        }
        let text = fs::read_to_string(log).unwrap_or_default();
        let step = text.lines().rev().find_map(|line| line.strip_prefix(STEP)).unwrap_or("");
        if step != last || told.elapsed() > TELL {
            let seconds = start.elapsed().as_secs();
            say(&format!(
                "mmdebstrap, {seconds} s: {}",
                step.chars().take(100).collect::<String>()
            ));
            told = Instant::now();
            step.clone_into(&mut last);
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
    let why = if status.code() == Some(124) { "took too long" } else { "failed" };
    bail!(
        "mmdebstrap {why} ({status}); is the package archive reachable and `apt-get update` fresh? Its \
         log is {}; it ends with\n  {tail}",
        log.display()
    )
}
