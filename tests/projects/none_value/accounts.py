class Account:
    def __init__(self, owner):
        self.owner = owner


ACCOUNTS = {1: Account("ann")}


def find(number):
    return ACCOUNTS.get(number)


def owner_of(number):
    account = find(number)
    return account.owner.upper()
