from unittest import mock

import shop


def test_patched_where_it_is_not_used():
    with mock.patch("payment.charge", return_value="paid"):
        assert shop.buy(3) == "paid"


def test_patched_name_that_is_not_there():
    with mock.patch("shop.pay", return_value="paid"):
        assert shop.buy(3) == "paid"
