"""A comparison names the better one, or says what it takes to tell."""

import json

import pytest

from lerobot.checkpoint.paths import CONFIG_FILE, PREPROCESSOR_FILE, TRAIN_CONFIG_FILE, WEIGHTS_FILE
from lerobot.report.findings import find
from lerobot.report.folders import read_folders
from lerobot.report.groups import make_groups
from lerobot.report.table import write_csv
from lerobot.report.write import write_report

WON, LOST = True, False


@pytest.fixture
def report(tmp_path):
    """What there is to say about the sweep."""

    def report():
        return find(read_folders([tmp_path / "sweep"]), [tmp_path / "sweep"])

    return report


def test_runs_that_differ_in_their_seed_are_one_group(make_run, report):
    """LOG-10: mean and spread over seeds had to be collected by hand."""
    for i, (lr, seed) in enumerate([("1", 0), ("1", 1), ("2", 0), ("2", 1)]):
        make_run(
            f"{i}_x", f"policy.optimizer_lr={lr}", "steps=9", seed=seed, losses=(1.0, 0.5 + 0.1 * i), solved=[WON] * 5
        )
    groups = report().groups

    assert [group.label for group in groups] == ["policy.optimizer_lr=1", "policy.optimizer_lr=2"]
    assert groups[0].losses == [0.5, 0.6]
    assert groups[0].outcome == (10, 10)


def test_names_of_runs_are_no_difference_and_equal_runs_are_not_pooled(make_run, report):
    make_run("0_x", "wandb=disabled", "job_name=a")
    make_run("1_x", "wandb.name=me", "job_name=b")

    assert [group.label for group in report().groups] == ["0_x", "1_x"]


def test_one_run_is_a_report(make_run, report):
    make_run("0_x", solved=[WON])
    found = report()

    assert found.groups[0].label == "0_x"
    assert not found.comparisons
    assert found.winner is None


def test_the_better_one_is_named_where_the_episodes_tell(make_run, report):
    shared = [WON] * 10 + [LOST] * 10
    make_run("0_x", "steps=1", solved=shared + [WON] * 9 + [LOST] * 1)
    make_run("1_x", "steps=2", solved=shared + [LOST] * 9 + [WON] * 1)
    comparison = report().comparisons[0]

    assert comparison.decided
    # 9 against 1 of 10 coins: 2 * (1 + 10) / 1024
    assert comparison.p == pytest.approx(22 / 1024)
    assert comparison.sentence.startswith(
        "steps=1 is better than steps=2: success 0.63 against 0.37 (p=0.021, paired over 30"
    )


def test_a_difference_that_may_be_chance_is_undecided_and_says_what_would_tell(make_run, report):
    make_run("0_x", "steps=1", solved=[WON] * 6 + [LOST] * 4)
    make_run("1_x", "steps=2", solved=[WON] * 4 + [LOST] * 6)
    comparison = report().comparisons[0]

    # Two of ten pairs differ: ((1.960 + 0.842 * sqrt(0.8)) * sqrt(0.2) / 0.2) ** 2 is 36.8, so 27 more than 10.
    assert comparison.sentence == (
        "steps=1 and steps=2: undecided, about 27 more episodes each; success 0.60 against 0.40 (p=0.5, paired over 10 episodes)"
    )


def test_equal_rates_are_no_difference(make_run, report):
    make_run("0_x", "steps=1", solved=[WON, LOST])
    make_run("1_x", "steps=2", solved=[LOST, WON])

    assert "no difference seen" in report().comparisons[0].sentence


def test_one_episode_is_no_episodes(make_run, report):
    make_run("0_x", "steps=1", solved=[WON])
    make_run("1_x", "steps=2", solved=[LOST])

    assert "(p=1, paired over 1 episode)" in report().comparisons[0].sentence


def test_pairs_are_matched_within_the_training_seed_and_counted_once_a_start(make_run, report):
    # Seeds 0 and 1 share the starts 1 to 5: 6 pairs each, 7 starts, each of which flips as one.
    for seed in (0, 1):
        make_run(f"{seed}_x", "steps=1", seed=seed, solved=[WON] * 6)
        make_run(f"{seed + 2}_x", "steps=2", seed=seed, solved=[LOST] * 6)
    comparison = report().comparisons[0]

    assert comparison.p == pytest.approx(2 / 2**7)
    assert "paired over 12 episodes; better in 2 of 2 seeds" in comparison.sentence


def test_episodes_from_other_starts_are_not_paired_and_that_is_said(make_run, report):
    make_run("0_x", "steps=1", solved=[WON] * 3 + [LOST], start=0)
    make_run("1_x", "steps=2", solved=[WON] + [LOST] * 3, start=500)
    comparison = report().comparisons[0]

    assert comparison.p == pytest.approx(34 / 70)  # the lady tasting tea
    assert "not paired, the starts differ" in comparison.sentence


def test_many_comparisons_are_corrected_for_all_pairs(make_run, report):
    for i in range(4):  # one is better than three that are equal: p of each is 2 / 1024, of six pairs
        make_run(f"{i}_x", f"steps={i}", solved=[i == 0] * 10)
    found = report()

    assert len(found.comparisons) == 6
    assert found.comparisons[0].sentence.startswith("steps=0 is better than")
    assert "p=0.012" in found.comparisons[0].sentence  # 6 * 2 / 1024


def test_with_many_groups_the_best_is_compared_with_each(make_run, report):
    for i in range(12):
        make_run(f"{i}_x", f"steps={i}", solved=[i <= 1] * 20 + [i == 0] * 4)
    found = report()

    assert len(found.comparisons) == 11
    assert (
        found.headline == "steps=0 comes first of 12: better than 10 of them (corrected p < 0.05), undecided against 1"
    )


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([0.5], [0.6], "one seed, no spread known"),
        ([0.50, 0.60], [0.52, 0.63], "within the spread of seeds"),
        ([0.50, 0.51, 0.49], [0.90, 0.91, 0.92], "steps=1 is lower than steps=2"),
        ([0.50, 0.60], [0.60, 0.70], "undecided, about"),
    ],
)
def test_losses_are_compared_by_the_spread_of_seeds(make_run, report, first, second, says):
    for words, losses in (("steps=1", first), ("steps=2", second)):
        for seed, loss in enumerate(losses):
            make_run(f"{words[-1]}{seed}_x", words, seed=seed, losses=(1.0, loss))

    assert says in report().comparisons[0].sentence


def test_a_run_that_was_cut_short_is_compared_with_nothing(make_run, report):
    make_run("0_x", "steps=1", solved=[WON] * 9)
    make_run("1_x", "steps=2", solved=[LOST] * 9, state="stopped")

    assert not report().comparisons


CARD = {"device": "card:0", "backend": "a card", "device_name": "a card", "tf32": True}


def precision_runs(make_run, precision, dtype, losses, *, tf32=True, **metrics):
    for seed, loss in enumerate(losses):
        make_run(
            f"{precision}_{tf32}{seed}", f"accelerator.mixed_precision={precision}", f"tf32={tf32}", "policy.device=card",
            seed=seed, losses=(1.0, loss), facts=CARD | {"forward_dtype": dtype, "tf32": tf32}, extra=lambda i: metrics,
        )  # fmt: skip


def test_a_precision_sweep_ends_in_a_verdict(make_run, report):
    precision_runs(make_run, "no", "float32", [0.40, 0.41, 0.42], **{"device/peak_mem_gb": 2.0})
    fast = {"train/samples_per_s": 1600.0, "device/peak_mem_gb": 1.0}
    precision_runs(make_run, "bf16", "bfloat16", [0.404, 0.41, 0.422], **fast)
    precision_runs(make_run, "fp16", "float16", [0.6, 0.61, 0.62], **{"train/scale": 1024.0, "train/skipped_steps": 7})
    found = report()

    assert found.precision[0] == (
        "bf16: loss within the spread of seeds (0.412, TF32 0.41 ± 0.01), 1.60x as fast, 0.50x the memory"
    )
    assert found.precision[1].startswith(
        "fp16: loss 49 % higher, beyond the spread of seeds (0.61, TF32 0.41 ± 0.01, p="
    )
    assert found.precision[1].endswith("7 skipped updates, final scale 1,024")
    assert not found.comparisons  # they would say the same


def test_float32_is_the_yardstick_of_tf32_and_one_seed_gives_no_parity(make_run, report):
    precision_runs(make_run, "no", "float32", [0.40])
    precision_runs(make_run, "no", "float32", [0.50], tf32=False)
    sentence = report().precision[0]

    assert sentence.startswith("TF32: loss 20 % lower (0.4, float32 0.5), parity unknown with one seed")


def test_losses_of_two_precisions_are_compared_over_the_seeds_that_both_have(make_run, report):
    precision_runs(make_run, "no", "float32", [0.40, 0.50, 0.90])
    precision_runs(make_run, "bf16", "bfloat16", [0.40, 0.50])

    assert "(0.45, TF32 0.45 ±" in report().precision[0]


def test_each_device_has_its_own_yardstick(make_run, report):
    for device, loss in (("cpu", 0.5), ("card", 0.4)):
        for precision, dtype in (("no", "float32"), ("bf16", "bfloat16")):
            words = (f"policy.device={device}", f"accelerator.mixed_precision={precision}")
            make_run(
                f"{device}_{precision}",
                *words,
                losses=(1.0, loss),
                facts={"forward_dtype": dtype, "device_name": device},
            )

    starts = [sentence.partition(", float32")[0] for sentence in report().precision]
    assert starts == ["device=card: bf16: loss equal (0.4", "device=cpu: bf16: loss equal (0.5"]


def test_a_refused_precision_is_named_with_its_reason(make_run, report):
    precision_runs(make_run, "no", "float32", [0.4])
    folder = make_run("9_x", "accelerator.mixed_precision=fp16", "tf32=True", "policy.device=card", state="refused")
    status = json.loads((folder / "status.json").read_text()) | {"error": "no card here"}
    (folder / "status.json").write_text(json.dumps(status))

    assert report().precision == ["fp16: refused (no card here)"]


def test_memory_of_the_processor_is_not_compared(make_run, report):
    for precision, dtype in (("no", "float32"), ("bf16", "bfloat16")):
        make_run(
            f"{precision}_x", f"accelerator.mixed_precision={precision}",
            facts={"forward_dtype": dtype}, extra=lambda i: {"device/peak_mem_gb": 1.0},
        )  # fmt: skip

    assert "memory" not in report().precision[0]


def test_groups_of_runs_without_typed_words_keep_their_names(make_run, tmp_path):
    for name in ("0_x", "1_x"):
        (make_run(name) / ".hydra" / "overrides.yaml").unlink()

    assert [group.label for group in make_groups(read_folders([tmp_path / "sweep"]))] == ["0_x", "1_x"]


def test_a_precision_of_which_all_failed_gives_the_reason_of_the_refused_job(make_run, report):
    """It was that of whichever job came first."""
    precision_runs(make_run, "no", "float32", [0.4, 0.5])
    words = ("accelerator.mixed_precision=fp16", "tf32=True", "policy.device=card")
    for seed, (state, error) in enumerate((("failed", "the node is gone"), ("refused", "no float16 here"))):
        folder = make_run(f"9_{seed}", *words, seed=seed, state=state)
        status = json.loads((folder / "status.json").read_text()) | {"error": error}
        (folder / "status.json").write_text(json.dumps(status))

    assert report().precision == ["fp16: refused (no float16 here)"]


def test_a_run_that_left_no_facts_is_no_other_device(make_run, report):
    """The sentence was "the devices differ ( and a card)"."""
    precision_runs(make_run, "no", "float32", [0.40])
    precision_runs(make_run, "bf16", "bfloat16", [0.40])
    for folder in (make_run("x", "accelerator.mixed_precision=bf16", "tf32=True", "policy.device=card", seed=1),):
        (folder / "run.json").unlink()

    assert "differ" not in report().precision[0]


def test_a_folder_that_is_named_twice_is_compared_once(make_run, tmp_path):
    make_run("0_x", "steps=1")
    make_run("1_x", "steps=2")
    sweep = tmp_path / "sweep"
    found = write_report([sweep, sweep, sweep / "0_x"], tmp_path / "out")

    assert [record.name for record in found.findings.records] == ["0_x", "1_x"]


def test_many_groups_of_one_seed_are_one_sentence(make_run, report):
    """It was a line for each pair."""
    for number, loss in enumerate((0.5, 0.4, 0.7, 0.6)):
        make_run(f"{number}_x", f"steps={number}", losses=(1.0, loss))

    (only,) = report().comparisons
    assert only.sentence == (
        "steps=1 has the lowest final loss, 0.4; then steps=0 0.5, steps=3 0.6, steps=2 0.7: one seed each, no spread "
        "known, add seed=0,1,2"
    )


def test_of_many_pairs_the_undecided_ones_are_counted(make_run, report):
    """Seven settings were twenty-one lines."""
    for number in range(5):
        won = 45 if number == 0 else 20 + number
        make_run(f"{number}_x", f"steps={number}", solved=[i < won for i in range(50)])

    found = report()
    assert [comparison.decided for comparison in found.told] == [True] * 4
    assert len(found.folded) == 6
    assert "6 more pairs are undecided, the report has each" in found.conclusions


def went_on(folder, config, *words, number=1):
    """A later line over the run in `folder`, whose newest checkpoint was then trained with `config`."""
    (folder / f".hydra.{number}").mkdir()
    (folder / f".hydra.{number}" / "overrides.yaml").write_text(json.dumps(words))
    (folder / ".hydra" / "config.yaml").write_text(json.dumps({"steps": 6, "accelerator": {"mixed_precision": "no"}}))
    place = folder / "checkpoints" / "000200" / "pretrained_model"
    place.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, WEIGHTS_FILE, PREPROCESSOR_FILE):
        (place / name).touch()
    (place / TRAIN_CONFIG_FILE).write_text(json.dumps(config))


def test_a_run_that_was_trained_longer_is_no_yardstick_for_the_others(make_run, report, tmp_path):
    """bf16 after 6 updates was set beside float32 after 200 without a word."""
    precision_runs(make_run, "no", "float32", [0.1, 0.1])
    precision_runs(make_run, "bf16", "bfloat16", [0.4, 0.4])
    longer = {"steps": 200, "accelerator": {"mixed_precision": "no"}}
    for seed in (0, 1):
        went_on(tmp_path / "sweep" / f"no_True{seed}", longer, "steps=200", "resume=x")
    found = report()

    assert {group.setting("steps") for group in found.groups} == {"200", "default"}
    assert found.precision == [
        "steps=default: bf16: no finished float32 run to compare with: precision=no ran with steps=200"
    ]
    write_csv(tmp_path / "summary.csv", found.records, found.groups)
    header = (tmp_path / "summary.csv").read_text().splitlines()[0].split(",")
    assert header.count("steps") == 1  # the one of each row, not that of the words beside it


def test_a_run_is_labelled_by_what_its_newest_checkpoint_was_trained_with(make_run, report):
    """After resume=a precision=bf16 it was called precision=no; a line that was refused changes nothing."""
    other = make_run("0_x", "accelerator.mixed_precision=no", "steps=6")
    run = make_run("1_x", "accelerator.mixed_precision=no", "steps=6")
    went_on(run, {"steps": 6, "accelerator": {"mixed_precision": "bf16"}}, "accelerator.mixed_precision=bf16")
    went_on(run, {"steps": 6, "accelerator": {"mixed_precision": "bf16"}}, "steps=9", number=2)

    assert {group.label: group.runs[0].folder for group in report().groups} == {
        "precision=no": other,
        "precision=bf16": run,
    }


def test_a_shift_that_every_seed_shows_is_no_parity(make_run, report):
    """A difference as large as the spread was called parity, although each of 30 seeds had it."""
    losses = [0.4 + 0.01 * (seed % 10) for seed in range(8)]
    precision_runs(make_run, "no", "float32", losses)
    precision_runs(make_run, "bf16", "bfloat16", [loss + 0.01 + 0.001 * (i % 2) for i, loss in enumerate(losses)])

    assert "loss 2.4 % higher, within the spread of seeds and yet no chance (" in report().precision[0]


def test_a_shift_of_seeds_that_are_not_shared_is_no_parity_either(make_run, report):
    precision_runs(make_run, "no", "float32", [0.4 + 0.01 * (seed % 10) for seed in range(30)])
    for seed in range(30):
        make_run(
            f"b{seed}", "accelerator.mixed_precision=bf16", "tf32=True", "policy.device=card", seed=100 + seed,
            losses=(1.0, 0.428 + 0.01 * (seed % 10)), facts=CARD | {"forward_dtype": "bfloat16"},
        )  # fmt: skip

    assert "within the spread of seeds and yet no chance (" in report().precision[0]


def test_a_crashed_seed_that_was_repeated_does_not_split_its_group(make_run, report):
    for name, seed, state in (("0_x", 0, "failed"), ("1_x", 0, "done"), ("2_x", 1, "done")):
        make_run(name, "steps=1", seed=seed, state=state)
    make_run("3_x", "steps=2", seed=0)

    assert [len(group.finished) for group in report().groups] == [2, 1]


def test_one_value_in_two_spellings_is_one_group(make_run, report):
    make_run("0_x", "policy.optimizer_lr=1e-3", "policy.device='cuda\\:3'", seed=0)
    make_run("1_x", "policy.optimizer_lr=0.001", "policy.device=cuda:3", seed=1)
    make_run("2_x", "policy.optimizer_lr=0.01", "policy.device=cuda:2")

    labels = [group.label for group in report().groups]
    assert labels == ["policy.optimizer_lr=0.001 device=cuda:3", "policy.optimizer_lr=0.01 device=cuda:2"]


def test_a_yardstick_that_was_refused_is_said_so(make_run, report):
    make_run("0_x", "accelerator.mixed_precision=no", state="refused")
    make_run("1_x", "accelerator.mixed_precision=bf16", facts={"forward_dtype": "bfloat16"})

    assert report().precision == ["bf16: no finished float32 run to compare with: precision=no is refused"]


def test_an_experiment_that_only_lists_what_others_type_is_no_difference(make_run, report):
    """experiment=grid and a line without it were two groups although both were the same run."""
    for name, words, seed in (("0_x", ("experiment=grid",), 0), ("1_x", (), 1), ("2_x", ("batch_size=9",), 1)):
        config = {"steps": 6, "seed": seed, "batch_size": 9 if name == "2_x" else 8, "job_name": name}
        (make_run(name, *words, seed=seed) / ".hydra" / "config.yaml").write_text(json.dumps(config))
    assert [group.label for group in report().groups] == ["batch_size=default", "batch_size=9"]

    (report().records[0].folder / ".hydra" / "config.yaml").write_text(json.dumps({**config, "steps": 7}))
    assert [group.setting("experiment") for group in report().groups] == ["grid", "default", "default"]
