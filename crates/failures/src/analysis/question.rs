//! What is asked of an analysis: how to put failures together, over which time, and which words are known for both.

use std::str::FromStr;

use jiff::{Timestamp, ToSpan, Zoned, tz::TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    ErrorType,
    FilePath,
    Pattern,
    #[default]
    Fingerprint,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeRange {
    #[default]
    All,
    /// Since midnight.
    Today,
    /// Seven days.
    Week,
    /// A calendar month.
    Month,
}

/// A word that is none of those that are known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} `{given}`")]
pub struct Unknown {
    pub what: &'static str,
    pub given: String,
    pub known: &'static [&'static str],
}

impl Unknown {
    pub fn hint(&self) -> String {
        format!("known: {}", self.known.join(", "))
    }
}

impl GroupBy {
    pub const NAMES: &[&str] = &["error_type", "file_path", "pattern", "fingerprint"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for GroupBy {
    type Err = Unknown;

    fn from_str(given: &str) -> Result<Self, Unknown> {
        let all = [Self::ErrorType, Self::FilePath, Self::Pattern, Self::Fingerprint];
        find("group_by", given, Self::NAMES).map(|index| all[index])
    }
}

impl TimeRange {
    pub const NAMES: &[&str] = &["all", "today", "week", "month"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for TimeRange {
    type Err = Unknown;

    fn from_str(given: &str) -> Result<Self, Unknown> {
        find("time_range", given, Self::NAMES).map(|index| [Self::All, Self::Today, Self::Week, Self::Month][index])
    }
}

fn find(what: &'static str, given: &str, known: &'static [&'static str]) -> Result<usize, Unknown> {
    let wanted = given.trim().to_ascii_lowercase().replace('-', "_");
    known.iter().position(|name| *name == wanted).ok_or_else(|| Unknown {
        what,
        given: pylair_text::plain::one_line(given, 60),
        known,
    })
}

#[derive(Debug, Clone)]
pub struct Question {
    pub group_by: GroupBy,
    pub time_range: TimeRange,
    pub include_resolved: bool,
    pub now: Timestamp,
    /// In which "today" is meant.
    pub zone: TimeZone,
    /// Since when something counts as new, such as the time of a commit; else for a day.
    pub new_since: Option<Timestamp>,
    /// How many groups are told in full.
    pub limit: Option<usize>,
}

impl Question {
    pub fn new(now: Timestamp) -> Self {
        Self {
            group_by: GroupBy::default(),
            time_range: TimeRange::default(),
            include_resolved: false,
            now,
            zone: TimeZone::UTC,
            new_since: None,
            limit: None,
        }
    }

    /// The beginning of the time range.
    pub fn from(&self) -> Timestamp {
        if self.time_range == TimeRange::All { Timestamp::MIN } else { self.period().from }
    }

    /// What trends compare: the time range with the one before, of the same length, up to the same moment. For all time, the last week.
    pub fn period(&self) -> Period {
        let now = self.now.to_zoned(self.zone.clone());
        let (span, recent, previous) = match self.time_range {
            TimeRange::Today => (1.day(), "today", "yesterday up to the same time"),
            TimeRange::All | TimeRange::Week => (7.days(), "the last 7 days", "the 7 days before"),
            TimeRange::Month => (1.month(), "the last month", "the month before"),
        };
        let earlier = |at: &Zoned| at.checked_sub(span).unwrap_or_else(|_| at.clone());
        let from = match self.time_range {
            TimeRange::Today => now.start_of_day().unwrap_or_else(|_| now.clone()),
            _ => earlier(&now),
        };
        Period {
            previous_from: earlier(&from).timestamp(),
            previous_until: earlier(&now).timestamp(),
            from: from.timestamp(),
            until: self.now,
            recent,
            previous,
        }
    }
}

/// A period and the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub previous_from: Timestamp,
    pub previous_until: Timestamp,
    pub from: Timestamp,
    pub until: Timestamp,
    /// What the two are called.
    pub recent: &'static str,
    pub previous: &'static str,
}
