//! `./x soak guest-kill`: a power cut for the guest at a random moment, again and again.
//!
//! ```text
//!   VM up, a writer on each vCPU ─> all slices killed at once ─> disks judged on their host ─> the next life
//!          ^                                                          goes on with the same disks │
//!          +──────────────────────────────────────────────────────────────────────────────────────+
//! ```
//! With `--layout 2+0` the disks are at a slice of their own: both writers' requests travel, and the guest boots
//! as fast as on one host. Beside the writers fio overwrites a disk of its own; it comes from a system's disk.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use lab::HostNumber;

use crate::soak::disks::{Disks, Images, Told, WRITERS, Writing};
use crate::soak::judge::{fio_digest, judge_disks};
use crate::soak::leftovers::left_processes;
use crate::soak::moments::random;
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::VmOptions;
use crate::vm::scenario::Scenario;

/// For killed processes to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(30);

/// What `./x soak guest-kill` takes.
#[derive(Args, Debug)]
pub struct GuestOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How often to kill
    #[arg(long, default_value_t = 20)]
    tries: u32,
    /// Latest moment of a kill, in seconds after the writers start
    #[arg(long, default_value_t = 20)]
    within: u64,
    #[command(flatten)]
    rig: RigOptions,
}

/// Kills as often as wanted, and has the disks judged.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; a bad end is no error.
pub fn run(options: &GuestOptions) -> Result<ExitCode> {
    let rig = Rig::new(&options.vm, options.rig, |layout| {
        let all = usize::try_from(layout.all())?;
        ensure!(all == WRITERS, "--layout {layout}: the guest has a writer on each of 2 vCPUs");
        Ok(())
    })?;
    let images = Images::make(&options.vm.name, Some(&rig.distro()?.image))?;
    // A last slice without vCPUs has the disks, and nothing else.
    let slices = rig.layout.slices();
    let apart = slices > 1 && rig.layout.vcpus().last() == Some(0);
    let slice = if apart { slices - 1 } else { 0 };
    let owner = HostNumber::new(slice + 1)?;
    let mut hosts = Hosts::new(|| rig.hosts(&options.vm, images.disks(owner)));
    let (mut good, mut checked, mut rewritten, mut before) = (0, 0, 0, String::new());
    for number in 1..=options.tries {
        let moment = Duration::from_millis(random(options.within * 1000));
        let result = hosts.attempt(|lab| {
            let disks = Disks::of(&lab.host(owner)?)?;
            let mut vm = options.vm.clone();
            if apart {
                (vm.device_slices, vm.lend) = (1, disks.lent());
            }
            vm.cmdline = format!("tessera.disks={number} {}", vm.cmdline);
            vm.bootstrap = [disks.devices(lab, slice)?, vm.bootstrap].concat();
            Ok(one(&rig.scenario(&vm, lab), moment, number, (owner, &disks)))
        })?;
        rig.check()?;
        let verdict = match &result {
            Ok((told, said)) => {
                good += 1;
                checked += u32::from(told.all());
                let digest = fio_digest(said)?;
                rewritten += u32::from(!before.is_empty() && before != digest);
                digest.clone_into(&mut before);
                format!("good (told: {told}; {said})")
            }
            Err(error) => format!("BAD: {error:#}"),
        };
        rig.say(&format!(
            "try {number} of {}: killed {:.1} s after the writers started: {verdict}",
            options.tries,
            moment.as_secs_f64()
        ));
    }
    drop(hosts);
    println!(
        "{good} of {} kills lost nothing that was flushed, file system and fio's sectors whole; in {checked} every \
         writer had told of something, in {rewritten} fio had changed its disk",
        options.tries
    );
    // The first life has no digest to compare with.
    let all = good == options.tries && checked > 0 && (rewritten > 0 || options.tries == 1);
    Ok(exit(all))
}

/// One life. Gives what the writers told, and what the judge says.
fn one(
    scenario: &Scenario<'_>,
    moment: Duration,
    run: u32,
    disks: (HostNumber, &Disks),
) -> Result<(Told, String)> {
    let companions = scenario.start_companions()?;
    let mut vm = Writing::start(scenario, false, moment)?;
    ensure!(vm.errors.is_empty(), "{}", vm.errors.join("; "));
    ensure!(!vm.bootstrap.is_over(), "the VM was over before the kill: {}", vm.words.join("; "));
    // Either side may be the first to go.
    if random(2) == 0 {
        vm.bootstrap.kill()?;
    }
    companions.iter().try_for_each(|companion| companion.kill())?;
    vm.bootstrap.kill()?;
    ensure!(vm.wait_over(GONE_LIMIT)?, "the killed VM does not end");
    let mut left = Vec::new();
    companions.into_iter().for_each(|companion| companion.finish(&mut left));
    left.extend(left_processes(scenario)?);
    ensure!(left.is_empty(), "{}", left.join("; "));
    let told = vm.told()?;
    let said = judge_disks(scenario, u64::from(run), disks, &told, false)?;
    Ok((told, said))
}
