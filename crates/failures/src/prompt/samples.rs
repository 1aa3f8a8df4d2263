//! Which failures of a group are shown: those that differ most, since what they have in common is then the cause.

use std::collections::HashSet;

use super::PromptInput;

/// Members beyond these are not compared; a group's first hundred are its newest.
const MAX_COMPARED: usize = 100;

pub(super) fn most_different<'g, 'a>(members: &'g [PromptInput<'a>], most: usize) -> Vec<&'g PromptInput<'a>> {
    let compared: Vec<(&PromptInput, HashSet<String>)> =
        members.iter().take(MAX_COMPARED).map(|member| (member, features(member))).collect();
    let mut chosen: Vec<usize> = Vec::new();
    // The first has the most to say: frames, then values.
    let richness = |index: usize| {
        let evidence = compared[index].0.evidence;
        (
            evidence.frames.len().min(5),
            evidence.frames.iter().map(|frame| frame.locals.len()).sum::<usize>().min(20),
            std::cmp::Reverse(index),
        )
    };
    if let Some(first) = (0..compared.len()).max_by_key(|index| richness(*index)) {
        chosen.push(first);
    }
    while chosen.len() < most.min(compared.len()) {
        let farthest = (0..compared.len()).filter(|index| !chosen.contains(index)).max_by_key(|index| {
            let nearest =
                chosen.iter().map(|other| distance(&compared[*index].1, &compared[*other].1)).min().unwrap_or(0);
            (nearest, std::cmp::Reverse(*index))
        });
        let Some(farthest) = farthest else { break };
        chosen.push(farthest);
    }
    chosen.into_iter().map(|index| compared[index].0).collect()
}

/// Of a thousand features, how many are not shared.
fn distance(a: &HashSet<String>, b: &HashSet<String>) -> usize {
    let shared = a.intersection(b).count();
    let all = a.len() + b.len() - shared;
    1000 - (shared * 1000).checked_div(all).unwrap_or(1000)
}

fn features(member: &PromptInput) -> HashSet<String> {
    let evidence = member.evidence;
    let mut features: HashSet<String> =
        evidence.exception.message.split_whitespace().take(40).map(ToOwned::to_owned).collect();
    features.insert(format!("type {}", evidence.exception.kind));
    features.insert(format!("test {}", member.test.split('[').next().unwrap_or(member.test)));
    features.insert(format!("file {}", member.test.split("::").next().unwrap_or("")));
    for frame in evidence.frames.iter().filter(|frame| frame.in_app).take(6) {
        features.insert(format!("frame {} {}", frame.file, frame.function));
    }
    for (name, value) in member.params {
        features.insert(format!("param {name} {value}"));
    }
    features
}
