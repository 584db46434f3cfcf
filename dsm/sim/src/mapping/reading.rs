//! Snapshots of memory, read while the guests run on.
//!
//! ```text
//!   --all engines protect memory, vCPUs run--> all at rest, frozen; memory is looked at --> vCPUs run, a page is read now and
//!   then, of any slice --> all is read: each slice has given what it had, as it was
//! ```

use super::snapshots::{EVENTS_BETWEEN, Image, Reading, Snapshots, Stage};
use super::world::{Failure, World};
use dsm_protocol::Gfn;
use std::collections::BTreeMap;

/// One in so many events reads something.
const SELDOM: u64 = 6;

impl World {
    /// Begins a snapshot, takes it, or reads something of it, if it is time.
    pub(super) fn look_at_snapshots(&mut self, events: u64) -> Result<(), Failure> {
        let Some(Snapshots { random, stage, .. }) = &mut self.snapshots else { return Ok(()) };
        match stage {
            Stage::Idle(next) if events >= *next => {
                let moment = events + random.below(EVENTS_BETWEEN / 4);
                let protected = self.slices.iter().map(|slice| slice.stepped.protect()).collect();
                *stage = Stage::Protecting(protected, moment);
                (0..self.slices.len()).for_each(|slice| self.turn_soon(slice));
            }
            Stage::Protecting(protected, moment) if events >= *moment => {
                let mut refused = None;
                protected.retain(|answer| match answer.try_recv() {
                    Ok(Ok(())) => false,
                    Ok(Err(error)) => {
                        refused = Some(error);
                        false
                    }
                    Err(_) => true,
                });
                if refused.is_some() {
                    // The former one is being given back still.
                    *stage = Stage::Idle(events + 100);
                } else if protected.is_empty() {
                    self.freeze_all()?;
                }
            }
            Stage::Reading(_, readings) if random.one_in(SELDOM) => {
                let count = u64::try_from(readings.len()).expect("few");
                let which = usize::try_from(random.below(count)).expect("few");
                let read = readings[which].read();
                read.or_else(|error| self.fail(&error))?;
                self.judge(events)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn freeze_all(&mut self) -> Result<(), Failure> {
        self.guests().stopped = true;
        self.come_to_rest()?;
        let states = self.save().or_else(|error| self.fail(&error.to_string()))?;
        let image = self.image(&states);
        let upkeep: u64 = self.slices.iter().map(|slice| slice.stepped.upkeep()).sum();
        let mut readings = Vec::new();
        for state in &states {
            let here = state.here();
            let frozen = self.slices[usize::from(state.slice.0)].stepped.freeze(&here);
            let reader = frozen.or_else(|error| self.fail(&error.to_string()))?;
            readings.push(Reading { here, reader: Some(reader), pages: Image::new() });
        }
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.upkeep += upkeep;
            snapshots.stage = Stage::Reading(image, readings);
        }
        self.go_on();
        Ok(())
    }

    /// Reads what is left, at the end.
    pub(super) fn read_all(&mut self) -> Result<(), Failure> {
        let Some(Snapshots { stage: Stage::Reading(_, readings), .. }) = &mut self.snapshots else {
            return Ok(());
        };
        let mut failed = Ok(());
        for reading in readings {
            while failed.is_ok() && reading.reader.is_some() {
                failed = reading.read();
            }
        }
        failed.or_else(|error| self.fail(&error))?;
        self.judge(u64::MAX / 2)
    }

    /// Compares what was read with what was there, once all was read.
    fn judge(&mut self, events: u64) -> Result<(), Failure> {
        let Some(Snapshots { stage, random, done, .. }) = &mut self.snapshots else {
            return Ok(());
        };
        let Stage::Reading(image, readings) = stage else { return Ok(()) };
        if readings.iter().any(|reading| reading.reader.is_some()) {
            return Ok(());
        }
        let wrong = readings.iter().find_map(|reading| reading.wrong(image));
        let mut given: BTreeMap<Gfn, usize> = BTreeMap::new();
        for gfn in readings.iter().flat_map(|reading| reading.pages.keys()) {
            *given.entry(*gfn).or_default() += 1;
        }
        let missing = image.keys().find(|gfn| !given.contains_key(gfn)).copied();
        *stage = Stage::Idle(events + random.below(EVENTS_BETWEEN));
        *done += 1;
        match (wrong, missing) {
            (Some(gfn), _) => self.fail(&format!("the snapshot has {gfn} as it was not")),
            (_, Some(gfn)) => self.fail(&format!("the snapshot lacks {gfn}")),
            _ => Ok(()),
        }
    }
}
