PY2 = False
