"""How well failures are grouped by the faults that were seeded: purity and V-measure over the pooled runs.

Reads what `store groups DIRECTORY` prints. An item is a failure in a run; what it should be is the fault that breaks its test, and in
runs with two faults the one that breaks it alone.
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


def labelled(runs: dict[str, Any], items: list[dict[str, Any]], faults: int) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for item in items:
        run = runs[item["run"]]
        if len(run["faults"]) != faults:
            continue
        breaking = [fault for fault in run["faults"] if item["test"] in run["breaks"][fault]]
        if len(breaking) == 1:
            found.append((breaking[0], item))
    return found


KEYS: dict[str, Callable[[dict[str, Any]], Hashable]] = {
    "groups": lambda item: item["group"],
    "fingerprints alone": lambda item: (item["suite"], item["fingerprint"]),
    "baseline: type and last in-app frame": lambda item: (item["suite"], item["type"], item["place"]),
    "baseline: type": lambda item: item["type"],
}
# Which runs are scored, of which store, with how many faults.
VARIANTS = {
    "one fault per run": ("all", 1),
    "two faults per run, each seen alone before": ("all", 2),
    "two faults per run, never seen alone": ("pairs_only", 2),
}


def scores(found: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    result: dict[str, Any] = {"items": len(found), "faults": len({fault for fault, _ in found})}
    for name, key in KEYS.items():
        scored = [(fault, key(item)) for fault, item in found]
        v, homogeneity, completeness = v_measure(scored)
        figures = {"purity": purity(scored), "v": v, "homogeneity": homogeneity, "completeness": completeness}
        result[name] = {figure: round(value, 3) for figure, value in figures.items()} | {"clusters": len({g for _, g in scored})}
    return result


def main() -> None:
    directory = Path(sys.argv[1])
    stores = json.load(sys.stdin)
    runs = {run["run"]: run for path in sorted(directory.glob("*.json")) for run in json.loads(path.read_text())}
    result: dict[str, Any] = {}
    for variant, (store, faults) in VARIANTS.items():
        found = labelled(runs, stores[store]["items"], faults)
        if not found:
            continue
        result[variant] = {"all suites": scores(found)}
        for suite in sorted({item["suite"] for _, item in found}):
            result[variant][suite] = scores([(fault, item) for fault, item in found if item["suite"] == suite])
    if "--table" in sys.argv:
        for variant, suites in result.items():
            for suite, scored in suites.items():
                print(f"{variant}, {suite}: {scored['faults']} faults, {scored['items']} failures")
                for name in KEYS:
                    print(f"    {name:38} purity {scored[name]['purity']:.2f}  V {scored[name]['v']:.2f}  in {scored[name]['clusters']}")
    else:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
