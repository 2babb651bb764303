//! Samples in alternating rounds, and their medians.

use crate::interrupt;

/// The result of one server in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Answers, or bytes.
    pub(crate) amount: f64,
    pub(crate) seconds: f64,
    /// Processor time of the server's processes.
    pub(crate) processor_seconds: f64,
}

impl Sample {
    /// Amount per second.
    pub(crate) fn rate(&self) -> f64 {
        self.amount / self.seconds
    }

    /// Seconds of processor time per unit of the amount.
    pub(crate) fn cost(&self) -> f64 {
        self.processor_seconds / self.amount
    }
}

/// Samples each of the compared items once per round. Each round starts with another item.
pub(crate) fn rounds<I, S>(
    items: &[I],
    rounds: usize,
    mut sample: impl FnMut(&I) -> anyhow::Result<S>,
) -> anyhow::Result<Vec<Vec<S>>> {
    let mut samples: Vec<Vec<S>> = items.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..items.len() {
            interrupt::check()?;
            let index = (round + turn) % items.len();
            samples[index].push(sample(&items[index])?);
        }
    }
    Ok(samples)
}

/// The median; for an even number of values the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

/// The narrowest interval of two of the values, as far from both ends, that has their true median with at least 90 %: by the
/// binomial distribution of the values below it. The whole range where there are too few values.
pub(crate) fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return (f64::NAN, f64::NAN) };
    let (mut cut, mut outside, mut probability) = (0, 0.0, 0.5_f64.powi(values.len() as i32));
    loop {
        // The probability that so few values, or fewer, lie on one side.
        outside += probability;
        if 2.0 * outside > 0.1 || 2 * (cut + 1) > last {
            break;
        }
        probability *= (values.len() - cut) as f64 / (cut + 1) as f64;
        cut += 1;
    }
    let cut = cut.saturating_sub(1);
    (values[cut], values[last - cut])
}
