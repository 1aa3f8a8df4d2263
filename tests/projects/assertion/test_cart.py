from cart import total


def test_discount_is_a_percentage():
    prices = [40, 60]
    assert total(prices, discount=10) == 90


def test_total():
    assert total([1, 2]) == 3


def test_discount_of_a_small_sum():
    price = 50
    assert total([price], discount=10) == price * 0.9
