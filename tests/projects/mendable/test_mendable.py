from unittest import mock

import ledger
import pytest
import shop


@pytest.fixture
def account():
    return {"owner": "ann"}


def test_missing_import():
    assert ledger.dump([1]) == "[1]"


def test_wrong_fixture(acount):
    assert acount["owner"] == "ann"


def test_patched_where_it_is_not_used():
    with mock.patch("payment.charge", return_value="paid"):
        assert shop.buy(3) == "paid"


def test_patched_name_that_is_not_there():
    with mock.patch("shop.chrage", return_value="paid"):
        assert shop.buy(3) == "paid"


def test_argument_by_name_only():
    sent = ledger.send("ann", "hello", "the body")
    assert "the body" in sent


def test_renamed_argument():
    assert ledger.page("x", attemps=2) == "xx"


def test_value_that_is_not_returned():
    result = ledger.total([1, 2])
    assert result + 1 == 4
