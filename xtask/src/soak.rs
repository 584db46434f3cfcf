//! `./x soak`: the same again and again.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use scenarios::chaos::{self, ChaosOptions};
use scenarios::soak::boot::{self, BootOptions};
use scenarios::soak::checkpoint::{self, CheckpointOptions};
use scenarios::soak::device::{self, DeviceOptions};
use scenarios::soak::guest::{self, GuestOptions};
use scenarios::soak::kill::{self, KillOptions};
use scenarios::soak::lost::{self, LostOptions};
use scenarios::soak::migrate::{self, MigrateOptions};
use scenarios::soak::pause::{self, PauseOptions};
use scenarios::soak::vcpus::{self, VcpusOptions};

use crate::soak_cluster::{self, ClusterOptions};

#[derive(Subcommand, Debug)]
pub(crate) enum SoakVerb {
    /// Boot the VM and run its tests, several times on each interrupt back end
    Boot(BootOptions),
    /// Kill a companion, or cut its host off, at a random moment, again and again: the VM must end soon and
    /// say why, or survive a short cut
    Kill(KillOptions),
    /// Something bad, drawn from a seed, at a random moment, again and again: the VM goes on or ends with the right
    /// cause, and every sector of its disks is old or new
    Chaos(ChaosOptions),
    /// Pause a Debian system under load and have it go on, again and again: the saved forms of all slices fit together
    /// each time, and no request is lost
    Pause(PauseOptions),
    /// Move vCPUs between slices and drain slices at random, while the guest runs its tests or is a Debian system under
    /// load: no test and no request fails, each move is done or given up with a cause, and a slice may leave in the end
    Migrate(MigrateOptions),
    /// Write the VM down while its guest runs its tests, and go on from it on other slices, again and again: all tests pass, and
    /// what a slice that was killed leaves half-written is refused
    Checkpoint(CheckpointOptions),
    /// Kill a slice of a supervised VM, or stop it and have it go on later, again and again: the VM is back by itself, its tests
    /// pass, and what was stopped ends
    Lost(LostOptions),
    /// Kill orchestrators, agents, slices and etcd, or have a leader stand still, at random moments while a VM of a cluster is
    /// created, moved and deleted: it is not lost, and never runs twice
    Cluster(ClusterOptions),
    /// A guest gets a vCPU more and gives it back by ACPI, again and again; it runs programs there, and its kernel has nothing
    /// to complain of
    Vcpus(VcpusOptions),
    /// Kill the whole VM while its guest writes to disks, again and again: what was flushed must be there
    GuestKill(GuestOptions),
    /// Kill a slice that has nothing but the guest's disks: the guest must see errors and go on
    DeviceSlice(DeviceOptions),
}

pub(crate) fn run(verb: &SoakVerb) -> Result<ExitCode> {
    match verb {
        SoakVerb::Boot(options) => boot::run(options),
        SoakVerb::Chaos(options) => chaos::run(options),
        SoakVerb::Kill(options) => kill::run(options),
        SoakVerb::Pause(options) => pause::run(options),
        SoakVerb::Migrate(options) => migrate::run(options),
        SoakVerb::Checkpoint(options) => checkpoint::run(options),
        SoakVerb::Lost(options) => lost::run(options),
        SoakVerb::Cluster(options) => soak_cluster::run(options),
        SoakVerb::Vcpus(options) => vcpus::run(options),
        SoakVerb::GuestKill(options) => guest::run(options),
        SoakVerb::DeviceSlice(options) => device::run(options),
    }
}
