#!/bin/sh
# Installs this project and all it needs, either into .venv, with the PyTorch build that fits the machine, or into an
# environment that exists already, whose torch, torchvision and numpy stay as they are. docs/install.md tells it whole.
#
#   setup.sh [auto|cpu|cuda|rocm|xpu]     into .venv
#   setup.sh "" <environment>             into that one, which the make targets use from then on
#   setup.sh again                        into .venv, for what was asked the last time
set -eu
asked=${1:-auto}
environment=${2:-}
venv=.venv
chosen=.venv-choice       # holds the Python of another environment that the make targets use
state=$venv/.setup        # holds what .venv was asked for and what that came to
here=$(dirname "$0")
kept=.venv-before         # .venv while another build is made in its place
root=${SETUP_ROOT:-}      # a test's own /proc and /sys
# PyTorch, what a build brings along, and what it bounds: not locked beside another build than the locked one.
family='torch|torchvision|triton|nvidia-[a-z0-9-]*|cuda-[a-z-]*|setuptools|sympy|mpmath|networkx'
work=$(mktemp -d)
trap clean_up EXIT
trap 'exit 130' INT TERM

say() { echo "setup: $*"; }
refuse() {
  echo "error: $*" >&2
  exit 2
}

# An installation that fails, for want of a network or room, leaves what was there.
clean_up() {
  rm -rf "$work"
  if [ -d "$kept" ]; then
    rm -rf "$venv"
    mv "$kept" "$venv"
    say "not installed; $venv is what it was"
  fi
}

# A machine without uv gets one of its own, in a folder beside .venv.
need_uv() {
  if command -v uv >/dev/null 2>&1; then return; fi
  if [ ! -x "$venv-tools/bin/uv" ]; then
    say "no uv found, installing it into $venv-tools"
    python3 -m venv "$venv-tools"
    "$venv-tools/bin/python" -m pip install --quiet --disable-pip-version-check uv
  fi
  PATH=$PWD/$venv-tools/bin:$PATH
}

if [ -n "${UV_TORCH_BACKEND:-}" ]; then
  say "UV_TORCH_BACKEND=$UV_TORCH_BACKEND is ignored: type make setup BACKEND=$UV_TORCH_BACKEND"
  unset UV_TORCH_BACKEND
fi

. "$here/choose_build.sh"

# --- what goes into an environment

install() { uv pip install --python "$python" --quiet --compile-bytecode "$@"; }

# Installs the build chosen above; the lock's other lines hold in every case.
install_build() {
  if [ "$build" = index ]; then
    install --requirement requirements.lock
  else
    grep -vE "^($family)==" requirements.lock >"$work/lock"
    install --requirement pyproject.toml --extra metaworld --extra pusht --extra dev --constraint "$work/lock" --torch-backend "$build"
    check_build
  fi
  install --no-deps --editable .
}

# uv takes a cpu build where it knows none for the card: that must not pass for what was asked.
check_build() {
  version=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
  case $version in
    *+"$tag"*) say "installed PyTorch $version" ;;
    *) echo "error: uv installed PyTorch $version where a build for $tag was wanted: name one, such as BACKEND=cu126" >&2 && exit 1 ;;
  esac
}

# The newest Python in range that is here; uv fetches one only where there is none.
find_python() {
  for name in python3.13 python3.12 python3.11 python3; do
    if "$name" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  echo '>=3.11,<3.14'
}

into_venv() {
  before='' was=''
  if [ -e "$state" ]; then read -r before was <"$state"; elif [ -e "$venv" ]; then was=index; fi
  if [ "$asked" = again ]; then asked=${before:-auto}; fi
  choose_build
  say "$why"
  if [ -n "$was" ] && [ "$was" != "$build$tag" ]; then
    say "$venv holds another build of PyTorch and is made anew"
    rm -rf "$kept" && mv "$venv" "$kept"
  fi
  if [ -e "$venv/.installed" ] && [ -z "$(find pyproject.toml requirements.lock -newer "$venv/.installed")" ]; then
    say "$venv is up to date"
  else
    fill_venv
  fi
  echo "$asked $build$tag" >"$state"
  rm -rf "$kept" "$chosen"
}

fill_venv() {
  need_uv
  python=$venv/bin/python
  if [ ! -x "$python" ]; then uv venv --quiet --python "$(find_python)" "$venv"; fi
  echo "$asked $build$tag" >"$state" # before anything goes in: it may be interrupted
  say "installing into $venv (PyTorch alone can be several GB; minutes on a slow line)"
  install_build
  touch "$venv/.installed"
}

# --- an environment that exists already

python_of() {
  for name in "$1/bin/python" "$1/bin/python3" "$1"; do
    if [ -f "$name" ] || command -v "$name" >/dev/null 2>&1; then
      "$name" -c 'import sys; print(sys.executable)' 2>/dev/null && return
    fi
  done
  refuse "PYTHON=$1 is neither an environment's folder nor a Python"
}

into_existing() {
  python=$(python_of "$environment")
  "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || refuse "PYTHON=$environment is older than Python 3.11"
  "$python" "$here/keep.py" pins >"$work/keep"
  need_uv
  if grep -q '^torch==' "$work/keep"; then
    install_around
  else
    choose_build
    say "$python has no PyTorch to keep. $why"
    install_build
  fi
  echo "$python" >"$chosen"
  say "the make targets use $python from now on and leave it as it is; make setup without PYTHON goes back to $venv"
}

# The override holds against every bound, ours and other packages'; the fingerprint says whether it did.
install_around() {
  if [ "$asked" != auto ]; then refuse "PYTHON=$environment keeps the PyTorch that it has: leave BACKEND=$asked out"; fi
  if ! grep -q '^torchvision==' "$work/keep"; then
    refuse "PYTHON=$environment has torch and no torchvision: install the one that belongs to that torch first"
  fi
  say "keeping $(tr '\n' ' ' <"$work/keep")of $python"
  "$python" "$here/keep.py" fingerprint >"$work/before"
  grep -vE "^($family|numpy)==" requirements.lock >"$work/lock"
  install --requirement pyproject.toml --extra metaworld --extra pusht --extra dev --constraint "$work/lock" --override "$work/keep"
  install --no-deps --editable .
  "$python" "$here/keep.py" check "$work/before"
}

if [ -n "$environment" ]; then into_existing; else into_venv; fi
