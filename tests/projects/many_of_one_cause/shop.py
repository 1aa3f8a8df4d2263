PRICES = {}
cart = []
