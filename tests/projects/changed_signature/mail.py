def send(to, subject, *, body):
    return f"{to}: {subject}\n{body}"
