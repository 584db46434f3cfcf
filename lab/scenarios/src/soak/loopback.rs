//! A connection between two programs of a Debian guest: whatever one sends, the other one sends back. It must outlive whatever
//! becomes of the VM.

use anyhow::{Context, Result};

use crate::distro::guest::Guest;
use crate::soak::each_cpu::{self, Complaints};

/// perl is part of each Debian system. `rounds wrong` is printed at the end.
const START: &str = "setsid perl -MIO::Socket::INET -e '\
    $all = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\") or die \"listen: $!\"; \
    $port = $all->sockport; if (!fork) { $one = $all->accept or die \"accept: $!\"; \
    while (<$one>) { print $one $_; $one->flush } exit } \
    $one = IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $port) or die \"connect: $!\"; \
    $SIG{TERM} = sub { print \"$rounds $wrong\\n\"; exit }; ($rounds, $wrong) = (0, 0); \
    while (1) { print $one $rounds, \"\\n\"; $one->flush; $wrong++ if <$one> ne \"$rounds\\n\"; $rounds++; \
    select undef, undef, undef, 0.05 }' </dev/null >/run/loopback 2>&1 & echo $! >/run/loopback-process";
const END: &str = "kill $(cat /run/loopback-process); sleep 2; cat /run/loopback";

const COMPLAINTS: Complaints = Complaints {
    wrong: |wrong, all| format!("{wrong} of {all} answers over the connection were wrong"),
    nothing: "nothing came over the connection",
    few: |lines, _| format!("{lines} programs have told of the connection"),
};

/// Starts both programs.
pub(crate) fn start(guest: &Guest<'_>) -> Result<()> {
    guest.ssh(START).map(drop).context("start programs with a connection")
}

/// Ends them; how many answers there were, all over one connection. Fails if one was wrong.
pub(crate) fn end(guest: &Guest<'_>) -> Result<u64> {
    judge(&guest.ssh(END).context("stop programs with a connection")?)
}

fn judge(said: &str) -> Result<u64> {
    each_cpu::judge(said, 1, &COMPLAINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_must_be_right_and_there_must_be_some() {
        let problem = |said| judge(said).unwrap_err().to_string();
        assert_eq!(judge("7 0\n").unwrap(), 7);
        assert!(problem("7 1\n").contains("1 of 7 answers"));
        assert!(problem("0 0\n").contains("nothing came"));
        assert!(problem("").contains("0 programs"));
        assert!(problem("connect: refused\n").contains("connect:"));
    }

    #[test]
    fn programs_of_this_machine_say_what_is_read() {
        judge(&each_cpu::said_here("loopback", START, END)).unwrap();
    }
}
