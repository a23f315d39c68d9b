#!/bin/sh
# Compares checkpoints with LeRobot's own: interop.sh <our python> [<a python that has lerobot>].
# Without the second, LeRobot is installed into .venv-interop, once: two packages of one name share no environment.
set -eu
ours=$1
peer=${2:-}
version=0.6.1
environment=.venv-interop

refuse() {
  echo "error: $*" >&2
  exit 2
}

# Of the command line or of pyenv, whose own commands answer only for the version that is chosen.
find_python() {
  for name in python3.12 python3.13 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23].*/bin/python; do
    if "$name" -c 'import sys; raise SystemExit(not (3, 12) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
}

# The mark is made last: an installation that breaks off is made anew.
build() {
  echo "interop: installing LeRobot $version into $environment (with its PyTorch; minutes on a slow line)" >&2
  rm -rf "$environment"
  uv=$(command -v uv || true)
  if [ -z "$uv" ] && [ -x .venv-tools/bin/uv ]; then uv=.venv-tools/bin/uv; fi
  python=$(find_python)
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --python "${python:->=3.12,<3.14}" "$environment" || refuse "$missing"
    "$uv" pip install --quiet --compile-bytecode --python "$environment/bin/python" "lerobot==$version" || refuse "$missing"
  else
    if [ -z "$python" ]; then refuse "$missing"; fi
    "$python" -m venv "$environment" || refuse "$missing"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "lerobot==$version" || refuse "$missing"
  fi
  touch "$environment/.lerobot-$version"
}

missing="LeRobot $version could not be installed: it needs Python 3.12 or 3.13 (or uv, which fetches one), a package index \
and about 6 GB; make interop PEER=<python that has lerobot $version> takes one that is there"
if [ -z "$peer" ]; then
  if [ ! -e "$environment/.lerobot-$version" ]; then build; fi
  peer=$environment/bin/python
elif ! command -v "$peer" >/dev/null 2>&1; then
  refuse "PEER=$peer is no Python that can be run: give one that has lerobot $version"
fi
exec "$ours" tests/interop/act_checkpoint.py "$peer"
