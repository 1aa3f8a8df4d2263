import shop


def test_first():
    shop.cart.append("tea")


def test_second():
    assert shop.cart == []
