import pytest
import shop


@pytest.mark.parametrize("number", range(60))
def test_price(number):
    assert shop.PRICES[number] == number
