"""lerobot-info tells the truth about a machine, in a table, as JSON, and as an exit status."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lerobot import info, info_facts
from lerobot.accelerator import device as devices
from lerobot.accelerator import smoke
from lerobot.accelerator.capabilities import Facts, capabilities
from lerobot.accelerator.device import Device, Machine
from lerobot.accelerator.hardware import Card
from lerobot.accelerator.smoke import Result

DATA = Path(__file__).parents[1] / "data"


def device(backend, index, name, **facts):
    return Device(backend, index, name, 16.0, capabilities(backend, Facts(torch=(2, 15), **facts)))


CPU = device("cpu", None, "Xeon")
H200 = device("cuda", 0, "NVIDIA H200", compute=(9, 0))
T4 = device("cuda", 0, "Tesla T4", compute=(7, 5))
MI300 = device("rocm", 0, "AMD Instinct MI300X", arch="gfx942")
NVIDIA = Machine((H200, CPU), "2.15.0+cu132", "cuda", "13.2", (Card("cuda", "NVIDIA H200", "nvidia 580.65"),))
NOTHING = Machine((CPU,), "2.15.0+cpu", "cpu")


@pytest.fixture(autouse=True)
def _nothing_slow(monkeypatch):
    monkeypatch.setattr("lerobot.envs.gl.can_render", lambda: (True, "egl"))


@pytest.fixture
def ask(monkeypatch, capsys):
    """Runs lerobot-info on a machine; returns its status, output and errors. Devices compute unless told otherwise."""

    def run(machine, *words, fails=()):
        def check_apart(_device, precisions):
            return [Result(p, None, "wrong") if p in fails else Result(p, 1.25) for p in precisions]

        monkeypatch.setattr(devices, "machine", lambda: machine)
        monkeypatch.setattr(smoke, "check_apart", check_apart)
        with pytest.raises(SystemExit) as left:
            info.main(list(words))
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return run


def facts_of(out):
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_the_table_shows_each_device_and_ends_with_a_line_to_try(ask):
    status, out, err = ask(NVIDIA)
    lines = out.strip().splitlines()

    assert (status, err) == (0, "")
    row = next(line for line in lines if line.strip().startswith("cuda:0"))
    assert [part in row for part in ("NVIDIA H200", "16 GiB", "ok 1.2 ms", "yes")] == [True] * 4
    assert row.count("ok") == 3
    assert lines[-1] == "to try: lerobot-train experiment=demo device=cuda:0 precision=bf16"
    assert len(lines) < 25


def test_the_json_is_strict_and_says_the_same(ask):
    status, out, err = ask(NVIDIA, "--json")
    facts = facts_of(out)

    assert (status, err) == (0, "")
    assert facts["torch"] == {"version": "2.15.0+cu132", "build": "cuda", "build_version": "13.2", "said": None}
    assert facts["auto"] == "cuda:0"
    assert facts["backends"]["cuda"] == {"present": True, "why_not": None}
    assert facts["backends"]["rocm"]["why_not"] == "this build of PyTorch is for NVIDIA"
    card, processor = facts["devices"]
    assert card["smoke"] == {p: {"works": True, "ms": 1.25, "problem": None} for p in ("no", "bf16", "fp16")}
    assert (card["tf32"], card["memory_gb"], card["bf16"]) == (True, 16.0, "hardware")
    assert processor["smoke"].keys() == {"no", "bf16"}
    assert "accelerate builds no loss scaler" in processor["lacks"]["scaler"]
    assert facts["cards"][0]["driver"] == "nvidia 580.65"


def test_this_machine_is_told_as_it_is(capsys):
    with pytest.raises(SystemExit) as left:
        info.main(["--json", "--require", "cpu,bf16,video"])
    facts = facts_of(capsys.readouterr().out)

    assert left.value.code == 0
    processor = facts["devices"][-1]
    assert processor["backend"] == "cpu"
    assert processor["smoke"]["no"]["works"]
    assert processor["smoke"]["bf16"]["works"]
    assert processor["memory_gb"] > 0.5
    assert {"h264", "av1"} <= set(facts["video"]["codecs"])


@pytest.mark.parametrize(
    ("machine", "words", "says"),
    [
        (NOTHING, "cuda", "device=cuda is absent: PyTorch 2.15.0+cpu, built for cpu, finds cpu"),
        (NOTHING, "fp16", "precision=fp16 does not work on cpu, accelerate builds no loss scaler there"),
        (NOTHING, "tf32", "cpu (Xeon) has no TF32"),
        (NVIDIA, "cuda:1", "there are 1 cuda devices, counted from 0"),
        (NVIDIA, "rocm", "device=rocm is absent"),
        (NVIDIA, "cpu,fp16", "precision=fp16 does not work on cpu"),
        (replace(NVIDIA, devices=(T4, CPU)), "cuda,bf16", "precision=bf16 is only emulated on cuda (Tesla T4)"),
        (replace(NVIDIA, devices=(T4, CPU)), "tf32", "cuda:0 (Tesla T4) has no TF32"),
        (NVIDIA, "wandb", "wandb has no key for api.wandb.ai: type `wandb login`"),
    ],
)
def test_what_cannot_be_used_is_status_2_and_one_line(ask, machine, words, says, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    status, _, err = ask(machine, "--require", words)

    assert status == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (NVIDIA, "cuda,bf16,fp16,tf32,gl"),
        (NVIDIA, "cuda:0"),
        (NOTHING, "cpu,bf16"),
        (replace(NVIDIA, devices=(T4, CPU)), "fp16"),
    ],
)
def test_what_can_be_used_is_status_0(ask, machine, words):
    assert ask(machine, "--require", words)[::2] == (0, "")


def test_a_card_that_is_there_and_wrong_is_not_good_enough(ask):
    status, out, err = ask(NVIDIA, "--require", "cuda,fp16", fails=["fp16"])

    assert status == 2
    assert "device=cuda:0 (NVIDIA H200) does not compute, wrong" in err
    assert "FAILS" in out
    assert "! cuda:0 in fp16: wrong" in out
    status, out, _ = ask(NVIDIA, fails=["no", "bf16", "fp16"])
    assert status == 0
    assert out.strip().splitlines()[-1] == "to try: lerobot-train experiment=demo"  # what auto would take


def test_half_precision_that_works_is_the_one_to_try(ask):
    assert ask(replace(NVIDIA, devices=(T4, CPU)))[1].strip().endswith("device=cuda:0 precision=fp16")
    assert ask(NVIDIA, fails=["bf16", "fp16"])[1].strip().endswith("device=cuda:0")


def test_a_build_that_does_not_fit_and_variables_are_shown(ask):
    amd = Card("rocm", "AMD Instinct MI300X", "amdgpu 6.16", arch="gfx942")
    wrong = Machine((CPU,), "2.15.0+cu132", "cuda", "13.2", (amd,), {"HIP_VISIBLE_DEVICES": "1"})
    _, out, _ = ask(wrong)

    assert "! this build of PyTorch is for NVIDIA and the machine has AMD Instinct MI300X: `uv pip install" in out
    assert "HIP_VISIBLE_DEVICES" in out
    assert "has no effect" in out
    conflict = Machine(
        (MI300, CPU), "2.15.0+rocm7.0", "rocm", "7.0", (amd,), {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
    )
    _, out, _ = ask(conflict)
    assert "HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1 disagree: HIP_VISIBLE_DEVICES holds" in out


def test_the_report_is_markdown_with_a_row_a_device(ask):
    status, out, _ = ask(NVIDIA, "--report")
    lines = out.splitlines()

    assert status == 0
    assert lines[0] == "| device | driver | PyTorch | float32 | bf16 | fp16 | TF32 |"
    assert lines[2] == "| NVIDIA H200 (cuda) | nvidia 580.65 | 2.15.0+cu132 | ok 1.2 ms | ok 1.2 ms | ok 1.2 ms | yes |"
    assert lines[3].startswith("| Xeon (cpu) | - | 2.15.0+cu132 | ok ")
    assert str(Path.home()) not in out


@pytest.mark.parametrize("word", ["dataset={}", "dataset.root={}", "--dataset.root={}"])
def test_a_dataset_is_told_in_a_few_numbers(ask, word):
    root = DATA / "metaworld_push_cam"
    status, out, _ = ask(NOTHING, "--json", word.format(root))
    found = facts_of(out)["dataset"]

    assert status == 0
    told = json.loads((root / "meta/info.json").read_text())
    assert (found["episodes"], found["frames"], found["fps"]) == (told["total_episodes"], told["total_frames"], 80)
    assert found["cameras"] == {"observation.images.corner2": [96, 96, 3, "video"]}
    assert found["features"] == {"observation.state": [4], "action": [4]}
    size = sum(file.stat().st_size for file in root.rglob("*.mp4"))
    assert math.isclose(found["videos_mb"], size / 1e6, abs_tol=0.006)
    assert f"dataset.root={root}" in facts_of(out)["try"]


def test_the_table_shows_the_dataset(ask):
    out = ask(NOTHING, f"dataset={DATA / 'metaworld_push_state'}")[1]

    assert "episodes" in out
    assert "observation.state" in out


def test_a_dataset_that_cannot_be_read_is_refused_before_anything_is_computed(ask, tmp_path):
    status, out, err = ask(NOTHING, f"dataset={tmp_path / 'none'}")

    assert (status, out) == (2, "")
    assert (
        err
        == f"error: there is no dataset folder {tmp_path / 'none'}: type dataset.root=<the folder that holds meta/ and data/>\n"
    )


def test_a_dataset_that_lacks_a_file_is_refused_with_its_name(ask, tmp_path):
    import shutil

    root = tmp_path / "torn"
    shutil.copytree(DATA / "metaworld_push_cam", root)
    next(root.rglob("*.mp4")).unlink()
    status, _, err = ask(NOTHING, f"dataset={root}")

    assert status == 2
    assert "lacks videos/observation.images.corner2/chunk-000/file-000.mp4" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["device=cuda"], "does not know 'device=cuda'"),
        (["--frobnicate"], "does not know '--frobnicate'"),
        (["dataset="], "does not know 'dataset='"),
        (["--require"], "type lerobot-info --help"),
        (["--require", "tpu"], "--require tpu is not one of cpu, cuda,"),
    ],
)
def test_an_unknown_word_is_refused_in_one_sentence(ask, words, says):
    status, out, err = ask(NOTHING, *words)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_help_and_an_unknown_word_load_no_torch():
    code = "import sys; from lerobot import info\ntry: info.main([sys.argv[1]])\nexcept SystemExit as e: print(e.code, 'torch' in sys.modules)"
    for word, ending in (("--help", "0 False"), ("what", "2 False")):
        done = subprocess.run(
            [sys.executable, "-c", code, word], capture_output=True, text=True, cwd=Path(info.__file__).parents[1]
        )
        assert done.stdout.strip().splitlines()[-1] == ending, done.stderr


def test_a_wandb_key_is_found_and_never_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert info_facts.wandb_facts()["key_from"] is None
    monkeypatch.setenv("WANDB_API_KEY", "secret" * 7)
    assert info_facts.wandb_facts()["key_from"] == "WANDB_API_KEY"
    assert "secret" not in str(info_facts.wandb_facts())
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert info_facts.wandb_facts()["key_from"] == ".netrc"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert info_facts.wandb_facts()["key_from"] is None
    (tmp_path / ".netrc").write_text("what is this\n")
    assert "cannot be read" in info_facts.wandb_facts()["problem"]


def test_extras_are_told_with_what_they_lack(monkeypatch):
    real = info_facts._version
    monkeypatch.setattr(info_facts, "_version", lambda name: None if name == "metaworld" else real(name))

    assert info_facts.extras()["metaworld"] == {"installed": False, "missing": ["metaworld"]}


def test_without_gl_or_a_decoder_it_says_so(monkeypatch):
    monkeypatch.setattr("lerobot.envs.gl.can_render", lambda: (False, "egl: libEGL is not installed"))
    monkeypatch.setitem(sys.modules, "av", None)

    assert info_facts.gl_facts() == {"backend": None, "problem": "egl: libEGL is not installed"}
    assert info_facts.video_facts()["decoder"] is None
