"""Who is let in, and what two clients share."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from home import TIMEOUT, Home
from sdk import LEGACY, connect


def post(home: Home, headers: dict) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    request = urllib.request.Request(home.url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_only_the_token_opens_the_http_door(home: Home) -> None:
    home.serve()
    good = {"Authorization": f"Bearer {home.token}"}
    assert post(home, {}) == 401
    assert post(home, {"Authorization": "Bearer wrong"}) == 401
    assert post(home, {**good, "Host": "evil.example"}) == 403
    assert post(home, {**good, "Origin": "http://evil.example"}) == 403
    # With everything right it gets as far as the protocol, which misses the session.
    assert post(home, good) not in (401, 403)


@pytest.mark.anyio
async def test_the_sdk_is_refused_without_the_token(home: Home) -> None:
    home.serve()
    # Which exception differs between versions; the status code is tested above.
    let_in = False
    with pytest.raises(Exception, match=r"TaskGroup|401"):
        async with connect(home, "http", LEGACY, token="wrong"):
            let_in = True
    assert not let_in


@pytest.mark.anyio
async def test_two_clients_of_one_process_share_the_default_session(home: Home) -> None:
    async with connect(home, "stdio", LEGACY) as first, connect(home, "stdio", LEGACY) as second:
        await first.execute("shared = 'yes'")
        assert (await second.execute("shared"))["result"] == "'yes'"


@pytest.mark.anyio
async def test_a_session_outlives_its_client(home: Home) -> None:
    async with connect(home, "stdio", LEGACY) as client:
        await client.execute("kept = 1", target=(await client.call("open_session", name="long")).data["name"])
    async with connect(home, "stdio", LEGACY) as client:
        assert (await client.execute("kept", target="long"))["result"] == "1"
    assert home.run("exec", "-t", "long", "kept + 1").stdout == "2\n"
