//! Sources of randomness: each slice has the host's own.

use super::model::{BackEnd, FrontEnd, Model, Moves, Opening, Places, Starting, Worker};
use super::open_error::OpenError;
use super::parts::Switch;
use super::remote::Remote;
use devices::delegate::{Exchange, ServeError};
use devices::virtio::DeviceShape;
use devices::virtio::rng::{self, RngQueue};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wire::{DeviceId, SliceId};

/// A source of randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RngSpec {}

impl Model for RngSpec {
    type Shape = ();

    const OPTION: &'static str = "rng";
    const MOVES: Moves = Moves::Anywhere;

    /// Nothing.
    fn parse(parts: &[&str]) -> Result<Self, String> {
        if parts == [""] { Ok(Self {}) } else { Err("there is nothing to be said of it".into()) }
    }

    fn open(&self, _: &Opening<'_>) -> Result<((), Arc<dyn BackEnd>), OpenError> {
        Ok(((), Arc::new(Rng)))
    }

    fn fits(&self, (): &()) -> bool {
        true
    }

    fn homes((): &(), places: &Places) -> Vec<SliceId> {
        vec![places.boot()]
    }

    fn seen((): &(), _: u16) -> DeviceShape {
        rng::shape()
    }

    fn remote((): &(), _: &Remote<'_>) -> Arc<dyn FrontEnd> {
        Arc::new(Rng)
    }
}

/// Back end and front end alike.
#[derive(Debug)]
pub(super) struct Rng;

impl BackEnd for Rng {
    fn front_end(
        &self,
        _: &Exchange,
        _: DeviceId,
        _: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        Ok(Arc::new(Self))
    }
}

impl FrontEnd for Rng {
    fn switch(&self) -> Option<Switch> {
        Some(Switch::Nothing)
    }

    fn worker(&self, at: &Starting<'_>) -> Worker {
        let source = Arc::new(|bytes: &mut [u8]| fill_random(bytes));
        let queue = RngQueue::new(at.context, at.activation.features, at.setup, source)?;
        Ok(Some(Box::new(queue)))
    }
}

/// The host's randomness.
fn fill_random(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => bytes = &mut bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!("the host gives no randomness: {error}");
                return;
            }
        }
    }
}
