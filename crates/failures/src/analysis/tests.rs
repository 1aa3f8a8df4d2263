use std::time::{Duration, Instant};

use jiff::{SignedDuration, civil::date, tz::TimeZone};

use super::*;

fn now() -> Timestamp {
    "2026-03-15T12:00:00Z".parse().unwrap()
}

fn hours_ago(hours: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_hours(hours)).unwrap()
}

fn row<'a>(id: &'a str, test: &'a str, kind: &'a str, group: &'a str, seen: i64) -> Row<'a> {
    Row {
        id,
        test,
        status: Status::New,
        group,
        kind,
        message: "boom",
        pattern: kind,
        phase: Phase::Call,
        file: Some("shop/users.py"),
        line: Some(20),
        function: Some("domain_of"),
        first_seen: hours_ago(seen),
        last_seen: hours_ago(seen),
        occurrences: 1,
        days: &[],
        recent: u64::from(seen < 24 * 7),
        previous: u64::from((24 * 7..24 * 14).contains(&seen)),
        first_bad: None,
        last_good: None,
    }
}

fn rows() -> Vec<Row<'static>> {
    vec![
        row("a", "t.py::one", "KeyError", "g1", 2),
        row("b", "t.py::two", "KeyError", "g1", 30),
        Row { file: Some("shop/mail.py"), ..row("c", "t.py::three", "KeyError", "g2", 400) },
        Row { status: Status::Resolved, ..row("d", "t.py::four", "TypeError", "g3", 3) },
        Row { status: Status::Flaky, occurrences: 9, ..row("e", "t.py::five", "TimeoutError", "g4", 1) },
    ]
}

fn ids(report: &Report) -> Vec<(&str, usize)> {
    report.groups.iter().map(|group| (group.id.as_str(), group.failures)).collect()
}

#[test]
fn groups_are_made_by_what_is_asked_for() {
    let rows = rows();
    let by = |group_by| analyze(&rows, &Question { group_by, ..Question::new(now()) });
    let mut fingerprint =
        ids(&by(GroupBy::Fingerprint)).into_iter().map(|(id, n)| (id.to_owned(), n)).collect::<Vec<_>>();
    fingerprint.sort();
    assert_eq!(fingerprint, [("g1".to_owned(), 2), ("g2".to_owned(), 1), ("g4".to_owned(), 1)]);
    let by_type = by(GroupBy::ErrorType);
    assert!(ids(&by_type).contains(&("error_type:KeyError", 3)), "{:?}", ids(&by_type));
    assert_eq!(by_type.insights.most_common_error.as_deref(), Some("KeyError"));
    assert!(ids(&by(GroupBy::FilePath)).contains(&("file_path:shop/mail.py", 1)));
    let by_pattern = by(GroupBy::Pattern);
    let id = &by_pattern.groups.iter().find(|group| group.title == "KeyError").unwrap().id;
    let (found_by, found) = of_group(&rows, id).unwrap();
    assert_eq!((found_by, found.len()), (GroupBy::Pattern, 3), "a group is found again by its id");
    assert!(of_group(&rows, "g1").is_some_and(|(by, found)| by == GroupBy::Fingerprint && found.len() == 2));
    assert!(of_group(&rows, "error_type:Nothing").is_none());
}

#[test]
fn a_time_range_counts_what_was_seen_in_it() {
    let rows = rows();
    let total = |time_range, include_resolved| {
        analyze(&rows, &Question { time_range, include_resolved, ..Question::new(now()) }).total_failures
    };
    assert_eq!(total(TimeRange::All, false), 4);
    assert_eq!(total(TimeRange::All, true), 5);
    assert_eq!(total(TimeRange::Month, false), 4);
    assert_eq!(total(TimeRange::Week, false), 3);
    assert_eq!(total(TimeRange::Today, false), 2);
    let far =
        Question { time_range: TimeRange::Today, zone: TimeZone::fixed(jiff::tz::offset(14)), ..Question::new(now()) };
    assert_eq!(far.from().to_string(), "2026-03-15T10:00:00Z", "today is that of the zone");
    assert_eq!(analyze(&rows, &far).total_failures, 2);
    let month = Question { time_range: TimeRange::Month, ..Question::new("2026-03-31T00:00:00Z".parse().unwrap()) };
    assert_eq!(month.from().to_string(), "2026-02-28T00:00:00Z");
}

#[test]
fn unknown_words_are_refused_with_the_known_ones() {
    let error = "year".parse::<TimeRange>().unwrap_err();
    assert_eq!(error.to_string(), "there is no time_range `year`");
    assert_eq!(error.hint(), "known: all, today, week, month");
    assert_eq!("colour".parse::<GroupBy>().unwrap_err().hint(), "known: error_type, file_path, pattern, fingerprint");
    assert_eq!("File-Path".parse(), Ok(GroupBy::FilePath));
    for name in GroupBy::NAMES {
        assert_eq!(name.parse::<GroupBy>().unwrap().name(), *name);
    }
    for name in TimeRange::NAMES {
        assert_eq!(name.parse::<TimeRange>().unwrap().name(), *name);
    }
}

#[test]
fn what_is_worse_comes_first_and_says_why() {
    let rows = vec![
        Row { days: &[], ..row("old", "t.py::a", "KeyError", "rare", 900) },
        Row { occurrences: 40, first_seen: hours_ago(300), ..row("often", "t.py::b", "ValueError", "often", 1) },
        Row { phase: Phase::Collect, ..row("broken", "t.py", "ModuleNotFoundError", "broken", 1) },
        Row { status: Status::InProgress, ..row("mine", "t.py::c", "TypeError", "mine", 1) },
    ];
    let report = analyze(&rows, &Question::new(now()));
    let order: Vec<&str> = report.groups.iter().map(|group| group.id.as_str()).collect();
    assert_eq!(order, ["broken", "often", "mine", "rare"]);
    let of = |id: &str| report.groups.iter().find(|group| group.id == id).unwrap();
    assert_eq!(of("rare").priority.label, Label::Low);
    assert_eq!(
        of("broken").priority.reasons,
        [
            "seen once",
            "within the last day",
            "first seen within the last day",
            "tests that cannot be collected do not run at all"
        ]
    );
    assert!(of("often").priority.reasons.contains(&"seen 40 times".to_owned()));
    let triage = &report.insights.triage[0];
    assert_eq!((triage.group.as_str(), triage.priority), ("broken", Label::Urgent));
    assert!(triage.recommendation.starts_with("begin with `broken`"), "{}", triage.recommendation);
}

#[test]
fn trends_compare_the_period_that_is_named_with_the_one_before() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let period = |time_range| Question { time_range, ..Question::new(now()) }.period();
    let today = period(TimeRange::Today);
    assert_eq!((today.from, today.until), (at("2026-03-15T00:00:00Z"), now()));
    let yesterday = (at("2026-03-14T00:00:00Z"), at("2026-03-14T12:00:00Z"));
    assert_eq!((today.previous_from, today.previous_until), yesterday, "up to the same time");
    let week = period(TimeRange::Week);
    assert_eq!((week.from, week.previous_from), (at("2026-03-08T12:00:00Z"), at("2026-03-01T12:00:00Z")));
    assert_eq!((week.previous_until, period(TimeRange::All)), (week.from, week));
    let month = period(TimeRange::Month);
    assert_eq!((month.from, month.previous_from), (at("2026-02-15T12:00:00Z"), at("2026-01-15T12:00:00Z")));

    let of = |time_range, recent, previous, first| {
        let rows = [Row { recent, previous, first_seen: hours_ago(first), ..row("a", "t", "KeyError", "g", 1) }];
        let report = analyze(&rows, &Question { time_range, ..Question::new(now()) });
        assert_eq!(report.groups[0].trend, report.insights.trend);
        (report.insights.trend.direction, report.total_occurrences, report.trend_compares)
    };
    let (direction, total, said) = of(TimeRange::Today, 9, 3, 900);
    assert_eq!((direction, total), (Direction::Rising, 9));
    assert_eq!(said, "today with yesterday up to the same time");
    assert_eq!(of(TimeRange::Week, 3, 9, 900).0, Direction::Falling);
    assert_eq!(of(TimeRange::Week, 5, 5, 900), (Direction::Steady, 5, "the last 7 days with the 7 days before".into()));
    assert_eq!(of(TimeRange::Today, 5, 0, 3).0, Direction::New);
    assert_eq!(of(TimeRange::Today, 5, 0, 30).0, Direction::Rising, "it was seen before today");
    assert_eq!(of(TimeRange::All, 0, 0, 900).0, Direction::Gone);
    let rising = Row { recent: 9, previous: 3, first_seen: hours_ago(900), ..row("a", "t", "KeyError", "g", 1) };
    let report = analyze(&[rising], &Question { time_range: TimeRange::Today, ..Question::new(now()) });
    let reason = "rising: 9 today, 3 yesterday up to the same time".to_owned();
    assert!(report.groups[0].priority.reasons.contains(&reason), "{:?}", report.groups[0].priority.reasons);

    // What was only seen in the period before is part of the comparison, and not of the groups.
    let rows = [
        Row { recent: 1, first_seen: hours_ago(40), ..row("a", "t.py::one", "KeyError", "g", 1) },
        Row { recent: 0, previous: 7, ..row("b", "t.py::two", "KeyError", "g", 20) },
        Row { recent: 0, previous: 4, ..row("c", "t.py::three", "TypeError", "h", 20) },
    ];
    let report = analyze(&rows, &Question { time_range: TimeRange::Today, ..Question::new(now()) });
    assert_eq!((report.total_failures, report.groups.len()), (1, 1));
    assert_eq!(report.groups[0].trend, Trend { direction: Direction::Falling, recent: 1, previous: 7 });
    assert_eq!(report.insights.trend, Trend { direction: Direction::Falling, recent: 1, previous: 11 });
}

#[test]
fn days_and_weeks_are_counted() {
    let rows = [Row { days: &[(20_526, 2), (20_527, 3)], ..row("a", "t", "KeyError", "g", 1) }];
    let report = analyze(&rows, &Question::new(now()));
    assert_eq!(report.total_occurrences, 5);
    assert_eq!(
        report.insights.days,
        [Count { day: date(2026, 3, 14), occurrences: 2 }, Count { day: date(2026, 3, 15), occurrences: 3 }]
    );
    assert_eq!(report.insights.weeks, [Count { day: date(2026, 3, 9), occurrences: 5 }]);
}

#[test]
fn commits_are_those_of_the_first_failure() {
    let rows = [
        Row { first_bad: Some("later"), last_good: Some("x"), ..row("b", "t.py::b", "KeyError", "g", 1) },
        Row { first_bad: Some("bad"), last_good: Some("good"), ..row("a", "t.py::a", "KeyError", "g", 9) },
    ];
    let mut report = analyze(&rows, &Question::new(now()));
    assert_eq!(report.commits(), [("good".to_owned(), "bad".to_owned())]);
    report.add_changes(&BTreeMap::from([(("good".into(), "bad".into()), vec!["shop/users.py".into()])]));
    assert_eq!(report.groups[0].between.as_ref().unwrap().files, ["shop/users.py"]);
    assert!(!report.insights.triage[0].recommendation.contains("changed between"), "they differ");
    assert_eq!(report.groups[0].examples, ["b", "a"], "the newest first");
}

#[test]
fn a_recommendation_says_what_holds_for_all_it_names() {
    let recommended = |rows: &[Row]| analyze(rows, &Question::new(now())).insights.triage[0].recommendation.clone();
    let one = || row("a", "t.py::a", "KeyError", "g", 1);
    let two = || row("b", "t.py::b", "KeyError", "g", 2);
    let same = recommended(&[one(), two()]);
    assert!(same.starts_with("begin with `a`; all 2 failures are at shop/users.py:20 ("), "{same}");
    let lines = recommended(&[one(), Row { line: Some(9), ..two() }]);
    assert!(lines.starts_with("begin with `a`; all 2 failures are at shop/users.py ("), "{lines}");
    // Most of them are there, and one is not.
    let files =
        recommended(&[one(), two(), Row { file: Some("shop/mail.py"), ..row("c", "t.py::c", "KeyError", "g", 3) }]);
    assert!(files.starts_with("begin with `a`; 3 failures are in this group, in several places ("), "{files}");
    // pytest's own frames are no place of the project.
    let outside = |row| Row { file: Some("/env/lib/_pytest/fixtures.py"), ..row };
    let outside = [outside(one()), outside(two())];
    assert!(recommended(&outside).starts_with("begin with `a`; 2 failures are in this group ("));
    assert!(analyze(&outside, &Question::new(now())).insights.places.is_empty());
    let commits = |good, bad, row| Row { last_good: Some(good), first_bad: Some(bad), ..row };
    let all = recommended(&[commits("g1", "b1", one()), commits("g1", "b1", two())]);
    assert!(all.contains("what changed between g1 and b1"), "{all}");
    let some = recommended(&[commits("g1", "b1", one()), commits("g2", "b2", two())]);
    assert!(!some.contains("changed between"), "{some}");
    let crashed = recommended(&[Row { kind: "Crashed", ..one() }, two(), row("c", "t.py::c", "KeyError", "g", 3)]);
    assert!(crashed.contains("1 of 3: the interpreter crashed"), "{crashed}");
}

#[test]
fn flaky_ones_are_listed() {
    let report = analyze(&rows(), &Question::new(now()));
    assert_eq!(report.insights.flaky.iter().map(|flaky| flaky.id.as_str()).collect::<Vec<_>>(), ["e"]);
    assert!(analyze(&[], &Question::new(now())).groups.is_empty());
}

#[test]
fn a_hundred_thousand_failures_take_a_moment() {
    let count = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let texts: Vec<(String, String, String, String)> = (0..count)
        .map(|n| {
            (
                format!("f{n}"),
                format!("tests/test_{}.py::test_{n}", n % 700),
                format!("g{}", n % 9000),
                format!("shop/m{}.py", n % 300),
            )
        })
        .collect();
    let days: Vec<(i32, u32)> = (0..20).map(|n| (20_500 + n, 2)).collect();
    let rows: Vec<Row> = texts
        .iter()
        .enumerate()
        .map(|(n, (id, test, group, file))| Row {
            file: Some(file),
            line: Some(u32::try_from(n % 500).unwrap()),
            days: &days,
            occurrences: 40,
            ..row(id, test, ["KeyError", "TypeError", "AssertionError"][n % 3], group, i64::try_from(n % 900).unwrap())
        })
        .collect();
    for group_by in [GroupBy::Fingerprint, GroupBy::ErrorType, GroupBy::FilePath, GroupBy::Pattern] {
        let begin = Instant::now();
        let report = analyze(&rows, &Question { group_by, ..Question::new(now()) });
        let took = begin.elapsed();
        assert_eq!(report.total_failures, count);
        assert!(report.groups.len() <= 100);
        // Unoptimised code says nothing about time.
        assert!(cfg!(debug_assertions) || took < Duration::from_millis(500), "{group_by:?} took {took:?}");
    }
}
