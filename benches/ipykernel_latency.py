"""How long ipykernel's shell reply to `x+1` takes, through its own client. Prints microseconds as JSON."""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel

count = int(sys.argv[1])
manager, client = start_new_kernel(kernel_name="python3")
try:
    client.execute_interactive("x = 1", timeout=60)
    taken = []
    for _ in range(count + 20):
        began = time.perf_counter()
        request = client.execute("x+1")
        while client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != request:
            pass
        taken.append((time.perf_counter() - began) * 1e6)
        # Until idle, so that a reply is not measured behind the output of the one before.
        while True:
            message = client.get_iopub_msg(timeout=60)
            idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if idle and message["parent_header"].get("msg_id") == request:
                break
    taken = sorted(taken[20:])
    print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int((len(taken) - 1) * 0.99)]}))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
