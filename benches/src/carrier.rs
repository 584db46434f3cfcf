//! What joins the slices of a benchmark.

use anyhow::Result;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use transport::{Config, TcpTransport, Transport, shm};
use wire::SliceId;

/// What joins the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// Rings in shared memory.
    Shm,
    /// TCP over the loopback device.
    Tcp,
}

impl Carrier {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Endpoints of so many slices that are all connected.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn mesh(self, slices: u16) -> Result<Vec<Box<dyn Transport>>> {
        let config = Config::default();
        if self == Self::Shm {
            let mesh = shm::mesh(slices, &config)?;
            return Ok(mesh.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect());
        }
        let mut peers: Vec<Vec<(SliceId, [TcpStream; 3])>> = (0..slices).map(|_| vec![]).collect();
        for low in 0..slices {
            for high in low + 1..slices {
                let ((a, d), (b, e), (c, f)) = (sockets()?, sockets()?, sockets()?);
                peers[usize::from(low)].push((SliceId(high), [a, b, c]));
                peers[usize::from(high)].push((SliceId(low), [d, e, f]));
            }
        }
        let mut mesh: Vec<Box<dyn Transport>> = Vec::new();
        for (slice, peers) in (0..slices).map(SliceId).zip(peers) {
            mesh.push(Box::new(TcpTransport::from_streams(slice, peers, config.clone())?));
        }
        Ok(mesh)
    }
}

fn sockets() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}
