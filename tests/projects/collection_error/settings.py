LIMIT = int("ten")
