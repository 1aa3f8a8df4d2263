from report import draw


def test_draw():
    assert draw
