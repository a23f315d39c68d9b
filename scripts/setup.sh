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
root=${SETUP_ROOT:-}      # a test's own /proc and /sys
# PyTorch, what a build brings along, and what it bounds: not locked beside another build than the locked one.
family='torch|torchvision|triton|nvidia-[a-z0-9-]*|cuda-[a-z-]*|setuptools|sympy|mpmath|networkx'
# Architectures that PyTorch's ROCm wheels have kernels for.
rocm_wheels='gfx900 gfx906 gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 gfx1150 gfx1151 gfx1200 gfx1201'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "setup: $*"; }
refuse() {
  echo "error: $*" >&2
  exit 2
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

# --- which build of PyTorch: sets `build` (`index`: as locked; else a word of uv's --torch-backend), `tag` (how such a
# --- build calls itself) and `why`

cards() { sed -n "s/^$1 *//p" "$work/cards"; }

choose_build() {
  sh "$here/find_cards.sh" "$root" >"$work/cards"
  tag=
  if [ "$(uname -s)" = Darwin ]; then
    case $asked in auto | cpu) ;; *) refuse "BACKEND=$asked does not exist on macOS: type make setup" ;; esac
    build=index why="macOS: PyTorch from the package index, with mps on Apple silicon"
    return
  fi
  case $asked in
    auto) choose_for_card ;;
    cpu) build=cpu tag=cpu why="BACKEND=cpu" ;;
    cuda) choose_cuda ;;
    rocm) choose_rocm ;;
    xpu) build=xpu tag=xpu why="BACKEND=xpu" ;;
    cu[0-9]*) build=$asked tag=cu why="BACKEND=$asked" ;;
    rocm[0-9]*) build=$asked tag=rocm why="BACKEND=$asked" ;;
    *) refuse "BACKEND=$asked is not one of auto, cpu, cuda, rocm, xpu, or a build in uv's words such as cu126 or rocm6.4" ;;
  esac
}

choose_for_card() {
  if grep -q '^cuda' "$work/cards"; then
    choose_cuda
  elif [ -n "$(supported_amd)" ]; then
    choose_rocm
  elif grep -q '^xpu' "$work/cards"; then
    build=xpu tag=xpu why="an Intel card"
  else
    build=index why="no card found: PyTorch from the package index"
    if grep -q '^rocm' "$work/cards"; then
      why="PyTorch has no ROCm wheel for $(cards rocm | head -n 1), the AMD graphics here: PyTorch from the package index"
    elif grep -q '^driverless' "$work/cards"; then
      why="a card by $(cards driverless | head -n 1) is here and its driver is not (install it, then make setup): $why"
    fi
  fi
}

# CUDA's first driver for each generation; a driver runs every minor version of its own.
choose_cuda() {
  generation=$(sed -n 's/^cuda-toolkit==\([0-9]*\).*/\1/p' requirements.lock | head -n 1)
  case $generation in 12) needs=525 ;; 13) needs=580 ;; *) needs=9999 ;; esac
  driver=$(cards cuda | head -n 1)
  build=index
  if [ -z "$driver" ]; then
    why="no NVIDIA driver here; BACKEND=cuda: PyTorch for CUDA $generation from the package index"
  elif [ "${driver%%.*}" -ge $needs ]; then
    why="NVIDIA driver $driver: PyTorch for CUDA $generation from the package index"
  else
    build=auto tag=cu why="NVIDIA driver $driver is too old for the locked build (CUDA $generation): the newest that it runs"
  fi
}

supported_amd() {
  for name in $(cards rocm); do
    case " $rocm_wheels " in *" $name "*) echo "$name" && return ;; esac
  done
}

choose_rocm() {
  tag=rocm architecture=$(supported_amd)
  if [ -n "$architecture" ]; then
    export UV_AMD_GPU_ARCHITECTURE="$architecture" # uv alone would need the ROCm tools installed to see it
    build=auto why="an AMD card ($architecture): the newest ROCm wheel that has its kernels"
  else
    need_uv
    build=$(uv pip install --help | tr ', ' '\n\n' | grep '^rocm[0-9]' | head -n 1)
    why="BACKEND=rocm without a card that PyTorch has a ROCm wheel for: the newest, $build"
  fi
}

# --- what goes into an environment

install() { uv pip install --python "$python" --quiet --compile-bytecode "$@"; }

# Installs the build chosen above; the lock's other lines hold in every case.
install_build() {
  if [ "$build" = index ]; then
    install --requirement requirements.lock
  else
    grep -vE "^($family)==" requirements.lock >"$work/lock"
    install --requirement pyproject.toml --all-extras --constraint "$work/lock" --torch-backend "$build"
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
    rm -rf "$venv"
  fi
  if [ -e "$venv/.installed" ] && [ -z "$(find pyproject.toml requirements.lock -newer "$venv/.installed")" ]; then
    say "$venv is up to date"
  else
    fill_venv
  fi
  echo "$asked $build$tag" >"$state"
  rm -f "$chosen"
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
  install --requirement pyproject.toml --all-extras --constraint "$work/lock" --override "$work/keep"
  install --no-deps --editable .
  "$python" "$here/keep.py" check "$work/before"
}

if [ -n "$environment" ]; then into_existing; else into_venv; fi
