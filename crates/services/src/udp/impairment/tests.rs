use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const MS: Duration = Duration::from_millis(1);

fn none() -> Impairments {
    Impairments {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        duplicate: 0.0,
        swap: 0.0,
        seed: 1,
    }
}

fn source(number: u8) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, number), 5000))
}

/// A path, and everything that came out of it.
struct Bench {
    path: BadPath<(u8, u32)>,
    start: Instant,
    out: Vec<(Duration, u8, u32)>,
}

impl Bench {
    fn new(options: Impairments) -> Bench {
        Bench { path: BadPath::new(options, 0), start: Instant::now(), out: Vec::new() }
    }

    fn arrive(&mut self, at: Duration, from: u8, number: u32) {
        self.release(at);
        let (now, out) = (self.start + at, &mut self.out);
        let mut out = |(from, number)| out.push((at, from, number));
        self.path.arrive(source(from), (from, number), 100, now, &mut out);
    }

    /// Lets time pass, event by event.
    fn release(&mut self, until: Duration) {
        while let Some(due) = self.path.next_due().filter(|due| *due <= self.start + until) {
            let out = &mut self.out;
            let at = due - self.start;
            self.path.release(due, &mut |(from, number)| out.push((at, from, number)));
        }
    }

    fn end(&mut self) {
        self.release(Duration::from_secs(3600));
        assert_eq!((self.path.waiting, self.path.waiting_bytes, self.path.held), (0, 0, 0));
        assert!(self.path.sources.is_empty() && self.path.queue.is_empty());
    }

    fn numbers(&self, of: u8) -> Vec<u32> {
        self.out.iter().filter(|(_, from, _)| *from == of).map(|(_, _, number)| *number).collect()
    }
}

/// Pairs that stand the wrong way round, each number once; `None` if anything else is out of order.
fn exchanges(numbers: &[u32]) -> Option<u64> {
    let (mut at, mut exchanged) = (0, 0);
    let mut last = None;
    while at < numbers.len() {
        let in_place = numbers.get(at + 1).is_none_or(|next| *next > numbers[at]);
        let pair = if in_place { 1 } else { 2 };
        let (low, high) = (numbers[at + pair - 1], numbers[at]);
        if last.is_some_and(|last| low <= last) {
            return None;
        }
        exchanged += pair as u64 - 1;
        last = Some(high);
        at += pair;
    }
    Some(exchanged)
}

#[test]
fn a_swap_exchanges_a_datagram_with_the_next_of_its_source() {
    let mut bench = Bench::new(Impairments { swap: 1.0, ..none() });
    for number in 0..4 {
        bench.arrive(MS * number, 1, number);
        bench.arrive(MS * number, 2, 100 + number);
    }
    assert_eq!(bench.numbers(1), [1, 0, 3, 2]);
    assert_eq!(bench.numbers(2), [101, 100, 103, 102]);
    bench.end();
    assert_eq!(bench.path.counts().impaired_swapped, 4);
    assert_eq!(bench.path.counts().impaired_delayed, 0);
}

#[test]
fn a_successor_that_never_comes_is_not_waited_for() {
    for delay in [Duration::ZERO, MS * 20] {
        let mut bench = Bench::new(Impairments { swap: 1.0, delay, ..none() });
        bench.arrive(MS, 1, 7);
        bench.release(MS + delay + SWAP_PATIENCE - Duration::from_nanos(1));
        assert!(bench.out.is_empty() && bench.path.waiting() == 1);
        bench.end();
        assert_eq!(bench.out, [(MS + delay + SWAP_PATIENCE, 1, 7)]);
        assert_eq!(bench.path.counts().impaired_swapped, 0);
    }
}

#[test]
fn a_lost_successor_does_not_count_as_one() {
    // The same decisions as the path will make.
    let options = Impairments { swap: 1.0, loss: 0.5, seed: 3, ..none() };
    let mut dice = Dice::new(options.clone(), 0);
    let lost: Vec<bool> = (0..40).map(|_| dice.throw().lost).collect();
    let mut bench = Bench::new(options);
    (0..40).for_each(|number| bench.arrive(MS * number, 1, number));
    bench.end();
    let kept: Vec<u32> = (0..40).filter(|number| !lost[*number as usize]).collect();
    let expected: Vec<u32> = kept.chunks(2).flat_map(|pair| pair.iter().rev().copied()).collect();
    assert!(kept.len() > 10 && kept.len() < 30, "{kept:?}");
    assert_eq!(bench.numbers(1), expected);
    assert_eq!(bench.path.counts().impaired_swapped, kept.len() as u64 / 2);
}

#[test]
fn shares_and_jitter_match_the_configuration() {
    let options = Impairments {
        delay: MS * 20,
        jitter: MS * 5,
        loss: 0.1,
        duplicate: 0.02,
        swap: 0.3,
        seed: 9,
    };
    let mut dice = Dice::new(options, 0);
    const THROWS: usize = 100_000;
    let fates: Vec<Fate> = (0..THROWS).map(|_| dice.throw()).collect();
    let share = |what: fn(&Fate) -> bool| {
        fates.iter().filter(|fate| what(fate)).count() as f64 / THROWS as f64
    };
    // Five standard deviations are at most 0.8 %.
    assert!((share(|fate| fate.lost) - 0.1).abs() < 0.008);
    assert!((share(|fate| fate.duplicated) - 0.02).abs() < 0.008);
    assert!((share(|fate| fate.swapped) - 0.3).abs() < 0.008);
    assert!(fates.iter().all(|fate| (MS * 15..=MS * 25).contains(&fate.delay)));
    assert!((share(|fate| fate.delay < MS * 18) - 0.3).abs() < 0.008);
}

#[test]
fn decisions_depend_on_seed_and_stream_and_on_nothing_else_that_is_switched_on() {
    let lost = |options: Impairments, stream| {
        let mut dice = Dice::new(options, stream);
        (0..200).map(|_| dice.throw().lost).collect::<Vec<_>>()
    };
    let options = Impairments { loss: 0.5, ..none() };
    let plain = lost(options.clone(), 0);
    let more = Impairments { delay: MS, jitter: MS, swap: 0.5, duplicate: 0.5, ..options.clone() };
    assert_eq!(lost(more, 0), plain);
    assert_ne!(lost(options.clone(), 1), plain);
    assert_ne!(lost(Impairments { seed: 2, ..options }, 0), plain);
}

#[test]
fn waiting_datagrams_are_bounded_and_overflow_is_counted() {
    for swap in [0.0, 1.0] {
        let mut bench = Bench::new(Impairments { delay: MS * 10, swap, ..none() });
        bench.path.waiting_max = 16;
        for number in 0..200 {
            bench.arrive(MS / 10 * number, (number % 50) as u8, number);
            assert!(bench.path.queue.len() + bench.path.held <= 16);
        }
        bench.end();
        let overflowed = bench.path.counts().impaired_overflowed;
        assert!(overflowed > 0);
        assert_eq!(bench.out.len() as u64 + overflowed, 200);
    }
}

fn options() -> impl Strategy<Value = Impairments> {
    let share = || prop_oneof![Just(0.0), Just(0.1), Just(0.5), Just(1.0)];
    (0u64..30, 0u64..30, share(), share(), share(), any::<u64>()).prop_map(
        |(delay, jitter, loss, duplicate, swap, seed)| Impairments {
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter.min(delay)),
            loss,
            duplicate,
            swap,
            seed,
        },
    )
}

proptest! {
    /// With every combination of options: what is not counted as dropped comes out, as often as
    /// the counts say, in order but for the exchanges that were counted, and not before its time.
    #[test]
    fn counts_match_the_outcome(
        options in options(),
        arrivals in proptest::collection::vec((0u64..20_000, 0u8..4), 1..200),
        room in prop_oneof![Just(WAITING_MAX), Just(10)],
    ) {
        let run = || {
            let mut bench = Bench::new(options.clone());
            bench.path.waiting_max = room;
            let mut at = Duration::ZERO;
            let mut arrived = Vec::new();
            for (number, (gap_us, from)) in arrivals.iter().enumerate() {
                at += Duration::from_micros(*gap_us);
                arrived.push(at);
                bench.arrive(at, *from, number as u32);
            }
            bench.end();
            (bench.out, bench.path.counts(), arrived)
        };
        let (out, counts, arrived) = run();
        prop_assert_eq!((&out, counts), { let again = run(); (&again.0.clone(), again.1) });
        let dropped = counts.impaired_lost + counts.impaired_overflowed;
        prop_assert_eq!(
            out.len() as u64 + dropped,
            arrivals.len() as u64 + counts.impaired_duplicated
        );
        let (mut exchanged, mut duplicated) = (0, 0);
        for from in 0..4 {
            let mut numbers: Vec<u32> =
                out.iter().filter(|(_, of, _)| *of == from).map(|(_, _, number)| *number).collect();
            let with_copies = numbers.len();
            numbers.dedup();
            duplicated += (with_copies - numbers.len()) as u64;
            let found = exchanges(&numbers);
            prop_assert!(found.is_some(), "out of order: {:?}", numbers);
            exchanged += found.unwrap_or(0);
        }
        prop_assert_eq!(exchanged, counts.impaired_swapped);
        prop_assert_eq!(duplicated, counts.impaired_duplicated);
        for (at, from, number) in &out {
            prop_assert_eq!(arrivals[*number as usize].1, *from);
            let waited = *at - arrived[*number as usize];
            prop_assert!(waited >= options.delay - options.jitter);
            prop_assert!(waited <= options.delay + options.jitter + SWAP_PATIENCE + MS * 60);
        }
    }
}
