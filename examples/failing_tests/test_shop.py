from shop import total


def test_total():
    assert total({"tea": 2, "coffee": 1}) == 10


def test_unknown_goods_cost_nothing():
    assert total({"tea": 1, "cake": 2}) == 3
