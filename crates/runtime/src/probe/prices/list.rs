//! The list of prices, and their definitions.

use serde::{Deserialize, Serialize};

macro_rules! price_list {
    ($($(#[doc = $meaning:literal])* $name:ident;)*) => {
        /// One `T` for each price: nanoseconds of CPU time, of a delay in `wakeup_latency_ns`.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct PriceList<T> {
            $($(#[doc = $meaning])* pub $name: T,)*
        }

        impl<T> PriceList<T> {
            /// Each price with its name and definition.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, &T)> {
                [$((stringify!($name), concat!($($meaning),*).trim_ascii_start(), &self.$name)),*].into_iter()
            }

            pub(super) fn map<U>(self, convert: impl Fn(T) -> U) -> PriceList<U> {
                PriceList { $($name: convert(self.$name)),* }
            }
        }
    };
}

price_list! {
    /// a system call that does nothing
    syscall_ns;
    /// io_uring_enter that submits nothing
    enter_ns;
    /// io_uring_enter that submits a no-op
    nop_ns;
    /// epoll_wait that finds one event
    epoll_wait_ns;
    /// notifying a busy CPU, both sides
    notification_busy_ns;
    /// of that, the sender's call
    notification_busy_sender_ns;
    /// of that, lost on the receiver
    notification_busy_receiver_ns;
    /// notifying an idle CPU, both sides
    notification_idle_ns;
    /// of that, the sender's call
    notification_idle_sender_ns;
    /// of that, out of idle and back
    notification_idle_receiver_ns;
    /// waking a thread of the same CPU
    wakeup_ns;
    /// until a thread of an idle CPU runs
    wakeup_latency_ns;
    /// copying 1 KB to or from the kernel
    copy_ns_per_kb;
    /// the same, past the caches
    copy_uncached_ns_per_kb;
}

/// A price with the 95 % interval of its median, or why it is unavailable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Price {
    /// It was measured.
    Measured {
        /// Median of the rounds.
        median: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end of the interval.
        high: f64,
    },
    /// It could not be.
    Unavailable {
        /// The reason, and the fix.
        #[serde(rename = "unavailable")]
        why: String,
    },
}

impl Default for Price {
    fn default() -> Price {
        Price::Unavailable { why: "not measured".to_owned() }
    }
}

impl Price {
    /// The median, if it was measured.
    pub fn median(&self) -> Option<f64> {
        match self {
            Price::Measured { median, .. } => Some(*median),
            Price::Unavailable { .. } => None,
        }
    }
}

/// The results of all rounds for one price.
#[derive(Debug, Default)]
pub(super) struct Samples {
    values: Vec<f64>,
    unavailable: Option<String>,
}

/// Minimum number of rounds for an interval of 95 %.
const ROUNDS_MIN: usize = 6;

impl Samples {
    pub(super) fn add(&mut self, sample: Result<f64, String>) {
        match sample {
            // Differences may be negative in a round; without those, a price of zero would become
            // positive.
            Ok(value) => self.values.push(value),
            Err(why) => self.unavailable = Some(why),
        }
    }

    /// The median of the rounds and, as its interval, two of the ordered values such that the true
    /// median is outside with at most 5 % (the inverted sign test): no distribution is assumed. A
    /// round measures all prices in turn, so the scatter between rounds includes changes of the
    /// machine.
    pub(super) fn price(mut self) -> Price {
        let count = self.values.len();
        if count < ROUNDS_MIN {
            let why = self.unavailable.unwrap_or_else(|| "too little time".to_owned());
            return Price::Unavailable { why };
        }
        self.values.sort_by(f64::total_cmp);
        let outermost = outermost(count);
        let median = median_of_sorted(&self.values);
        let (low, high) = (self.values[outermost], self.values[count - 1 - outermost]);
        if low > 0.0 && high.is_finite() {
            Price::Measured { median, low, high }
        } else {
            let why = format!("below the detection limit: {median:.0} ns [{low:.0}, {high:.0}]");
            Price::Unavailable { why }
        }
    }
}

/// How many values may be left out at either end.
fn outermost(count: usize) -> usize {
    // P(X <= k) of a binomial distribution with p = 1/2, term by term.
    let mut term = 0.5f64.powi(count as i32);
    let mut below = term;
    let mut left_out = 0;
    while below + term * (count - left_out) as f64 / (left_out + 1) as f64 <= 0.025 {
        term *= (count - left_out) as f64 / (left_out + 1) as f64;
        left_out += 1;
        below += term;
    }
    left_out
}

fn median_of_sorted(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// The median of the values of one round; `None` if there are none.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| median_of_sorted(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        // The critical values of the two-sided sign test at 5 %.
        for (count, left_out) in [(6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (17, 4), (20, 5)] {
            assert_eq!(outermost(count), left_out, "{count}");
        }
        let mut samples = Samples::default();
        (1..=9).rev().for_each(|value| samples.add(Ok(f64::from(value))));
        assert_eq!(samples.price(), Price::Measured { median: 5.0, low: 2.0, high: 8.0 });
    }

    #[test]
    fn too_few_rounds_and_differences_around_zero_are_no_price() {
        let price = |values: &[f64]| {
            let mut samples = Samples::default();
            values.iter().for_each(|value| samples.add(Ok(*value)));
            match samples.price() {
                Price::Unavailable { why } => why,
                price => panic!("{values:?}: {price:?}"),
            }
        };
        assert_eq!(price(&[1.0; 5]), "too little time");
        let around = [-2.0, -1.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(price(&around), "below the detection limit: 2 ns [-2, 4]");
    }
}
