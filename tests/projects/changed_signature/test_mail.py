from mail import send


def notify(user):
    return send(user, "hello", "the body")


def test_notify():
    assert "hello" in notify("ann")
