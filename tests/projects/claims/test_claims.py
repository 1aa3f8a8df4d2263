"""Failures whose obvious explanation is wrong."""

import pytest


class TestNose:
    def setup(self):
        self.G = {1: 2}
        self.D = {}

    def test_uncalled(self):
        assert self.G[1] == 2


def test_installed_copy():
    from shopping.compat import PY2

    assert not PY2


def test_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("data.csv") as file:
        assert file.read()


def test_there_by_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        open("made.txt")
    except FileNotFoundError:
        (tmp_path / "made.txt").write_text("late")
        raise


def test_meant_to_be_none():
    expected = None
    with pytest.warns(expected):
        pass


class Box:
    value = None


def test_not_none_by_now():
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = p = q = r = s = t = u = v = w = x = y = z = 1
    aa = bb = cc = dd = ee = ff = gg = hh = ii = jj = kk = ll = mm = nn = oo = pp = qq = rr = ss = tt = 1
    box = Box()
    try:
        box.value.name()
    except AttributeError:
        box.value = "no longer None"
        raise


def test_names_of_another_scope():
    assert all(item.isdigit() for item in ["1", "x"]), [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
    ]


def call(validator):
    return validator(1, wrong=2)


def test_a_call_by_another_name():
    def validate(value, right=1):
        return value

    call(validate)
