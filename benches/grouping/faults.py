"""Seeds faults into a package: one small wrong change each, as people make them. The text around a fault stays as it was."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

COMPARED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Fault:
    """Where the text `old` is replaced, in bytes of the file."""

    file: str
    function: str
    kind: str
    start: int
    end: int
    new: str

    def apply(self, root: Path) -> None:
        path = root / self.file
        text = path.read_bytes()
        path.write_bytes(text[: self.start] + self.new.encode() + text[self.end :])


class Finder(ast.NodeVisitor):
    def __init__(self, file: str, text: bytes) -> None:
        self.file = file
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.within: list[str] = []
        self.found: list[Fault] = []

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        if self.within:
            self.found.append(Fault(self.file, ".".join(self.within), kind, start, end, new))

    def replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self.add(kind, *self.span(node), new)

    def source(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.text[start:end].decode()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.within.append(node.name)
        body = node.body[1:] if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant) else node.body
        for statement in body:
            self.visit(statement)
        self.within.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.within.append(node.name)
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.visit(statement)
        self.within.pop()

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self.source(node.left), self.source(node.comparators[0])
            self.replace("comparison", node, f"({left} {COMPARED[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self.replace("off by one", node, f"({node.value} + 1)")
        elif type(node.value) is bool:
            self.replace("wrong flag", node, str(not node.value))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.replace("nothing returned", node.value, "None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.replace("condition turned", node.test, f"(not ({self.source(node.test)}))")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            end = self.span(node)[1]
            self.add("wrong attribute", end - len(node.attr.encode()), end, node.attr + "_")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.replace("wrong name", node, node.id + "_")

    def visit_Call(self, node: ast.Call) -> None:
        if len(node.args) > 1 and not any(isinstance(arg, ast.Starred) for arg in node.args):
            first, second = node.args[0], node.args[1]
            start, end = self.span(first)[0], self.span(second)[1]
            self.add("arguments swapped", start, end, f"{self.source(second)}, {self.source(first)}")
            self.add("argument left out", self.span(first)[1], end, "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            other = "-" if isinstance(node.op, ast.Add) else "+"
            self.replace("wrong operator", node, f"({self.source(node.left)} {other} {self.source(node.right)})")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions inside of f-strings differ between versions."""


def candidates(root: Path, package: str, seed: int) -> Iterator[Fault]:
    """Every fault there could be, in an order that the seed decides: each kind and each function as often as others."""
    choice = random.Random(seed)
    found: list[Fault] = []
    for path in sorted((root / package).rglob("*.py")):
        text = path.read_bytes()
        finder = Finder(str(path.relative_to(root)), text)
        finder.visit(ast.parse(text))
        found += finder.found
    by_kind: dict[str, list[Fault]] = {}
    for fault in found:
        by_kind.setdefault(fault.kind, []).append(fault)
    used: set[str] = set()
    while any(by_kind.values()):
        for kind in sorted(by_kind):
            left = [fault for fault in by_kind[kind] if fault.function not in used]
            by_kind[kind] = left
            if left:
                fault = choice.choice(left)
                used.add(fault.function)
                yield fault
