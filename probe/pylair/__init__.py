"""pylair's Python half: what runs inside a worker, a visited app or a test run. Standard library only.

The daemon embeds these files and loads them from memory as the package `_pylair`; installed from a wheel the same files are `pylair`.
An app that wants to be visited needs three lines, and importing this package starts nothing:

    import pylair
    pylair.register("app", app)
    pylair.start(app_id="my-app")

`running`, `readonly`, `app_id`, `n_clients`, `n_commands` and `last_command_time` can be read from the module at any time.
"""

from __future__ import annotations

import sys as _sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .app import App

__version__ = "0.1.0"

_FACTS = ("running", "readonly", "app_id", "n_clients", "n_commands", "last_command_time")


def register(name: str, obj: Any) -> None:
    """Makes an object known by a name to those who visit this app. A name that is registered again is replaced."""
    _app().register(name, obj)


def unregister(name: str) -> None:
    """Forgets a registered name. One that is not registered is no error."""
    _app().unregister(name)


def start(
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    readonly: bool = False,
    app_id: str | None = None,
    loop: Any = None,
    allow_code: bool = False,
) -> bool:
    """Lets pylair in: listens on a Unix socket that only this user can reach, and with `port` (0 for any) on loopback TCP with a token.

    `readonly` lets nothing be run or changed; `allow_code` with it lets properties and `__repr__`s be run after all. Calls run on `loop`,
    an asyncio event loop, if there is one. Returns False, with a warning, when the app was listening already.
    """
    return _app().start(port=port, host=host, readonly=readonly, app_id=app_id, loop=loop, allow_code=allow_code)


def stop() -> None:
    """Stops listening. Calls that are running go on to their end."""
    _app().stop()


def set_main_thread_invoker(invoker: Callable[[Callable[[], Any]], Any] | None) -> None:
    """Calls are run by `invoker(function)`, which has to call the function on the app's main thread and return what it returns."""
    _app().invoker = invoker


def set_screenshot_fn(function: Callable[[], bytes] | None) -> None:
    """`function()` returns a picture of the app, as PNG."""
    _app().screenshot_fn = function


def set_winshot_fn(function: Callable[[str], bytes] | None) -> None:
    """`function(code)` renders a snippet alone and returns the picture, as PNG."""
    _app().winshot_fn = function


def add_arguments(parser: Any) -> None:
    """Adds `--pylair` and its companions to an `argparse` parser."""
    group = parser.add_argument_group("pylair")
    group.add_argument("--pylair", action="store_true", help="let pylair look inside this program")
    group.add_argument("--pylair-port", type=int, default=None, metavar="PORT", help="listen on this port of 127.0.0.1 too (0: any)")
    group.add_argument("--pylair-app-id", default=None, metavar="ID", help="what the program is called (default: the script's name)")
    group.add_argument("--pylair-readonly", action="store_true", help="let nothing be run or changed")


def from_args(args: Any, **namespaces: Any) -> bool:
    """Registers the keyword arguments, and starts if `--pylair` was given. Returns whether it did."""
    for name, obj in namespaces.items():
        register(name, obj)
    if not getattr(args, "pylair", False):
        return False
    return start(port=args.pylair_port, app_id=args.pylair_app_id, readonly=args.pylair_readonly)


def _app() -> App:
    """The one app of this process. If a probe came in from outside, that is the probe's: there is one server and one set of names."""
    visitor = _sys.modules.get("_pylair.app")
    if visitor is None:
        from . import app as visitor  # type: ignore[no-redef]
    return visitor.current()  # type: ignore[union-attr]


def __getattr__(name: str) -> Any:
    if name in _FACTS:
        return getattr(_app(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FACTS])
