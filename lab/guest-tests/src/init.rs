//! Life as pid 1: mounts, console, the tests, and the end of the machine.
//!
//! std needs descriptors 0 to 2, or a /dev/null, before `main`. The kernel opens /dev/console for
//! its init, and its built-in root file system always has that node.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

use crate::config::{After, Config};
use crate::sys::{self, Forked};
use crate::{report, run_all};

/// Runs everything and ends the machine; never returns.
pub(crate) fn run() -> ! {
    mount_all();
    // Without a console nothing can be told anyway; the tests still end the machine as asked.
    let _ = take_console();
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let (config, understood) = Config::from_cmdline(&line);
    let result = match understood {
        Ok(()) => run_all(&config, true).map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        let mut score = report::Score::default();
        score.add("setup", &Err(error));
        score.finish();
    }
    report::kernel_warnings();
    finish(config.after)
}

/// The initramfs may have mounted any of them already, so a failure here means nothing yet.
fn mount_all() {
    for (kind, target, path) in
        [(c"proc", c"/proc", "/proc"), (c"sysfs", c"/sys", "/sys"), (c"devtmpfs", c"/dev", "/dev")]
    {
        let _ = fs::create_dir_all(path);
        if !mounted(path) {
            let _ = sys::mount(kind, target);
        }
    }
}

fn mounted(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(path))
}

fn take_console() -> Result<()> {
    if sys::is_terminal(1) {
        return Ok(());
    }
    let console = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/console")
        .context("cannot open /dev/console")?;
    for fd in 0..3 {
        sys::duplicate(console.as_raw_fd(), fd).context("cannot set up the console")?;
    }
    Ok(())
}

fn finish(after: After) -> ! {
    sys::sync();
    let error = match after {
        After::PowerOff => sys::reboot(libc::RB_POWER_OFF),
        After::Reboot => sys::reboot(libc::RB_AUTOBOOT),
        After::Shell => {
            if let Err(error) = shell() {
                report::line(&format!("GUEST shell_error {error:#}"));
            }
            sys::reboot(libc::RB_POWER_OFF)
        }
        After::Panic => match fs::write("/proc/sysrq-trigger", "c") {
            Ok(()) => std::io::Error::other("the kernel did not crash"),
            Err(error) => error,
        },
        After::Hang => rest(),
    };
    report::line(&format!("GUEST end_error {error}"));
    rest()
}

/// pid 1 must not end; it reaps orphans now and then by being woken by SIGCHLD or not at all.
fn rest() -> ! {
    loop {
        sys::pause();
    }
}

fn shell() -> Result<()> {
    match sys::fork().context("cannot fork")? {
        Forked::Child => {
            // Job control is a comfort only.
            let _ = sys::own_terminal();
            let error = sys::exec(c"/bin/busybox", &["sh"]);
            report::line(&format!("GUEST shell_error /bin/busybox: {error}"));
            sys::exit_now(127);
        }
        Forked::Parent(pid) => {
            sys::wait_for(pid, true).context("cannot wait for the shell")?;
            Ok(())
        }
    }
}
