//! Optional mechanisms: slices share memory without them, only slower. Each can be left out to measure what it is worth.

use std::str::FromStr;
use thiserror::Error;

macro_rules! mechanisms {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Which optional mechanisms a slice uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Mechanisms { $($(#[$doc])* pub $field: bool,)* }

        impl Mechanisms {
            /// All of them.
            pub const ALL: Self = Self { $($field: true,)* };
        }

        impl Mechanism {
            /// Every mechanism that can be left out.
            pub const ALL: &[Self] =
                &[$(Self { name: $name, switch: |all| &mut all.$field },)*];
        }
    };
}

mechanisms! {
    /// Pages behind a run of faults are fetched before they are touched.
    runs: "runs",
    /// The same for runs that are not of neighbours.
    strides: "strides",
    /// Pages that were missed together are asked for together.
    correlation: "correlation",
    /// A page that this slice always writes next is asked for with write access when it is read.
    write_prediction: "write-prediction",
    /// Long runs fetch chunks of 2 MiB, which become private.
    chunk_fetch: "chunk-fetch",
    /// Whoever reads a run of pages of this home gets them with write access.
    exclusive_grants: "exclusive-grants",
    /// New pages of a run are written into the memory file together.
    staged_pages: "staged-pages",
    /// Runs are received straight into guest memory.
    direct_receive: "direct-receive",
    /// Pages are written into the memory of slices that expose it.
    remote_write: "remote-write",
    /// Frames of runs are handled one at a time while somebody waits for a page.
    urgent_first: "urgent-first",
    /// The engine looks for an answer before it sleeps.
    polling: "polling",
    /// A page that goes on changing is kept longer.
    busy_windows: "busy-windows",
    /// Windows of a page that several slices are busy with grow.
    contended_windows: "contended-windows",
    /// A page that changes once is given up early.
    brief_windows: "brief-windows",
    /// This home keeps a copy of a page that many slices read.
    home_copies: "home-copies",
    /// It is found out whether a vCPU reads where KVM's worker asks to write.
    worker_probes: "worker-probes",
    /// A chunk that only this slice has used for a while is no longer watched.
    private_again: "private-again",
}

/// One mechanism.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    name: &'static str,
    switch: fn(&mut Mechanisms) -> &mut bool,
}

/// No mechanism has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no mechanism is called {0}")]
pub struct UnknownMechanism(String);

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        let found = Self::ALL.iter().find(|mechanism| mechanism.name == name);
        found.copied().ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}

impl Mechanism {
    /// As users say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }
}

impl Mechanisms {
    /// The same without those that fetch pages which nobody has touched.
    #[must_use]
    pub fn page_by_page(self) -> Self {
        Self { runs: false, correlation: false, ..self }
    }

    /// The same without one more.
    #[must_use]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        *(mechanism.switch)(&mut self) = false;
        self
    }

    /// Names of those that are left out.
    pub fn left_out(mut self) -> impl Iterator<Item = &'static str> {
        let is_out = move |of: &&Mechanism| !*(of.switch)(&mut self);
        Mechanism::ALL.iter().filter(is_out).map(|of| of.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leaves_one_mechanism_out() {
        assert_eq!(Mechanisms::ALL.left_out().count(), 0);
        let mut all_out = Mechanisms::ALL;
        for mechanism in Mechanism::ALL {
            let named: Mechanism = mechanism.name().parse().unwrap();
            let without = Mechanisms::ALL.without(named);
            assert_eq!(without.left_out().collect::<Vec<_>>(), [mechanism.name()]);
            all_out = all_out.without(named);
        }
        assert_eq!(all_out.left_out().count(), Mechanism::ALL.len());
        let unknown = "tea".parse::<Mechanism>().unwrap_err();
        assert_eq!(unknown.to_string(), "no mechanism is called tea");
    }
}
