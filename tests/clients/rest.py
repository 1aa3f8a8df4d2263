"""Has schemathesis send what the OpenAPI document allows, and what it does not, to a server: whatever comes, it answers, and as it says."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from home import Home, adopt_orphans

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# One never ends, the other takes lines of JSON, which schemathesis cannot write.
WITHOUT = ("/api/failures/events", "/api/runs/{run}/records")


def record(url: str, token: str, number: int) -> None:
    body = json.dumps({"test": f"t.py::test_{number}", "message": f"ValueError: {number}"}).encode()
    fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/failures", body, fields)) as answer:
        assert answer.status == 201, answer.status


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    adopt_orphans()
    home = Home()
    try:
        url = home.serve().rsplit("/", 1)[0]
        for number in range(3):
            record(url, home.token, number)
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {home.token}", "--checks", CHECKS, "--request-timeout", "20"]
        command += ["--max-examples", str(arguments.examples), "--seed", str(arguments.seed), "--generation-database", "none"]
        for path in WITHOUT:
            command += ["--exclude-path", path]
        return subprocess.run(command).returncode
    finally:
        home.close()


if __name__ == "__main__":
    sys.exit(main())
