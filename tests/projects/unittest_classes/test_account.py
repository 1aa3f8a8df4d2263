import unittest


class AccountTest(unittest.TestCase):
    def setUp(self):
        self.balance = 10

    def test_withdraw(self):
        self.balance -= 3
        self.assertEqual(self.balance, 6)

    def test_deposit(self):
        self.balance += 1
        self.assertEqual(self.balance, 11)

    @unittest.skip("later")
    def test_later(self):
        self.fail()

    @unittest.expectedFailure
    def test_known(self):
        self.fail("known")


class BrokenSetUpTest(unittest.TestCase):
    def setUp(self):
        raise OSError(2, "No such file or directory", "data.csv")

    def test_never(self):
        pass
