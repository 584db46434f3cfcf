//! Which of a supervisor's options a bootstrap is started with.

use crate::words::without;
use std::ffi::OsString;

/// Options that are the supervisor's own.
const OWN: [&str; 4] = ["on-lost", "spare", "fits", "patience"];
/// Options that are given anew each time.
const ANEW: [&str; 2] = ["slice", "limit"];
/// Options with which a VM begins, and goes on from no checkpoint of its own.
const BEGINNING: [&str; 8] = [
    "kernel",
    "initrd",
    "cmdline",
    "guest-preset",
    "node-distance",
    "guest-clock-rate",
    "restore",
    "on-reset",
];
/// The same without a value.
const BEGINNING_FLAGS: [&str; 1] = ["lazy"];

/// Those of the command line that a bootstrap knows.
pub(super) fn of_bootstrap(words: &[OsString]) -> Vec<OsString> {
    without(words, &OWN, &[])
}

/// Those of these with which the VM begins, or goes on from a checkpoint of its own.
pub(super) fn of_start(words: &[OsString], goes_on: bool) -> Vec<OsString> {
    let (mut names, mut flags) = (ANEW.to_vec(), Vec::new());
    if goes_on {
        names.extend(BEGINNING);
        flags.extend(BEGINNING_FLAGS);
    }
    without(words, &names, &flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Arguments;
    use clap::Args;

    /// Else no VM would go on that began with one.
    #[test]
    fn options_that_no_restore_takes_are_left_out_when_the_vm_goes_on() {
        let command = Arguments::augment_args(clap::Command::new("bootstrap"));
        let restore = command.get_arguments().find(|it| it.get_long() == Some("restore")).unwrap();
        let is_refused = |argument: &clap::Arg| {
            let conflicts = command.get_arg_conflicts_with(argument);
            conflicts.iter().any(|other| other.get_long() == Some("restore"))
        };
        let mut refused: Vec<_> = command
            .get_arguments()
            .filter(|it| is_refused(it) || it.get_id() == restore.get_id())
            .filter_map(clap::Arg::get_long)
            .collect();
        // A VM file says also what a VM has that goes on.
        refused.retain(|long| *long != "config");
        let left = |long: &&str| !BEGINNING.contains(long) && !BEGINNING_FLAGS.contains(long);
        assert!(refused.contains(&"guest-clock-rate"), "{refused:?}");
        assert_eq!(refused.into_iter().filter(left).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn what_a_vm_begins_with_is_left_out_when_it_goes_on() {
        let words = "--on-lost restart=every:9 --kernel k --on-reset end --on-reset=end --lazy --lease 9 --slice local --limit=5";
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let words = of_bootstrap(&words);

        assert_eq!(
            of_start(&words, false).join(" ".as_ref()),
            *"--kernel k --on-reset end --on-reset=end --lazy --lease 9"
        );
        assert_eq!(of_start(&words, true).join(" ".as_ref()), *"--lease 9");
    }
}
