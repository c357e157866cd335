//! A slab whose keys carry a generation, so that a late completion or waker for an entry that is
//! gone finds nothing instead of finding its successor.

/// Names one entry of a [`Slots`]: index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Bits of an index inside [`to_bits`](Key::to_bits): 268 million entries at once.
    const INDEX_BITS: u32 = 28;
    /// Bits of a generation. An entry has to be reused 16 million times before an old key could
    /// be mistaken for a new one; completions arrive within one or two uses.
    const GENERATION_BITS: u32 = 24;
    /// Bits that [`to_bits`](Key::to_bits) uses; those above are free for the caller.
    pub(crate) const BITS: u32 = Key::INDEX_BITS + Key::GENERATION_BITS;

    /// Packs the key into the low [`Key::BITS`] bits.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.index) | u64::from(self.generation) << Key::INDEX_BITS
    }

    /// The inverse of [`to_bits`](Key::to_bits); ignores the bits above.
    pub(crate) fn from_bits(bits: u64) -> Key {
        Key {
            index: (bits & ((1 << Key::INDEX_BITS) - 1)) as u32,
            generation: ((bits >> Key::INDEX_BITS) & ((1 << Key::GENERATION_BITS) - 1)) as u32,
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab with generations. At most 2^28 entries; indices are reused last in, first out, which
/// keeps the hot part of the table small.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    live: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots::new()
    }
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        Slots { entries: Vec::new(), free: Vec::new(), live: 0 }
    }

    /// Number of live entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// True without live entries.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Stores `value` and names it.
    ///
    /// # Panics
    /// With 2^28 live entries, which no descriptor or memory limit allows.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.live += 1;
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            debug_assert!(entry.value.is_none(), "a free slot holds nothing");
            entry.value = Some(value);
            return Key { index, generation: entry.generation };
        }
        let index = self.entries.len() as u32;
        assert!(index < 1 << Key::INDEX_BITS, "slot table is full");
        self.entries.push(Entry { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// The entry, if it is still the one that `key` was made for.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    /// The entry, mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Takes the entry out; its key, and every copy of it, names nothing from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & ((1 << Key::GENERATION_BITS) - 1);
        self.free.push(key.index);
        self.live -= 1;
        Some(value)
    }

    /// Keys of all live entries, in index order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.value.is_some());
        live.map(|(index, entry)| Key { index: index as u32, generation: entry.generation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_key_survives_packing() {
        let key = Key { index: (1 << Key::INDEX_BITS) - 1, generation: 7 };
        assert_eq!(Key::from_bits(key.to_bits() | 0xff << Key::BITS), key);
    }

    proptest! {
        /// Against a model: live keys find their value, dead keys find nothing, ever.
        #[test]
        fn behaves_like_a_map_whose_keys_are_never_reused(
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400)
        ) {
            let mut slots = Slots::new();
            let mut live: HashMap<Key, usize> = HashMap::new();
            let mut dead: Vec<Key> = Vec::new();
            for (number, (insert, pick)) in steps.into_iter().enumerate() {
                if insert || live.is_empty() {
                    let key = slots.insert(number);
                    prop_assert!(!dead.contains(&key));
                    prop_assert_eq!(live.insert(key, number), None);
                } else {
                    let key = slots.keys()[pick.index(live.len())];
                    prop_assert_eq!(slots.remove(key), live.remove(&key));
                    dead.push(key);
                }
                prop_assert_eq!(slots.len(), live.len());
                prop_assert!(live.iter().all(|(key, value)| slots.get(*key) == Some(value)));
                prop_assert!(dead.iter().all(|key| slots.get(*key).is_none()));
            }
        }
    }
}
