//! Slices of one process, each joined to each other one.

use wire::SliceId;

/// A slice and what joins it to each of its peers.
pub(crate) type Joined<T> = (SliceId, Vec<(SliceId, T)>);

/// Makes both ends for every pair of slices `0..n`, lower first, and hands them out.
pub(crate) fn join<T, E>(
    n: u16,
    mut ends: impl FnMut(SliceId, SliceId) -> Result<(T, T), E>,
) -> Result<Vec<Joined<T>>, E> {
    let mut slices: Vec<Joined<T>> = (0..n).map(|slice| (SliceId(slice), Vec::new())).collect();
    for low in 0..n {
        for high in low + 1..n {
            let (first, second) = ends(SliceId(low), SliceId(high))?;
            slices[usize::from(low)].1.push((SliceId(high), first));
            slices[usize::from(high)].1.push((SliceId(low), second));
        }
    }
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_both_its_ends() {
        let slices =
            join(3, |low, high| Ok::<_, ()>(((low, 'a', high), (low, 'b', high)))).unwrap();

        let (s, ends) = (SliceId, &slices[1].1);
        assert_eq!(ends, &[(s(0), (s(0), 'b', s(1))), (s(2), (s(1), 'a', s(2)))]);
        assert_eq!(slices.len(), 3);
        assert!(join(2, |_, _| Err::<((), ()), _>("no")).is_err());
    }
}
