def dump(rows):
    return json.dumps(rows)


def send(to, subject, *, body):
    return f"{to}: {subject}\n{body}"


def page(address, attempts=1):
    return address * attempts


def total(rows):
    result = sum(rows)
