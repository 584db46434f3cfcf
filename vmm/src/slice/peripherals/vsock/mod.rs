//! Sockets between guest and host (virtio-vsock), offered on the host as Firecracker does:
//!
//! ```text
//!   client of the host --connects to PATH, says "CONNECT 1024\n"--> guest, port 1024
//!                      <--"OK 1073741824\n" (the host's port), then bytes of the guest---
//!   guest --connects to CID 2, port 52--> whoever listens at PATH_52
//! ```
//! The ends are processes of one host, so all queues are at home there, as those of a console.

mod host;
mod stream;

use super::model::{
    BackEnd, FrontEnd, Lending, LentThing, Model, Opening, Places, Starting, Worker, unknown,
};
use super::open_error::OpenError;
use super::remote::Remote;
use super::saved::FrontEndState;
use crate::local_socket::LocalSocket;
use devices::Fence;
use devices::delegate::{Exchange, ServeError};
use devices::virtio::vsock::{self, Events, HOST_CID, Receive, Transmit, Vsock};
use devices::virtio::vsock::{VsockEvents, VsockReceive, VsockTransmit};
use devices::virtio::{DeviceShape, Doorbell, QueueIndex};
use host::Host;
use migrate::{Invalid, Saved};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use wire::{DeviceId, SliceId};

const WHAT: &str = "a socket device";
/// How long the end of the VM waits for bytes that are on their way to the host.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
const FINISH_POLL: Duration = Duration::from_millis(2);

/// Sockets between guest and host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockSpec {
    /// Address of the guest, 3 or more.
    pub cid: u32,
    /// The socket for clients of the host, and the begin of the names of those that the guest connects to.
    pub socket: PathBuf,
}

/// What drivers see of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockShape {
    /// Address of the guest.
    pub cid: u32,
}

/// Whether a guest may have this address: those up to the host's, and the last, have a meaning (5.10.4).
fn check_cid(cid: u32) -> Result<(), String> {
    if u64::from(cid) <= HOST_CID || cid == u32::MAX {
        return Err(format!("cid={cid}: the address of a guest is 3 to 4294967294"));
    }
    Ok(())
}

impl Model for VsockSpec {
    type Shape = VsockShape;

    const AT_OWNER: bool = true;
    const OPTION: &'static str = "vsock";
    const LENDING: Option<Lending> = Some(Lending {
        kind: "vsock",
        forms: &["vsock:PATH"],
        check: |_| Ok(()),
        open: |_| Ok(LentThing::Later),
    });

    /// `cid=N,socket=PATH`
    fn parse(parts: &[&str]) -> Result<Self, String> {
        let (mut cid, mut socket) = (None, None);
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("cid", value)) => {
                    let number =
                        value.parse().map_err(|_| format!("cid={value:?} is no number"))?;
                    check_cid(number)?;
                    cid = Some(number);
                }
                Some(("socket", "")) => return Err("the path is missing".into()),
                Some(("socket", path)) => socket = Some(path.into()),
                _ => return Err(unknown(part, "cid=, socket=, slice=")),
            }
        }
        let cid = cid.ok_or("the guest's address is missing: cid=N")?;
        let socket = socket.ok_or("the socket is missing: socket=PATH")?;
        Ok(Self { cid, socket })
    }

    fn names(&self) -> Vec<String> {
        vec![format!("vsock:{}", self.socket.display())]
    }

    fn open(&self, opening: &Opening<'_>) -> Result<(VsockShape, Arc<dyn BackEnd>), OpenError> {
        check_cid(self.cid).map_err(OpenError::of(WHAT))?;
        let open = OpenVsock::new(self, opening.fence)?;
        Ok((VsockShape { cid: self.cid }, Arc::new(open)))
    }

    fn fits(&self, shape: &VsockShape) -> bool {
        shape.cid == self.cid
    }

    fn homes(_: &VsockShape, places: &Places) -> Vec<SliceId> {
        vec![places.owner; 3]
    }

    fn seen(shape: &VsockShape, _: u16) -> DeviceShape {
        vsock::shape(shape.cid)
    }

    /// Its queues are not here.
    fn remote(_: &VsockShape, _: &Remote<'_>) -> Arc<dyn FrontEnd> {
        Arc::new(VsockFront(None))
    }
}

/// The device with its socket. It is there before the VM, and works once the VM does.
#[derive(Debug)]
struct OpenVsock {
    vsock: Vsock,
    socket: Arc<LocalSocket>,
    /// Taken by the thread that serves it.
    host: Mutex<Option<Host>>,
    /// Ends that thread.
    over: Arc<AtomicBool>,
}

impl OpenVsock {
    fn new(spec: &VsockSpec, fence: &Arc<Fence>) -> Result<Self, OpenError> {
        let vsock = Vsock::new(spec.cid).map_err(OpenError::of(WHAT))?;
        let socket = LocalSocket::open(&spec.socket).map_err(OpenError::of(WHAT))?;
        let (socket, over) = (Arc::new(socket), Arc::new(AtomicBool::new(false)));
        let own = (Arc::clone(&socket), Arc::clone(fence), Arc::clone(&over));
        let host = Host::new(vsock.clone(), own, &spec.socket).map_err(OpenError::of(WHAT))?;
        Ok(Self { vsock, socket, host: Mutex::new(Some(host)), over })
    }

    fn serve(&self) -> io::Result<()> {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(host) = host else { return Ok(()) };
        Builder::new().name("vsock".into()).spawn(move || host.run()).map(drop)
    }
}

impl BackEnd for OpenVsock {
    fn front_end(
        &self,
        _: &Exchange,
        _: DeviceId,
        _: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        Ok(Arc::new(VsockFront(Some(self.vsock.clone()))))
    }

    fn start(&self) -> Result<(), OpenError> {
        self.serve().map_err(|source| OpenError::Start { what: WHAT, source })
    }

    fn finish(&self) {
        let until = Instant::now() + FINISH_LIMIT;
        let serves = || !self.over.load(Ordering::Acquire);
        while self.vsock.waiting() > 0 && serves() && Instant::now() < until {
            thread::sleep(FINISH_POLL);
        }
        self.socket.remove();
    }
}

impl Drop for OpenVsock {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.vsock.host_bell().ring();
    }
}

/// None where its queues are not.
#[derive(Debug)]
struct VsockFront(Option<Vsock>);

impl FrontEnd for VsockFront {
    /// They are rung by the driver and by the device alike.
    fn bell(&self, queue: usize, _: &[Option<Doorbell>]) -> Option<Doorbell> {
        self.0.as_ref()?.bell(queue).cloned()
    }

    fn start(&self, _: u64) {
        if let Some(vsock) = &self.0 {
            vsock.set_active(true);
        }
    }

    fn worker(&self, at: &Starting<'_>) -> Worker {
        let (Some(vsock), features) = (&self.0, at.activation.features) else { return Ok(None) };
        Ok(match at.queue {
            QueueIndex(0) => {
                let receive = Receive::new(vsock);
                Some(Box::new(VsockReceive::new(at.context, features, at.setup, receive)?))
            }
            QueueIndex(1) => {
                let transmit = Transmit::new(vsock);
                Some(Box::new(VsockTransmit::new(at.context, features, at.setup, transmit)?))
            }
            QueueIndex(2) => {
                let events = Events::new(vsock);
                Some(Box::new(VsockEvents::new(at.context, features, at.setup, events)?))
            }
            _ => None,
        })
    }

    fn stop(&self) {
        if let Some(vsock) = &self.0 {
            vsock.set_active(false);
        }
    }

    fn restore(&self, _: &[QueueIndex], _: u64, state: FrontEndState) -> Result<(), Invalid> {
        match (&self.0, state) {
            (Some(vsock), FrontEndState::Vsock(state)) => Saved::restore(&mut vsock.clone(), state),
            (_, FrontEndState::Vsock(_) | FrontEndState::Nothing) => Ok(()),
            _ => Err(Invalid::new("front_end", "of another kind of device")),
        }
    }

    fn save(&self) -> FrontEndState {
        self.0.as_ref().map_or(FrontEndState::Nothing, |vsock| FrontEndState::Vsock(vsock.save()))
    }
}

#[cfg(test)]
mod tests;
