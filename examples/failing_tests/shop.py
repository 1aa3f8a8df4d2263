PRICES = {"tea": 3, "coffee": 4}


def price(name):
    return PRICES.get(name)


def total(order):
    cost = 0
    for name, count in order.items():
        each = price(name)
        cost += each * count
    return cost
