class Raises:
    def __init__(self):
        self.number = 7

    def __repr__(self):
        raise RuntimeError("no repr")


class Exits:
    def __repr__(self):
        raise SystemExit(3)


class Prints:
    def __repr__(self):
        print("PRINTED BY A REPR")
        return "Prints()"


class Hides:
    def __getattribute__(self, name):
        raise RuntimeError("no attributes")


class Hangs:
    def __repr__(self):
        while True:
            pass


class Lies:
    def __repr__(self):
        return 7


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_locals():
    raises, exits, prints, hides, hangs, lies = Raises(), Exits(), Prints(), Hides(), Hangs(), Lies()
    half = "\ud800 and text"
    raise LookupError("none of them")


def test_exception():
    raise BadText
