//! In which order things are run.
//!
//! A block runs every subject of a cell once. Blocks come in twos, a random order and then its
//! mirror image (A B B A), so that a machine that slowly changes favours nobody. Cells take turns,
//! in a random order each round, so that a bad minute is spread over all of them and an
//! interrupted experiment has something of everything.

use std::collections::VecDeque;

use oorandom::Rand64;

/// One block: a cell and the order of the subjects in it, all as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) cell: usize,
    pub(crate) order: Vec<usize>,
}

/// The plan of an experiment: `subjects` holds those of each cell, which get `pairs` blocks each.
pub(crate) fn plan(seed: u64, subjects: &[Vec<usize>], pairs: usize) -> VecDeque<Block> {
    let mut random = Rand64::new(u128::from(seed));
    let mut plan = VecDeque::new();
    let mut planned = 0;
    while planned < pairs {
        let round = (pairs - planned).min(2);
        for cell in shuffled(&mut random, subjects.len()) {
            let of_cell = &subjects[cell];
            let order: Vec<usize> = shuffled(&mut random, of_cell.len())
                .into_iter()
                .map(|position| of_cell[position])
                .collect();
            let mirror = order.iter().rev().copied().collect();
            let both = [Block { cell, order }, Block { cell, order: mirror }];
            plan.extend(both.into_iter().take(round));
        }
        planned += round;
    }
    plan
}

/// Two more blocks for a cell that has had `before` of them: a random order and its mirror image.
pub(crate) fn two_more(seed: u64, cell: usize, before: usize, subjects: &[usize]) -> [Block; 2] {
    let mixed = [cell as u64, before as u64].iter().fold(seed, |mixed, number| {
        mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ number
    });
    let mut random = Rand64::new(u128::from(mixed));
    let order: Vec<usize> = shuffled(&mut random, subjects.len())
        .into_iter()
        .map(|position| subjects[position])
        .collect();
    let mirror = order.iter().rev().copied().collect();
    [Block { cell, order }, Block { cell, order: mirror }]
}

/// The numbers under `count` in random order (Fisher and Yates).
fn shuffled(random: &mut Rand64, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.rand_range(0..last as u64 + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_gets_its_pairs_and_every_block_every_subject() {
        for pairs in [1, 8, 9] {
            let plan = plan(1, &[vec![0, 1, 2, 3], vec![2, 5], vec![7]], pairs);
            let expected = [vec![0, 1, 2, 3], vec![2, 5], vec![7]];
            for (cell, expected) in expected.iter().enumerate() {
                let blocks: Vec<_> = plan.iter().filter(|block| block.cell == cell).collect();
                assert_eq!(blocks.len(), pairs);
                for block in blocks {
                    let mut subjects = block.order.clone();
                    subjects.sort_unstable();
                    assert_eq!(subjects, *expected);
                }
            }
        }
    }

    #[test]
    fn blocks_mirror_each_other_and_both_orders_occur() {
        let plan = plan(7, &[vec![0, 1]], 40);
        let orders: Vec<_> = plan.iter().map(|block| block.order.clone()).collect();
        for two in orders.chunks(2) {
            assert_eq!(two[0][0], two[1][1]);
        }
        let first: usize = orders.iter().step_by(2).map(|order| order[0]).sum();
        assert!((1..20).contains(&first), "of 20 rounds, {first} began with the second subject");
    }

    #[test]
    fn the_seed_decides() {
        let two = [vec![0, 1], vec![0, 1]];
        assert_eq!(plan(3, &two, 8), plan(3, &two, 8));
        assert_ne!(plan(3, &two, 8), plan(4, &two, 8));
    }
}
