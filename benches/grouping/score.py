"""How well failures are grouped by the faults that were seeded: purity and V-measure over the pooled runs.

Reads what `store groups DIRECTORY` prints. An item is a failure in a run; what it should be is the fault that breaks its test, and in runs with
two faults the one that breaks it alone.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Hashable


def purity(pairs: list[tuple[Hashable, Hashable]]) -> float:
    """Pairs of fault and group."""
    by_group: dict[Hashable, Counter[Hashable]] = {}
    for fault, group in pairs:
        by_group.setdefault(group, Counter())[fault] += 1
    return sum(max(counts.values()) for counts in by_group.values()) / len(pairs)


def entropy(counts: Counter[Any]) -> float:
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


def v_measure(pairs: list[tuple[Hashable, Hashable]]) -> tuple[float, float, float]:
    faults, groups, both = Counter(fault for fault, _ in pairs), Counter(group for _, group in pairs), Counter(pairs)
    # H(a|b) is H(a, b) - H(b).
    homogeneity = 1 - (entropy(both) - entropy(groups)) / entropy(faults) if entropy(faults) else 1.0
    completeness = 1 - (entropy(both) - entropy(faults)) / entropy(groups) if entropy(groups) else 1.0
    total = homogeneity + completeness
    return (2 * homogeneity * completeness / total if total else 0.0), homogeneity, completeness


def labelled(directory: Path, items: list[dict[str, Any]], pairs: bool) -> list[tuple[str, dict[str, Any]]]:
    runs = {run["run"]: run for path in sorted(directory.glob("*.json")) for run in json.loads(path.read_text())}
    found = []
    for item in items:
        run = runs[item["run"]]
        if not run["faults"] or (len(run["faults"]) > 1) != pairs:
            continue
        breaking = [fault for fault in run["faults"] if item["test"] in run["breaks"][fault]]
        if len(breaking) == 1:
            found.append((breaking[0], item))
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    items = json.load(sys.stdin)["items"]
    keys: dict[str, Callable[[dict[str, Any]], Hashable]] = {
        "groups": lambda item: item["group"],
        "fingerprints": lambda item: (item["run"].partition("-0")[0], item["fingerprint"]),
        "type and last frame": lambda item: (item["run"].partition("-0")[0], item["type"], item["place"]),
        "type": lambda item: item["type"],
    }
    result: dict[str, Any] = {}
    for what, pairs in (("one fault per run", False), ("two faults per run", True)):
        found = labelled(directory, items, pairs)
        if not found:
            continue
        result[what] = {"items": len(found), "faults": len({fault for fault, _ in found})}
        for name, key in keys.items():
            scored = [(fault, key(item)) for fault, item in found]
            v, homogeneity, completeness = v_measure(scored)
            figures = {"purity": purity(scored), "v": v, "homogeneity": homogeneity, "completeness": completeness}
            result[what][name] = {figure: round(value, 3) for figure, value in figures.items()} | {"clusters": len({g for _, g in scored})}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
