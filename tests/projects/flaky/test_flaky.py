import pytest

_tries = []


@pytest.mark.flaky(reruns=2)
def test_second_time():
    _tries.append(1)
    assert len(_tries) == 2


@pytest.mark.flaky(reruns=1)
def test_never():
    raise TimeoutError("no answer")
