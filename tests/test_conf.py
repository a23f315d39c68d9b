"""Every option of every group makes a run that can be parsed, alone and with the others."""

from pathlib import Path

import hydra
import pytest

import lerobot
from lerobot.command import _composing, _prepare, _read
from lerobot.config import conf_dir, to_plain
from lerobot.errors import ConfigError

OPTIONS = sorted(path for path in conf_dir().glob("*/*.yaml") if path.parent.name != "hydra")
ROOTS = ["dataset.root=somewhere", "device=auto"]


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_option_of_every_group_composes(path):
    config = lerobot.compose("train", [*ROOTS, f"{path.parent.name}={path.stem}"])

    assert config.policy.type == "act"
    assert to_plain(config)["policy"]["_target_"] == "lerobot.policies.config.ACTConfig"


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.stem)
def test_every_option_opens_with_what_it_is_for(path):
    header = [line for line in path.read_text().splitlines()[:3] if line.startswith("# ") and "@package" not in line]

    assert header
    assert len(path.read_text().splitlines()) <= 45


@pytest.mark.parametrize("experiment", ["none", "demo"])
@pytest.mark.parametrize("debug", ["none", "fast", "overfit"])
def test_experiments_and_debug_options_combine(experiment, debug):
    config = lerobot.compose("train", [*ROOTS, f"experiment={experiment}", f"debug={debug}"])

    assert config.steps == {"fast": 2, "overfit": 400, "none": 2500 if experiment == "demo" else 100_000}[debug]


@pytest.mark.parametrize("command", ["eval", "demos"])
def test_the_other_commands_compose(command):
    assert lerobot.compose(command).env.type == "metaworld"


def test_the_optimizer_follows_the_policy_unless_it_is_typed():
    assert lerobot.compose("train", [*ROOTS, "policy.optimizer_lr=3e-4"]).optimizer.lr == 3e-4
    assert lerobot.compose("train", [*ROOTS, "policy.optimizer_lr=3e-4", "optimizer.lr=1e-5"]).optimizer.lr == 1e-5


@pytest.mark.parametrize("unquoted", ["no", "false", "null", "fp32"])
def test_an_unquoted_no_in_yaml_means_full_precision(tmp_path, unquoted):
    """HYD-01: YAML reads `no` as false."""
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text(f"# @package _global_\naccelerator:\n  mixed_precision: {unquoted}\n")

    config = lerobot.compose("train", [*ROOTS, "experiment=own", f"hydra.searchpath=[file://{tmp_path / 'mine'}]"])

    assert config.accelerator.mixed_precision == "no"


def test_a_folder_of_own_options_is_found_beside_ours(tmp_path):
    (tmp_path / "grad_scaler").mkdir()
    (tmp_path / "grad_scaler" / "mine.yaml").write_text("# @package accelerator.grad_scaler\ninit_scale: 8.0\n")

    config = lerobot.compose("train", [*ROOTS, "grad_scaler=mine", f"hydra.searchpath=[file://{tmp_path}]"])

    assert config.accelerator.grad_scaler.init_scale == 8.0


@pytest.mark.parametrize(
    "override",
    [
        "init_scale=0",
        "init_scale=-1",
        "init_scale=nan",
        "init_scale=inf",
        "growth_interval=0",
        "growth_interval=-5",
        "growth_interval=2.5",
        "growth_factor=1",
        "growth_factor=0.5",
        "backoff_factor=0",
        "backoff_factor=1",
        "backoff_factor=-0.5",
        "min_scale=0",
        "max_consecutive_skips=0",
    ],
)
def test_a_scaler_setting_that_makes_no_sense_is_refused_by_name(override):
    """PREC-12: torch takes all of these without a word."""
    with pytest.raises(ConfigError, match=rf"accelerator\.grad_scaler\.{override.partition('=')[0]}.*type"):
        lerobot.compose("train", [*ROOTS, f"accelerator.grad_scaler.{override}"])


def hydra_node(words):
    """Hydra's own settings on a line."""
    with _composing("train"):
        line = _read("train", ["-m", *words])
        name = _prepare("train", line)
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return hydra.compose(name, line.overrides(), return_hydra_config=True).hydra


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["hydra/launcher=joblib"], "lerobot_launchers.JoblibLauncher"),
        (["hydra/launcher=submitit_local"], "lerobot_launchers.SubmititLocalLauncher"),
        (["hydra/launcher=slurm"], "lerobot_launchers.SlurmLauncher"),
        (["hydra/launcher=submitit_slurm"], "lerobot_launchers.SlurmLauncher"),
    ],
)
def test_launchers_are_ours_under_the_names_that_the_plugins_have(words, target, recwarn):
    assert hydra_node([*ROOTS, *words]).launcher._target_ == f"hydra_plugins.{target}"
    assert not [warning for warning in recwarn if "validated against ConfigStore" in str(warning.message)]


@pytest.mark.parametrize(
    ("experiment", "sweeper", "params"),
    [
        ("seeds", "JobSweeper", {"seed": "0,1,2"}),
        ("precision_compare", "JobSweeper", {"accelerator.mixed_precision": "no,bf16", "seed": "0,1"}),
        ("scaler_search", "OptunaSweeper", None),
    ],
)
def test_an_experiment_can_be_a_sweep(experiment, sweeper, params):
    node = hydra_node([*ROOTS, f"experiment={experiment}"])

    assert node.sweeper._target_.endswith(sweeper)
    assert params is None or node.sweeper.params == params
    assert lerobot.compose("train", [*ROOTS, f"experiment={experiment}"]).demos.num_episodes == 60


def test_conf_and_the_plugins_are_shipped_inside_the_wheel():
    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text()

    assert '"conf" = "lerobot/conf"' in settings
    assert 'packages = ["lerobot", "hydra_plugins"]' in settings
    assert not (conf_dir().parent / "hydra_plugins" / "__init__.py").exists()  # other distributions share that folder
