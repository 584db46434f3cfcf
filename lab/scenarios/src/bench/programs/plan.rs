//! The guests that `./x bench programs` compares, and what they run.

/// Loads as the guest calls them, what they are called here, and the least gain by the default preset.
pub(crate) const LOADS: [(&str, &str, Option<f64>); 7] = [
    ("boot", "start-up", None),
    ("task", "one task", Some(NO_LOSS)),
    ("threads-2", "2 threads", Some(1.6)),
    ("processes-4", "4 processes", Some(1.8)),
    ("processes-8", "8 processes", Some(1.8)),
    ("jobs-4", "12 jobs, 4 at a time", Some(1.2)),
    ("jobs-1", "12 jobs, 1 at a time", Some(NO_LOSS)),
];
/// What no borrowed vCPU can make faster must not get slower either. Runs differ by a twentieth.
const NO_LOSS: f64 = 0.95;
/// Position of the start-up, which is compared with that of the preset `isolate`.
pub(crate) const START_UP: usize = 0;
/// How much longer than with `isolate` it may take by the default preset.
pub(crate) const MOST_OF_START_UP: f64 = 1.3;

/// Boots of each guest, and rounds of loads in each boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) boots: usize,
    pub(crate) loads: usize,
    pub(crate) presets: &'static [&'static str],
}

pub(crate) const QUICK: Plan = Plan { boots: 1, loads: 1, presets: &[DEFAULT] };
pub(crate) const FULL: Plan = Plan { boots: 3, loads: 2, presets: &[DEFAULT, ISOLATE, "none"] };

/// A guest to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    pub(crate) name: String,
    /// Whether it borrows a vCPU.
    pub(crate) borrows: bool,
    /// tessera's own unless given.
    pub(crate) preset: Option<String>,
    /// More for tessera.
    pub(crate) bootstrap: Vec<String>,
    /// For its kernel.
    pub(crate) cmdline: String,
}

/// Position of the guest with one vCPU.
pub(crate) const ONE: usize = 0;
/// tessera's own preset.
pub(crate) const DEFAULT: &str = "spread";
/// What start-up is compared with: nothing of a user runs on the borrowed vCPU.
pub(crate) const ISOLATE: &str = "isolate";

/// One vCPU, the presets, and `also` guests with other words for tessera and for their kernels.
pub(crate) fn guests(presets: &[&str], also: &[String]) -> Vec<Guest> {
    let guest = |name: &str, borrows, preset: Option<&str>| Guest {
        name: name.to_owned(),
        borrows,
        preset: preset.map(str::to_owned),
        bootstrap: Vec::new(),
        cmdline: String::new(),
    };
    let mut all = vec![guest("one vCPU", false, None)];
    all.extend(presets.iter().map(|preset| guest(preset, true, Some(preset))));
    for words in also {
        let mut more = guest(&format!("none + {words}"), true, Some("none"));
        let mut words = words.split_whitespace().map(str::to_owned).peekable();
        let mut line = Vec::new();
        while let Some(word) = words.next() {
            if word.starts_with("--") {
                more.bootstrap.push(word);
                more.bootstrap.extend(words.next());
            } else {
                line.push(word);
            }
        }
        more.cmdline = line.join(" ");
        all.push(more);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_tessera_and_for_the_kernel_are_told_apart() {
        let also = ["skew_tick=1 --node-distance 40 psi=0".to_owned()];
        let all = guests(QUICK.presets, &also);

        assert_eq!((all.len(), all[ONE].borrows, all[1].borrows), (3, false, true));
        assert_eq!(all[1].preset.as_deref(), Some(DEFAULT));
        assert_eq!(all[2].preset.as_deref(), Some("none"));
        assert_eq!(all[2].bootstrap, ["--node-distance", "40"]);
        assert_eq!(all[2].cmdline, "skew_tick=1 psi=0");
        assert_eq!(guests(FULL.presets, &[]).len(), 4);
    }
}
