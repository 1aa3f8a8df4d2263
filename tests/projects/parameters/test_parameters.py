import pytest


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


@pytest.mark.parametrize(("number", "word"), [(1, "one"), (2, "two"), (3, "drei")])
def test_words(number, word):
    assert ["one", "two", "three"][number - 1] == word


@pytest.mark.slow
class TestPoints:
    @pytest.mark.parametrize("point", [Point(1, 2)])
    def test_point(self, point):
        assert point.x == point.y
