class NotLoaded(Exception):
    pass


def parse(text):
    return int(text)


def load(text):
    try:
        return parse(text)
    except ValueError as error:
        raise NotLoaded(f"cannot load {text!r}") from error


def load_or_default(text, defaults):
    try:
        return parse(text)
    except ValueError:
        return defaults["number"]
