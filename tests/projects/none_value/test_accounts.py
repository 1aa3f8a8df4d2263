from accounts import owner_of


def test_owner():
    assert owner_of(1) == "ANN"


def test_unknown_account():
    assert owner_of(2) == ""
