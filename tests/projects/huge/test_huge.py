import logging


def test_output():
    print("line of output\n" * 200_000)
    logging.getLogger("huge").warning("w" * 100_000)
    assert False


def test_message():
    raise ValueError("x" * 50_000_000)


def test_deep():
    value = []
    for _ in range(5000):
        value = [value]
    table = {number: "v" * 1000 for number in range(100_000)}
    assert table is value
