from __future__ import annotations

from typing import Any, Callable, Iterator

import pytest
from home import Home, adopt_orphans

from running import Program

adopt_orphans()


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture
def run(home: Home) -> Iterator[Callable[..., Any]]:
    """Starts programs and sees to it that they are gone in the end: `run(Script, "wrap")`."""
    programs: list[Program] = []

    def start(kind: type[Program], *args: Any, **env: str) -> Program:
        program = kind(home, *args, **env)
        programs.append(program)
        return program

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
