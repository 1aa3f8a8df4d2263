from __future__ import annotations

import os
from typing import Iterator

import pytest

from home import Home, adopt_orphans

adopt_orphans()

# The doors are tested here, not interpreters; the torture test and the probe's own tests do that.
NEWEST = os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":")[-1]


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home({"PYLAIR_PYTHON": NEWEST} if NEWEST else None)
    yield home
    home.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
