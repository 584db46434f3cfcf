//! Pipes that all workers share, for numbers in both directions.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};

use crate::sys;

/// Two pipes, one for each direction, inherited by every worker.
pub(crate) struct Pipes {
    /// From the first worker of a pair to the second.
    pub(crate) there: Pipe,
    /// And back.
    pub(crate) back: Pipe,
}

/// A pipe with both ends.
pub(crate) struct Pipe {
    reader: File,
    writer: File,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        Ok(Self { reader: reader.into(), writer: writer.into() })
    }

    /// Writes a number.
    pub(crate) fn send(&self, value: u64) -> Result<()> {
        (&self.writer).write_all(&value.to_le_bytes()).context("cannot write to the pipe")
    }

    /// Reads a number.
    pub(crate) fn receive(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        (&self.reader).read_exact(&mut bytes).context("cannot read from the pipe")?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Bytes of an aborted test must not reach the next one.
    fn drain(&self) {
        while sys::readable(self.reader.as_raw_fd()) {
            let mut bytes = [0; 512];
            if !matches!((&self.reader).read(&mut bytes), Ok(1..)) {
                return;
            }
        }
    }
}

impl Pipes {
    /// Makes both.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { there: Pipe::new()?, back: Pipe::new()? })
    }

    /// Empties both.
    pub(crate) fn drain(&self) {
        self.there.drain();
        self.back.drain();
    }
}
