//! Consoles: their bytes come from, and go to, the process with the far end, so their queues are at home there.

mod buffer;
mod terminal;

pub(crate) use terminal::Relay;

use super::model::{
    BackEnd, FrontEnd, Lending, LentThing, Model, Opening, Places, Starting, Worker, unknown,
};
use super::open_error::OpenError;
use super::remote::Remote;
use super::saved::FrontEndState;
use devices::delegate::{Exchange, ServeError};
use devices::virtio::console::{self, ConsoleReceive, ConsoleTransmit};
use devices::virtio::{DeviceShape, Doorbell, QueueIndex};
use migrate::{Invalid, Saved};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use terminal::{Terminal, append_to};
use wire::{DeviceId, SliceId};

const WHAT: &str = "a console";

/// A console beside the serial line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleSpec {
    /// What is at its other end, on the host of its slice.
    pub end: ConsoleEnd,
}

/// Where the output of a console goes, and its input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ConsoleEnd {
    /// Standard input and output of the slice's process.
    Stdio,
    /// A file that output is added to; there is no input.
    File {
        /// The file; it is made if it is not there.
        path: PathBuf,
    },
    /// A UNIX socket, for one client at a time.
    Socket {
        /// Its name.
        path: PathBuf,
    },
}

impl FromStr for ConsoleEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "stdio" => Ok(Self::Stdio),
            Some(("file" | "socket", "")) => Err("the path is missing".into()),
            Some(("file", path)) => Ok(Self::File { path: path.into() }),
            Some(("socket", path)) => Ok(Self::Socket { path: path.into() }),
            _ => Err(unknown(text, "stdio, file=PATH, socket=PATH")),
        }
    }
}

impl Model for ConsoleSpec {
    type Shape = ();

    const AT_OWNER: bool = true;
    const OPTION: &'static str = "console";
    const LENDING: Option<Lending> = Some(Lending {
        kind: "console",
        forms: &["console:stdio", "console:file=PATH", "console:socket=PATH"],
        check: |name| name.parse::<ConsoleEnd>().map(drop),
        open: lend,
    });

    /// `stdio`, `file=PATH` or `socket=PATH`
    fn parse(parts: &[&str]) -> Result<Self, String> {
        match parts {
            [end] => Ok(Self { end: end.parse()? }),
            [_, more, ..] => Err(format!("{more:?} is not slice=")),
            [] => Err("the other end is missing".into()),
        }
    }

    fn names(&self) -> Vec<String> {
        vec![match &self.end {
            ConsoleEnd::Stdio => "console:stdio".into(),
            ConsoleEnd::File { path } => format!("console:file={}", path.display()),
            ConsoleEnd::Socket { path } => format!("console:socket={}", path.display()),
        }]
    }

    fn open(&self, opening: &Opening<'_>) -> Result<((), Arc<dyn BackEnd>), OpenError> {
        let failed = OpenError::of(WHAT);
        let file = match opening.lent {
            Some(LentThing::File(file)) => Some(file.try_clone().map_err(OpenError::of(WHAT))?),
            Some(LentThing::Image { .. } | LentThing::Interface(_) | LentThing::Later) | None => {
                None
            }
        };
        let terminal = Terminal::open(&self.end, file, Arc::clone(opening.panicked));
        Ok(((), Arc::new(OpenConsole(Arc::new(terminal.map_err(failed)?)))))
    }

    fn fits(&self, (): &()) -> bool {
        true
    }

    fn homes((): &(), places: &Places) -> Vec<SliceId> {
        vec![places.owner; 2]
    }

    fn seen((): &(), _: u16) -> DeviceShape {
        console::shape()
    }

    /// Its queues are not here.
    fn remote((): &(), _: &Remote<'_>) -> Arc<dyn FrontEnd> {
        Arc::new(ConsoleFront(None))
    }
}

/// A file is what was there at the start.
fn lend(name: &str) -> Result<LentThing, Box<dyn Error + Send + Sync>> {
    Ok(match name.parse::<ConsoleEnd>()? {
        ConsoleEnd::File { path } => LentThing::File(append_to(&path)?),
        ConsoleEnd::Stdio | ConsoleEnd::Socket { .. } => LentThing::Later,
    })
}

#[derive(Debug)]
struct OpenConsole(Arc<Terminal>);

impl BackEnd for OpenConsole {
    fn front_end(
        &self,
        _: &Exchange,
        _: DeviceId,
        _: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        Ok(Arc::new(ConsoleFront(Some(Arc::clone(&self.0)))))
    }

    fn start(&self) -> Result<(), OpenError> {
        self.0.start().map_err(|source| OpenError::Start { what: WHAT, source })
    }

    fn finish(&self) {
        self.0.finish();
    }
}

/// None where its queues are not.
#[derive(Debug)]
struct ConsoleFront(Option<Arc<Terminal>>);

impl FrontEnd for ConsoleFront {
    /// That of input is rung by the driver and by input alike.
    fn bell(&self, queue: usize, _: &[Option<Doorbell>]) -> Option<Doorbell> {
        let terminal = self.0.as_ref().filter(|_| queue == 0);
        terminal.map(|terminal| terminal.doorbell.clone())
    }

    fn worker(&self, at: &Starting<'_>) -> Worker {
        let Some(terminal) = &self.0 else { return Ok(None) };
        let features = at.activation.features;
        Ok(Some(if at.queue == QueueIndex(0) {
            let input = terminal.input.clone();
            Box::new(ConsoleReceive::new(at.context, features, at.setup, input)?)
        } else {
            let output = terminal.output();
            Box::new(ConsoleTransmit::new(at.context, features, at.setup, output)?)
        }))
    }

    fn restore(&self, _: &[QueueIndex], _: u64, state: FrontEndState) -> Result<(), Invalid> {
        match (&self.0, state) {
            (Some(terminal), FrontEndState::Console(state)) => {
                Saved::restore(&mut terminal.input.clone(), state)
            }
            (_, FrontEndState::Console(_) | FrontEndState::Nothing) => Ok(()),
            _ => Err(Invalid::new("front_end", "of another kind of device")),
        }
    }

    fn save(&self) -> FrontEndState {
        let input = self.0.as_ref().map(|terminal| terminal.input.save());
        input.map_or(FrontEndState::Nothing, FrontEndState::Console)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn parse_gives_the_other_end() {
        let path = || "/a b=c".into();
        for (text, end) in [
            ("stdio", ConsoleEnd::Stdio),
            ("file=/a b=c", ConsoleEnd::File { path: path() }),
            ("socket=/a b=c", ConsoleEnd::Socket { path: path() }),
        ] {
            let spec = ConsoleSpec::parse(&[text]).unwrap();
            assert_eq!(spec, ConsoleSpec { end });
            assert_eq!(spec.names(), [format!("console:{text}")]);
        }
        for parts in [&[""][..], &["pty"], &["file="], &["socket"], &["stdio", ""]] {
            assert!(ConsoleSpec::parse(parts).is_err(), "{parts:?}");
        }
    }

    #[test]
    fn input_of_a_console_and_its_driver_ring_the_same_bell() {
        let terminal = Arc::new(Terminal::open(&ConsoleEnd::Stdio, None, Arc::default()).unwrap());
        let front = ConsoleFront(Some(Arc::clone(&terminal)));
        let bell = front.bell(0, &[]).map(|bell| bell.as_raw_fd());
        assert_eq!(bell, Some(terminal.doorbell.as_raw_fd()));
        assert!(front.bell(1, &[]).is_none() && ConsoleFront(None).bell(0, &[]).is_none());
    }
}
