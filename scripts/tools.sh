# shellcheck shell=bash disable=SC2034,SC2154
# Finding interpreters and installing what tests and benchmarks need. Sourced; wants `logs`, a directory for what the package
# managers say. Functions that install leave the reason in `why` when they fail.

# What the caller's shell happens to have set must not decide a result.
forget_surroundings() {
  local variable
  for variable in $(compgen -e); do
    case $variable in
      PYTHON* | PYTEST_* | PYLAIR_* | NODE_* | VIRTUAL_ENV | CONDA_PREFIX | XDG_RUNTIME_DIR | RUST_LOG | RUST_BACKTRACE)
        unset "$variable"
        ;;
    esac
  done
  # Compiled files of one Python beside the sources would be noise in the tree.
  export PYTHONDONTWRITEBYTECODE=1
}

# System packages, where that is allowed.
apt_install() { # PACKAGE...
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  local apt=(env DEBIAN_FRONTEND=noninteractive timeout 600 apt-get)
  "${apt[@]}" install -y --no-install-recommends "$@" >>"$logs/install.log" 2>&1 && return
  "${apt[@]}" update >>"$logs/install.log" 2>&1 || true
  "${apt[@]}" install -y --no-install-recommends "$@" >>"$logs/install.log" 2>&1
}

# Prints "3.12.1 /path" for a CPython that is new enough, nothing else.
describe_python() { # PYTHON
  timeout 20 "$1" -I -c '
import os, sys
if sys.version_info >= (3, 8) and sys.implementation.name == "cpython" and sys.prefix == sys.base_prefix:
    print("%d.%d.%d" % sys.version_info[:3], os.path.realpath(sys.executable))
' 2>/dev/null || true
}

# One path per minor version, oldest first; of several the newest patch release.
find_pythons() {
  local directory candidate
  {
    IFS=: read -ra directories <<<"$PATH"
    for directory in "${directories[@]}" /usr/bin /usr/local/bin "$HOME"/.pyenv/versions/*/bin; do
      for candidate in "$directory"/python3 "$directory"/python3.[0-9] "$directory"/python3.[0-9][0-9]; do
        if [[ -x $candidate ]]; then describe_python "$candidate"; fi
      done
    done
  } | sort -u | sort -t. -k1,1n -k2,2n -k3,3nr | awk '{ split($1, v, "."); if (!seen[v[1] "." v[2]]++) print $2 }'
}

# Makes a virtual environment with these packages, unless it is there already. Says why not in `why`.
make_venv() { # DIRECTORY PYTHON PACKAGE...
  local directory=$1 python=$2 wanted
  shift 2
  wanted="$python $*"
  why=
  [[ $(cat "$directory/wanted" 2>/dev/null) == "$wanted" ]] && return
  rm -rf "$directory"
  if ! timeout 120 "$python" -m venv "$directory" >>"$logs/install.log" 2>&1; then
    # Debian splits ensurepip off.
    rm -rf "$directory"
    if ! apt_install python3-venv || ! timeout 120 "$python" -m venv "$directory" >>"$logs/install.log" 2>&1; then
      rm -rf "$directory"
      why="$python cannot make a virtual environment"
      return 1
    fi
  fi
  if ! timeout 600 "$directory/bin/python" -m pip install --disable-pip-version-check -q "$@" >>"$logs/install.log" 2>&1; then
    why="pip could not install $* for $python (see $logs/install.log)"
    return 1
  fi
  printf '%s' "$wanted" >"$directory/wanted"
}

# A virtual environment with the libraries whose figures, images and tables sessions show.
make_rich_venv() { # DIRECTORY PYTHON VERSION
  local packages
  case $3 in
    3.8) packages=(numpy==1.24.4 pandas==2.0.3 matplotlib==3.7.5 pillow==10.4.0 ipython==8.12.3 polars==1.8.2) ;;
    3.9 | 3.10) packages=(numpy==2.0.2 pandas==2.3.3 matplotlib==3.9.4 pillow==11.3.0 ipython==8.18.1 polars==1.36.1) ;;
    *) packages=(numpy==2.4.6 pandas==3.1.1 matplotlib==3.11.2 pillow==13.0.0 ipython==9.18.1 polars==2.1.0) ;;
  esac
  # Wheels only: to build these takes longer than all tests.
  make_venv "$1" "$2" --only-binary :all: "${packages[@]}"
}

# Installs npm packages into a directory of their own, unless they are there already. Says why not in `why`.
npm_install() { # DIRECTORY PACKAGE...
  local directory=$1 wanted
  shift
  wanted="$*"
  why=
  [[ $(cat "$directory/wanted" 2>/dev/null) == "$wanted" ]] && return
  if ! command -v npm >/dev/null && ! apt_install nodejs npm; then
    why="there is no npm"
    return 1
  fi
  rm -rf "$directory"
  mkdir -p "$directory"
  printf '{"private": true}\n' >"$directory/package.json"
  if ! (cd "$directory" && timeout 600 npm install --no-audit --no-fund --loglevel=error "$@") >>"$logs/install.log" 2>&1; then
    why="npm could not install $* (see $logs/install.log)"
    return 1
  fi
  printf '%s' "$wanted" >"$directory/wanted"
}
