//! What belongs to memory that is being loaded: where it is, what watches what is absent, and how far it is.

use super::loading::Loading;
#[cfg(feature = "simulate")]
use super::loading::Piece;
use super::source::{LoadError, Source};
use crate::kernel::Uffd;
use crate::planted::PlantedBug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Memory that is being loaded.
#[derive(Debug)]
pub(crate) struct Lazy {
    pub(super) loading: Loading,
    /// Until all is here.
    source: Mutex<Option<Arc<dyn Source>>>,
    /// Watches what is absent, in the guest mapping.
    pub(super) uffd: Uffd,
    #[cfg_attr(not(feature = "simulate"), expect(dead_code, reason = "the simulator's"))]
    planted: Option<PlantedBug>,
    /// What a planted bug loads once more.
    #[cfg(feature = "simulate")]
    again: Mutex<Option<(Piece, Arc<dyn Source>)>>,
}

impl Lazy {
    pub(super) fn new(
        loading: Loading,
        source: Option<Arc<dyn Source>>,
        uffd: Uffd,
        planted: Option<PlantedBug>,
    ) -> Self {
        Self {
            loading,
            source: Mutex::new(source),
            uffd,
            planted,
            #[cfg(feature = "simulate")]
            again: Mutex::default(),
        }
    }

    /// All is here: its files are closed.
    pub(super) fn close(&self) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn source(&self) -> Option<Arc<dyn Source>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cfg(feature = "simulate")]
    pub(super) fn has_bug(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "simulate"))]
    #[expect(clippy::unused_self, reason = "the simulator's looks")]
    pub(super) const fn has_bug(&self, _: PlantedBug) -> bool {
        false
    }

    #[cfg(feature = "simulate")]
    pub(super) fn note_for_again(&self, piece: &Piece) {
        let again = self.source().map(|source| (piece.clone(), source));
        *self.again.lock().unwrap_or_else(PoisonError::into_inner) = again;
    }

    #[cfg(feature = "simulate")]
    pub(super) fn take_again(&self) -> Option<(Piece, Arc<dyn Source>)> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Nothing comes from there any more.
    pub(super) fn silent(&self, waited: Duration) -> LoadError {
        let from = self.source().map(|source| source.name()).unwrap_or_default();
        LoadError::Silent { from, waited }
    }

    /// Ends all loading if one piece is being read for so long.
    pub(super) fn look_for_silence(&self, limit: Duration) {
        if let Some(waited) = self.loading.longest_read().filter(|waited| *waited > limit) {
            self.loading.fail(self.silent(waited));
        }
    }
}
