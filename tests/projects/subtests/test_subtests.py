def test_numbers(subtests):
    for number in range(3):
        with subtests.test("odd", number=number):
            assert number != 1
