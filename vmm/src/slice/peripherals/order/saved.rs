//! The saved form of the order. It is the same on all slices: at a cut all of them have applied all changes.
//!
//! The slices themselves are not in it. A VM that goes on elsewhere has its own.

use super::{Sequencer, Turn};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Far more changes than a guest can make, and far from the number that stands for a slice that is gone.
const LAST_MAX: u64 = u64::MAX >> 1;

/// How far the devices have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OrderState {
    /// Number of the last change. All slices have applied it, and none is under way.
    pub(crate) last: u64,
}

impl SavedState for OrderState {
    const NAME: &'static str = "order of device changes";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 24;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.last <= LAST_MAX, "last", "more changes than a guest can make")
    }
}

impl Saved for Sequencer {
    type State = OrderState;

    /// Between two changes.
    fn save(&self) -> OrderState {
        OrderState { last: self.last }
    }

    fn restore(&mut self, state: OrderState) -> Result<(), Invalid> {
        state.check()?;
        self.last = state.last;
        Ok(())
    }
}

impl Saved for Turn {
    type State = OrderState;

    fn save(&self) -> OrderState {
        OrderState { last: self.0 }
    }

    fn restore(&mut self, state: OrderState) -> Result<(), Invalid> {
        state.check()?;
        self.0 = state.last;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::peripherals::order::OrderError;
    use crossbeam_channel::{Receiver, Sender, unbounded};
    use migrate::SavedError;
    use migrate::saved::{decode, encode};
    use proptest::prelude::*;
    use std::cell::RefCell;
    use wire::control::OrderedChange;
    use wire::{Control, SliceId};

    const CHANGE: OrderedChange = OrderedChange::Broken { device: 1 };

    fn sequencer(applied: Receiver<(SliceId, u64)>) -> Sequencer {
        Sequencer::new(0, vec![SliceId(1), SliceId(2)], applied)
    }

    /// Makes changes, each of which the companions check and acknowledge.
    fn change(
        sequencer: &mut Sequencer,
        acknowledge: &Sender<(SliceId, u64)>,
        turns: &mut [Turn; 2],
        count: u64,
    ) -> Result<(), OrderError> {
        let turns = RefCell::new(turns);
        for _ in 0..count {
            let send = |to: SliceId, frame: &Control| {
                let Control::Apply { sequence, .. } = frame else { panic!("{frame:?}") };
                turns.borrow_mut()[usize::from(to.0 - 1)].check(*sequence).unwrap();
                acknowledge.send((to, *sequence)).unwrap();
            };
            sequencer.order(CHANGE, send, || Ok(()))?;
        }
        Ok(())
    }

    fn through_bytes(state: OrderState) -> OrderState {
        decode(&encode(&state).unwrap()).unwrap()
    }

    proptest! {
        /// Wherever the cut is, restored slices go on with the number that is next, and no other.
        #[test]
        fn order_goes_on_where_it_was(before in 0..20_u64, after in 1..20_u64, gap in 1..4_u64) {
            let (acknowledge, applied) = unbounded();
            let (mut old, mut turns) = (sequencer(applied), [Turn::default(), Turn::default()]);
            change(&mut old, &acknowledge, &mut turns, before).unwrap();
            let state = old.save();
            prop_assert_eq!(turns[0].save(), state);
            prop_assert_eq!(turns[1].save(), state);

            let (acknowledge, applied) = unbounded();
            let (mut new, mut turns) = (sequencer(applied), [Turn::default(), Turn::default()]);
            new.restore(through_bytes(state)).unwrap();
            turns.iter_mut().for_each(|turn| turn.restore(through_bytes(state)).unwrap());
            prop_assert_eq!(new.save(), state);
            change(&mut new, &acknowledge, &mut turns, after).unwrap();
            prop_assert_eq!(new.save().last, before + after);
            // One that was not restored, or restored from another cut, is out of turn.
            let got = before + after + 1 + gap;
            let error = OrderError::Turn { got, expected: before + after + 1 };
            prop_assert_eq!(turns[0].check(got), Err(error));
        }

        /// Whatever somebody else has written: an error, or a number that the order can go on from.
        #[test]
        fn bytes_of_others_are_a_number_or_an_error(
            last in any::<u64>(), at in any::<prop::sample::Index>(), to in any::<u8>(),
        ) {
            let (_, applied) = unbounded();
            let mut order = sequencer(applied);
            let invalid = order.restore(OrderState { last }).is_err();
            prop_assert_eq!(invalid, last > LAST_MAX);
            let refused = matches!(encode(&OrderState { last }), Err(SavedError::Invalid { .. }));
            prop_assert_eq!(refused, invalid);
            let mut bytes = encode(&OrderState { last: last & LAST_MAX }).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(state) = decode::<OrderState>(&bytes) {
                order.restore(state).unwrap();
                prop_assert!(order.save().last <= LAST_MAX);
            }
        }
    }
}
