import sys

import pytest
from loading import load, load_or_default


def test_cause():
    load("seven")


def test_context():
    load_or_default("seven", {})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are in the language since 3.11")
def test_group():
    errors = []
    for text in ("seven", "eight"):
        try:
            load(text)
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("not all were loaded", errors)  # noqa: F821


def test_recursion():
    def count(number):
        return count(number + 1)

    count(0)
