import logging
import unittest

import pytest

FLAKY = {"left": 1}


def helper(user):
    return user.mail.split("@")


def test_passes(record_property):
    record_property("ticket", 42)
    print("some output")


def test_fails():
    print("before it fails")
    logging.getLogger("sample").warning("careful")

    class User:
        mail = None

    helper(User())


def test_compares():
    assert {"a": 1} == {"a": 2}, "they differ <&> \x1b[31mred\x1b[0m"


@pytest.mark.skip(reason="not today")
def test_skipped():
    pass


@pytest.mark.xfail(reason="known bug")
def test_xfails():
    assert 0


@pytest.mark.xfail(reason="was known")
def test_xpasses():
    pass


@pytest.mark.xfail(strict=True, reason="strictly")
def test_xpasses_strictly():
    pass


@pytest.fixture
def broken():
    raise OSError(28, "no space")


@pytest.fixture
def ends_badly():
    yield 1
    raise RuntimeError("teardown")


def test_setup_error(broken):
    pass


def test_teardown_error(ends_badly):
    pass


def test_both(ends_badly):
    assert ends_badly == 2


@pytest.mark.flaky(reruns=2)
def test_flaky():
    if FLAKY["left"]:
        FLAKY["left"] -= 1
        raise ValueError("the first time")


@pytest.mark.parametrize("value", ["a b", "é::]"])
def test_param(value):
    assert value == "a b"


def test_chained():
    try:
        int("x")
    except ValueError as error:
        raise KeyError("wrapped") from error


def test_subtests(subtests):
    for number in range(3):
        with subtests.test("number", number=number):
            assert number != 1


class TestUnit(unittest.TestCase):
    def test_method(self):
        self.assertEqual([1, 2], [1, 3])
