//! A disk of one slice that another uses, through two engines in this process: no guest, no rings, no
//! image. What is left is the way: messages, the engine's threads, the transport.
//!
//! ```text
//!   asker -- RemoteDisk -> engine 0 ~~ transport ~~ engine 1 -> DiskServer -- MemoryDisk
//! ```

use crate::carrier::Carrier;
use anyhow::{Context, Result, ensure};
use devices::back_end::{Disk, DiskReply, DiskRequest, MemoryDisk};
use devices::delegate::{Courier, Exchange};
use dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, NodeConfig, Tracing,
    Uplink,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transport::{Class, Transport};
use wire::{DeviceId, Epoch, SliceId};

const DISK: DeviceId = DeviceId(0);
/// Sectors of the disk: 64 MiB.
const SECTORS: u64 = 1 << 17;
/// As the front ends of two vCPUs.
const QUEUES: u16 = 2;
/// No answer takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// Memory of each slice, in pages.
const PAGES: u64 = 512;

/// Frames by way of an engine, as the VMM sends them.
#[derive(Debug)]
struct Carried(Handle);

impl Courier for Carried {
    fn send(&self, to: SliceId, frame: Vec<u8>) -> bool {
        self.0.send(to, Class::Bulk, frame)
    }

    fn send_all(&self, to: SliceId, frames: Vec<Vec<u8>>) -> bool {
        self.0.send_all(to, Class::Bulk, frames)
    }
}

/// What comes for devices.
#[derive(Clone, Debug, Default)]
struct Mail {
    exchange: Arc<OnceLock<Arc<Exchange>>>,
    over: Arc<AtomicBool>,
}

impl Uplink for Mail {
    fn frame(&mut self, from: SliceId, _: Class, bytes: &[u8]) {
        let taken = self.exchange.get().map(|exchange| exchange.frame(from, bytes));
        if let Some(Err(error)) = taken {
            eprintln!("{from} sent what is no frame of a device: {error}");
        }
    }
    fn lost(&mut self, peer: SliceId, cause: String) {
        if !self.over.load(Ordering::Relaxed) {
            eprintln!("{peer} is lost: {cause}");
        }
        if let Some(exchange) = self.exchange.get() {
            exchange.lost(peer);
        }
    }
    fn fatal(&mut self, error: EngineError) {
        eprintln!("a memory engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
}

#[derive(Debug)]
struct End {
    exchange: Arc<Exchange>,
    handle: Handle,
    mail: Mail,
    thread: Option<JoinHandle<()>>,
}

impl End {
    fn start(local: SliceId, transport: Box<dyn Transport>) -> Result<Self> {
        let range = |home: SliceId| {
            let first = u64::from(home.0) * PAGES;
            HomeRange { frames: first..first + PAGES, home }
        };
        let all = [SliceId(0), SliceId(1)];
        let homes = HomeTable::new(all.map(range).to_vec())?;
        let mut node = NodeConfig::new(local, all.to_vec(), homes, Epoch(1));
        node.mechanisms = node.mechanisms.page_by_page();
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(0..2 * PAGES)))?);
        let mail = Mail::default();
        let (handle, thread) = Engine::start(EngineConfig {
            bystanders: Vec::new(),
            wait_limit: Duration::from_secs(60),
            node,
            ram,
            transport,
            uplink: Box::new(mail.clone()),
            trace: Tracing::On,
            core: None,
        })
        .context("start a memory engine")?;
        let courier = Arc::new(Carried(handle.clone()));
        let members = all.iter().copied().filter(|slice| *slice != local).collect::<Vec<_>>();
        let exchange = Arc::new(Exchange::new(local, &members, Epoch(1), courier));
        ensure!(mail.exchange.set(Arc::clone(&exchange)).is_ok(), "nobody else sets it");
        Ok(Self { exchange, handle, mail, thread: Some(thread) })
    }

    fn expect_end(&self) {
        self.mail.over.store(true, Ordering::Relaxed);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.handle.stop();
        // An engine that failed has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Bytes come.
    Read,
    /// Bytes go.
    Write,
}

/// A disk, and what it takes to reach it.
#[derive(Debug)]
pub struct Delegated {
    disk: Arc<dyn Disk>,
    /// Asker and server; none where the disk is the asker's own.
    ends: Option<[End; 2]>,
}

impl Delegated {
    /// A disk of this slice.
    #[must_use]
    pub fn local() -> Self {
        Self { disk: Arc::new(MemoryDisk::new(SECTORS)), ends: None }
    }

    /// A disk of another slice.
    ///
    /// # Errors
    /// Userfaultfd or the transport refuse.
    pub fn remote(carrier: Carrier) -> Result<Self> {
        let [first, second] = carrier.pair()?;
        let ends = [End::start(SliceId(0), first)?, End::start(SliceId(1), second)?];
        let owned = Arc::new(MemoryDisk::new(SECTORS));
        let shape = owned.shape();
        ends[1].exchange.serve_disk(DISK, owned, QUEUES)?;
        let disk = ends[0].exchange.remote_disk(DISK, SliceId(1), shape, QUEUES);
        Ok(Self { disk, ends: Some(ends) })
    }

    /// Time of so many requests, of which `depth` are under way at a time.
    ///
    /// # Errors
    /// A request fails.
    pub fn requests(&self, way: Way, bytes: u32, depth: u64, count: u64) -> Result<Duration> {
        let (done, answers) = mpsc::channel();
        let places = SECTORS / (u64::from(bytes) / 512);
        let submit = |number: u64| {
            let sector = number % places * (u64::from(bytes) / 512);
            let request = match way {
                Way::Read => DiskRequest::Read { sector, bytes },
                Way::Write => DiskRequest::Write { sector, data: vec![7; bytes as usize] },
            };
            let done = done.clone();
            // Who asked may have given up.
            self.disk.submit(request, Box::new(move |reply| drop(done.send(reply))));
        };
        let expected = if way == Way::Read { bytes as usize } else { 0 };
        let start = Instant::now();
        let first = depth.min(count);
        (0..first).for_each(submit);
        for number in first..first + count {
            let reply = answers.recv_timeout(LIMIT).context("an answer of the disk")?;
            let right = matches!(&reply, DiskReply::Done(data) if data.len() == expected);
            ensure!(right, "a request failed");
            if number < count {
                submit(number);
            }
        }
        Ok(start.elapsed())
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // Each will see the other go.
        self.ends.iter().flatten().for_each(End::expect_end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uffd_every_request_crosses_the_slices_once() {
        if !needs::has(needs::Need::Uffd, dsm::check_host()) {
            return;
        }
        let disk = Delegated::remote(Carrier::Tcp).unwrap();
        for (way, depth) in [(Way::Write, 1), (Way::Read, 8), (Way::Write, 100)] {
            disk.requests(way, 1 << 20, depth.min(8), 20).unwrap();
            disk.requests(way, 4096, depth, 50).unwrap();
        }
        let ends = disk.ends.as_ref().unwrap();
        let [asked, served] = [&ends[0], &ends[1]].map(|end| end.exchange.counters().counts());
        assert_eq!((asked.disk_requests, served.disk_served, asked.refused), (210, 210, 0));
    }
}
