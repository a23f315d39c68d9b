#!/bin/sh
# Prints the cards that this machine can compute on, a line each, best first: `cuda <driver>`, `rocm <architecture>`,
# `xpu`; and `driverless <maker>` for one that lacks its driver. Reads /proc and /sys below the folder $1, so that a
# test can bring a machine of its own.
set -eu
root=${1:-}

nvidia_driver() {
  if [ -r "$root/sys/module/nvidia/version" ]; then
    cat "$root/sys/module/nvidia/version"
  elif [ -r "$root/proc/driver/nvidia/version" ]; then
    sed -n 's/^NVRM.* \([0-9]\{3,\}\.[0-9.]*\) .*/\1/p' "$root/proc/driver/nvidia/version"
  elif [ -z "$root" ] && command -v nvidia-smi >/dev/null 2>&1; then # WSL has neither file
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n '/^[0-9][0-9.]*$/p' | head -n 1
  fi
}

# The driver numbers an architecture in decimal, 90010, where compilers write gfx90a.
amd_architectures() {
  for file in "$root"/sys/class/kfd/kfd/topology/nodes/*/properties; do
    if [ -r "$file" ]; then
      awk '$1 == "gfx_target_version" && $2 > 0 { printf "gfx%d%x%x\n", $2 / 10000, ($2 / 100) % 100, $2 % 100 }' "$file"
    fi
  done
}

# Display controllers as `<PCI address> <maker>`.
displays() {
  for folder in "$root"/sys/bus/pci/devices/*; do
    if [ -r "$folder/class" ] && [ -r "$folder/vendor" ]; then
      case $(cat "$folder/class") in 0x03*) echo "${folder##*/} $(cat "$folder/vendor")" ;; esac
    fi
  done
}

driver=$(nvidia_driver)
architectures=$(amd_architectures)
displays=$(displays)

if [ -n "$driver" ]; then echo "cuda $driver"; fi
for name in $architectures; do echo "rocm $name"; done
# Intel's graphics inside the processor always sit at 00:02.0; a card sits behind a bridge.
if echo "$displays" | grep ' 0x8086$' | grep -qv '^0000:00:02\.0 '; then echo xpu; fi
if [ -z "$driver" ] && echo "$displays" | grep -q ' 0x10de$'; then echo "driverless NVIDIA"; fi
if [ -z "$architectures" ] && echo "$displays" | grep -q ' 0x1002$'; then echo "driverless AMD"; fi
