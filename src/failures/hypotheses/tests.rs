//! Against what real failing tests left behind: `tests/data/failures` has the project and the evidence of each of its tests.

use std::collections::BTreeMap;

use super::*;

pub(crate) const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/failures");

pub(crate) fn recorded() -> BTreeMap<String, Evidence> {
    let text = std::fs::read_to_string(format!("{DATA}/evidence.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(format!("{DATA}/{path}")).ok().filter(|_| !path.starts_with('/'))
}

#[test]
fn show() {
    for (nodeid, evidence) in recorded() {
        let around = Around { files: &read, cwd: Some("/project"), ..Around::nothing("k3n7q2", &nodeid) };
        println!("== {nodeid}  {}", evidence.exception.message.lines().next().unwrap_or(""));
        for found in hypotheses(&evidence, &around) {
            println!("   [{:?}] {}\n        because {}", found.confidence, found.text, found.because);
            for fact in &found.evidence { println!("        - {fact}"); }
        }
        if let Some(step) = crate::failures::next_step::next_step(&evidence, &around) {
            println!("   NEXT {} {:?}\n{}", step.text, step.evaluate.map(|e| e.call()), step.diff.unwrap_or_default());
        }
    }
}
