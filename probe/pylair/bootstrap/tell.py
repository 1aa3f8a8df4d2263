# Says for whoever attaches why it did not work. `error` is what was raised, `kind` what that means if it is known. Imports nothing that a
# program could have replaced, or could lack.
try:
    import posix

    text = "%s" % error if kind else "%s: %s" % (type(error).__name__, error)
    text = "".join(c if " " <= c <= "~" and c not in '"\\' else "\\u%04x" % min(ord(c), 0xFFFD) for c in text[:2000])
    path = "@ERRORS@"
    try:
        posix.mkdir(path.rpartition("/")[0], 0o700)
    except OSError:
        pass
    file = posix.open(path + "~", posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)
    try:
        posix.write(file, ('{"error": "%s", "kind": "%s"}' % (text, kind)).encode())
    finally:
        posix.close(file)
    posix.rename(path + "~", path)
except BaseException:
    pass
