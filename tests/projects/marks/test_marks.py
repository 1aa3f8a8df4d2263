import pytest


@pytest.mark.xfail(reason="not written yet")
def test_expected():
    raise NotImplementedError


@pytest.mark.xfail(reason="thought to be broken")
def test_unexpected_pass():
    pass


@pytest.mark.xfail(strict=True, reason="must not pass")
def test_strict():
    pass


@pytest.mark.skip(reason="no network here")
def test_skipped():
    raise AssertionError


def test_skips_itself():
    pytest.skip("not today")


@pytest.mark.xfail(run=False, reason="ends the process")
def test_not_run():
    raise AssertionError
