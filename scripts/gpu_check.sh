#!/bin/sh
# Runs tests/gpu in the environment $1 (a folder or a Python). With a folder of wheels as $2, what is missing there is
# installed from it first, without a network; torch, torchvision and numpy stay. Further arguments go to pytest.
set -eu
here=$(dirname "$0")
environment=$1
wheels=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=$environment
if [ -d "$environment" ]; then python=$environment/bin/python; fi

if [ -n "$wheels" ]; then
  "$python" "$here/keep.py" pins >"$work/keep"
  "$python" "$here/keep.py" fingerprint >"$work/before"
  { "$python" "$here/keep.py" requirements && echo pytest; } >"$work/needs"
  # pip, because a machine without a network has it more often than uv.
  "$python" -m pip install --quiet --no-index --find-links "$wheels" --constraint "$work/keep" --requirement "$work/needs"
  "$python" "$here/keep.py" check "$work/before"
fi
"$python" -m pytest -m gpu tests/gpu "$@"
