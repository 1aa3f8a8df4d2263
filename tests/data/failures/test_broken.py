import shop.nothing
