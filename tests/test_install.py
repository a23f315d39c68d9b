"""`make setup` fits the machine or the environment that it is given. uv is a stand-in that writes down what it is told."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NVIDIA_NEW = {"sys/module/nvidia/version": "580.95.05\n"}
NVIDIA_OLD = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
}
NODE = "sys/class/kfd/kfd/topology/nodes/{}/properties"
AMD = {NODE.format(0): "cpu_cores_count 64\ngfx_target_version 0\n", NODE.format(1): "gfx_target_version 90010\n"}
AMD_LAPTOP = {NODE.format(0): "gfx_target_version 0\n", NODE.format(1): "simd_count 4\ngfx_target_version 100306\n"}
INTEL_CARD = {
    "sys/bus/pci/devices/0000:03:00.0/class": "0x030000\n",
    "sys/bus/pci/devices/0000:03:00.0/vendor": "0x8086\n",
}
INTEL_LAPTOP = {
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
}
NVIDIA_WITHOUT_DRIVER = {
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
}

FAKE_UV = f"""#!{sys.executable}
import json, os, pathlib, sys
args = sys.argv[1:]
if "--help" in args:
    sys.exit(print("possible values: auto, cpu, cu132, rocm7.2, rocm7.1, xpu]"))
if args[0] == "venv":
    python = pathlib.Path(args[-1], "bin", "python")
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\\necho "$FAKE_TORCH"\\n')
    python.chmod(0o755)
files = {{o: pathlib.Path(args[args.index(o) + 1]).read_text() for o in ("--constraint", "--override") if o in args}}
call = {{"args": args, "files": files, "amd": os.environ.get("UV_AMD_GPU_ARCHITECTURE")}}
with open(os.environ["CALLS"], "a") as out:
    out.write(json.dumps(call) + "\\n")
if "--editable" not in args:
    sys.exit(os.system(os.environ.get("DURING_INSTALL", "")) >> 8)
"""
FAKE_PYTHON3 = f"""#!/bin/sh
if [ "$2" != venv ]; then exec {sys.executable} "$@"; fi
mkdir -p "$3/bin"
printf '#!/bin/sh\\ncp "$UV_TO_INSTALL" "$(dirname "$0")/uv"\\n' >"$3/bin/python"
chmod +x "$3/bin/python"
"""


class Checkout:
    """A copy of what `make setup` reads, a folder of commands, and a machine."""

    def __init__(self, folder):
        self.folder, self.bin, self.root = folder / "checkout", folder / "bin", folder / "machine"
        self.root.mkdir(parents=True)
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, self.folder)
        for name in ("python3.13", "python3.12", "python3.11"):
            self.command(name, "#!/bin/sh\nexit 1\n")
        self.command("python3", FAKE_PYTHON3)
        self.command("uv", FAKE_UV)
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "CALLS": str(folder / "calls"), "SETUP_ROOT": str(self.root)}

    def command(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def machine(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def make(self, *words, fails=False, **env):
        done = subprocess.run(
            ["make", *words], cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True, timeout=60
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def calls(self):
        """What uv was told since the last time, without the making of environments."""
        path = Path(self.env["CALLS"])
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [call for call in map(json.loads, lines) if call["args"][0] == "pip"]

    def backend(self):
        """The build that uv was asked for; None where it was the locked one."""
        args = self.calls()[0]["args"]
        return args[args.index("--torch-backend") + 1] if "--torch-backend" in args else None


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture
def vendor(tmp_path):
    """An environment that exists already, with somebody's own builds of the three packages."""
    folder = tmp_path / "vendor"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    put(folder, torch="2.10.0+rocm7.9", torchvision="0.25.0+rocm7.9", numpy="1.26.4")
    return folder


def site(environment):
    return next(environment.glob("lib/python3*/site-packages"))


def put(environment, **packages):
    for name, version in packages.items():
        info = site(environment) / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (site(environment) / name).mkdir(exist_ok=True)
        (site(environment) / name / "__init__.py").write_text(f"__version__ = '{version}'\n")


@pytest.mark.parametrize(
    ("machine", "backend", "torch", "says"),
    [
        ({}, None, "2.15.0", "no card found: PyTorch from the package index"),
        (NVIDIA_NEW, None, "2.15.0", "NVIDIA driver 580.95.05: PyTorch for CUDA 13 from the package index"),
        (NVIDIA_OLD, "auto", "2.15.0+cu126", "NVIDIA driver 550.54.14 is too old for the locked build (CUDA 13)"),
        (AMD, "auto", "2.15.0+rocm7.2", "an AMD card (gfx90a)"),
        (AMD_LAPTOP, None, "2.15.0", "no ROCm wheel for gfx1036"),
        (INTEL_CARD, "xpu", "2.15.0+xpu", "an Intel card"),
        (INTEL_LAPTOP, None, "2.15.0", "no card found"),
        (NVIDIA_WITHOUT_DRIVER, None, "2.15.0", "a card by NVIDIA is here and its driver is not"),
        ({**NVIDIA_NEW, **INTEL_CARD}, None, "2.15.0", "NVIDIA driver"),
    ],
    ids=["none", "nvidia", "old-driver", "amd", "amd-laptop", "intel", "intel-laptop", "no-driver", "two"],
)
def test_the_build_is_chosen_for_the_card_that_is_here(checkout, machine, backend, torch, says):
    checkout.machine(machine)
    said = checkout.make("setup", FAKE_TORCH=torch)

    assert says in said
    assert checkout.backend() == backend


@pytest.mark.parametrize(
    ("word", "machine", "backend", "torch"),
    [
        ("cpu", {}, "cpu", "2.15.0+cpu"),
        ("cpu", NVIDIA_NEW, "cpu", "2.15.0+cpu"),
        ("cuda", {}, None, "2.15.0"),
        ("cuda", NVIDIA_OLD, "auto", "2.15.0+cu126"),
        ("rocm", {}, "rocm7.2", "2.15.0+rocm7.2"),
        ("rocm", AMD_LAPTOP, "rocm7.2", "2.15.0+rocm7.2"),
        ("xpu", {}, "xpu", "2.15.0+xpu"),
        ("cu126", {}, "cu126", "2.15.0+cu126"),
    ],
)
def test_a_build_that_is_typed_is_taken(checkout, word, machine, backend, torch):
    checkout.machine(machine)
    checkout.make("setup", f"BACKEND={word}", FAKE_TORCH=torch)

    assert checkout.backend() == backend


def test_the_locked_build_comes_from_the_lock_alone(checkout):
    checkout.make("setup")

    locked, own = checkout.calls()
    assert locked["args"][-2:] == ["--requirement", "requirements.lock"]
    assert own["args"][-3:] == ["--no-deps", "--editable", "."]
    assert all("--compile-bytecode" in call["args"] for call in (locked, own))


def test_another_build_keeps_the_other_locked_versions_and_brings_its_own_libraries(checkout):
    checkout.machine(AMD)
    checkout.make("setup", FAKE_TORCH="2.15.0+rocm7.2")

    call = checkout.calls()[0]
    constraints = call["files"]["--constraint"]
    assert call["amd"] == "gfx90a"
    assert {"--requirement", "pyproject.toml", "--extra", "metaworld", "pusht", "dev"} <= set(call["args"])
    assert "\naccelerate==" in constraints
    assert "\nnumpy==" in constraints
    assert not [line for line in constraints.splitlines() if line.startswith(("torch", "nvidia-", "cuda-", "triton"))]


def test_a_build_other_than_the_one_wanted_does_not_pass_for_it(checkout):
    """uv takes a cpu build where it knows none for the card."""
    checkout.machine(AMD)
    said = checkout.make("setup", FAKE_TORCH="2.15.0+cpu", fails=True)

    assert "installed PyTorch 2.15.0+cpu where a build for rocm was wanted" in said
    assert not (checkout.folder / ".venv" / ".installed").exists()


def test_setup_does_nothing_twice_and_makes_the_environment_anew_for_another_build(checkout):
    checkout.make("setup")
    checkout.calls()
    assert "up to date" in checkout.make("setup")
    assert checkout.calls() == []

    assert "made anew" in checkout.make("setup", "BACKEND=cpu", FAKE_TORCH="2.15.0+cpu")
    assert checkout.backend() == "cpu"


def test_a_build_that_cannot_be_had_costs_nothing(checkout):
    checkout.make("setup")
    said = checkout.make("setup", "BACKEND=cpu", DURING_INSTALL="exit 1", fails=True)

    assert ".venv is what it was" in said
    assert "up to date" in checkout.make("setup")


def test_a_changed_lock_is_installed_by_the_next_target_for_the_same_build(checkout):
    checkout.make("setup", "BACKEND=cpu", FAKE_TORCH="2.15.0+cpu")
    checkout.calls()
    os.utime(checkout.folder / "requirements.lock", (2**31, 2**31))

    checkout.make(".venv/.installed", FAKE_TORCH="2.15.0+cpu")
    assert checkout.backend() == "cpu"


def test_an_interrupted_installation_is_not_taken_for_another_build(checkout):
    checkout.make("setup", DURING_INSTALL="exit 1", fails=True)
    checkout.calls()

    assert "made anew" in checkout.make("setup", "BACKEND=cpu", FAKE_TORCH="2.15.0+cpu")
    assert checkout.backend() == "cpu"


@pytest.mark.parametrize(("word", "system"), [("tpu", "Linux"), ("cuda", "Darwin"), ("rocm", "Darwin")])
def test_a_build_that_there_is_not_is_refused(checkout, word, system):
    checkout.command("uname", f"#!/bin/sh\necho {system}\n")
    said = checkout.make("setup", f"BACKEND={word}", fails=True)

    assert f"error: BACKEND={word}" in said
    assert checkout.calls() == []


def test_a_mac_takes_the_package_index(checkout):
    checkout.command("uname", "#!/bin/sh\necho Darwin\n")

    assert "mps" in checkout.make("setup")
    assert checkout.backend() is None


def test_a_machine_without_uv_gets_one_beside_the_environment(checkout, tmp_path):
    source = tmp_path / "uv"
    shutil.move(checkout.bin / "uv", source)
    said = checkout.make("setup", UV_TO_INSTALL=str(source))

    assert "installing it into .venv-tools" in said
    assert len(checkout.calls()) == 2


def test_variables_of_other_tools_decide_nothing(checkout):
    said = checkout.make("setup", PYTHON="/nowhere", BACKEND="tpu", UV_TORCH_BACKEND="cpu")

    assert "UV_TORCH_BACKEND=cpu is ignored" in said
    assert checkout.backend() is None


def test_an_existing_environment_keeps_its_torch_torchvision_and_numpy(checkout, vendor):
    said = checkout.make("setup", f"PYTHON={vendor}")

    call = checkout.calls()[0]
    assert call["files"]["--override"].split() == [
        "torch==2.10.0+rocm7.9", "torchvision==0.25.0+rocm7.9", "numpy==1.26.4"
    ]  # fmt: skip
    assert "\nnumpy==" not in call["files"]["--constraint"]
    assert "\naccelerate==" in call["files"]["--constraint"]
    assert call["args"][call["args"].index("--python") + 1] == str(vendor / "bin" / "python")
    assert "keeping torch==2.10.0+rocm7.9" in said


def test_later_targets_use_that_environment_and_leave_it_alone(checkout, vendor):
    checkout.make("setup", f"PYTHON={vendor / 'bin' / 'python'}")
    checkout.calls()
    os.utime(checkout.folder / "requirements.lock", (2**31, 2**31))

    for target in ("demo", "test", "test-slow", "lint"):
        said = checkout.make("-n", target)
        assert str(vendor / "bin" / "python") in said
        assert "setup.sh" not in said
    assert "setup.sh again" not in checkout.make("-n", "gpu-check")
    assert checkout.calls() == []


def test_setup_without_an_environment_goes_back(checkout, vendor):
    checkout.make("setup", f"PYTHON={vendor}")
    checkout.make("setup")

    assert "'.venv/bin/python' -m pytest" in checkout.make("-n", "test")


def test_a_chosen_environment_that_is_gone_is_said(checkout, vendor):
    checkout.make("setup", f"PYTHON={vendor}")
    shutil.rmtree(vendor)

    assert "is gone: type make setup" in checkout.make("test", fails=True)


@pytest.mark.parametrize(
    ("during", "says"),
    [
        ("mv {site}/torch-2.10.0+rocm7.9.dist-info {site}/torch-2.15.0.dist-info; "
         "sed -i s/2.10.0.rocm7.9/2.15.0/ {site}/torch-2.15.0.dist-info/METADATA",
         "torch was 2.10.0+rocm7.9 and is 2.15.0 now"),
        ("rm -r {site}/numpy*", "numpy was 1.26.4 and is gone now"),
        ("echo '# other build' >>{site}/torchvision/__init__.py", "torchvision 0.25.0+rocm7.9 was installed anew"),
    ],
    ids=["replaced", "removed", "same-version"],
)  # fmt: skip
def test_an_installation_that_changes_one_of_the_three_fails(checkout, vendor, during, says):
    said = checkout.make("setup", f"PYTHON={vendor}", DURING_INSTALL=during.format(site=site(vendor)), fails=True)

    assert f"error: {says}" in said
    assert not (checkout.folder / ".venv-choice").exists()


def test_byte_code_written_beside_the_kept_files_is_no_change(checkout, vendor):
    cache = site(vendor) / "torch" / "__pycache__"
    checkout.make("setup", f"PYTHON={vendor}", DURING_INSTALL=f"mkdir {cache} && touch {cache}/__init__.pyc")


def test_an_environment_that_cannot_be_used_is_refused_with_what_to_do(checkout, vendor, tmp_path):
    assert "leave BACKEND=cpu out" in checkout.make("setup", f"PYTHON={vendor}", "BACKEND=cpu", fails=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "neither an environment's folder nor a Python" in checkout.make("setup", f"PYTHON={empty}", fails=True)
    shutil.rmtree(site(vendor) / "torchvision-0.25.0+rocm7.9.dist-info")
    assert "torch and no torchvision" in checkout.make("setup", f"PYTHON={vendor}", fails=True)
    assert checkout.calls() == []


def test_an_environment_without_torch_gets_the_build_that_fits(checkout, vendor):
    for path in site(vendor).glob("torch*"):
        shutil.rmtree(path)
    checkout.machine(INTEL_CARD)
    put(vendor, torch="2.15.0+xpu")  # what the stand-in for uv does not do itself
    hide, show = (f"{site(vendor)}/{name}" for name in ("hidden", "torch-2.15.0+xpu.dist-info"))
    shutil.move(show, hide)
    said = checkout.make("setup", f"PYTHON={vendor}", DURING_INSTALL=f"mv {hide} {show}")

    assert "has no PyTorch to keep. an Intel card" in said
    assert checkout.backend() == "xpu"


def test_the_check_of_a_card_installs_from_a_folder_without_a_network(checkout, vendor, tmp_path):
    for name in ("pip", "pytest"):
        (site(vendor) / f"{name}.py").write_text(
            "import json, pathlib, sys\n"
            "read = [pathlib.Path(a).read_text() for a in sys.argv if a.startswith('/') and pathlib.Path(a).is_file()]\n"
            f"pathlib.Path({str(tmp_path / name)!r}).write_text(json.dumps([sys.argv[1:], read[1:]]))\n"
        )
    checkout.make("gpu-check", f"PYTHON={vendor}", "WHEELS=some/wheels")

    installed, files = json.loads((tmp_path / "pip").read_text())
    assert installed[:5] == ["install", "--quiet", "--no-index", "--find-links", "some/wheels"]
    assert "torch==2.10.0+rocm7.9\n" in files[0]
    assert "accelerate>=" in files[1]
    assert "pytest" in files[1]
    assert json.loads((tmp_path / "pytest").read_text())[0] == ["-m", "gpu", "tests/gpu"]
    assert checkout.calls() == []


@pytest.mark.slow
def test_a_stand_in_for_a_vendors_torch_survives_setup_demo_and_tests(tmp_path, monkeypatch):
    """The real thing: uv, a copy of this environment's PyTorch under a version that no index has, and the make targets."""
    uv = shutil.which("uv") or ROOT / ".venv-tools" / "bin" / "uv"
    if not Path(uv).exists():
        pytest.skip("no uv here")
    checkout, environment = tmp_path / "checkout", tmp_path / "vendor"
    ours = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(ours, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    make_vendor_environment(environment, "rocm7.9")
    keep = [environment / "bin" / "python", ROOT / "scripts" / "keep.py"]
    before = subprocess.run([*keep, "fingerprint"], capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("PATH", f"{Path(uv).parent}:{os.environ['PATH']}")

    for words in (
        ["setup", f"PYTHON={environment}"],
        ["demo", "ARGS=steps=20 demos.num_episodes=3 eval.n_episodes=2 eval.videos=0"],
        ["test", "ARGS=tests/policies tests/test_fp16.py"],
    ):
        done = subprocess.run(["make", *words], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    assert "+rocm7.9" in before
    assert subprocess.run([*keep, "fingerprint"], capture_output=True, text=True, check=True).stdout == before
    assert not (checkout / ".venv").exists()


def link(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        target.symlink_to(source)


def make_vendor_environment(folder, tag):
    """A new environment with hard links to this one's PyTorch and what it loads, its version extended by a local tag."""
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", folder], check=True)
    here = Path(metadata.distribution("torch").locate_file(""))
    for package in metadata.distributions(path=[str(here)]):
        name = package.metadata["Name"]
        if not re.match(r"(torch|torchvision|numpy|triton|nvidia-.*|cuda-.*)$", name):
            continue
        for file in package.files:
            if not {"..", "__pycache__"} & set(file.parts):
                link(here / file, site(folder) / file)
    for name in ("torch", "torchvision"):
        version = metadata.version(name).partition("+")[0]
        info = next(site(folder).glob(f"{name}-{version}*.dist-info"))
        new = info.rename(info.with_name(f"{name}-{version}+{tag}.dist-info"))
        for file in (new / "METADATA", new / "RECORD"):
            text = file.read_text()
            file.unlink()  # a link: the original stays as it is
            text = re.sub(r"(?m)^Version: .*", f"Version: {version}+{tag}", text, count=1)
            file.write_text(text.replace(info.name, new.name))


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("Dockerfile.*")), ids=lambda path: path.name)
def test_what_an_image_copies_is_there(path):
    copied = [word for line in path.read_text().splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]]

    assert "scripts" in copied
    assert not [word for word in copied if not (ROOT / word).exists()]


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_are_plain_shell_and_name_no_index(path):
    assert subprocess.run(["sh", "-n", path]).returncode == 0
    assert path.read_text().startswith("#!/bin/sh\n")
    assert "http" not in path.read_text()
