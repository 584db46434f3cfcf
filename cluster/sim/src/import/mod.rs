//! Traces of VMs out of files. A row that makes no sense is refused with its number, and nothing is guessed.
//!
//! | format | rows | what it does not say |
//! |---|---|---|
//! | [`jsonl`]: our own | a JSON object on each line | |
//! | [`azure2017`]: `vmtable.csv` of Azure's public dataset of 2017 | a VM on each line | how long those live that outlive it; classes |
//! | [`azure2020`]: Azure's trace for packing of 2020, an SQLite file | a VM of a type; parts of a host | the same, and what a host has |
//!
//! Classes: VMs of foreign traces are of the class `Default`. What outlives its trace ends with it, and is counted.

pub mod azure2017;
#[cfg(feature = "azure-2020")]
pub mod azure2020;
pub mod jsonl;
mod row;

pub use row::{MEMORY_MIB_MAX, RowError, SECONDS_MAX};

use crate::workload::Request;
use row::Builder;
use std::io::{self, BufRead, Read};
use thiserror::Error;

/// Rows of a trace.
pub const ROWS_MAX: usize = 20_000_000;
/// Bytes of a line.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// The time 0 of a trace, in milliseconds of the simulation: VMs that are older were started then.
pub const ORIGIN: u64 = 100 * 24 * 3_600_000;

/// Why a trace is refused.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file.
    #[error("read the trace")]
    Read(#[from] io::Error),
    /// A row.
    #[error("line {line}: {what}")]
    Row {
        /// Its number, from 1 on; of a database its row id.
        line: u64,
        /// What is wrong with it.
        what: RowError,
    },
    /// More than [`ROWS_MAX`].
    #[error("there are more than {ROWS_MAX} VMs in it")]
    TooMany,
    /// Nothing.
    #[error("there is no VM in it")]
    Empty,
    /// A database that is not one, or not of this form.
    #[cfg(feature = "azure-2020")]
    #[error("read the database")]
    Database(#[from] rusqlite::Error),
    /// Nobody of the trace runs on it.
    #[cfg(feature = "azure-2020")]
    #[error("no VM of the trace has a type for machine {0}")]
    NoMachine(i64),
}

/// VMs by the time at which they come.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The VMs; the time 0 of the trace is [`ORIGIN`].
    pub requests: Vec<Request>,
    /// The last time that the trace tells of, in milliseconds.
    pub end: u64,
    /// VMs that outlive it.
    pub outlive: u64,
    /// VMs that the trace has and that cannot be on the machine.
    pub skipped: u64,
}

/// Each line with its number. Lines have a bound, so that a file without lines does not fill the memory.
fn each_line(
    mut file: impl BufRead,
    mut take: impl FnMut(&str) -> Result<(), RowError>,
) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let most = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
        if file.by_ref().take(most).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let at = |what| ImportError::Row { line, what };
        if bytes.len() > LINE_BYTES_MAX {
            return Err(at(RowError::Long));
        }
        let text = str::from_utf8(&bytes).map_err(|_| at(RowError::Text))?;
        take(text.trim_end_matches(['\n', '\r'])).map_err(at)?;
    }
    Ok(())
}
