//! `tessera trace`: the hottest pages of running slices, by what the guest did there.
//!
//! ```text
//!   control sockets --Request::Trace--> answers --symbols--> table or JSON on standard output
//!        ^                                 |                 picture in a file
//!        +------- after the interval ------+
//! ```

mod named;
mod picture;
mod symbols;
mod table;

use crate::log;
use anyhow::{Context, Result};
use clap::Args;
use named::Named;
use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;
use symbols::Symbols;
use vmm::control::{
    Answer, Client, ClientError, Request, Since, TOP_MAX, TraceAnswer, TraceRequest,
};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Control socket of a slice; may be given for several slices on this host
    #[arg(long, value_name = "PATH", required = true)]
    control: Vec<PathBuf>,
    /// Pages shown of each slice, 1 to 4096
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = top)]
    top: usize,
    /// Ask again every so many seconds, and show what is new
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    interval: Option<u64>,
    /// How many times to ask: once, or without end with --interval, if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Names of the guest's kernel: System.map, /proc/kallsyms or vmlinux; the guest must run without KASLR
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Draw what is shown as a flame graph: slices, kinds of pages, pages, code
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON, a line for each slice
    #[arg(long)]
    json: bool,
}

fn top(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=TOP_MAX).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from 1 to {TOP_MAX}"))
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let symbols = arguments.symbols.as_deref().map(Symbols::load).transpose()?;
    let clients: Result<Vec<_>, _> =
        arguments.control.iter().map(|path| Client::connect(path)).collect();
    let mut clients = clients?;
    let rounds = match (arguments.count, arguments.interval) {
        (Some(count), _) => count,
        (None, Some(_)) => u64::MAX,
        (None, None) => 1,
    };
    for round in 0..rounds {
        if round > 0 {
            sleep(Duration::from_secs(arguments.interval.unwrap_or(1)));
        }
        let mut answers = Vec::new();
        for client in &mut clients {
            match ask(client, arguments.top) {
                Ok(answer) => answers.push(answer),
                // The VM has ended while it was watched.
                Err(ClientError::Gone | ClientError::Send(_)) if round > 0 => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let named = Named::new(&answers, symbols.as_ref());
        if round == 0
            && let Some(doubt) = named.doubt()
        {
            log::say(&doubt);
        }
        if let Some(path) = &arguments.svg {
            let picture = picture::draw(&named)?;
            fs::write(path, picture).with_context(|| format!("write {}", path.display()))?;
        }
        let text = if arguments.json { named.json()? } else { table::text(&named) };
        match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
            // Who closed the output has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("print")?,
        }
    }
    Ok(())
}

/// The first answer to a client is about all, and each later one about what is new.
fn ask(client: &mut Client, top: usize) -> Result<TraceAnswer, ClientError> {
    let request = Request::Trace(TraceRequest { top, since: Since::Last });
    client.ask(&request).map(|answer| match answer {
        Answer::Trace(trace) => trace,
        Answer::Report(_)
        | Answer::Progress(_)
        | Answer::Done(_)
        | Answer::Placement(_)
        | Answer::Advice(_)
        | Answer::Vcpus(_)
        | Answer::Checkpoint(_)
        | Answer::Plan(_)
        | Answer::Refused(_) => TraceAnswer::default(),
    })
}
