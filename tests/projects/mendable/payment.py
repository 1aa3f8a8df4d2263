def charge(price):
    raise ConnectionError("the real payment was called")
