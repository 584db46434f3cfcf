//! The network in a round of `soak chaos`: a tap on the host with the devices, and datagrams through it to both vCPUs.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{Command, Host, Lab, RemoteProcess};

use crate::soak::disks::WRITERS;

const TAP: &str = "tap9";
const HOST: &str = "192.168.79.1/24";
const GUEST: &str = "192.168.79.2";
const END_LIMIT: Duration = Duration::from_secs(20);

/// Words for `tessera bootstrap`, for a companion that lends the tap, and for the guest's command line.
pub(crate) fn device(slice: usize) -> Vec<String> {
    vec!["--net".to_owned(), format!("{TAP},slice={slice}")]
}

pub(crate) fn lent() -> String {
    format!("tap:{TAP}")
}

pub(crate) fn cmdline() -> String {
    format!("tessera.net={GUEST}/24")
}

/// Datagrams that came back, by vCPU.
pub(crate) type Returned = [u64; WRITERS];

/// All that is told of the echoes, by vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Echoed {
    pub(crate) returned: Returned,
    /// Of these, those that came after their successor was sent.
    pub(crate) late: [u64; WRITERS],
    /// The longest time without one, after the first.
    pub(crate) longest: [Duration; WRITERS],
}

impl std::fmt::Display for Echoed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { returned, late, longest } = self;
        write!(f, "{returned:?}, of these late {late:?}, at longest none for {longest:.1?}")
    }
}

/// What sends and judges them.
#[derive(Debug)]
pub(crate) struct NetLoad {
    process: RemoteProcess,
    echoed: Echoed,
}

impl NetLoad {
    /// Makes the tap and begins; the guest may come later.
    pub(crate) fn start(lab: &Lab, host: &Host<'_>, run: u32) -> Result<Self> {
        host.tap(TAP, HOST)?;
        let program = lab.own_program()?;
        let program = program.to_str().context("the path of this program is not UTF-8")?;
        let run = run.to_string();
        let process = host.spawn(&Command::new([program, "echo", GUEST, "--run", &run]))?;
        Ok(Self { process, echoed: Echoed::default() })
    }

    /// Takes what there is to hear.
    ///
    /// # Errors
    /// Bytes came back that were not sent.
    pub(crate) fn returned(&mut self) -> Result<Returned> {
        while let Some(line) = self.process.next_line(Duration::ZERO) {
            let words: Vec<_> = line.text.split_whitespace().collect();
            ensure!(words.first() == Some(&"ECHO"), "the sender of datagrams: {}", line.text);
            let ["ECHO", port, ref counts @ ..] = words[..] else {
                bail!("the guest's network is wrong: {}", line.text)
            };
            let port: usize = port.parse().context("a port's number")?;
            ensure!(port < WRITERS, "a port that nobody asked for: {}", line.text);
            let counts: Result<Vec<u64>, _> = counts.iter().map(|count| count.parse()).collect();
            let [returned, late, longest] = counts.context("a count of datagrams")?[..] else {
                bail!("the sender of datagrams: {}", line.text)
            };
            self.echoed.returned[port] = returned;
            self.echoed.late[port] = late;
            self.echoed.longest[port] = Duration::from_millis(longest);
        }
        ensure!(!self.process.is_over(), "the sender of datagrams has ended");
        Ok(self.echoed.returned)
    }

    /// Ends it.
    ///
    /// # Errors
    /// As for [`Self::returned`].
    pub(crate) fn finish(mut self) -> Result<Echoed> {
        let returned = self.returned();
        self.process.kill()?;
        let _killed = self.process.wait(END_LIMIT)?;
        returned?;
        Ok(self.echoed)
    }
}
