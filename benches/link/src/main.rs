//! `tessera-link`: what a transport does between two hosts. `./x bench transport` starts it on the hosts of
//! a lab, beside perftest.
//!
//! ```text
//!   ask ──(mesh: TCP, secret; RDMA if asked for)── serve        shm: both in one process
//!     echo of 64 B, echo of 4 KiB, page fetches, stream ──> one line of JSON
//! ```

mod asker;
mod memory;
mod peer;
mod server;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use memory::Memory;
use peer::{Peer, Waiting};
use std::net::SocketAddr;
use std::thread::spawn;
use std::time::{Duration, Instant};
use transport::{
    BootstrapMesh, CarrierKind, Config, Listener, Member, Plan, RdmaMemory, Secret, VmId, shm,
};
use wire::{Epoch, SliceId};

/// The hosts of a lab see nobody else.
const SECRET: [u8; 32] = *b"measured between hosts of a lab.";
const SETUP: Duration = Duration::from_secs(60);

#[derive(Debug, Parser)]
#[command(about = "Measures a transport between two hosts")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answer one asker, and end when it ends
    Serve {
        /// Where
        #[arg(long)]
        listen: SocketAddr,
        /// How frames are waited for
        #[arg(long, value_enum, default_value_t)]
        waiting: Waiting,
    },
    /// Ask the server there and print what was measured
    Ask {
        /// Where the server listens
        #[arg(long)]
        to: SocketAddr,
        /// What carries the frames, best first
        #[arg(long, value_delimiter = ',', required = true)]
        carrier: Vec<CarrierKind>,
        /// What RDMA pins
        #[arg(long, default_value_t = RdmaMemory::default())]
        memory: RdmaMemory,
        #[command(flatten)]
        how: How,
    },
    /// Ask a server in this process over shared memory
    Shm {
        #[command(flatten)]
        how: How,
    },
}

/// How is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct How {
    /// Round trips of each kind
    #[arg(long, default_value_t = 1000)]
    pub(crate) count: usize,
    /// MiB of the stream
    #[arg(long, default_value_t = 32)]
    pub(crate) stream: usize,
    /// How frames are waited for
    #[arg(long, value_enum, default_value_t)]
    pub(crate) waiting: Waiting,
}

fn main() -> Result<()> {
    match Arguments::parse().role {
        Role::Serve { listen, waiting } => serve(listen, waiting),
        Role::Ask { to, carrier, memory, how } => ask(to, carrier, memory, how),
        Role::Shm { how } => both(how),
    }
}

fn secret() -> Result<Secret> {
    Secret::from_bytes(&SECRET).context("the secret")
}

fn serve(listen: SocketAddr, waiting: Waiting) -> Result<()> {
    let listener = Listener::bind(listen, secret()?)?;
    println!("listening");
    let deadline = || Instant::now() + SETUP;
    let (_, mut mesh) = listener.accept(Some(deadline()), &mut |refused| eprintln!("{refused}"))?;
    mesh.answer(Ok(&[]), deadline())?;
    mesh.verdict(&|| 0, deadline())?;
    let memory = Memory::new()?;
    mesh.expose(memory.exposed());
    let joined = mesh.into_transport(deadline(), &mut |refused| eprintln!("{refused}"))?;
    server::serve(Peer::new(joined.transport, waiting)?, &memory)
}

fn ask(to: SocketAddr, carriers: Vec<CarrierKind>, pins: RdmaMemory, how: How) -> Result<()> {
    let members = vec![
        Member { slice: SliceId(0), address: None },
        Member { slice: SliceId(1), address: Some(to) },
    ];
    let config = Config { carriers, rdma_memory: pins, ..Config::default() };
    let vm = VmId::random().context("choose an id")?;
    let plan = Plan { vm, epoch: Epoch(1), members, config, blob: Vec::new() };
    let deadline = || Instant::now() + SETUP;
    let mut mesh = BootstrapMesh::connect(secret()?, plan, deadline())?;
    for (slice, answer) in mesh.gather(deadline())? {
        if let Err(text) = answer {
            bail!("{slice} refuses: {text}");
        }
    }
    mesh.commit(&[], deadline())?;
    let memory = Memory::new()?;
    mesh.expose(memory.exposed());
    let joined = mesh.into_transport(deadline(), &mut |text| eprintln!("{text}"))?;
    println!("connected");
    let peer = Peer::new(joined.transport, how.waiting)?;
    println!(
        "{}",
        serde_json::to_string(&asker::measure(peer, &memory, how, joined.kind.to_string())?)?
    );
    Ok(())
}

fn both(how: How) -> Result<()> {
    let waiting = how.waiting;
    let mut mesh = shm::mesh(2, &Config::default())?;
    let (server, asker) = (mesh.pop(), mesh.pop());
    let (server, asker) = server.zip(asker).context("two slices")?;
    let server = Peer::new(Box::new(server), waiting)?;
    let served = spawn(move || server::serve(server, &Memory::new()?));
    let found =
        asker::measure(Peer::new(Box::new(asker), waiting)?, &Memory::new()?, how, "shm".into());
    served.join().ok().context("the server panicked")??;
    println!("{}", serde_json::to_string(&found?)?);
    Ok(())
}
