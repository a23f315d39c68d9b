#!/bin/sh
# Makes the environment $1 with a Python in the range $2 and installs the locked packages and this project into it.
set -eu
venv=$1
range=$2

if ! command -v uv >/dev/null 2>&1; then
  # No uv on this machine: one of its own, in a folder beside the environment.
  tools=$venv-tools
  if [ ! -x "$tools/bin/uv" ]; then
    echo "setup: no uv found, installing it into $tools"
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check uv
  fi
  PATH=$PWD/$tools/bin:$PATH
fi

if [ ! -x "$venv/bin/python" ]; then
  # The newest Python in range that is here; uv fetches one only where there is none.
  found=
  for name in python3.13 python3.12 python3.11 python3; do
    if "$name" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
      found=$("$name" -c 'import sys; print(sys.executable)')
      break
    fi
  done
  uv venv --quiet --python "${found:-$range}" "$venv"
fi

echo "setup: installing into $venv (PyTorch alone is several GB; minutes on a slow line)"
uv pip install --python "$venv/bin/python" --quiet --compile-bytecode --requirement requirements.lock
uv pip install --python "$venv/bin/python" --quiet --compile-bytecode --no-deps --editable .
