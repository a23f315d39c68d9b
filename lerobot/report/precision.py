"""What a number format costs and what it saves, beside float32 on the same device."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from lerobot.report import statistics
from lerobot.report.compare import percent
from lerobot.report.groups import SHORT, Group, mean
from lerobot.report.record import Record
from lerobot.report.table import shown_range

PRECISION = "accelerator.mixed_precision"
DEVICE = "policy.device"
OF_PRECISION = (PRECISION, "tf32", "grad_scaler", "accelerator.grad_scaler")
NAMES = {"float32": "float32", "bfloat16": "bf16", "float16": "fp16"}


def precision_verdicts(groups: Sequence[Group]) -> list[str]:
    """One sentence for each group that differs from a float32 one in its number format alone; none without such."""
    if not any(_is_of_precision(key) for group in groups for key, _ in group.settings):
        return []
    families: dict[tuple[tuple[str, str], ...], list[Group]] = defaultdict(list)
    for group in groups:
        families[tuple(item for item in group.settings if not _is_of_precision(item[0]))].append(group)
    return [sentence for rest, family in families.items() for sentence in _family(rest, family, groups)]


def says_all(groups: Sequence[Group]) -> bool:
    """Whether `precision_verdicts` compares all there is: nothing else differs but the device."""
    keys = {key for group in groups for key, _ in group.settings}
    return bool(keys - {DEVICE}) and all(key == DEVICE or _is_of_precision(key) for key in keys)


def _is_of_precision(key: str) -> bool:
    return key in OF_PRECISION or key.startswith("accelerator.grad_scaler.")


def _family(rest: tuple[tuple[str, str], ...], family: list[Group], groups: Sequence[Group]) -> list[str]:
    where = " ".join(f"{SHORT.get(key, key)}={value}" for key, value in rest)
    prefix = f"{where}: " if where else ""
    # Where TF32 was on in one and off in another, full float32 is the yardstick.
    full = sorted((group for group in family if _format(group) == "float32"), key=_has_tf32)
    if not full:
        return [f"{prefix}{_without_yardstick(family, groups)}"] if any(map(_format, family)) else []
    sentences = [_sentence(group, full[0]) for group in family if group is not full[0]]
    return [f"{prefix}{sentence}" for sentence in sentences if sentence]


def _without_yardstick(family: Sequence[Group], groups: Sequence[Group]) -> str:
    """Why there is nothing to compare with: none got to its end, none ran as long, or none was typed."""
    names = " and ".join(format_name(group) for group in family if group.finished)
    said = f"{names}: no finished float32 run to compare with"
    if stopped := [group for group in family if group.setting(PRECISION) == "no"]:
        return f"{said}: precision=no is {_unfinished(stopped[0])}"
    settings = dict(family[0].settings)
    for group in groups:
        others = [key for key, value in group.settings if not _is_of_precision(key) and settings.get(key) != value]
        if _format(group) == "float32" and others == ["steps"]:
            return f"{said}: precision=no ran with steps={group.setting('steps')}"
    return f"{said}: add precision=no"


def _unfinished(group: Group) -> str:
    """The state of a group of which no run got to its end, with the reason."""
    run = next((run for run in group.runs if run.state == "refused"), group.runs[0])
    return f"{run.state}{f' ({run.error})' if run.error else ''}"


def _format(group: Group) -> str:
    """As probed in the run, else empty."""
    return next((run.fact("forward_dtype") for run in group.finished if run.fact("forward_dtype")), "")


def _has_tf32(group: Group) -> bool:
    return any(run.fact("tf32") not in ("", "False") for run in group.finished)


def format_name(group: Group) -> str:
    """What the runs computed in, TF32 where float32 products really were that; else what was asked for."""
    ran = _format(group)
    if not ran:
        return group.setting(PRECISION) or group.label
    scaled = [f"{key.rpartition('.')[2]}={value}" for key, value in group.settings if "grad_scaler" in key]
    name = "TF32" if ran == "float32" and _has_tf32(group) else NAMES.get(ran, ran)
    return " ".join([name, *scaled])


def _sentence(group: Group, full: Group) -> str:
    name, yardstick = format_name(group), format_name(full)
    if not group.finished:
        return f"{name}: {_unfinished(group)}"
    parts = [part for part in (_loss(group, full, yardstick), *_cost(group, full), *_scaling(group)) if part]
    return f"{name}: {', '.join(parts)}" if parts else ""


def _loss(group: Group, full: Group, yardstick: str) -> str:
    trained = [run for run in group.finished if run.series("train/loss")]
    lost = sum(not math.isfinite(run.final_loss) for run in trained)
    if lost:
        return f"loss not finite in {lost} of {len(trained)} runs"
    own, its, shared = _losses(group, full)
    if not own or not its:
        return f"loss of {yardstick} unknown" if own else ""
    ours, theirs = fmean(own), fmean(its)
    gap = ours - theirs
    apart = f"{percent(abs(gap), theirs)} {'higher' if gap > 0 else 'lower'}" if theirs and gap else "equal"
    if min(len(own), len(its)) < 2:
        return f"loss {apart} ({ours:.4g}, {yardstick} {theirs:.4g}), parity unknown with one seed: add seed=0,1,2"
    numbers = f"{ours:.4g}, {yardstick} {theirs:.4g} ± {statistics.stdev(its):.2g}"
    p = (
        statistics.one_mean([one - other for one, other in zip(own, its, strict=True)])
        if shared
        else statistics.welch(own, its)
    )
    within = abs(gap) <= statistics.spread(own, its)
    if p < statistics.ALPHA:
        beyond = "within the spread of seeds and yet no chance" if within else "beyond the spread of seeds"
        return f"loss {apart}, {beyond} ({numbers}, p={p:.2g})"
    if within:
        return f"loss within the spread of seeds ({numbers})"
    return f"loss {apart}, more seeds needed to tell ({numbers}, p={p:.2g})"


def _losses(group: Group, full: Group) -> tuple[list[float], list[float], bool]:
    """The final losses of the seeds that both have (same start, same data), and whether there are any; else of all."""
    ours, theirs = ({run.seed: run.final_loss for run in side.finished} for side in (group, full))
    shared = [seed for seed in ours if seed in theirs and math.isfinite(ours[seed]) and math.isfinite(theirs[seed])]
    if not shared:
        return group.losses, full.losses, False
    return [ours[seed] for seed in shared], [theirs[seed] for seed in shared], True


def _cost(group: Group, full: Group) -> list[str]:
    """Speed and memory as ratios, where both ran on the same device."""
    devices = {run.fact("device_name") for side in (group, full) for run in side.finished} - {""}
    if len(devices) > 1:
        return [f"speed not compared, the devices differ ({' and '.join(sorted(devices))})"]
    parts = []
    speed = _ratio(group, full, lambda run: run.samples_per_s)
    if math.isfinite(speed):
        parts.append(f"{speed:.2f}x as fast")
    memory = _ratio(group, full, lambda run: run.peak_mem_gb)
    if math.isfinite(memory) and not any(run.is_on_cpu for run in (*group.finished, *full.finished)):
        parts.append(f"{memory:.2f}x the memory")
    return parts


def _ratio(group: Group, full: Group, of: Callable[[Record], float]) -> float:
    ours, theirs = (mean(map(of, side.finished)) for side in (group, full))
    return ours / theirs if theirs else math.nan


def _scaling(group: Group) -> list[str]:
    scales = [run.last("train/scale") for run in group.finished]
    skipped = [run.last("train/skipped_steps") for run in group.finished]
    parts = []
    if counts := shown_range(skipped):
        parts.append(f"{counts} skipped updates")
    if last := shown_range(scales):
        parts.append(f"final scale {last}")
    return parts
