USERS = {"ann": {"name": "Ann", "mail": "ann@example.org"}, "bob": {"name": "Bob"}}


class User:
    def __init__(self, name, mail=None):
        self.name = name
        self.mail = mail

    def __repr__(self):
        return f"User(name={self.name!r}, mail={self.mail!r})"


def find_user(key):
    for known, fields in USERS.items():
        if known == key:
            return User(fields["name"], fields.get("mail"))


def domain_of(user):
    return user.mail.split("@")[1]


def greeting(key):
    user = find_user(key)
    return "Hello " + user.name


def total(prices):
    result = sum(prices)


def page(url, attempts=3, timeout=5.0):
    return url


def dump(value):
    return json.dumps(value)


def settings():
    return {"host": "localhost", "port": 80}


def port():
    return settings()["prot"]


def last(items):
    return items[len(items)]
