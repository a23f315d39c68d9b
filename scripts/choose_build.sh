#!/bin/sh
# Part of setup.sh: `choose_build` looks at `$asked` and at the cards and says which PyTorch it comes to. It sets `build`
# (`index`: as locked, from the package index; else a word of uv's --torch-backend), `tag` (how such a build calls itself)
# and `why`.

# Architectures that PyTorch's ROCm wheels have kernels for.
rocm_wheels='gfx900 gfx906 gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 gfx1150 gfx1151 gfx1200 gfx1201'

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
