//! What VMs of the benchmarks that have real slices are started with.

use crate::child::Child;
use anyhow::{Result, ensure};
use dsm::Mechanisms;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use transport::{CarrierKind, Credential, RdmaMemory, Secret};
use vmm::cmdline::GuestPreset;
use vmm::control::Desk;
use vmm::slice::{
    Boot, BootstrapOptions, Borrow, ClockTest, CompanionOptions, Ending, Interrupts, LocalOptions,
    Memory, Offer, OnFull, PageTables, SliceSpec, Start, StopHandle, VmSpec, companion, one_line,
};

/// Patience with a loaded machine; nothing depends on its value.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How the process of a slice ends that was drained, and one that had no part in the end of its VM.
pub const DRAINED: u8 = 0;
const TOLD: u8 = 2;
const FAILED: u8 = 1;

/// Slice 1, in another process, which waits until it is called.
#[derive(Debug)]
pub struct Companion {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub child: Child,
}

impl Companion {
    /// Starts it. The process must have no other thread. Parts of checkpoints go to this folder.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn fork(memory: Memory, checkpoints: Option<PathBuf>) -> Result<Self> {
        // Free until a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let options = CompanionOptions {
            listen: address,
            credential: Credential::Secret(secret()?),
            local: LocalOptions { checkpoints, ..local(memory, None) },
            lend: Vec::new(),
            stop: StopHandle::new(),
            console: Box::new(std::io::sink()),
        };
        let child = Child::fork(|| match companion(options) {
            Ok((Ending::Drained, _)) => DRAINED,
            Ok(_) => TOLD,
            Err(error) => {
                eprintln!("slice 1: {}", one_line(&error));
                FAILED
            }
        })?;
        Ok(Self { address, child })
    }

    /// Waits until it listens. The caller that goes again does no harm.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn wait_until_it_listens(&self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while let Err(error) = TcpStream::connect(self.address) {
            ensure!(Instant::now() < end, "nobody listens at {}: {error}", self.address);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// The options of slice 0; what differs between benchmarks is replaced.
///
/// # Errors
/// No secret.
pub fn bootstrap_options(
    guest: &Path,
    slices: Vec<SliceSpec>,
    console: Box<dyn std::io::Write + Send>,
    (memory, control): (Memory, PathBuf),
) -> Result<BootstrapOptions> {
    Ok(BootstrapOptions {
        spec: VmSpec {
            slices,
            interrupts: Interrupts::Auto,
            page_tables: PageTables::Auto,
            sample: None,
            clock_rate: 1.0,
            timer_spacing: "off".into(),
            hold_us: (20, 500),
            devices: Vec::new(),
            supervised: false,
            boots_at_home: false,
        },
        companions: Vec::new(),
        secret: Some(secret()?),
        start: Start::Boot(Boot {
            kernel: guest.to_owned(),
            initrd: None,
            cmdline: String::new(),
            guest_preset: GuestPreset::None,
            node_distance: 40,
        }),
        console,
        limit: None,
        stop: StopHandle::new(),
        stop_limit: LIMIT,
        lease: Duration::from_secs(20),
        carriers: vec![CarrierKind::Shm],
        rdma_memory: RdmaMemory::Pool,
        borrow: Borrow::Always,
        local: local(memory, Some(control)),
    })
}

fn secret() -> Result<Secret> {
    Ok(Secret::from_bytes(b"a secret of benchmarks, and of no use")?)
}

fn local(memory: Memory, control: Option<PathBuf>) -> LocalOptions {
    LocalOptions {
        engine_core: None,
        memory,
        trace: false,
        mechanisms: Mechanisms::ALL,
        offer: Offer { vcpus: Some(2), bytes: None },
        control,
        desk: Desk::new(),
        on_full: OnFull::Report,
        clock_test: ClockTest::default(),
        checkpoints: None,
        load_pause: Duration::ZERO,
        forms: None,
    }
}
