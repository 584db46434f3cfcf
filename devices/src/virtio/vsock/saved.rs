//! The saved form of a socket device. Connections are not in it: their other ends are programs of a host. A driver that
//! goes on with the device is told that all of them are reset (5.10.6.7).

use super::Vsock;
use super::switch::{FIRST_PORT, Switch};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// What outlives all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockState {
    /// A driver runs the device, and may have connections.
    pub active: bool,
    /// The port of the host for the next connection that it asks for, 2^30 or more. Connections after a restore have
    /// other ports than those of before, which the guest may not have forgotten yet.
    pub next_port: u32,
}

impl SavedState for VsockState {
    const NAME: &'static str = "virtio sockets";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 32;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.next_port >= FIRST_PORT, "next_port", "not one of the host's own")
    }
}

impl Saved for Switch {
    type State = VsockState;

    fn save(&self) -> VsockState {
        let (active, next_port) = self.lasting();
        VsockState { active, next_port }
    }

    fn restore(&mut self, state: VsockState) -> Result<(), Invalid> {
        state.check()?;
        self.go_on(state.active, state.next_port);
        Ok(())
    }
}

impl Saved for Vsock {
    type State = VsockState;

    fn save(&self) -> VsockState {
        self.with(|switch| switch.save())
    }

    /// Before or after [`Self::set_active`]; nobody has asked for a connection yet.
    fn restore(&mut self, state: VsockState) -> Result<(), Invalid> {
        self.with(|switch| switch.restore(state))
    }
}
