//! The kinds of operations that `./x bench sharing-linux` counts, and how often.

/// A kind of operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// As the guest calls it.
    pub(crate) name: &'static str,
    /// What one operation is.
    pub(crate) shown: &'static str,
    /// Most faults of all slices for one.
    pub(crate) bound: Option<f64>,
}

const fn kind(name: &'static str, shown: &'static str, bound: Option<f64>) -> Kind {
    Kind { name, shown, bound }
}

/// Position of the idle second, which pauses cost too.
pub(crate) const IDLE: usize = 0;
pub(crate) const KINDS: [Kind; 9] = [
    kind("idle", "idle guest second", Some(20.0)),
    kind("fresh-page", "fresh page touched there", Some(0.15)),
    kind("unmap", "page unmapped there", Some(0.15)),
    kind("file", "file of 8 KiB made and removed there", Some(12.0)),
    kind("pipe", "pipe round trip", Some(20.0)),
    kind("futex", "futex round trip of threads", Some(18.0)),
    kind("tcp", "TCP loopback round trip", Some(35.0)),
    kind("fork", "fork, exec, exit there, wait", Some(130.0)),
    kind("compute", "0.4 s of computing there", None),
];

/// Boots, and how many times as many operations as usual in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) boots: usize,
    pub(crate) scale: u32,
}

pub(crate) const QUICK: Plan = Plan { boots: 1, scale: 1 };
pub(crate) const FULL: Plan = Plan { boots: 3, scale: 2 };
