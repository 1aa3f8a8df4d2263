import threading

import pytest


@pytest.fixture
def background():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="poller")
    thread.start()
    yield thread
    done.set()
    thread.join()


def test_with_thread(background):
    assert not background.is_alive()
