# Says for whoever attaches why it did not work. `error` is what was raised.
try:
    import json
    import posix

    text = "%s: %s" % (type(error).__name__, error)
    path = "@ERRORS@"
    try:
        posix.mkdir(path.rpartition("/")[0], 0o700)
    except OSError:
        pass
    file = posix.open(path + "~", posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)
    try:
        posix.write(file, json.dumps({"error": text[:4000]}).encode())
    finally:
        posix.close(file)
    posix.rename(path + "~", path)
except BaseException:
    pass
