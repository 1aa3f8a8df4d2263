import datetime
import logging
import socket
from unittest import mock

import pytest

from shop import users
from shop.users import dump, domain_of, find_user, greeting, page, port, last, total


@pytest.fixture
def client():
    return object()


def test_none_from_call():
    assert greeting("carl") == "Hello Carl"


def test_none_attribute_of_argument():
    bob = find_user("bob")
    assert domain_of(bob) == "example.org"


def test_none_no_return():
    assert total([1, 2]) + 1 == 4


def test_none_subscript():
    found = find_user("nobody")
    assert found["name"] == "x"


def test_key():
    assert port() == 80


def test_index():
    assert last([1, 2, 3]) == 3


def test_missing_import():
    assert dump({}) == "{}"


def test_name_typo():
    result = 3
    assert reslt == 3


def test_attribute_typo():
    user = find_user("ann")
    assert user.nmae == "Ann"


def test_import_name():
    from shop.users import find_users


def test_module_missing():
    import shop.usres


def test_unexpected_keyword():
    assert page("http://x", attemps=2) == "x"


def test_renamed_keyword():
    assert page("http://x", retries=2) == "x"


def test_missing_argument():
    assert page() == "x"


def test_fixture(clinet):
    assert clinet


def test_mock_path():
    with mock.patch("shop.mail.send_mial") as sent:
        assert sent


def test_mock_module():
    with mock.patch("shop.mial.send") as sent:
        assert sent


def test_compare_dict():
    expected = {"a": 1, "b": 2}
    actual = {"a": 1, "b": 3}
    assert actual == expected


def test_compare_text():
    assert greeting("ann") == "Hello ann"


def test_float():
    price = 0.1 + 0.2
    assert price == 0.3


def test_timezone():
    made = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    assert made < datetime.datetime(2025, 1, 1)


def test_order():
    names = list({"b": 1, "a": 2})
    assert names == ["a", "b"]


def test_set_order():
    assert [3, 1, 2] == [1, 2, 3]


def test_file(tmp_path):
    open("data/missing.csv")


def test_encoding():
    b"caf\xe9".decode("utf-8")


def test_connection():
    with socket.create_connection(("127.0.0.1", 9), timeout=1):
        pass


def test_timeout():
    raise TimeoutError("timed out after 5 s")


def test_chain():
    try:
        {}["a"]
    except KeyError as error:
        logging.getLogger("shop").warning("lost %s", error)
        print("before")
        raise RuntimeError("could not load") from error


@pytest.mark.parametrize("value", [1, 2, 3])
def test_params(value):
    assert value % 2 == 1


def test_in_list():
    names = ["ann", "bob"]
    assert "carl" in names


def test_bool_call():
    items = []
    assert items


def test_long_text():
    assert "a\nb\nc" == "a\nB\nc"


class TestThings:
    def test_method(self):
        self.helper(1)

    def helper(self):
        return 1


def test_zero():
    values = []
    average = sum([1]) / len(values)


def test_int():
    text = "12a"
    int(text)


def test_raises():
    with pytest.raises(ValueError):
        int("3")


def test_raises_match():
    with pytest.raises(ValueError, match="no such"):
        int("x")
