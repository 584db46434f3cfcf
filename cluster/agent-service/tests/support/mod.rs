//! An agent whose slices are shells: what is asked of it, and what it does with them, is the same.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use agent::decide::{Generation, Request, Settings, Term, Vm};
use agent::runtime::{Options as AgentOptions, Running};
use agent_service::{Inventory, Node, Options, Ports, Server};
use control::v1::agent_service_client::AgentServiceClient;
use control::v1::ensure_slice_request::Role;
use control::v1::host_slice::State;
use control::v1::{
    BootstrapSpec, CompanionSpec, EnsureSliceRequest, FenceProof, FenceVmRequest, GetHostRequest,
    HostResources, HostSlice, SlicePart,
};
use scheduler::Resources;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, process};
use tokio::time::sleep;
use tonic::Status;
use tonic_types::StatusExt;
use vm_service::{Channel, connect};

pub(crate) const VM: &str = "vms/0000000000000000000000000000004d";
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Agent = AgentServiceClient<Channel>;

pub(crate) fn name(number: u16) -> String {
    format!("{VM}/slices/{number}")
}

pub(crate) fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

/// A host of four cores and 1 GiB, in a folder that goes away with it.
#[derive(Debug)]
pub(crate) struct Host(pub(crate) PathBuf);

impl Host {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tsra-{}-{number}", process::id()));
        for folder in ["images", "checkpoints"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        fs::write(path.join("images/vmlinuz"), "a kernel").unwrap();
        let host = Self(path);
        host.program("echo started >> $0.starts; exec sleep 600");
        host
    }

    /// What slices are.
    pub(crate) fn program(&self, script: &str) {
        let path = self.0.join("program");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }

    pub(crate) fn starts(&self) -> usize {
        let text = fs::read_to_string(self.0.join("program.starts"));
        text.map_or(0, |text| text.lines().count())
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("s")
    }

    /// Folders of slices.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state().join("run")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn capacity() -> Resources {
        Resources::new(4, 512)
    }

    pub(crate) fn options(&self) -> Options {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port = port.min(u16::MAX - 32);
        let inventory = Inventory {
            nodes: vec![Node { number: 0, capacity: Self::capacity() }],
            boot_id: "boot".into(),
            kernel: "6.18".into(),
            cpu_model: "A CPU".into(),
            cpu_features: vec!["fpu".into()],
            abilities: Vec::new(),
        };
        Options {
            name: "h1".into(),
            state: self.state(),
            images: self.0.join("images"),
            checkpoints: self.0.join("checkpoints"),
            ports: Ports { address: "127.0.0.1".parse().unwrap(), range: port..=port + 32 },
            inventory,
            program: self.0.join("program"),
            remote: None,
            socket: Some(self.0.join("socket")),
            environment: Vec::new(),
            metrics: None,
        }
    }

    pub(crate) fn begin(&self) -> Server {
        Server::begin(self.options()).unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.0.join("socket")).await.unwrap()
    }

    pub(crate) async fn agent(&self) -> Agent {
        Agent::new(self.channel().await)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let settings = Settings { capacity: Self::capacity() };
        let (program, folder) = (self.0.join("program"), self.state());
        let environment = Vec::new();
        let options = AgentOptions { settings, program, folder, environment };
        if let Ok(agent) = Running::begin(options) {
            let fence = Request::Fence { vm: Vm(0x4d), generation: Generation(u64::MAX - 1) };
            let _ = agent.handle().ask(Term(u64::MAX), fence);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn resources(cores: u32) -> Option<HostResources> {
    Some(HostResources { cores, memory_bytes: 64 << 20 })
}

pub(crate) fn companion(number: u16) -> EnsureSliceRequest {
    EnsureSliceRequest {
        term: 1,
        slice: name(number),
        life: 1,
        resources: resources(1),
        secret: vec![7; 32],
        role: Some(Role::Companion(CompanionSpec::default())),
    }
}

pub(crate) fn bootstrap(kernel: &str) -> EnsureSliceRequest {
    let own = SlicePart { address: String::new(), vcpus: 1, memory_bytes: 32 << 20 };
    let spec = BootstrapSpec { parts: vec![own], kernel: kernel.into(), ..Default::default() };
    EnsureSliceRequest { role: Some(Role::Bootstrap(spec)), ..companion(0) }
}

pub(crate) async fn fence(agent: &mut Agent, life: u64) -> FenceProof {
    let request = FenceVmRequest { term: 1, vm: VM.into(), life };
    agent.fence_vm(request).await.unwrap().into_inner()
}

/// Waits until a slice is so.
pub(crate) async fn until(agent: &mut Agent, number: u16, state: State) -> HostSlice {
    let end = Instant::now() + LIMIT;
    loop {
        let host = agent.get_host(GetHostRequest::default()).await.unwrap().into_inner();
        let slice = host.slices.into_iter().find(|slice| slice.name == name(number));
        if let Some(slice) = slice.as_ref().filter(|slice| slice.state() == state) {
            return slice.clone();
        }
        assert!(Instant::now() < end, "not {state:?}: {slice:?}");
        sleep(Duration::from_millis(10)).await;
    }
}
