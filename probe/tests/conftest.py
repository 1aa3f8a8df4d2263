"""Fixtures. The interpreters under test come from PYLAIR_TEST_PYTHONS (colon-separated); the default is the one that runs pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Callable, Iterator

import pytest
from app_host import PLAIN_APP, AppProcess
from host import Session, Template
from runs import Place
from visitor import Home

PYTHONS = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path] or [sys.executable]


@pytest.fixture(scope="session", params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def version(python: str) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    major, minor = subprocess.run([python, "-c", code], capture_output=True, check=True).stdout.split()
    return int(major), int(minor)


@pytest.fixture(scope="session")
def template(python: str) -> Iterator[Template]:
    template = Template(python)
    assert "error" not in template.hello, template.hello
    yield template
    template.close()


@pytest.fixture
def cwd() -> str:
    """Where sessions start; test files that write have another."""
    return "/"


@pytest.fixture
def session(template: Template, cwd: str) -> Iterator[Session]:
    """A started session."""
    session = Session(template)
    assert session.start(cwd=cwd)["ok"]
    yield session
    session.close()


@pytest.fixture
def run(python: str) -> Iterator[Callable[..., AppProcess]]:
    """Starts apps of the code given, and ends them."""
    started = []

    def start(code: str = PLAIN_APP, **options: Any) -> AppProcess:
        started.append(AppProcess(python, code, **options))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def home() -> Iterator[Home]:
    """A registry of its own, and programs that end with the test."""
    home = Home()
    yield home
    home.close()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where pytest runs with the plugin. A test file that has FREEZE gets that many copies of failures."""
    place = Place()
    freeze = getattr(request.module, "FREEZE", 0)
    if freeze:
        place.listen(freeze=freeze)
    yield place
    place.close()
