from __future__ import annotations

import os
from typing import Iterator

import pytest
from home import Home, adopt_orphans

adopt_orphans()

if "PYLAIR_TEST_PYTHONS" in os.environ:
    # The doors are tested here, not interpreters; the torture test and the probe's own tests do that.
    NEWEST = os.environ["PYLAIR_TEST_PYTHONS"].split(":")[-1]
else:
    NEWEST = ""


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home({"PYLAIR_PYTHON": NEWEST} if NEWEST else None)
    yield home
    home.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
