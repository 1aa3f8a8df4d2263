"""Which lines a failing statement goes over, and which of its expressions failed. Called by evidence.py at a failure."""

from __future__ import annotations

import io
import itertools
import tokenize
from typing import Any

MAX_LINES = 60
# A function that is longer is looked at near the line only.
_MAX_BEFORE = 3000
_MAX_EXPRESSION_LINES = 20


def around(lines: list[str], first: int, line: int) -> tuple[int, int]:
    """The first and the last line of the statement that a line is in, of a compound one those of its head. `first` is where its function
    begins."""
    begin = max(1, min(first, line), line - _MAX_BEFORE)
    text = io.StringIO("".join(lines[begin - 1 : line + MAX_LINES]))
    start = end = 0
    try:
        for token in tokenize.generate_tokens(text.readline):
            if token.type in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
                continue
            if not start:
                start = begin + token.start[0] - 1
            if token.type == tokenize.NEWLINE:
                end = begin + token.start[0] - 1
                if end >= line:
                    break
                start = end = 0
    except (tokenize.TokenError, SyntaxError, ValueError):
        # It goes on behind what was looked at, or the file has changed since.
        pass
    if not start or not start <= line <= end:
        return line, line
    return max(start, line - MAX_LINES), end


def failing(code: Any, instruction: int, lines: list[str]) -> str | None:
    """The expression that an instruction is of, where the interpreter knows."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None
    first, last, begin, end = next(itertools.islice(positions(), instruction // 2, None), (None,) * 4)
    if None in (first, last, begin, end) or not 1 <= first <= last <= len(lines) or last - first > _MAX_EXPRESSION_LINES:
        return None
    # Columns count bytes.
    taken = [text.encode("utf-8", "replace") for text in lines[first - 1 : last]]
    taken[-1] = taken[-1][:end]
    taken[0] = taken[0][begin:]
    return " ".join(part.decode("utf-8", "replace").strip() for part in taken).strip() or None
