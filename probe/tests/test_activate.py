"""A started worker is the interpreter that its executable would have been."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from host import Session, Template

# Evaluated by a real start of the interpreter and by a session; the answers must be equal. The builtin `display` and a backend for
# matplotlib are what a session has more.
FACTS = """
import sys, builtins, sysconfig, subprocess, site, json, os, time
facts = {
    "path": sys.path,
    "prefix": sys.prefix,
    "exec_prefix": sys.exec_prefix,
    "base_prefix": sys.base_prefix,
    "base_exec_prefix": sys.base_exec_prefix,
    "executable": sys.executable,
    "base_executable": os.path.realpath(sys._base_executable),
    "flags": [repr(sys.flags), list(sys.flags), len(sys.flags), sys.flags.n_fields, str(type(sys.flags)), sys.flags.dev_mode],
    "builtins": sorted(name for name in dir(builtins) if name not in ("_", "display")),
    "purelib": sysconfig.get_path("purelib"),
    "config": sysconfig.get_config_var("prefix"),
    "arguments": subprocess._args_from_interpreter_flags(),
    "site": [site.PREFIXES, site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE],
    "environ": sorted(item for item in os.environ.items() if item[0] not in ("_", "LC_CTYPE", "MPLBACKEND")),
    "c environment": subprocess.run(["sh", "-c", "echo $MARK"], stdout=-1).stdout.decode(),
    "cwd": os.getcwd(),
    "zone": time.tzname,
    "dont_write_bytecode": sys.dont_write_bytecode,
    "interactivehook": hasattr(sys, "__interactivehook__"),
    "encodings": [sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.stdout.encoding.lower()],
    "home": getattr(sys, "_home", None),
}
"""


def real(executable: str, env, cwd) -> dict:
    finished = subprocess.run([executable, "-c", FACTS + "print(json.dumps(facts))"], env=env, cwd=cwd, capture_output=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def started(template, executable: str, env, cwd, **fields) -> dict:
    session = Session(template)
    answer = session.start(executable=executable, env=env, cwd=str(cwd), **fields)
    assert answer == {"ch": 1, "id": 1, "ev": "done", "ok": True}
    done = session.execute(FACTS + "print(json.dumps(facts))")
    assert done["outcome"] == "ok", done
    facts = json.loads(session.text().splitlines()[-1])
    session.close()
    return facts


@pytest.fixture(scope="module")
def venv(python, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("venvs") / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "extra").mkdir()
    (packages / "extra.pth").write_text("extra\nimport os; os.environ['FROM_PTH'] = '1'\n")
    return directory


def environment(tmp_path, **more) -> dict:
    return {"PATH": os.defpath, "HOME": str(tmp_path), "MARK": "marked", "TZ": "Asia/Tokyo", "LANG": "C.UTF-8", **more}


def check(template, executable, env, cwd, **fields):
    expected = real(executable, env, cwd)
    assert started(template, executable, env, cwd, **fields) == expected
    return expected


@pytest.fixture(scope="module")
def bare(python):
    """A template in an environment like that of the sessions: encodings and flags are settled when an interpreter starts."""
    template = Template(python, env={"PATH": os.defpath, "LANG": "C.UTF-8"})
    yield template
    template.close()


def test_the_base_interpreter(bare, python, tmp_path):
    check(bare, python, environment(tmp_path), tmp_path)


def test_a_venv(bare, venv, tmp_path):
    facts = check(bare, str(venv / "bin" / "python"), environment(tmp_path), tmp_path, prefix=str(venv))
    assert facts["prefix"] == str(venv)
    assert any(path.endswith("extra") for path in facts["path"])


def test_a_venv_with_system_packages(bare, python, tmp_path):
    directory = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", "--system-site-packages", str(directory)], check=True)
    check(bare, str(directory / "bin" / "python"), environment(tmp_path), tmp_path, prefix=str(directory))


def test_python_path_and_user_site(bare, python, version, tmp_path):
    user = tmp_path / ".local" / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("import builtins; builtins.customized = True\n")
    library = tmp_path / "library"
    library.mkdir()
    env = environment(tmp_path, PYTHONPATH=f"{library}:relative")
    facts = check(bare, python, env, tmp_path, python_path=[str(library), "relative"])
    assert str(user) in facts["path"]
    assert facts["path"][:3] == ["", str(library), str(tmp_path / "relative")]
    assert "customized" in facts["builtins"]


@pytest.mark.parametrize("variable", ["PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "PYTHONOPTIMIZE"])
def test_variables_of_the_interpreter(python, tmp_path, variable):
    env = environment(tmp_path, **{variable: "1"})
    template = Template(python, env={"PATH": os.defpath, "LANG": "C.UTF-8", variable: "1"})
    check(template, python, env, tmp_path)
    template.close()


def test_a_preloading_template(python, venv, tmp_path):
    executable = str(venv / "bin" / "python")
    env = environment(tmp_path)
    template = Template(executable, env=env, preload=["json"], executable=executable, prefix=str(venv))
    env["FROM_PTH"] = "1"
    expected = real(executable, env, tmp_path)
    assert started(template, executable, env, tmp_path, prefix=str(venv), site=False) == expected
    template.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('hello from sitecustomize')", None),
        ("raise ValueError('broken')", None),
        ("raise SystemExit(3)", "SystemExit"),
        ("import sys; sys.stdout.write('x' * 100_000); sys.stdout.flush()", None),
    ],
)
def test_a_sitecustomize_cannot_break_the_session(template, tmp_path, text, said):
    (tmp_path / "sitecustomize.py").write_text(text)
    session = Session(template)
    answer = session.start(python_path=[str(tmp_path)])
    assert answer["ok"] is True
    if said:
        assert said in answer["notes"][0]
    assert session.result("1 + 1") == "2"
    session.close()


@pytest.mark.parametrize("place", ["file", "package", "archive", "folder in an archive", "finder"])
def test_a_sitecustomize_is_found_wherever_it_is(template, tmp_path, place):
    text = "import builtins; builtins.customized = True\n"
    entry = tmp_path
    if place == "file":
        (tmp_path / "sitecustomize.py").write_text(text)
    elif place == "package":
        (tmp_path / "sitecustomize").mkdir()
        (tmp_path / "sitecustomize" / "__init__.py").write_text(text)
    elif place == "finder":
        finder = (
            "import builtins, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        builtins.customized = builtins.__dict__.get('customized') or name == 'sitecustomize'\n"
            "sys.meta_path.append(Finder())\n"
        )
        (tmp_path / "finder.py").write_text(finder)
        version = template.hello["python"].rsplit(".", 1)[0]
        packages = tmp_path / ".local" / "lib" / f"python{version}" / "site-packages"
        packages.mkdir(parents=True)
        (packages / "finder.pth").write_text("import finder\n")
    else:
        folder = "folder/" if place.startswith("folder") else ""
        with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
            archive.writestr(f"{folder}sitecustomize.py", text)
        entry = tmp_path / "archive.zip" / folder
    session = Session(template)
    assert session.start(python_path=[str(entry)], env={"PATH": os.defpath, "HOME": str(tmp_path)})["ok"] is True
    assert session.result("customized") == "True"
    session.close()


def test_multiprocessing_spawns_the_right_interpreter(session, tmp_path):
    (tmp_path / "work.py").write_text("def double(x): return 2 * x\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import multiprocessing, work\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    result = pool.map(work.double, [21])\n"
        "result"
    )
    assert session.result(code) == "[42]"


def test_multiprocessing_forks(session):
    code = (
        "import multiprocessing\ndef double(x):\n    print('in the child', flush=True)\n    return 2 * x\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n    result = pool.map(double, [21])\nresult"
    )
    assert session.result(code) == "[42]"
    assert session.text() == "in the child\n"
