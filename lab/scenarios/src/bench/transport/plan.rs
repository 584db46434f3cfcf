//! What `./x bench transport` compares, in which order, and how much is measured.

use std::fmt;

use crate::bench::rig::order;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Shm,
    Tcp,
    Pool,
    Registered,
}

/// How `tessera-link` waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiting {
    Engine,
    Looking,
}

pub(crate) const WAYS: [Waiting; 2] = [Waiting::Engine, Waiting::Looking];

impl Waiting {
    /// As the option says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Looking => "looking",
        }
    }
}

/// What is measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tool(Tool),
    Link(Mode, Waiting),
}

/// What the bars compare.
const COMPARED: [Step; 5] = [
    Step::Tool(send(true)),
    Step::Tool(read(true)),
    Step::Link(Mode::Registered, Waiting::Engine),
    Step::Tool(read(false)),
    Step::Tool(send(false)),
];

pub(crate) const MODES: [Mode; 4] = [Mode::Shm, Mode::Tcp, Mode::Pool, Mode::Registered];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Pool => "rdma pool",
            Self::Registered => "rdma registered",
        })
    }
}

impl Mode {
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Shm => &[],
            Self::Tcp => &["--carrier", "tcp"],
            Self::Pool => &["--carrier", "rdma", "--memory", "pool"],
            Self::Registered => &["--carrier", "rdma", "--memory", "registered"],
        }
    }
}

/// A program of perftest with the size it is asked about, and whether it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tool(pub(crate) &'static str, pub(crate) u32, pub(crate) bool);

pub(crate) const fn send(asleep: bool) -> Tool {
    Tool("ib_send_lat", 64, asleep)
}

pub(crate) const fn read(asleep: bool) -> Tool {
    Tool("ib_read_lat", 4096, asleep)
}

/// `ib_write_lat` cannot sleep: nothing wakes who is written to.
pub(crate) const TOOLS: [Tool; 5] =
    [send(true), read(true), send(false), read(false), Tool("ib_write_lat", 64, false)];

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, bytes, asleep) = self;
        write!(f, "{name}{} {bytes} B", if *asleep { " -e" } else { "" })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Trips of each kind in a turn.
    pub(crate) count: u32,
    /// MiB of the stream.
    pub(crate) stream: u32,
}

pub(crate) const QUICK: Plan = Plan { rounds: 3, count: 300, stream: 8 };
pub(crate) const FULL: Plan = Plan { rounds: 9, count: 300, stream: 8 };

/// The steps of a round. What is compared stays together; all else turns, before or after it.
pub(crate) fn steps(round: usize) -> Vec<Step> {
    let links = WAYS.iter().flat_map(|way| MODES.iter().map(|mode| Step::Link(*mode, *way)));
    let all = TOOLS.iter().map(|tool| Step::Tool(*tool)).chain(links);
    let others: Vec<_> = all.filter(|step| !COMPARED.contains(step)).collect();
    let others = order(&others, round);
    if round.is_multiple_of(2) {
        COMPARED.into_iter().chain(others).collect()
    } else {
        others.into_iter().chain(COMPARED.into_iter().rev()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_measures_everything_once_and_what_is_compared_together() {
        for round in 0..12 {
            let steps = steps(round);
            assert_eq!(steps.len(), TOOLS.len() + WAYS.len() * MODES.len());
            let mut compared = COMPARED;
            if round % 2 == 1 {
                compared.reverse();
            }
            assert!(steps.windows(compared.len()).any(|steps| steps == compared));
            let once = |step| steps.iter().filter(|other| *other == step).count() == 1;
            assert!(steps.iter().all(once));
        }
    }
}
