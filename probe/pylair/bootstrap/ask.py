# Asks an interpreter what it is. Runs in a short-lived process of that interpreter, started by `crates/python`.
# Must parse on Python 2, so that an old Python is told apart from what is no Python at all.
import sys
sys.path[:] = [entry for entry in sys.path if entry]
version = "%d.%d.%d" % tuple(sys.version_info[:3])
if sys.version_info[0] < 3:
    sys.stdout.write("\x01pylair %s\n" % version)
else:
    import json
    import site
    getsitepackages = getattr(site, "getsitepackages", list)
    sys.stdout.write("\x01pylair %s %s\n" % (version, json.dumps({
        "executable": sys.executable,
        "version": version,
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
        "base_prefix": getattr(sys, "base_prefix", sys.prefix),
        "base_executable": getattr(sys, "_base_executable", None) or sys.executable,
        "exec_prefix": sys.exec_prefix,
        "base_exec_prefix": getattr(sys, "base_exec_prefix", sys.exec_prefix),
        "site_packages": getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    })))
