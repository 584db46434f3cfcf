//! What a slice does because it coordinates, and how another one comes to do so.
//!
//! ```text
//!   bootstrap: begin ----------------------------------> coordinates
//!                                                          | save, in a cut
//!                                                          v
//!   another slice: prepare --Coordinate taken--> take_over --HandedOver--> leads   the one before: step_down --WantLeave--> gone
//!                     \--prepared anew, or the VM ends                                  \--it is given parts, and stays
//! ```
//! The coordinator has the platform devices, orders changes of the devices on PCI (`peripherals`), decides about cuts and
//! moves, keeps the clocks together, hears the requests of people (`relocation`, `control`) and ends the VM (`watch`). Which
//! slice that is stands in the placement and nowhere else: all threads look there. So little has to be told. Others may learn of it
//! earlier or later than that slice: until all know (`Channels::leads`) it answers, and begins nothing.

mod error;
mod leaves;
mod state;
mod terms;
#[cfg(test)]
mod tests;

pub(super) use error::SuccessionError;
pub(super) use terms::Terms;

use super::channels::Channels;
use super::checkpoint::{Checkpoints, Description};
use super::console::PanicWatch;
use super::cut::{self, Failure, Succeeds};
use super::cut_link::CutHandle;
use super::events::SliceEvent;
use super::handover::MoveHandle;
use super::hotplug::Hotplugs;
use super::joining::Inviter;
use super::overseeing::Overseer;
use super::peripherals::{OrderState, Relay};
use super::relocation::Relocations;
use super::restore::opens;
use super::stop::StopHandle;
use crate::control::{Desk, VmHandles};
use crate::machine::Machine;
use checkpoint::Key;
use devices::saved::ChipsetState;
use devices::{Chipset, ChipsetConfig, HotplugConfig, ShutdownSink};
use migrate::Saved;
use migrate::cut::Coordinator;
use migrate::plan::Capacity;
use migrate::saved::{decode, encode};
use state::{CoordinatorState, milliseconds, offer_states, take_offers};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use wire::{Control, SliceId};

/// What a slice needs to coordinate, whether it does or not.
pub(super) struct CoordinationConfig {
    pub(super) channels: Arc<Channels>,
    pub(super) machine: Machine,
    pub(super) vcpus: u32,
    /// If vCPUs can come later.
    pub(super) hotplug: Option<HotplugConfig>,
    pub(super) shutdown: Arc<dyn ShutdownSink>,
    pub(super) moves: MoveHandle,
    /// What all slices offer.
    pub(super) capacity: Arc<Mutex<Capacity>>,
    /// On the slice that has the VM's secret: calls slices that join.
    pub(super) inviter: Option<Arc<Inviter>>,
    /// The VM, for checkpoints, and the key of its secret where that is known.
    pub(super) vm: Arc<Description>,
    pub(super) key: Option<Key>,
    /// Where people and programs ask for what is done to the VM.
    pub(super) desk: Desk,
    /// Set when a panic of the guest goes by.
    pub(super) panicked: Arc<AtomicBool>,
}

/// The part of a slice in coordinating its VM.
pub(super) struct Coordination {
    config: CoordinationConfig,
    serial: Relay,
    terms: Mutex<Terms>,
    /// Has been sent here, and is not in force.
    next: Mutex<Option<(Chipset, Terms)>>,
}

impl std::fmt::Debug for Coordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordination")
            .field("slice", &self.config.channels.local())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordination {
    /// Of a slice whose serial line goes to `console` while it coordinates.
    ///
    /// # Errors
    /// There is no thread for the serial line.
    pub(super) fn new(
        config: CoordinationConfig,
        console: Box<dyn Write + Send>,
        terms: Terms,
    ) -> std::io::Result<Self> {
        let serial = Relay::start(console)?;
        let (terms, next) = (Mutex::new(terms), Mutex::new(None));
        Ok(Self { config, serial, terms, next })
    }

    fn chipset(&self) -> Chipset {
        let CoordinationConfig { machine, panicked, .. } = &self.config;
        Chipset::new(ChipsetConfig {
            vcpus: self.config.vcpus,
            hotplug: self.config.hotplug.clone(),
            console: Box::new(PanicWatch::new(self.serial.output(), Arc::clone(panicked))),
            interrupts: Arc::new(machine.clone()),
            shutdown: Arc::clone(&self.config.shutdown),
            clock: machine.clock(),
        })
    }

    /// The platform devices come up: on the slice that starts the VM, before its guest runs. In a VM that is restored they go
    /// on from this state.
    ///
    /// # Errors
    /// It is that of another VM.
    pub(super) fn power_on(&self, state: Option<ChipsetState>) -> Result<(), SuccessionError> {
        let mut chipset = self.chipset();
        if let Some(state) = state {
            chipset.restore(state)?;
            // The vCPUs have their state too, and are not started: they find the event when they run.
            chipset.notify_generation();
        }
        self.config.channels.chipset.store(Some(Arc::new(chipset)));
        Ok(())
    }

    /// From now on this slice takes requests to end. That is so before anybody is told of the VM, or can have things done to
    /// it: a process that takes no such request yet would only go, with a guest that was never asked.
    pub(super) fn take_stops(&self, stop: &StopHandle) {
        let channels = &self.config.channels;
        stop.attach(&channels.events);
        // There is one for the life of a slice.
        let _ = channels.stop.set(stop.clone());
    }

    /// Says which VM this slice is of, which takes requests to end, now or since before.
    pub(super) fn appear(&self, stop: &StopHandle) {
        let CoordinationConfig { channels, vm, desk, .. } = &self.config;
        self.take_stops(stop);
        desk.attach_vm_of(vm.identity.name(), channels.placement.clone());
    }

    /// From now on people can have things done to the VM. One that is restored goes on when all slices have begun.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn begin(&self, restored: bool) -> Result<(), SuccessionError> {
        let channels = &self.config.channels;
        channels.succession.choose(true);
        let new = if restored { Coordinator::restored } else { Coordinator::new };
        self.lead(new(channels.local(), channels.there()))
    }

    fn lead(&self, coordinator: Coordinator) -> Result<(), SuccessionError> {
        let CoordinationConfig { channels, moves, capacity, inviter, desk, .. } = &self.config;
        let (moves, desk) = (moves.clone(), desk.clone());
        let vm = (Arc::clone(&self.config.vm), self.config.key.clone());
        let (capacity, inviter) = (Arc::clone(capacity), inviter.clone());
        let weak = Arc::downgrade(channels);
        let ready = move |cuts: CutHandle| {
            let Some(channels) = weak.upgrade() else { return };
            let joining = (capacity, inviter);
            let relocations = Relocations::new(moves, cuts.clone(), &channels, joining);
            let relocations = Arc::new(relocations);
            if let Err(error) = leaves::start(&channels, &relocations) {
                let text = format!("start a thread of the coordinator: {error}");
                channels.event(SliceEvent::Fatal(text));
            }
            channels.leads.store(true, Ordering::SeqCst);
            desk.attach_vm(VmHandles {
                relocates: relocations,
                plugs: Arc::new(Hotplugs(Weak::clone(&weak))),
                checkpoints: Arc::new(Checkpoints::new(&channels, cuts.clone(), vm, opens)),
                oversees: Arc::new(Overseer(Weak::clone(&weak))),
                pauses: Arc::new(cuts),
            });
            channels.event(SliceEvent::Coordinates);
        };
        Ok(cut::start_driver(channels, coordinator, ready)?)
    }

    /// What ends the VM.
    pub(super) fn terms(&self) -> MutexGuard<'_, Terms> {
        lock(&self.terms)
    }

    /// Whether a panic of the guest has gone by here.
    pub(super) fn has_panicked(&self) -> bool {
        self.config.panicked.load(Ordering::Relaxed)
    }

    /// The VM is over, or goes on without this slice: what is left of the serial line's output is written.
    pub(super) fn finish(&self) {
        self.config.channels.chipset.store(None);
        self.serial.finish();
    }
}

impl Succeeds for Coordination {
    fn hand_over(&self, to: SliceId, order: OrderState) -> Result<(), Failure> {
        let channels = &self.config.channels;
        let chipset = channels.chipset.load();
        let chipset = chipset.as_ref().ok_or(SuccessionError::NotCoordinating)?.save();
        let terms = self.terms();
        let state = CoordinatorState {
            chipset,
            order,
            moves: self.config.moves.begun(),
            checkpoints: channels.checkpoints.last(),
            elapsed_ms: milliseconds(terms.started.elapsed()),
            left_ms: terms.left_ms(),
            stop_limit_ms: milliseconds(terms.stop_limit),
            panicked: self.has_panicked(),
            lost: terms.lost_states(),
            offers: offer_states(&lock(&self.config.capacity)),
        };
        let bytes = encode(&state).map_err(SuccessionError::from)?;
        channels.send(to, &Control::CoordinatorState(bytes));
        Ok(())
    }

    fn prepare(&self, order: OrderState) -> Result<(), Failure> {
        let bytes = self.config.channels.succession.take().ok_or(SuccessionError::Missing)?;
        let state: CoordinatorState = decode(&bytes).map_err(SuccessionError::from)?;
        if state.order != order {
            let (theirs, ours) = (state.order.last, order.last);
            return Err(SuccessionError::Order { theirs, ours }.into());
        }
        let terms = Terms::of(&state);
        if state.panicked {
            self.config.panicked.store(true, Ordering::Relaxed);
        }
        let mut chipset = self.chipset();
        chipset.restore(state.chipset).map_err(SuccessionError::from)?;
        self.config.moves.count_from(state.moves);
        self.config.channels.checkpoints.count_from(state.checkpoints);
        take_offers(&state.offers, &mut lock(&self.config.capacity));
        *lock(&self.next) = Some((chipset, terms));
        self.config.channels.succession.choose(true);
        Ok(())
    }

    fn take_over(&self, before: SliceId, cut: u64) -> Result<(), Failure> {
        let channels = &self.config.channels;
        let (chipset, terms) = lock(&self.next).take().ok_or(SuccessionError::Missing)?;
        channels.chipset.store(Some(Arc::new(chipset)));
        self.terms().become_those(terms);
        self.lead(Coordinator::after(before, cut, channels.local(), channels.there()))?;
        tracing::info!(
            "this slice coordinates the VM: its serial line is here, and requests are made here"
        );
        Ok(())
    }

    fn step_down(&self) {
        let channels = &self.config.channels;
        channels.leads.store(false, Ordering::SeqCst);
        channels.succession.choose(false);
        self.config.desk.detach_vm();
        channels.succession.set_thread(None);
        channels.chipset.store(None);
        channels.event(SliceEvent::Coordinates);
    }
}
