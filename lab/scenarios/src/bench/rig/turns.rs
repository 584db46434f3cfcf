//! Whose turn it is.

/// The modes in the order of a round. Each round begins with another one, so that whatever changes during a round, or
/// comes of being first, meets all of them alike.
pub(crate) fn order<M: Copy>(modes: &[M], round: usize) -> Vec<M> {
    let mut order = modes.to_vec();
    if let Some(turn) = round.checked_rem(order.len()) {
        order.rotate_left(turn);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_each_place_once_in_as_many_rounds() {
        let rounds: Vec<_> = (0..3).map(|round| order(&['a', 'b', 'c'], round)).collect();

        assert_eq!(rounds, [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b']]);
        assert_eq!(order(&['a', 'b', 'c'], 3), rounds[0]);
        assert!(order::<char>(&[], 1).is_empty());
    }
}
