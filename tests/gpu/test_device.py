"""The card asked for is the one used, and nothing else of the machine is."""

import subprocess
import sys

import pytest
import torch
from runs import DATA, TINY

CPU_RUN = """
import sys, torch, lerobot
lerobot.run(lerobot.compose("train", sys.argv[1:]))
kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
held = torch.get_device_module(kind.type).memory_allocated() if kind and kind.type in ("cuda", "xpu") else 0
print("held", held)
"""


def test_equal_jobs_in_one_process_report_equal_peaks(train_there, card, rows):
    """As in a sweep: what one job held does not count for the next."""
    words = ["policy.dim_model=256", "policy.chunk_size=50", f"batch_size={card.size(64, 8)}", "steps=4"]
    big = ["policy.dim_model=512", "policy.dim_feedforward=3200", f"batch_size={card.size(256, 8)}", "steps=2"]
    peaks = []
    for name, sizes in (("first", words), ("bigger", big), ("second", words)):
        run = train_there(*sizes, name=name)
        peaks.append(rows(run)[-1]["device/peak_mem_gb"])

    if not card.is_real:
        return  # the peak of a process never falls
    assert peaks[2] == pytest.approx(peaks[0], rel=0.01)
    assert peaks[1] > peaks[0]


def test_a_run_on_the_processor_holds_no_memory_of_a_card(card, tmp_path):
    words = [*TINY, "steps=2", "device=cpu", f"output_dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-c", CPU_RUN, *words], cwd=DATA.parents[1], capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "held 0"


def test_an_index_beyond_the_last_card_is_refused_and_the_count_named(card, train):
    from lerobot.errors import ConfigError

    if card.device.type not in ("cuda", "xpu", "cpu"):
        pytest.skip(f"{card.name} has no index")
    kind = card.device.type if card.is_real else "cuda"
    count = torch.accelerator.device_count() if card.is_real else 1
    with pytest.raises(ConfigError) as refusal:
        train(f"device={kind}:{count}")

    assert f"device={kind}:{count}" in str(refusal.value)
    if card.is_real:
        assert f"{kind}:0" in str(refusal.value) or torch.version.hip


@pytest.mark.gpu
def test_an_amd_card_is_called_rocm_and_no_other_is(tmp_path, train):
    from lerobot.errors import ConfigError

    if not torch.cuda.is_available():
        pytest.skip(f"no card that PyTorch {torch.__version__} calls cuda")
    words = ["device=rocm", "steps=1"]
    if torch.version.hip:
        assert (train(*words) / "run.json").exists()
    else:
        with pytest.raises(ConfigError, match="device=rocm"):
            train(*words)


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_a_checkpoint_from_the_card_acts_alike_on_card_and_processor(train_there, card, precision):
    from lerobot.checkpoint import load_policy

    run = train_there(f"precision={precision}", "steps=3", "tf32=false")
    actions = []
    for device in ("cpu", card.word if card.is_real else "cpu"):
        policy = load_policy(run, device=device)
        policy.reset()
        sizes = {key: feature.shape[0] for key, feature in policy.config.input_features.items()}
        observation = {key: torch.linspace(-1, 1, 4 * size).reshape(4, size) for key, size in sizes.items()}
        actions.append(policy.select_action(observation).cpu())

    assert actions[0].dtype == actions[1].dtype == torch.float32
    torch.testing.assert_close(actions[1], actions[0], rtol=1e-3, atol=1e-4)
