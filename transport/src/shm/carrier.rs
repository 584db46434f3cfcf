//! One peer over shared memory.

use super::remote_write::SharedFiles;
use super::ring::{Region, Side};
use crate::carrier::{Carrier, Wakeup, watch};
use crate::memory::PageMemory;
use crate::traits::Class;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const OFFSET_DOORBELL: u64 = 0;
const OFFSET_LIFE: u64 = 1;

/// One peer's rings, doorbells and sign of life.
#[derive(Debug)]
pub(crate) struct ShmCarrier {
    pub(super) place: String,
    pub(super) region: Region,
    pub(super) side: Side,
    /// Rung by the peer.
    pub(super) own_bell: File,
    /// Rung by us.
    pub(super) peer_bell: File,
    pub(super) life: UnixStream,
    pub(super) files: SharedFiles,
}

impl ShmCarrier {
    /// What the life socket says: the cause, if the peer is gone.
    fn life_says(&mut self) -> Option<String> {
        let mut mark = [0];
        match self.life.recv_with_fd(&mut mark).map_err(io::Error::from) {
            Ok((0, _)) => Some(String::from("ended or let go of the shared memory")),
            Ok((_, file)) => self.files.take_in(mark[0], file).err().map(String::from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(format!("broke the connection: {error}")),
        }
    }

    fn ring(bell: &File) -> io::Result<()> {
        let mut bell = bell;
        match bell.write(&1u64.to_ne_bytes()) {
            // A full counter has rung often enough.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

impl Carrier for ShmCarrier {
    fn location(&self) -> &str {
        &self.place
    }

    fn register(&self, epoll: &Epoll, base: u64) -> io::Result<()> {
        let add = || ControlOperation::Add;
        let bell = self.own_bell.as_raw_fd();
        watch(epoll, add(), bell, EventSet::IN, base + OFFSET_DOORBELL)?;
        let events = EventSet::IN | EventSet::READ_HANG_UP;
        watch(epoll, add(), self.life.as_raw_fd(), events, base + OFFSET_LIFE)
    }

    fn deregister(&mut self, epoll: &Epoll) {
        for fd in [self.own_bell.as_raw_fd(), self.life.as_raw_fd()] {
            // It fails only when the descriptor is not in, and that is the aim.
            let _ = epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
        }
        // The peer must learn that it is given up, although the carrier lives on.
        let _ = self.life.shutdown(Shutdown::Both);
        self.files.let_go();
    }

    fn wakeup(&mut self, offset: u64, _events: EventSet) -> Wakeup {
        if offset == OFFSET_DOORBELL {
            let mut count = [0; 8];
            // An empty counter was emptied before; the rings tell what is there.
            let _ = (&self.own_bell).read(&mut count);
            return Wakeup {
                readable: [true; Class::COUNT],
                writable: [true; Class::COUNT],
                gone: None,
            };
        }
        Wakeup { gone: self.life_says(), ..Wakeup::default() }
    }

    fn read(&mut self, class: usize, into: &mut [u8]) -> io::Result<usize> {
        let taken = self.region.read(self.side.other(), class, into)?;
        if taken.ring {
            Self::ring(&self.peer_bell)?;
        }
        Ok(taken.count)
    }

    fn write(&mut self, class: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let put = self.region.write(self.side, class, parts)?;
        if put.ring {
            Self::ring(&self.peer_bell)?;
        }
        Ok(put.count)
    }

    fn want_room(&mut self, _epoll: &Epoll, _base: u64, class: usize, on: bool) -> io::Result<()> {
        // Room may have appeared between the failed write and the wish for it.
        if self.region.want_room(self.side, class, on)? {
            Self::ring(&self.own_bell)?;
        }
        Ok(())
    }

    fn expose(&mut self, memory: &PageMemory) -> io::Result<bool> {
        self.files.expose(memory, &self.life)
    }

    fn has_remote_write(&self) -> bool {
        self.files.has_remote_write()
    }

    fn remote_write_pages(&mut self, _class: usize, offset: u64, pages: u16) -> io::Result<bool> {
        Ok(self.files.remote_write(offset, pages))
    }

    fn arm(&mut self) -> bool {
        self.region.arm(self.side.other())
    }
}
