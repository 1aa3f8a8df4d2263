import pytest


@pytest.fixture
def connection():
    yield object()
    raise RuntimeError("the connection was closed twice")


def test_passes(connection):
    pass


def test_fails_too(connection):
    assert connection is None
