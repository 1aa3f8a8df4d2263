def test_first():
    pass


def test_second():
    assert not "reached"


def test_third():
    pass


def test_fourth():
    assert not "reached"
