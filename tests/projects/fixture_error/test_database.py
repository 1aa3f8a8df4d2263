import pytest


class Database:
    def __init__(self, address):
        self.address = address

    def connect(self):
        raise ConnectionError(f"nobody listens on {self.address}")


@pytest.fixture
def database():
    database = Database("db.example:5432")
    database.connect()
    return database


def test_rows(database):
    assert database


def test_unknown_fixture(databse):
    pass
