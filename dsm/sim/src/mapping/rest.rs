//! All engines at rest, saved, thrown away, and new ones in their place.
//!
//! ```text
//!   no vCPU runs --Rest--> answers, no frame on its way --save, encode--> decode, check_all
//!     --> pages from their keepers into new memory, others with bytes that nobody may see --> new engines
//! ```

use super::snapshots::Image;
use super::world::{Event, Failure, World};
use crate::mapping::guests::State;
use dsm::simulate::SteppedSlice;
use dsm_protocol::Gfn;
use dsm_protocol::saved::{NodeState, check_all};
use migrate::saved::{decode, encode};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Engines come to rest within this. Virtual time.
const LIMIT: Duration = Duration::from_secs(10);
const PAGE: usize = 4096;

impl World {
    /// Puts new engines, made from what the engines of now save, in their place.
    pub(super) fn save_and_restore(&mut self) -> Result<(), Failure> {
        self.guests().stopped = true;
        self.come_to_rest()?;
        let states = self.save().or_else(|error| self.fail(&error.to_string()))?;
        if let Err(disagreement) = check_all(&states) {
            return self.fail(&disagreement.to_string());
        }
        let image = self.image(&states);
        for state in &states {
            let slice = usize::from(state.slice.0);
            let restored = self.restore(slice, state, &image);
            restored.or_else(|error| self.fail(&format!("slice{slice}: {error}")))?;
        }
        self.guests().start_again();
        let count = self.guests().vcpus.len();
        for vcpu in 0..count {
            if self.guests().vcpus[vcpu].state != State::Ends {
                self.plan(vcpu, 500);
            }
        }
        Ok(())
    }

    /// Lets happen what happens without vCPUs, until nothing is under way.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Failure> {
        let living = self.slices.iter().filter(|slice| !slice.gone);
        let rests: Vec<_> = living.map(|slice| slice.stepped.rest(LIMIT)).collect();
        (0..self.slices.len()).for_each(|slice| self.turn_soon(slice));
        let mut left: Vec<_> = rests.into_iter().collect();
        loop {
            let mut late = None;
            left.retain(|rest| match rest.try_recv() {
                Ok(Ok(())) => false,
                Ok(Err(error)) => {
                    late = Some(error);
                    true
                }
                Err(_) => true,
            });
            if let Some(error) = late {
                return self.fail(&error.to_string());
            }
            let on_its_way = self.calendar.values().any(|at| matches!(at, Event::Deliver(..)))
                || self.slices.iter().any(|slice| !slice.mailbox().incoming.is_empty())
                || self.guests().vcpus.iter().any(|vcpu| vcpu.state == State::Asks);
            if left.is_empty() && !on_its_way {
                return Ok(());
            }
            let Some(((at, _), event)) = self.calendar.pop_first() else {
                return self.fail("engines do not come to rest");
            };
            self.happen(at, event)?;
        }
    }

    /// The forms of all nodes, as they are read back.
    pub(super) fn save(&mut self) -> Result<Vec<NodeState>, Box<dyn Error>> {
        let living = self.slices.iter_mut().filter(|slice| !slice.gone);
        let states = living.map(|slice| slice.stepped.save());
        let states: Vec<NodeState> = states.collect::<Result<_, _>>()?;
        states.iter().map(|state| Ok(decode(&encode(state)?)?)).collect()
    }

    /// The contents of memory, each page from the slice that has the truth about it. Zeros are left out.
    pub(super) fn image(&self, states: &[NodeState]) -> Image {
        let mut image = Image::new();
        for (keeper, frames) in states.iter().flat_map(NodeState::keepers) {
            for gfn in frames.frames() {
                let mut bytes = vec![0; PAGE];
                let ram = self.slices[usize::from(keeper.0)].stepped.ram();
                if ram.peek(gfn, 0, &mut bytes) && bytes.iter().any(|byte| *byte != 0) {
                    image.insert(gfn, bytes);
                }
            }
        }
        image
    }

    fn restore(
        &mut self,
        at: usize,
        state: &NodeState,
        image: &Image,
    ) -> Result<(), Box<dyn Error>> {
        let mailbox = Arc::clone(&self.slices[at].mailbox);
        let mut config = self.config(u16::try_from(at)?, &mailbox)?;
        // The placement that is in force then says where homes are.
        config.node.homes = self.slices[at].stepped.homes();
        let frames: Vec<Gfn> = config.frames.iter().cloned().flatten().map(Gfn).collect();
        let mut stepped = SteppedSlice::restored(config, state, &|ram| {
            for gfn in &frames {
                if !state.shared.contains(*gfn) && !state.exclusive.contains(*gfn) {
                    // In some: others are not in the file, as in a new process.
                    if gfn.0 % 3 > 0 {
                        ram.write(*gfn, 0, &[0xee; PAGE]);
                    }
                } else if let Some(bytes) = image.get(gfn) {
                    ram.write(*gfn, 0, bytes);
                }
            }
        })?;
        if stepped.save()? != *state {
            return Err("an engine that was restored saves another state".into());
        }
        self.replace(at, stepped);
        Ok(())
    }

    /// Another engine, with memory of its own, is in the place of a slice's.
    pub(super) fn replace(&mut self, at: usize, stepped: SteppedSlice) {
        let host = self.host(&stepped);
        self.slices[at].stepped.kernel().set_between(None);
        self.guests().hosts[at] = host;
        self.slices[at].stepped = stepped;
        self.slices[at].turn = None;
        self.let_others_run(at, 7);
        self.turn_soon(at);
    }
}
