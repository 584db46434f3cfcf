//! The list of tests, in the order in which they run.

use anyhow::Result;

use crate::bench::Bench;
use crate::litmus::{self, SHAPES, Shape};
use crate::{clock, counters, generation, hotplug, memory, process, tlb, vsock};

type Plain = fn(&mut Bench) -> Result<String>;

/// One test.
pub(crate) struct Test {
    /// Its name on the result line.
    pub(crate) name: &'static str,
    kind: Kind,
    /// Whether it has nothing to show on one CPU.
    pub(crate) needs_two: bool,
}

enum Kind {
    Litmus(&'static Shape),
    Plain(Plain),
}

impl Test {
    /// Runs it and gives the detail of the result line.
    pub(crate) fn run(&self, bench: &mut Bench) -> Result<String> {
        match self.kind {
            Kind::Litmus(shape) => litmus::run(bench, shape),
            Kind::Plain(run) => run(bench),
        }
    }
}

const PLAIN: &[(&str, bool, Plain)] = &[
    ("count-xadd", false, counters::xadd),
    ("count-cmpxchg", false, counters::cmpxchg),
    ("count-lock", false, counters::lock),
    ("clock-tsc", false, clock::counter),
    ("clock-monotonic", false, clock::monotonic),
    ("tlb-protect", true, tlb::protect),
    ("tlb-unmap", true, tlb::unmap),
    ("futex", true, process::futex),
    ("pipe", true, process::pipe),
    ("signal-process", true, process::signal_process),
    ("signal-thread", true, process::signal_thread),
    ("fork-exec", false, process::fork_exec),
    ("map-stress", false, memory::map_stress),
    ("memory", false, memory::pattern),
    ("generation", false, generation::driver),
    ("vsock-echo", false, vsock::echo),
    // Last: it puts the machine's CPUs down.
    ("hotplug", true, hotplug::run),
];

/// Every test: the litmus shapes, then the others.
pub(crate) fn all() -> Vec<Test> {
    let litmus = SHAPES.iter().map(|shape| Test {
        name: shape.name,
        kind: Kind::Litmus(shape),
        needs_two: true,
    });
    let plain = PLAIN.iter().map(|&(name, needs_two, run)| Test {
        name,
        kind: Kind::Plain(run),
        needs_two,
    });
    litmus.chain(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_all_tests_differ_and_are_words() {
        let names: BTreeSet<_> = all().iter().map(|test| test.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.iter().all(|name| !name.contains([' ', ','])));
    }
}
