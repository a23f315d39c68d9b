"""Cards are found without PyTorch, and a build that does not fit them is named with the repair."""

import pytest

from lerobot.accelerator.fit import REINSTALL, advice, hidden_by, misfits, variables
from lerobot.accelerator.hardware import Card, Probe, find_cards, nvidia_driver

OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder)  Sun Jul 27"
OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 11"


class Box:
    """A machine's /proc, /sys and /dev in a folder."""

    def __init__(self, root, **more):
        self.root = root
        self.probe = Probe(root=root, **{"system": "Linux", "machine": "x86_64", "run": lambda command: "", **more})

    def file(self, path, text=""):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return self

    def card(self, address, vendor, number, kind="0x030000", module=""):
        folder = f"sys/bus/pci/devices/{address}"
        for name, text in (("vendor", vendor), ("device", number), ("class", kind)):
            self.file(f"{folder}/{name}", f"{text}\n")
        if module:
            driver = self.root / "sys/bus/pci/drivers" / module
            driver.mkdir(parents=True, exist_ok=True)
            (self.root / folder / "driver").symlink_to(driver)
        return self

    def cards(self):
        return find_cards(self.probe)


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def test_a_machine_without_a_card_has_none(box):
    box.card("0000:00:00.0", "0x8086", "0x0d57", "0x060000").card("0000:00:02.0", "0x1af4", "0x1050")
    box.card("0000:03:00.0", "0x1a03", "0x2000")  # a server's own screen

    assert box.cards() == ()


@pytest.mark.parametrize(("text", "version"), [(OPEN_DRIVER, "580.65.06"), (OLD_DRIVER, "535.104.05")])
def test_an_nvidia_card_has_its_name_and_driver(box, text, version):
    box.card("0000:17:00.0", "0x10de", "0x2335", "0x030200", "nvidia").file("dev/nvidia0").file("dev/nvidiactl")
    box.file("proc/driver/nvidia/version", text)
    box.file("proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (card,) = box.cards()

    assert card == Card("cuda", "NVIDIA H200", f"nvidia {version}")
    assert nvidia_driver([card]) == tuple(map(int, version.split(".")[:2]))


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("nvidia", "there is no /dev/nvidia[0-9]*: load its driver, or start the container with --gpus all"),
        ("nouveau", "nouveau drives it: install NVIDIA's driver"),
        ("", "no driver drives it"),
        ("vfio-pci", "given to a virtual machine"),
    ],
)
def test_what_keeps_every_program_from_a_card_is_said(box, module, says):
    (card,) = box.card("0000:01:00.0", "0x10de", "0x2684", module=module).cards()

    assert says in card.problem


def test_amd_cards_have_their_generation(box):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    box.file("dev/kfd").file("sys/module/amdgpu/version", "6.16.6\n")
    box.card("0000:05:00.0", "0x1002", "0x74a1", "0x120000", "amdgpu")  # a processing accelerator
    box.card("0000:c3:00.0", "0x1002", "0x15bf", "0x030000", "amdgpu")
    box.file(f"{nodes}/0/properties", "cpu_cores_count 8\ngfx_target_version 0\nlocation_id 0\n")
    box.file(f"{nodes}/1/properties", f"gfx_target_version 90402\nlocation_id {5 << 8}\ndomain 0\n")
    box.file(f"{nodes}/2/properties", f"gfx_target_version 110003\nlocation_id {0xC3 << 8}\ndomain 0\n")
    instinct, graphics = box.cards()

    assert (instinct.backend, instinct.arch, instinct.driver, instinct.problem) == (
        "rocm",
        "gfx942",
        "amdgpu 6.16.6",
        "",
    )
    assert (graphics.arch, graphics.has_build, instinct.has_build) == ("gfx1103", False, True)


def test_a_card_that_only_others_may_open_is_named_with_the_group(tmp_path):
    box = Box(tmp_path, can_open=lambda path: False)
    (card,) = box.file("dev/kfd").card("0000:05:00.0", "0x1002", "0x744c", module="amdgpu").cards()

    assert card.problem.startswith("you may not open /dev/kfd: add your user")


@pytest.mark.parametrize(
    ("number", "found"), [("0x56a0", 1), ("0xe20b", 1), ("0x7d55", 1), ("0x9a49", 0), ("0x5917", 0)]
)
def test_of_intel_only_what_pytorch_runs_on_counts(box, number, found):
    box.file("dev/dri/renderD128").card("0000:00:02.0", "0x8086", number, module="i915")

    assert [card.backend for card in box.cards()] == ["xpu"] * found


def test_a_card_that_is_seen_through_drm_too_counts_once(box):
    box.file("dev/dri/renderD128").card("0000:03:00.0", "0x8086", "0x56a0", module="xe")
    (box.root / "sys/class/drm/card0").mkdir(parents=True)
    (box.root / "sys/class/drm/card0/device").symlink_to(box.root / "sys/bus/pci/devices/0000:03:00.0")

    assert len(box.cards()) == 1


def test_a_board_without_pci_is_found_by_its_device_file(box):
    assert [card.backend for card in box.file("dev/nvidia0").cards()] == ["cuda"]


@pytest.mark.parametrize("system", ["Windows", "Linux"])
def test_where_there_are_no_files_nvidia_smi_is_asked(tmp_path, system):
    box = Box(
        tmp_path,
        system=system,
        run=lambda command: "NVIDIA GeForce RTX 4090, 566.36\n" if "nvidia-smi" in command[0] else "",
    )
    box.file("dev/dxg")  # as in WSL

    assert box.cards() == (Card("cuda", "NVIDIA GeForce RTX 4090", "nvidia 566.36"),)


def test_apple_silicon_is_a_card_and_an_intel_mac_has_none(tmp_path):
    silicon = Box(tmp_path, system="Darwin", machine="arm64", run=lambda command: "Apple M3 Max\n")

    assert silicon.cards() == (Card("mps", "Apple M3 Max", "Metal"),)
    assert Box(tmp_path, system="Darwin").cards() == ()


def test_this_machine_is_looked_at_without_an_error():
    assert all(card.backend in ("cuda", "rocm", "xpu", "mps") for card in find_cards())


H200 = Card("cuda", "NVIDIA H200", "nvidia 580.65.06")
OLD = Card("cuda", "NVIDIA RTX 2080", "nvidia 535.104.05")
MI300 = Card("rocm", "AMD Instinct MI300X", "amdgpu 6.16", arch="gfx942")
GRAPHICS = Card("rocm", "AMD Radeon 780M", "amdgpu", arch="gfx1103")
ARC = Card("xpu", "Intel Arc A770", "xe")


@pytest.mark.parametrize(
    ("build", "version", "cards", "says"),
    [
        ("cuda", "13.2", [MI300], "this build of PyTorch is for NVIDIA and the machine has AMD Instinct MI300X"),
        ("cuda", "13.2", [ARC], "this build of PyTorch is for NVIDIA and the machine has Intel Arc A770"),
        ("rocm", "7.0", [H200], "this build of PyTorch is for AMD and the machine has NVIDIA H200"),
        ("cpu", "", [H200, H200], "has no support for any card and the machine has NVIDIA H200"),
        (
            "cuda",
            "13.2",
            [OLD],
            "driver 535.104 is older than CUDA 13.2 of this build needs (580): update the driver, or",
        ),
    ],
)
def test_a_build_that_does_not_fit_the_machine_is_named_with_the_repair(build, version, cards, says):
    (sentence,) = misfits(build, version, cards, False, {})

    assert says in sentence
    assert REINSTALL in sentence


@pytest.mark.parametrize(
    ("build", "version", "cards", "seen"),
    [
        ("cuda", "13.2", [], False),
        ("cpu", "", [], False),
        ("cpu", "", [GRAPHICS], False),  # no build of PyTorch has its kernels
        ("cuda", "13.2", [H200], True),
        ("cuda", "12.8", [H200, GRAPHICS, ARC], True),
    ],
)
def test_a_build_that_fits_is_left_alone(build, version, cards, seen):
    assert misfits(build, version, cards, seen, {}) == []


def test_a_card_of_the_right_make_that_pytorch_does_not_see_is_traced():
    absent = Card("cuda", "NVIDIA H200", "nvidia 580.65", "there is no /dev/nvidia0: load its driver")

    assert misfits("cuda", "13.2", [H200], False, {"CUDA_VISIBLE_DEVICES": ""}) == [
        "CUDA_VISIBLE_DEVICES= hides every card: unset it"
    ]
    assert misfits("cuda", "13.2", [absent], False, {}) == ["NVIDIA H200: there is no /dev/nvidia0: load its driver"]
    assert "`nvidia-smi`" in misfits("cuda", "13.2", [H200], False, {})[0]
    assert "`rocminfo`" in misfits("rocm", "7.0", [MI300], False, {})[0]
    assert misfits("cuda", "12.8", [OLD], False, {})[0].endswith("`nvidia-smi`")  # 525 is enough for CUDA 12


@pytest.mark.parametrize(
    ("build", "environment", "says"),
    [
        ("rocm", {"CUDA_VISIBLE_DEVICES": "1"}, ["HIP_VISIBLE_DEVICES=1 is preferred"]),
        ("rocm", {"HIP_VISIBLE_DEVICES": "1"}, []),
        ("rocm", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, []),
        ("rocm", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["disagree: HIP_VISIBLE_DEVICES holds"]),
        ("rocm", {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, ["counts among the cards that ROCR"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1"}, []),
        ("cuda", {"HIP_VISIBLE_DEVICES": "1"}, ["has no effect: this build of PyTorch is for NVIDIA"]),
        ("xpu", {"ZE_AFFINITY_MASK": "0"}, []),
        ("cpu", {"ZE_AFFINITY_MASK": "0"}, ["has no effect"]),
        ("mps", {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}, ["what Apple's GPU lacks runs on the cpu"]),
        ("cuda", {"PATH": "/bin"}, []),
    ],
)
def test_variables_that_choose_cards_are_judged_for_the_build(build, environment, says):
    sentences = advice(build, environment)

    assert len(sentences) == len(says)
    for sentence, part in zip(sentences, says, strict=True):
        assert part in sentence
    assert variables(environment) == {key: value for key, value in environment.items() if key != "PATH"}


def test_on_amd_the_preferred_variable_decides_what_is_hidden():
    assert hidden_by("rocm", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "-1"}) == ""
    assert hidden_by("rocm", {"CUDA_VISIBLE_DEVICES": "-1"}) == "CUDA_VISIBLE_DEVICES=-1"
    assert hidden_by("cpu", {"CUDA_VISIBLE_DEVICES": "-1"}) == ""
