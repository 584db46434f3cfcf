//! A set of interrupt vectors, as the IRR, ISR and TMR of a local APIC hold them.

/// A set of the 256 vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet([u32; 8]);

impl VectorSet {
    fn place(vector: u8) -> (usize, u32) {
        (usize::from(vector >> 5), 1 << (vector & 31))
    }

    /// Adds a vector.
    pub fn insert(&mut self, vector: u8) {
        let (word, bit) = Self::place(vector);
        self.0[word] |= bit;
    }

    /// Takes a vector out.
    pub fn remove(&mut self, vector: u8) {
        let (word, bit) = Self::place(vector);
        self.0[word] &= !bit;
    }

    /// True when the vector is in the set.
    #[must_use]
    pub fn contains(&self, vector: u8) -> bool {
        let (word, bit) = Self::place(vector);
        self.0[word] & bit != 0
    }

    /// Adds all vectors of one 32-bit register.
    pub fn insert_word(&mut self, word: usize, bits: u32) {
        self.0[word] |= bits;
    }

    /// One 32-bit register of the set: vectors `32 * word` and up.
    #[must_use]
    pub fn word(&self, word: usize) -> u32 {
        self.0[word]
    }

    /// All eight registers of the set.
    #[must_use]
    pub fn words(&self) -> [u32; 8] {
        self.0
    }

    /// The set with these eight registers.
    #[must_use]
    pub fn from_words(words: [u32; 8]) -> Self {
        Self(words)
    }

    /// The highest vector, which is also the one of highest priority.
    #[must_use]
    pub fn highest(&self) -> Option<u8> {
        (0_u8..8).rev().find_map(|word| {
            let bits = self.0[usize::from(word)];
            let bit = u8::try_from(31_u32.checked_sub(bits.leading_zeros())?).ok()?;
            Some(word * 32 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn set_behaves_like_a_sorted_set(steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..200)) {
            let (mut set, mut model) = (VectorSet::default(), BTreeSet::new());
            for (add, vector) in steps {
                if add {
                    set.insert(vector);
                    model.insert(vector);
                } else {
                    set.remove(vector);
                    model.remove(&vector);
                }
                prop_assert_eq!(set.highest(), model.last().copied());
                prop_assert_eq!(set.contains(vector), model.contains(&vector));
            }
        }
    }

    #[test]
    fn words_are_the_registers_of_the_apic() {
        let mut set = VectorSet::default();
        set.insert_word(2, 1 << 1);
        assert_eq!(set.highest(), Some(65));
        assert_eq!(set.word(2), 2);
    }
}
