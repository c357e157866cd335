//! In which order things are run.
//!
//! A block runs every subject of a group once. Blocks come in twos, a random order and then its
//! mirror image (A B B A), so that slow changes of the machine favour no subject. Groups take turns,
//! in a random order each round, so that a bad minute is spread over all of them and an
//! interrupted experiment has something of everything.
//!
//! A group is what a cell compares, as long as that is little. Only runs of one block are ever
//! compared, and a block counts only if nothing disturbed it; a block of many subjects lasts so
//! long that something always does. So a cell with many subjects has several groups, and subjects
//! that many are compared with are in several of them.

use std::collections::{BTreeSet, VecDeque};

use oorandom::Rand64;

/// The most subjects in a group, unless one subject is compared with even more. A third more runs
/// than with five, and blocks so much shorter that on a machine whose CPUs are moved every few
/// seconds far more of them count.
const GROUP_MAX: usize = 3;

/// Subjects that are run side by side in a cell, both as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) cell: usize,
    pub(crate) subjects: Vec<usize>,
}

/// One block: a group and the order of its subjects, as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) group: usize,
    pub(crate) order: Vec<usize>,
}

/// The groups of a cell: each subject is together with all that it is compared with. `contests`
/// are (baseline, subject). Without any, the `subjects` are all together.
pub(crate) fn groups(cell: usize, subjects: &[usize], contests: &[(usize, usize)]) -> Vec<Group> {
    let mut groups: Vec<BTreeSet<usize>> = Vec::new();
    for &subject in subjects {
        let opponents = contests.iter().filter(|(_, it)| *it == subject).map(|(other, _)| *other);
        let mut together: BTreeSet<usize> = opponents.collect();
        if together.is_empty() {
            continue;
        }
        together.insert(subject);
        match groups.last_mut() {
            Some(last) if last.union(&together).count() <= GROUP_MAX => last.extend(together),
            _ => groups.push(together),
        }
    }
    if groups.is_empty() {
        groups.push(subjects.iter().copied().collect());
    }
    let group =
        |subjects: BTreeSet<usize>| Group { cell, subjects: subjects.into_iter().collect() };
    groups.into_iter().map(group).collect()
}

/// The plan of an experiment: each group gets `pairs` blocks.
pub(crate) fn plan(seed: u64, groups: &[Group], pairs: usize) -> VecDeque<Block> {
    let mut random = Rand64::new(u128::from(seed));
    let mut plan = VecDeque::new();
    let mut planned = 0;
    while planned < pairs {
        let round = (pairs - planned).min(2);
        for group in shuffled(&mut random, groups.len()) {
            let both = two_orders(&mut random, group, &groups[group].subjects);
            plan.extend(both.into_iter().take(round));
        }
        planned += round;
    }
    plan
}

/// Two more blocks for a group that has had `before` of them.
pub(crate) fn two_more(seed: u64, group: usize, before: usize, groups: &[Group]) -> [Block; 2] {
    let mixed = [group as u64, before as u64].iter().fold(seed, |mixed, number| {
        mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ number
    });
    let mut random = Rand64::new(u128::from(mixed));
    two_orders(&mut random, group, &groups[group].subjects)
}

/// A random order and its mirror image.
fn two_orders(random: &mut Rand64, group: usize, subjects: &[usize]) -> [Block; 2] {
    let positions = shuffled(random, subjects.len()).into_iter();
    let order: Vec<usize> = positions.map(|position| subjects[position]).collect();
    let mirror = order.iter().rev().copied().collect();
    [Block { group, order }, Block { group, order: mirror }]
}

/// The numbers under `count` in random order (Fisher and Yates).
pub(crate) fn shuffled(random: &mut Rand64, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.rand_range(0..last as u64 + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(subjects: &[&[usize]]) -> Vec<Group> {
        let group =
            |(cell, subjects): (usize, &&[usize])| Group { cell, subjects: subjects.to_vec() };
        subjects.iter().enumerate().map(group).collect()
    }

    #[test]
    fn every_group_gets_its_pairs_and_every_block_every_subject() {
        for pairs in [1, 8, 9] {
            let groups = alone(&[&[0, 1, 2, 3], &[2, 5], &[7]]);
            let plan = plan(1, &groups, pairs);
            for (number, group) in groups.iter().enumerate() {
                let blocks: Vec<_> = plan.iter().filter(|block| block.group == number).collect();
                assert_eq!(blocks.len(), pairs);
                for block in blocks {
                    let mut subjects = block.order.clone();
                    subjects.sort_unstable();
                    assert_eq!(subjects, group.subjects);
                }
            }
        }
    }

    #[test]
    fn blocks_mirror_each_other_and_both_orders_occur() {
        let plan = plan(7, &alone(&[&[0, 1]]), 40);
        let orders: Vec<_> = plan.iter().map(|block| block.order.clone()).collect();
        for two in orders.chunks(2) {
            assert_eq!(two[0][0], two[1][1]);
        }
        let first: usize = orders.iter().step_by(2).map(|order| order[0]).sum();
        assert!((1..20).contains(&first), "of 20 rounds, {first} began with the second subject");
    }

    #[test]
    fn the_seed_decides() {
        let two = alone(&[&[0, 1], &[0, 1]]);
        assert_eq!(plan(3, &two, 8), plan(3, &two, 8));
        assert_ne!(plan(3, &two, 8), plan(4, &two, 8));
        assert_eq!(two_more(3, 1, 8, &two), two_more(3, 1, 8, &two));
        let orders: Vec<_> =
            (0..40).map(|before| two_more(3, 1, before, &two)[0].order[0]).collect();
        assert!(orders.contains(&0) && orders.contains(&1));
    }

    fn subjects_of(groups: &[Group]) -> Vec<&[usize]> {
        groups.iter().map(|group| &*group.subjects).collect()
    }

    #[test]
    fn few_subjects_are_one_group_and_many_are_several() {
        let against_first = |count| (1..count).map(|it| (0, it)).collect::<Vec<_>>();
        let of = |subjects: &[usize], contests: &[(usize, usize)]| groups(4, subjects, contests);
        assert_eq!(subjects_of(&of(&[0, 1, 2], &against_first(3))), [&[0, 1, 2]]);
        assert_eq!(of(&[0], &[])[0], Group { cell: 4, subjects: vec![0] });
        let nine: Vec<usize> = (0..9).collect();
        let found = of(&nine, &against_first(9));
        assert_eq!(subjects_of(&found), [&[0, 1, 2], &[0, 3, 4], &[0, 5, 6], &[0, 7, 8]]);
        // Everybody against the first two: these are in each group.
        let both: Vec<_> = (2..9).flat_map(|it| [(0, it), (1, it)]).chain([(0, 1)]).collect();
        let found = of(&nine, &both);
        assert!(found.len() == 7 && found.iter().all(|group| group.subjects.starts_with(&[0, 1])));
        for (baseline, subject) in both {
            let together = |group: &Group| {
                group.subjects.contains(&baseline) && group.subjects.contains(&subject)
            };
            assert!(found.iter().any(together), "{baseline} against {subject}");
        }
    }
}
