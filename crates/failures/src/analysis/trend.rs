//! How often something occurred over time, and whether that is more or less than in the period before.

use std::collections::BTreeMap;

use jiff::{Timestamp, civil::Date};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Row, question::Period};

const SECONDS_A_DAY: i64 = 86_400;
const WEEK: i32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// First seen in the period.
    New,
    Rising,
    Steady,
    Falling,
    /// Not seen in the period.
    Gone,
}

impl Direction {
    pub fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Rising => "rising",
            Self::Steady => "steady",
            Self::Falling => "falling",
            Self::Gone => "gone",
        }
    }
}

/// A period beside the one before; `trend_compares` of the report says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Trend {
    pub direction: Direction,
    /// Occurrences in the period, and in the one before.
    pub recent: u64,
    pub previous: u64,
}

impl Trend {
    pub(super) fn new(recent: u64, previous: u64, first_seen: Timestamp, period: &Period) -> Self {
        let direction = if recent == 0 {
            Direction::Gone
        } else if first_seen >= period.from {
            Direction::New
        } else if recent >= previous + 2 && recent * 2 >= previous * 3 {
            Direction::Rising
        } else if previous >= recent + 2 && previous * 2 >= recent * 3 {
            Direction::Falling
        } else {
            Direction::Steady
        };
        Self { direction, recent, previous }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Count {
    #[schemars(with = "String")]
    pub day: Date,
    pub occurrences: u64,
}

/// Days since 1970, in UTC.
pub(super) fn day(at: Timestamp) -> i32 {
    i32::try_from(at.as_second().div_euclid(SECONDS_A_DAY)).unwrap_or(0)
}

/// Occurrences of everything on each of the newest days.
pub(crate) struct Days {
    today: i32,
    /// The last one is today.
    counts: Vec<u64>,
}

impl Days {
    pub(super) fn until(today: i32, most: usize) -> Self {
        Self { today, counts: vec![0; most] }
    }

    /// Counts a row from a day on. Returns how often it occurred since then.
    pub(super) fn add(&mut self, row: &Row, from: i32) -> u64 {
        let mut all = 0;
        let (first, last) = (day(row.first_seen), day(row.last_seen));
        let count = u32::try_from(row.occurrences.max(1)).unwrap_or(u32::MAX);
        // Where days were not kept, the first time and the last are known.
        let known =
            if first == last || count == 1 { [(last, count), (last, 0)] } else { [(first, 1), (last, count - 1)] };
        for (day, count) in if row.days.is_empty() { &known[..] } else { row.days } {
            if *day < from || *count == 0 {
                continue;
            }
            all += u64::from(*count);
            let ago = usize::try_from(self.today.saturating_sub(*day)).unwrap_or(0);
            if let Some(index) = self.counts.len().checked_sub(ago + 1) {
                self.counts[index] += u64::from(*count);
            }
        }
        all
    }

    fn seen(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        let begin = self.today - i32::try_from(self.counts.len()).unwrap_or(0) + 1;
        (begin..).zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Days on which anything occurred, the newest last.
    pub(super) fn last_days(&self, most: i32) -> Vec<Count> {
        let begin = self.today - most;
        self.seen()
            .filter(|(day, _)| *day > begin)
            .filter_map(|(day, occurrences)| Some(Count { day: date(day)?, occurrences }))
            .collect()
    }

    pub(super) fn last_weeks(&self) -> Vec<Count> {
        let mut weeks: BTreeMap<i32, u64> = BTreeMap::new();
        for (day, count) in self.seen() {
            *weeks.entry(monday(day)).or_default() += count;
        }
        weeks.into_iter().filter_map(|(day, occurrences)| Some(Count { day: date(day)?, occurrences })).collect()
    }
}

/// The Monday of a day's week; the first of January 1970 was a Thursday.
fn monday(day: i32) -> i32 {
    day - (day + 3).rem_euclid(WEEK)
}

fn date(day: i32) -> Option<Date> {
    let at = Timestamp::from_second(i64::from(day) * SECONDS_A_DAY).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).date())
}
