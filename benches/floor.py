"""The floor: what any Python that answers code on pipes must do, and nothing else. Lines of JSON in, lines of JSON out."""

import ast
import json
import os
import sys

namespace = {"__name__": "__main__"}

for line in sys.stdin.buffer:
    request = json.loads(line)
    tree = ast.parse(request["code"])
    result = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, "<cell>", "exec"), namespace)
        result = repr(eval(compile(last, "<cell>", "eval"), namespace))
    else:
        exec(compile(tree, "<cell>", "exec"), namespace)
    answer = {"id": request["id"], "result": result}
    os.write(1, json.dumps(answer, separators=(",", ":")).encode() + b"\n")
