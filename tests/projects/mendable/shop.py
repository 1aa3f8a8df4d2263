from payment import charge


def buy(price):
    return charge(price)
