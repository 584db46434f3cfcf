//! The workloads of `./x bench workloads`, and the VMs that run them.

use std::fmt;

use anyhow::{Result, bail};

use crate::vm::layout::Layout;

/// Where the VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Overcommit,
    Aggregate,
}

pub(crate) const MODES: [Mode; 2] = [Mode::Overcommit, Mode::Aggregate];

impl Mode {
    /// vCPUs of each slice. Each host has one CPU.
    pub(crate) fn layout(self) -> Result<Layout> {
        Layout::of(match self {
            Self::Overcommit => vec![2],
            Self::Aggregate => vec![1, 1],
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overcommit => "two vCPUs of one CPU",
            Self::Aggregate => "two hosts",
        })
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A shell line in the guest.
    Line(&'static str),
    /// Requests for a page of PHP, which takes about so many milliseconds of the guest's clock, over [`CONNECTIONS`] connections.
    Page { milliseconds: u32, requests: u64 },
}

/// Requests on their way at a time: one for each worker of PHP.
pub(crate) const CONNECTIONS: usize = 4;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) shown: &'static str,
    /// A shell line before, which is not timed.
    pub(crate) before: &'static str,
    pub(crate) work: Work,
    /// And one behind.
    pub(crate) after: &'static str,
    /// The least gain over overcommit that it must have.
    pub(crate) least: Option<f64>,
}

/// What any program that people try must have: else it should have stayed at home.
const NO_LOSS: f64 = 0.95;

const fn line(
    name: &'static str,
    shown: &'static str,
    line: &'static str,
    least: Option<f64>,
) -> Workload {
    Workload { name, shown, before: "", work: Work::Line(line), after: "", least }
}

const fn page(
    name: &'static str,
    shown: &'static str,
    milliseconds: u32,
    requests: u64,
    least: f64,
) -> Workload {
    let work = Work::Page { milliseconds, requests };
    Workload { name, shown, before: START_LEMP, work, after: STOP_LEMP, least: Some(least) }
}

const START_LEMP: &str =
    "systemctl start mariadb $(basename -s .service /lib/systemd/system/php*-fpm.service)";
const STOP_LEMP: &str =
    "systemctl stop mariadb $(basename -s .service /lib/systemd/system/php*-fpm.service)";

/// Where the guest has the program with the kernels and functions. `/run` is mounted so that nothing there can be executed.
pub(crate) const HELPER: &str = "/usr/local/bin/guest-tests";
/// Port of the web server on the first host that functions download from, at [`lab::distro::HOST_ADDRESS`].
pub(crate) const DOWNLOADS: u16 = 8800;

/// Sizes are such that a vCPU of an emulated host computes for some tenths of a guest second: with much less, what a guest does once at
/// each start of a program is what is measured.
const WORKLOADS: [Workload; 19] = [
    page("lemp-500", "LEMP, 500 ms a request", 500, 4, 1.8),
    page("lemp-200", "LEMP, 200 ms a request", 200, 8, 1.6),
    page("lemp-40", "LEMP, 40 ms a request", 40, 32, 1.0),
    line(
        "functions",
        "4 calls of a function, 2 at a time",
        "guest-tests functions 192.168.77.1:8800/256k /srv/function.tar.gz 4 2 30000",
        Some(1.8),
    ),
    line("npb-ep", "NPB EP, 2 serial", "guest-tests npb ep 2 1 1000 64", Some(1.9)),
    line("npb-is", "NPB IS, 2 serial", "guest-tests npb is 2 1 600 2048", Some(1.5)),
    line("npb-cg", "NPB CG, 2 serial", "guest-tests npb cg 2 1 20 2048", None),
    line("npb-ft", "NPB FT, 2 serial", "guest-tests npb ft 2 1 30 2080", None),
    line("npb-mg", "NPB MG, 2 serial", "guest-tests npb mg 2 1 20 2112", None),
    line("npb-ep-threads", "NPB EP, one of 2 threads", "guest-tests npb ep 1 2 1000 64", None),
    line("npb-is-threads", "NPB IS, one of 2 threads", "guest-tests npb is 1 2 600 2048", None),
    line("npb-cg-threads", "NPB CG, one of 2 threads", "guest-tests npb cg 1 2 20 2048", None),
    line("npb-ft-threads", "NPB FT, one of 2 threads", "guest-tests npb ft 1 2 30 2080", None),
    line("npb-mg-threads", "NPB MG, one of 2 threads", "guest-tests npb mg 1 2 20 2112", None),
    Workload {
        before: "cat /srv/log.txt >/dev/null",
        ..line("pigz", "pigz -p 2 of 64 MB", "pigz -p 2 -c /srv/log.txt", Some(1.5))
    },
    Workload {
        before: "head -c 16777216 /srv/log.txt >/tmp/log.txt",
        ..line(
            "xz",
            "xz -T 2 of 16 MB",
            "xz -1 -T 2 --block-size=4MiB -c /tmp/log.txt",
            Some(NO_LOSS),
        )
    },
    Workload {
        before: "cat /srv/project/*.part >/dev/null",
        ..line("make", "make -j 4, 24 recipes", "make -s -j 4 -C /srv/project", Some(NO_LOSS))
    },
    Workload {
        before: "systemd-run -q --unit=redis-bench redis-server /etc/redis/tessera.conf; \
                 for look in $(seq 1000); do redis-cli ping >/dev/null 2>&1 && exit 0; done; exit 1",
        after: "systemctl stop redis-bench",
        ..line(
            "redis",
            "redis-benchmark, 8 connections",
            "redis-benchmark -q -c 8 -n 8000 -t set,get",
            Some(NO_LOSS),
        )
    },
    Workload {
        before: START_POSTGRES,
        after: "su postgres -c '/usr/lib/postgresql/15/bin/pg_ctl -s -m fast -D /var/lib/postgresql/15/main stop'",
        ..line(
            "pgbench",
            "pgbench, 4 clients, reads",
            "su postgres -c '/usr/lib/postgresql/15/bin/pgbench -n -S -c 4 -j 2 -t 400 bench'",
            Some(NO_LOSS),
        )
    },
];

/// By its own program: Debian's sleeps for half a second and more, of a guest for which that is minutes.
const START_POSTGRES: &str = "install -d -o postgres -g postgres /run/postgresql; su postgres -c \
    '/usr/lib/postgresql/15/bin/pg_ctl -s -D /var/lib/postgresql/15/main -l /tmp/postgres.log \
    -o \"-c config_file=/etc/postgresql/15/main/postgresql.conf\" start'";

/// Those of these names, or whose names begin so; all if there are none.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Workload>> {
    let is = |workload: &Workload, name: &str| workload.name.starts_with(name);
    if let Some(unknown) = names.iter().find(|name| !WORKLOADS.iter().any(|one| is(one, name))) {
        let known = WORKLOADS.map(|workload| workload.name).join(", ");
        bail!("--only {unknown}: the workloads are {known}");
    }
    let wanted = |one: &&Workload| names.is_empty() || names.iter().any(|name| is(one, name));
    Ok(WORKLOADS.iter().filter(wanted).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_chosen_by_the_beginning_of_their_names() {
        let chosen = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|all| all.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["lemp", "pigz"]).unwrap(), ["lemp-500", "lemp-200", "lemp-40", "pigz"]);
        assert_eq!(chosen(&[]).unwrap().len(), WORKLOADS.len());
        assert!(chosen(&["apache"]).unwrap_err().to_string().contains("pgbench"));
    }

    #[test]
    fn functions_download_from_the_first_host() {
        let host = lab::distro::HOST_ADDRESS.split('/').next().unwrap();
        let Work::Line(line) = chosen(&["functions".to_owned()]).unwrap()[0].work else {
            panic!("a line")
        };
        assert!(line.contains(&format!(" {host}:{DOWNLOADS}/")));
    }
}
