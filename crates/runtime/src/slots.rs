//! A slab whose keys carry a generation, so that a late completion or waker for an entry that is
//! gone finds nothing instead of finding its successor.

use crate::counters::Counters;
use std::sync::Arc;

/// Names one entry of a [`Slots`]: index and generation, and above them the mark of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

impl Key {
    /// Bits of an index: 268 million entries at once.
    const INDEX_BITS: u32 = 28;
    /// Bits of a generation. An entry has to be reused 16 million times before an old key could
    /// be mistaken for a new one; completions arrive within one or two uses.
    const GENERATION_BITS: u32 = 24;
    /// Bits of both; those above are a mark, or free for the caller if the table has none.
    pub(crate) const BITS: u32 = Key::INDEX_BITS + Key::GENERATION_BITS;

    fn new(index: usize, tag: u64) -> Key {
        Key(index as u64 | tag << Key::INDEX_BITS)
    }

    fn index(self) -> usize {
        (self.0 & ((1 << Key::INDEX_BITS) - 1)) as usize
    }

    fn tag(self) -> u64 {
        self.0 >> Key::INDEX_BITS
    }

    pub(crate) fn mark(self) -> usize {
        (self.0 >> Key::BITS) as usize
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// A key of a table without a mark; ignores the bits above.
    pub(crate) fn from_bits(bits: u64) -> Key {
        Key(bits & ((1 << Key::BITS) - 1))
    }

    /// The inverse of [`to_bits`](Key::to_bits).
    pub(crate) const fn from_all_bits(bits: u64) -> Key {
        Key(bits)
    }
}

#[derive(Debug)]
struct Slot<T> {
    tag: u64,
    value: Option<T>,
}

/// A slab with generations. At most 2^28 entries; indices are reused last in, first out, which
/// keeps the hot part of the table small.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Slot<T>>,
    free: Vec<u32>,
    mark: u16,
    /// Has the gauge of the live entries of all tables with it.
    counters: Option<Arc<Counters>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots::with_mark(0)
    }
}

impl<T> Slots<T> {
    /// A table whose keys no other table has, if its mark is its own.
    pub(crate) fn with_mark(mark: u16) -> Slots<T> {
        Slots { entries: Vec::new(), free: Vec::new(), mark, counters: None }
    }

    /// A table whose entries `slots_in_use` counts.
    pub(crate) fn counted(counters: &Arc<Counters>) -> Slots<T> {
        Slots { counters: Some(Arc::clone(counters)), ..Slots::default() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Stores `value` and names it. Panics with 2^28 live entries, which no limit of descriptors or
    /// memory allows.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.counters.iter().for_each(|counters| counters.slots_in_use.add(1));
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            debug_assert!(entry.value.is_none(), "a free slot holds nothing");
            entry.value = Some(value);
            return Key::new(index as usize, entry.tag);
        }
        let index = self.entries.len();
        assert!(index < 1 << Key::INDEX_BITS, "slot table is full");
        let tag = u64::from(self.mark) << Key::GENERATION_BITS;
        self.entries.push(Slot { tag, value: Some(value) });
        Key::new(index, tag)
    }

    /// The entry, if it is still the one that `key` was made for.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index())?;
        if entry.tag == key.tag() { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index())?;
        if entry.tag == key.tag() { entry.value.as_mut() } else { None }
    }

    /// Takes the entry out; its key, and every copy of it, names nothing from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index())?;
        if entry.tag != key.tag() {
            return None;
        }
        let value = entry.value.take()?;
        let generations = (1 << Key::GENERATION_BITS) - 1;
        entry.tag = entry.tag & !generations | (entry.tag + 1) & generations;
        self.free.push(key.index() as u32);
        self.counters.iter().for_each(|counters| counters.slots_in_use.subtract(1));
        Some(value)
    }

    /// Keys of all live entries, in index order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.value.is_some());
        live.map(|(index, entry)| Key::new(index, entry.tag)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_key_is_used_up_after_its_generations_and_keeps_its_mark() {
        let mut slots = Slots::with_mark(0xfff);
        let first = slots.insert(1);
        assert_eq!((first.mark(), first.index(), slots.remove(first)), (0xfff, 0, Some(1)));
        slots.entries[0].tag |= (1 << Key::GENERATION_BITS) - 1;
        let last = slots.insert(2);
        assert_eq!(Key::from_all_bits(last.to_bits()), last);
        assert_eq!((last.mark(), slots.remove(last), slots.insert(3)), (0xfff, Some(2), first));
        let plain = Slots::default().insert(4);
        assert_eq!(Key::from_bits(plain.to_bits() | 0xff << Key::BITS), plain);
    }

    proptest! {
        /// Against a model: live keys find their value, dead keys find nothing, ever.
        #[test]
        fn behaves_like_a_map_whose_keys_are_never_reused(
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400)
        ) {
            let mut slots = Slots::default();
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
                prop_assert_eq!(slots.keys().len(), live.len());
                prop_assert!(live.iter().all(|(key, value)| slots.get(*key) == Some(value)));
                let mut is_found = |key: &Key| slots.get(*key).is_some() || slots.get_mut(*key).is_some();
                prop_assert!(!dead.iter().any(&mut is_found));
            }
        }
    }
}
