//! One life of a Debian VM that boots or goes on from a checkpoint, until it ends or is killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::HostNumber;
use lab::distro::{Distro, HTTP_PORT};

use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::distro::vm::Vm;
use crate::soak::leftovers::left_processes;
use crate::vm::VmOptions;
use crate::vm::layout::Layout;
use crate::vm::output::Output;
use crate::vm::saves;
use crate::vm::scenario::{Scenario, finish};

/// From a word to the end of all processes.
const END_LIMIT: Duration = Duration::from_secs(900);
const SIGKILL: i32 = 9;

/// How a life is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself: all processes with status 0.
    Well,
    /// All of its processes are killed now.
    Killed,
}

/// A VM that runs, and its guest.
pub(super) struct Alive<'a> {
    pub(super) scenario: &'a Scenario<'a>,
    pub(super) guest: &'a Guest<'a>,
    vm: &'a Vm,
}

impl Alive<'_> {
    /// An error once the VM has ended.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.scenario.interrupted.is_set(), "interrupted");
        self.vm.alive()
    }
}

/// Where a life is led, and from what it goes on.
pub(super) struct Where<'a> {
    pub(super) layout: Layout,
    /// Name of a checkpoint.
    pub(super) from: Option<&'a str>,
}

/// Has the VM live until `see` has seen enough.
pub(super) fn live(
    base: &Scenario<'_>,
    distro: &Distro,
    Where { layout, from }: Where<'_>,
    output: &Arc<Output>,
    see: &mut dyn FnMut(&Alive<'_>) -> Result<End>,
) -> Result<()> {
    let mut options: VmOptions = base.options.clone();
    options.keep_checkpoints(base.lab)?;
    options.restore = from.map(|name| saves::inside(base.lab, name)).transpose()?;
    let scenario = &Scenario { options: &options, layout: &layout, ..*base };
    let companions = scenario.start_companions_heard_by(output)?;
    let host = scenario.host(0)?;
    let bootstrap = scenario.start_bootstrap()?;
    let kill = bootstrap.handle();
    let vm = Vm::watch(bootstrap, host.number(), output);
    let ended = until_seen(scenario, distro, &vm, output, see);
    let mut problems = Vec::new();
    match &ended {
        Ok(End::Well) => {
            let status = vm.wait(END_LIMIT).context("the bootstrap")?;
            ensure!(status.success(), "tessera bootstrap ended with {status}");
        }
        Ok(End::Killed) | Err(_) => {
            kill.signal(SIGKILL)?;
            for companion in &companions {
                // What is dead already needs no signal.
                drop(companion.signal(SIGKILL));
            }
            drop(vm.wait(END_LIMIT));
            output.killed();
        }
    }
    drop(vm);
    let well = matches!(ended, Ok(End::Well));
    finish(companions, well, &mut problems);
    ended?;
    problems.extend(left_processes(scenario)?);
    problems.extend(output.trouble().map(|line| format!("the guest's kernel says: {line}")));
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

fn until_seen(
    scenario: &Scenario<'_>,
    distro: &Distro,
    vm: &Vm,
    output: &Output,
    see: &mut dyn FnMut(&Alive<'_>) -> Result<End>,
) -> Result<End> {
    let (progress, interrupted) = (scenario.progress, scenario.interrupted);
    let start = Instant::now();
    let until = start + Duration::from_secs(scenario.options.timeout());
    while !output.prompted() {
        vm.alive()?;
        ensure!(!interrupted.is_set(), "interrupted");
        ensure!(Instant::now() < until, "no login prompt in time");
        progress.say_if_quiet(Duration::from_secs(30), || "the guest is starting".to_owned());
        std::thread::sleep(Duration::from_millis(200));
    }
    let guest = visit::guest(scenario.lab, distro, scenario.layout.all(), progress, interrupted)?;
    guest.wait_for(HTTP_PORT, until, &mut || vm.alive())?;
    progress.say(&format!("nginx answers {:.1} s after the start", start.elapsed().as_secs_f64()));
    let end = see(&Alive { scenario, guest: &guest, vm });
    // What a restored guest knows of its connections is not what this host knows.
    guest.forget_login();
    end
}

/// The host with disk and tap.
pub(super) fn first<'a>(scenario: &Scenario<'a>) -> Result<lab::Host<'a>> {
    scenario.lab.host(HostNumber::new(1)?)
}
