from settings import LIMIT


def test_limit():
    assert LIMIT == 10
