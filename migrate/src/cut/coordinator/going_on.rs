//! How a cut ends: all are told to go on, and the next one may begin when they do; and what the loss of a slice means for it.

use super::{Coordinator, Phase};
use crate::cut::news::{News, Verdict};
use crate::cut::planted::PlantedBug;
use crate::cut::{DeviceMove, Message, Step};
use std::collections::BTreeSet;
use wire::SliceId;

impl Coordinator {
    /// Ends a cut, whether all slices are at rest or not yet. Does nothing if there is none, or while a slice leaves
    /// or joins, another one comes to coordinate, a device has another place, or a VM that is restored begins.
    pub fn go_on(&mut self, why: &str) -> Verdict {
        let (mut first, mut later) = (self.members.clone(), Vec::new());
        let news = match &self.phase {
            Phase::Waiting { .. } | Phase::Idle | Phase::GoingOn { .. } | Phase::Over => {
                return Verdict::default();
            }
            Phase::Asking { step, .. } if step.is_final() && !self.goes_on_half_way(*step) => {
                return Verdict::default();
            }
            Phase::Asking { step, .. } => {
                // It lets the device go before the former place opens it again.
                if let Step::OpenDevice(DeviceMove { to, .. }) = *step
                    && self.members.contains(&to)
                    && !self.planted.has(PlantedBug::AllGoOnAtOnce)
                {
                    (first, later) = first.into_iter().partition(|slice| *slice == to);
                }
                Some(News::GivenUp(why.to_owned()))
            }
            Phase::AtRest => None,
        };
        self.counts.clear();
        self.phase = Phase::GoingOn { waiting: BTreeSet::new(), later };
        Verdict { messages: self.tell_to_go_on(&first), news }
    }

    fn goes_on_half_way(&self, step: Step) -> bool {
        self.planted.has(PlantedBug::GoesOnHalfParted)
            || self.planted.has(PlantedBug::GoesOnUnbegun) && step == Step::Begin
    }

    /// Has these go on. They are waited for.
    fn tell_to_go_on(&mut self, slices: &[SliceId]) -> Vec<(SliceId, Message)> {
        if let Phase::GoingOn { waiting, .. } = &mut self.phase {
            waiting.extend(slices);
        }
        slices.iter().map(|slice| (*slice, Message::GoOn(self.begun))).collect()
    }

    /// A slice is gone, and the VM goes on without it: it is not waited for, and a cut in which it took part is none.
    pub fn lost(&mut self, slice: SliceId) -> Verdict {
        self.members.retain(|member| *member != slice);
        match &mut self.phase {
            Phase::GoingOn { waiting, later } => {
                waiting.remove(&slice);
                later.retain(|other| *other != slice);
                self.look_whether_all_run()
            }
            // Some may have taken it in.
            Phase::Asking { step: Step::Join(newcomer), .. } if *newcomer == slice => {
                let news = Some(News::Broken(format!("{slice} is lost while it joins")));
                Verdict { news, ..Verdict::default() }
            }
            // Those that are left take it.
            Phase::Asking { step, waiting, .. } if step.is_final() => {
                waiting.remove(&slice);
                let (step, done) = (*step, waiting.is_empty());
                if done { self.all_taken(step) } else { Verdict::default() }
            }
            _ => self.go_on(&format!("{slice} is lost")),
        }
    }

    pub(super) fn look_whether_all_run(&mut self) -> Verdict {
        let (all, later) = match &mut self.phase {
            Phase::GoingOn { waiting, later } => {
                let all = waiting.is_empty();
                (all, if all { std::mem::take(later) } else { Vec::new() })
            }
            _ => return Verdict::default(),
        };
        if !later.is_empty() {
            return Verdict { messages: self.tell_to_go_on(&later), news: None };
        }
        if !all && !self.planted.has(PlantedBug::NotAwaited) {
            return Verdict::default();
        }
        let handed_over = |slice| (slice, Message::HandedOver(self.begun));
        let messages = self.successor.map(handed_over).into_iter().collect();
        self.phase = if self.successor.is_some() { Phase::Over } else { Phase::Idle };
        Verdict { messages, news: Some(News::Runs) }
    }
}
