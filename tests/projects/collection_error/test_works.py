def test_works():
    pass
