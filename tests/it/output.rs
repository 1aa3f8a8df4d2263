//! Long output: what a model gets to see, where the whole is, and the cap.

use pylair_core::session::{Outcome, output_uri};
use pylair_output::Which;

use crate::support::{Core, on_newest_python, with_settings};

/// The whole output of a job, page by page.
fn read_pages(core: &Core, job: &str, page_bytes: usize) -> (String, usize) {
    let (mut text, mut pages, mut offset) = (String::new(), 0, Some(0));
    while let Some(from) = offset {
        let page = core.daemon.sessions.parts.outputs.read(job, Which::Merged, from, page_bytes).expect("it is kept");
        text.extend(page.parts.into_iter().map(|(_, text)| text));
        offset = page.next;
        pages += 1;
    }
    (text, pages)
}

#[test]
fn long_output_is_cut_in_the_middle_and_kept_whole() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run("for i in range(10_000): print('request', i, 'served')\n'the value'").await;
        assert_eq!((report.outcome, report.result.as_deref()), (Outcome::Ok, Some("'the value'")));
        assert!(report.truncated && report.merged.chars().count() <= 25_000, "{}", report.merged.chars().count());
        assert!(report.merged.starts_with("request 0 served\nrequest 1 served\n"));
        assert!(report.merged.ends_with("request 9998 served\nrequest 9999 served\n"));
        let cut = report.merged.lines().find(|line| line.starts_with("[…")).expect("a line says what is missing");
        assert!(cut.contains("left out") && cut.contains(&output_uri(&report.job)), "{cut}");
        let summary = report.merged.lines().find(|line| line.starts_with("[repeated: ")).expect("a line about repeats");
        assert!(summary.contains("10,000 ×"), "{summary}");
        assert_eq!(report.notes, [""; 0], "nothing is lost, so there is nothing to say");
        let expected = (0..10_000).map(|i| format!("request {i} served\n")).collect::<Vec<_>>().concat();
        let (whole, pages) = read_pages(core, &report.job, 64 << 10);
        assert_eq!(whole, expected);
        assert!(pages >= 3, "{pages}");
    });
}

#[test]
fn fifty_megabytes_come_through_whole() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run("line = 'x' * 9_999\nfor _ in range(5_000): print(line)").await;
        assert_eq!(report.outcome, Outcome::Ok);
        let info = core.daemon.sessions.parts.outputs.info(&report.job).expect("it is kept");
        assert_eq!((info.total_bytes, info.total_lines, info.truncated), (50_000_000, 5_000, false));
        assert_eq!(session.value("1").await, "1");
    });
}

#[test]
fn output_over_the_cap_loses_its_middle_and_says_so() {
    with_settings(&[("PYLAIR_MAX_OUTPUT_MB", "1")], async |core| {
        let session = core.session().await;
        let report = session.run("for i in range(40_000): print('%099d' % i)").await;
        assert_eq!(report.outcome, Outcome::Ok, "{report:#?}");
        assert!(report.truncated && report.merged.ends_with("39999\n"), "the end is shown");
        let cut = report.merged.lines().find(|line| line.starts_with("[…")).expect("a line says what is missing");
        assert!(cut.contains("; its first 1,0") && cut.contains(&output_uri(&report.job)), "{cut}");
        let (kept, _) = read_pages(core, &report.job, 256 << 10);
        assert!(kept.starts_with(&format!("{:099}\n{:099}\n", 0, 1)), "the beginning is kept");
        let file = core.daemon.places.outputs().join(&*core.caller.owner).join(format!("{}.out", report.job));
        let size = std::fs::metadata(file).expect("it is kept").len();
        assert!(size <= (1 << 20) + 4096, "the file has {size} bytes");
    });
}

#[test]
fn a_long_result_and_a_long_traceback_are_cut_too() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run("'y' * 100_000").await;
        let result = report.result.expect("a value");
        assert!(report.truncated && result.chars().count() <= 25_000 && result.contains("left out"));
        let report = session.run("raise ValueError('z' * 100_000)").await;
        let error = report.error.expect("an error");
        assert!(report.truncated && error.traceback.chars().count() <= 25_000, "{}", error.traceback.chars().count());
    });
}
