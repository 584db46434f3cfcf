//! What is done to the VM, in order. Pure.
//!
//! ```text
//!   start ─> spread ─> on two ─> drain ─> on one ─┐      spread ─> on two ─> drain ─> alone
//!             ^─────────── five times ────────────┴──────> and the slice leaves ────────^
//! ```

/// How often the VM is drained to one host and spread again.
pub(super) const ROUNDS: usize = 5;

/// One part of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `tessera vm` with these words, known under this name.
    Ask { name: String, words: Vec<String> },
    /// Some time goes by, known under this name.
    Look(String),
}

/// The slice that is drained: the bootstrap's. With its first drain the coordination goes to the other one, for good.
pub(super) const DRAINED: usize = 0;

/// All steps but the last drain. A VM whose vCPUs are all on one slice is spread first.
pub(super) fn steps(vcpus: &[u32]) -> Vec<Step> {
    let ask = |name: String, words: &[&str]| Step::Ask {
        name,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    let mut steps = vec![Step::Look("start".to_owned())];
    if vcpus.contains(&0) {
        steps.push(ask("spread".to_owned(), &["spread"]));
        steps.push(Step::Look("on two".to_owned()));
    }
    for round in 1..=ROUNDS {
        let drained = DRAINED.to_string();
        steps.push(ask(format!("drain {round}"), &["drain", &drained, "--stay"]));
        steps.push(Step::Look(format!("on one {round}")));
        steps.push(ask(format!("spread {round}"), &["spread"]));
        steps.push(Step::Look(format!("on two {round}")));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drain_finds_vcpus_to_move() {
        for vcpus in [&[2, 0], &[1, 1]] {
            let steps = steps(vcpus);
            let asked: Vec<_> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Ask { words, .. } => Some(words[0].as_str()),
                    Step::Look(_) => None,
                })
                .collect();
            let drains = asked.iter().filter(|word| **word == "drain").count();
            assert_eq!(drains, ROUNDS);
            // Spread at first, unless it is so from the start, and after each drain.
            let first = if vcpus[1] == 0 { "spread" } else { "drain" };
            assert_eq!((asked[0], asked[asked.len() - 1]), (first, "spread"));
            assert!(asked.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}
