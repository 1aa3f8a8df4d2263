# The only Python that appears in an argv: `python -S -c STAGE0`. It reads one line from descriptor 0, byte by byte so that nothing
# after the line is consumed, and executes it. `posix` is built in, so a file in the working directory cannot shadow it.
exec(b"".join(iter(lambda p=__import__("posix"):p.read(0,1)or p._exit(1),b"\n")))
