//! The workloads of `./x bench workloads`, and the VMs that run them.

use std::fmt;

use anyhow::{Result, bail};

use crate::vm::layout::Layout;

/// Where the VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Overcommit,
    Aggregate,
    /// That VM, with the workload kept on the CPU of the first host.
    Home,
}

/// Those that are booted.
pub(crate) const BOOTS: [Mode; 2] = [Mode::Overcommit, Mode::Aggregate];
/// All, in the order of the tables.
pub(crate) const MODES: [Mode; 3] = [Mode::Overcommit, Mode::Aggregate, Mode::Home];

impl Mode {
    /// vCPUs of each slice. Each host has one CPU.
    pub(crate) fn layout(self) -> Result<Layout> {
        Layout::of(match self {
            Self::Overcommit => vec![2],
            Self::Aggregate | Self::Home => vec![1, 1],
        })
    }

    /// As what a workload is run while the VM of this mode is up. At home first: whoever is second finds programs in memory.
    pub(crate) fn in_boot(self, workload: &Workload) -> &'static [Self] {
        match self {
            Self::Aggregate if workload.may_stay_at_home() => &[Self::Home, Self::Aggregate],
            Self::Aggregate | Self::Home => &[Self::Aggregate],
            Self::Overcommit => &[Self::Overcommit],
        }
    }

    /// A shell line as this mode runs it. What it starts inherits its CPUs.
    pub(crate) fn line(self, line: &str) -> String {
        if self != Self::Home || line.is_empty() {
            return line.to_owned();
        }
        format!("taskset -c 0 sh -c {}", quoted(line))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overcommit => "two vCPUs of one CPU",
            Self::Aggregate => "two hosts",
            Self::Home => "two hosts, at home",
        })
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A shell line in the guest.
    Line(&'static str),
    /// The same with so much work that a task takes [`crate::bench::rig::TASK_SECONDS`] by itself.
    Sized(Sized),
    /// Requests for a page of PHP, which takes about so many milliseconds of the guest's clock, over [`CONNECTIONS`] connections.
    Page { milliseconds: u32, requests: u64 },
}

/// Shell lines of a program that is told how much work to do, in the place of [`WORK`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sized {
    /// What is timed.
    pub(crate) line: &'static str,
    /// One task of it, with one thread.
    pub(crate) alone: &'static str,
    /// Work of a short task.
    pub(crate) short: u64,
}

/// Stands for a task's work.
const WORK: &str = "WORK";

/// A line with a task's work in it.
pub(crate) fn with_work(line: &str, work: u64) -> String {
    line.replace(WORK, &work.to_string())
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

impl Workload {
    /// Whether nobody expects it to gain: then it is not to lose where it is kept at home.
    pub(crate) fn may_stay_at_home(&self) -> bool {
        self.least == Some(NO_LOSS)
    }

    /// What it must gain in a mode.
    pub(crate) fn least_in(&self, mode: Mode) -> Option<f64> {
        self.least.filter(|_| mode == Mode::Home || !self.may_stay_at_home())
    }
}

/// What any program that people try must have at least where it is kept at home.
const NO_LOSS: f64 = 0.95;

const fn line(
    name: &'static str,
    shown: &'static str,
    line: &'static str,
    least: Option<f64>,
) -> Workload {
    Workload { name, shown, before: "", work: Work::Line(line), after: "", least }
}

const fn sized(
    name: &'static str,
    shown: &'static str,
    work: (&'static str, &'static str, u64),
    least: Option<f64>,
) -> Workload {
    let (line, alone, short) = work;
    let work = Work::Sized(Sized { line, alone, short });
    Workload { name, shown, before: "", work, after: "", least }
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

/// One word for a shell.
pub(crate) fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\'', r"'\''"))
}

/// Where the guest has the program with the kernels and functions. `/run` is mounted so that nothing there can be executed.
pub(crate) const HELPER: &str = "/usr/local/bin/guest-tests";
/// Port of the web server on the first host that functions download from, at [`lab::distro::HOST_ADDRESS`].
pub(crate) const DOWNLOADS: u16 = 8800;

/// Sizes are such that a vCPU computes for some tenths of a guest second: with much less, what a guest does once at each start of a
/// program is what is measured. Those of lines that are not sized are for the machine that they were written on.
const WORKLOADS: [Workload; 20] = [
    page("lemp-500", "LEMP, 500 ms a request", 500, 4, 1.8),
    page("lemp-200", "LEMP, 200 ms a request", 200, 8, 1.6),
    page("lemp-40", "LEMP, 40 ms a request", 40, 32, 1.0),
    sized(
        "functions",
        "4 calls of a function, 2 at a time",
        (
            "guest-tests functions 192.168.77.1:8800/256k /srv/function.tar.gz 4 2 WORK",
            "guest-tests functions 192.168.77.1:8800/256k /srv/function.tar.gz 1 1 WORK",
            500,
        ),
        Some(1.8),
    ),
    sized(
        "npb-ep",
        "NPB EP, 2 serial",
        ("guest-tests npb ep 2 1 WORK 1024", "guest-tests npb ep 1 1 WORK 1024", 20),
        Some(1.9),
    ),
    sized(
        "npb-is",
        "NPB IS, 2 serial",
        ("guest-tests npb is 2 1 WORK 2048", "guest-tests npb is 1 1 WORK 2048", 20),
        Some(1.5),
    ),
    sized(
        "npb-cg",
        "NPB CG, 2 serial",
        ("guest-tests npb cg 2 1 WORK 2048", "guest-tests npb cg 1 1 WORK 2048", 1),
        None,
    ),
    sized(
        "npb-ft",
        "NPB FT, 2 serial",
        ("guest-tests npb ft 2 1 WORK 2080", "guest-tests npb ft 1 1 WORK 2080", 1),
        None,
    ),
    sized(
        "npb-mg",
        "NPB MG, 2 serial",
        ("guest-tests npb mg 2 1 WORK 2112", "guest-tests npb mg 1 1 WORK 2112", 1),
        None,
    ),
    sized(
        "npb-ep-threads",
        "NPB EP, one of 2 threads",
        ("guest-tests npb ep 1 2 WORK 1024", "guest-tests npb ep 1 1 WORK 1024", 20),
        None,
    ),
    sized(
        "npb-is-threads",
        "NPB IS, one of 2 threads",
        ("guest-tests npb is 1 2 WORK 2048", "guest-tests npb is 1 1 WORK 2048", 20),
        None,
    ),
    sized(
        "npb-cg-threads",
        "NPB CG, one of 2 threads",
        ("guest-tests npb cg 1 2 WORK 2048", "guest-tests npb cg 1 1 WORK 2048", 1),
        None,
    ),
    sized(
        "npb-ft-threads",
        "NPB FT, one of 2 threads",
        ("guest-tests npb ft 1 2 WORK 2080", "guest-tests npb ft 1 1 WORK 2080", 1),
        None,
    ),
    sized(
        "npb-mg-threads",
        "NPB MG, one of 2 threads",
        ("guest-tests npb mg 1 2 WORK 2112", "guest-tests npb mg 1 1 WORK 2112", 1),
        None,
    ),
    Workload {
        before: "cat /srv/log.txt >/dev/null",
        ..line("pigz", "pigz -p 2 of 64 MB", "pigz -p 2 -c /srv/log.txt", Some(1.5))
    },
    // As many pages with 13 times the computing, which costs far less on emulated hosts by a clock by which a fault costs the same.
    Workload {
        before: "cat /srv/genes.txt >/dev/null",
        ..line(
            "genes",
            "pigz -9 -p 2 of 64 MB of genes",
            "pigz -9 -p 2 -c /srv/genes.txt",
            Some(1.5),
        )
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
        before: "redis-cli ping >/dev/null 2>&1 && exit 1; redis-server /etc/redis/tessera.conf --daemonize yes >/dev/null; \
                 for look in $(seq 1000); do redis-cli ping >/dev/null 2>&1 && exit 0; done; exit 1",
        after: "redis-cli shutdown nosave",
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
    use std::process::Command as Process;

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

    /// The whole line is one word behind the verb, however it is quoted itself.
    #[test]
    fn line_is_kept_at_home_as_it_is() {
        let line = "set -e; a='x  y'; su postgres -c \"echo 'z'\"";
        assert_eq!(Mode::Aggregate.line(line), line);
        assert_eq!(Mode::Home.line(""), "");
        let kept = Mode::Home.line(line);
        let words = kept.strip_prefix("taskset -c 0 ").unwrap();
        let output = Process::new("sh").args(["-c", &format!("printf '%s|' {words}")]).output();
        assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), format!("sh|-c|{line}|"));
    }

    #[test]
    fn what_cannot_gain_is_judged_at_home() {
        let all = chosen(&["make".to_owned(), "pigz".to_owned(), "npb-cg".to_owned()]).unwrap();
        let names = ["make", "pigz", "npb-cg"];
        let of = |name| all.iter().find(|one| one.name == name).unwrap();
        let at_home = names.map(|name| Mode::Aggregate.in_boot(of(name)).contains(&Mode::Home));
        assert_eq!(at_home, [true, false, false]);
        let judged = |mode| names.map(|name| of(name).least_in(mode));
        assert_eq!(judged(Mode::Home)[0], Some(NO_LOSS));
        assert_eq!(judged(Mode::Aggregate), [None, Some(1.5), None]);
        assert!(all.iter().all(|one| Mode::Overcommit.in_boot(one) == [Mode::Overcommit]));
    }

    /// Else each task would have as much work on any machine.
    #[test]
    fn sized_lines_are_told_their_work() {
        for workload in chosen(&["functions".to_owned(), "npb".to_owned()]).unwrap() {
            let Work::Sized(work) = workload.work else { panic!("{} is not sized", workload.name) };
            for line in [work.line, work.alone].map(|line| with_work(line, 1234)) {
                assert_eq!(line.matches(" 1234").count(), 1, "{line}");
            }
        }
    }

    #[test]
    fn functions_download_from_the_first_host() {
        let host = lab::distro::HOST_ADDRESS.split('/').next().unwrap();
        let Work::Sized(work) = chosen(&["functions".to_owned()]).unwrap()[0].work else {
            panic!("a line")
        };
        let at = format!(" {host}:{DOWNLOADS}/");
        assert!([work.line, work.alone].iter().all(|line| line.contains(&at)));
    }
}
