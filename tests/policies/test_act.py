"""ACT: LeRobot's numbers, and the promises that those do not show."""

import importlib.util
import json
import math
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from lerobot.checkpoint.pretrained import load_policy
from lerobot.errors import ConfigError
from lerobot.micro_batch import divide, total_counts
from lerobot.policies.act import TemporalEnsemble

DATA = Path(__file__).parents[1] / "data"
PEER = DATA / "peer_checkpoints"


def golden_of(name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict]:
    """A raw batch, what LeRobot made of it, and its losses."""
    tensors = load_file(PEER / name / "golden.safetensors")
    raw = {key.removeprefix("raw."): value for key, value in tensors.items() if key.startswith("raw.")}
    return raw, tensors, json.loads((PEER / name / "golden.json").read_text())


def assert_golden(policy, raw, tensors, numbers) -> None:
    loss, parts = policy.loss(raw)
    assert loss.item() == pytest.approx(numbers["eval_loss"], abs=1e-5)
    assert set(parts) == {"l1_loss"}
    chunk, _ = policy.model(policy.normalized_inputs(raw))
    torch.testing.assert_close(chunk, tensors["predict_action_chunk"], rtol=0, atol=1e-5)
    chunk = policy.predict_action_chunk(raw)
    torch.testing.assert_close(chunk, tensors["predict_action_chunk_post"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["act_state", "act_vae_state"])
def test_a_checkpoint_of_lerobot_gives_lerobots_numbers(name):
    policy = load_policy(PEER / name / "pretrained_model")
    raw, tensors, numbers = golden_of(name)
    assert_golden(policy, raw, tensors, numbers)
    assert sum(p.numel() for p in policy.parameters()) == numbers["n_params"]
    steps = torch.stack([policy.select_action(raw) for _ in range(10)])
    torch.testing.assert_close(steps, tensors["select_action_x10"], rtol=0, atol=1e-5)


def test_the_training_loss_with_its_latent_is_lerobots():
    policy = load_policy(PEER / "act_vae_state/pretrained_model").train()
    raw, tensors, numbers = golden_of("act_vae_state")
    inputs, action = policy.normalized_inputs(raw), policy.normalizer.normalize("action", raw["action"])
    mean, log_variance = policy.model.encode_actions(inputs, action, ~raw["action_is_pad"])
    torch.testing.assert_close(mean, tensors["vae.mu"], rtol=0, atol=1e-5)
    torch.testing.assert_close(log_variance, tensors["vae.log_sigma_x2"], rtol=0, atol=1e-5)
    torch.manual_seed(0)
    loss, parts = policy.loss(raw)
    assert loss.item() == pytest.approx(numbers["train_loss_seed0_dropout0"], abs=1e-5)
    assert {key: float(value) for key, value in parts.items()} == pytest.approx(numbers["train_dict"], abs=1e-5)
    assert not any(value.requires_grad for value in parts.values())


def test_a_camera_policy_gives_lerobots_numbers(push_config):
    from lerobot.data.reader import LeRobotDataset

    dataset = LeRobotDataset(DATA / "metaworld_push_cam", return_uint8=True)
    sizes = {"chunk_size": 16, "n_action_steps": 8, "dim_model": 64, "dim_feedforward": 128, "n_encoder_layers": 2}
    policy = push_config("metaworld_push_cam", use_vae=False, **sizes).build(dataset.meta.stats).eval()
    raw, tensors, numbers = golden_of("act_cam_filled")
    assert {key: list(value.shape) for key, value in policy.state_dict().items()} == numbers["state_dict"]
    spec = importlib.util.spec_from_file_location("fill", PEER / "fill.py")
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    policy.load_state_dict(fill.fill(policy.state_dict()), strict=True)
    images = dataset.__getitems__(numbers["indices"])["observation.images.corner2"]
    raw["observation.images.corner2"] = images
    pixels = policy.normalized_inputs(raw)["observation.images.corner2"]
    assert float(pixels.mean()) == pytest.approx(numbers["image_pre_mean"], abs=1e-6)
    features = policy.model.backbone(pixels).mean((2, 3))
    torch.testing.assert_close(features, tensors["backbone_feature_map_mean_hw"], rtol=0, atol=1e-5)
    assert_golden(policy, raw, tensors, numbers)


def test_parameters_stand_in_the_order_that_lerobots_optimizer_state_refers_to():
    # The stored state knows parameters by number only; an order that differs gives moments of another shape.
    folder = PEER / "act_state"
    policy = load_policy(folder / "pretrained_model")
    state = load_file(folder / "training_state/optimizer_state.safetensors")
    stored = json.loads((folder / "training_state/optimizer_param_groups.json").read_text())
    groups = policy.parameter_groups()
    assert [len(group["params"]) for group in groups] == [len(group["params"]) for group in stored]
    for number, parameter in zip(stored[0]["params"], groups[0]["params"], strict=True):
        assert state[f"state/{number}/exp_avg"].shape == parameter.shape


def test_the_backbone_learns_at_its_own_rate_and_everything_else_at_the_optimizers(push_config, push_stats):
    policy = push_config("metaworld_push_cam", optimizer_lr_backbone=3e-6).build(stats_of("metaworld_push_cam"))
    rest, backbone = policy.parameter_groups()
    assert "lr" not in rest
    assert backbone["lr"] == 3e-6
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    assert {names[id(p)].startswith("model.backbone.") for p in backbone["params"]} == {True}
    assert {names[id(p)].startswith("model.backbone.") for p in rest["params"]} == {False}
    assert len(rest["params"]) + len(backbone["params"]) == len(names)
    torch.optim.AdamW(policy.parameter_groups(), lr=1e-3, fused=True)


def stats_of(dataset: str) -> dict:
    return json.loads((DATA / dataset / "meta/stats.json").read_text())


def images_for(policy, batch_size: int, dtype=torch.uint8) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    batch = {key: torch.rand(batch_size, *feature.shape) for key, feature in policy.inputs.items()}
    for key in policy.model.cameras:
        batch[key] = (batch[key] * 255).to(torch.uint8) if dtype == torch.uint8 else batch[key]
    return batch


@pytest.mark.parametrize("vae", [False, True])
def test_padding_enters_neither_loss_nor_gradients(make_policy, batch, vae):
    results = []
    for junk in (0.0, 1e6):
        policy = make_policy(use_vae=vae, dropout=0.0).train()
        batch["action"][batch["action_is_pad"]] = junk
        torch.manual_seed(0)
        loss, _ = policy.loss(batch)
        loss.backward()
        results.append([loss, *(p.grad for p in policy.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_batch_of_padding_alone_has_loss_zero(make_policy, batch):
    batch["action_is_pad"][:] = True
    assert make_policy().eval().loss(batch)[0] == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_losses_and_gradients_of_parts_add_up_to_those_of_the_whole(make_policy, batch, monkeypatch, size):
    """DIST-02: padding is uneven, and the divergence is a mean over samples."""
    batch["action_is_pad"][0, 1:] = True
    noise = torch.randn(len(batch["action"]), 32)

    def gradients(parts):
        policy = make_policy(dropout=0.0, kl_weight=10.0).train()
        drawn = iter(noise.split([len(part["action"]) for part in parts]))
        monkeypatch.setattr(torch, "randn_like", lambda _: next(drawn))
        counts = () if len(parts) == 1 else (total_counts(policy, parts),)
        losses = [policy(part, *counts) for part in parts]
        sum(loss for loss, _ in losses).backward()
        sums = {key: sum(told[key] for _, told in losses) for key in losses[0][1]}
        return {**sums, **{name: p.grad for name, p in policy.named_parameters()}}

    whole, parts = gradients([batch]), gradients(divide(batch, size))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)


def test_actions_of_one_number_may_come_as_scalars(push_config, push_stats, batch):
    config = push_config()
    config.output_features["action"].shape = [1]
    stats = {**push_stats, "action": {name: value[:1] for name, value in push_stats["action"].items()}}
    torch.manual_seed(0)
    policy = config.build(stats).eval()
    batch["action"] = batch["action"][..., :1]
    column = policy.loss(batch)[0]
    batch["action"] = batch["action"][..., 0]
    assert torch.equal(policy.loss(batch)[0], column)


def test_noise_comes_from_the_global_generator_alone(make_policy, batch):
    policy = make_policy().train()
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append(policy.loss(batch)[0].item())
    assert losses[0] == losses[2] != losses[1]


def test_every_parameter_gets_a_gradient_dist_05(make_policy, batch):
    for vae in (False, True):
        policy = make_policy(use_vae=vae).train()
        policy.loss(batch)[0].backward()
        assert [name for name, p in policy.named_parameters() if p.grad is None] == []


def test_a_few_updates_on_real_frames_halve_the_loss(make_policy, batch):
    policy = make_policy(dropout=0.0, kl_weight=0.1).train()
    optimizer = torch.optim.AdamW(policy.parameter_groups(), lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss, parts = policy.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(parts["l1_loss"]))
    assert losses[-1] < losses[0] / 2


class Operators(TorchDispatchMode):
    """Records which operators run."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dataset", ["metaworld_push_state", "metaworld_multi2_cam2"])
def test_loss_and_backward_never_wait_for_the_device(push_config, dataset, batch):
    policy = push_config(dataset).build(stats_of(dataset)).train()
    batch |= images_for(policy, 4)
    with Operators() as ran:
        policy(batch)[0].backward()
    waits = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim"}
    assert ran.names & waits == set()
    assert len(ran.names) > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dataset", ["metaworld_push_state", "metaworld_push_cam"])
def test_autocast_reaches_the_layers_and_results_are_float32_prec_01(push_config, dataset, dtype, batch):
    policy = push_config(dataset, dropout=0.0).build(stats_of(dataset))
    batch |= images_for(policy, 4)
    inside = []
    policy.model.encoder.layers[0].linear1.register_forward_hook(lambda m, i, output: inside.append(output.dtype))
    full = policy.eval().predict_action_chunk(batch)
    with torch.autocast("cpu", dtype):
        loss, parts = policy.train().loss(batch)
        low = policy.eval().predict_action_chunk(batch)
    assert inside == [torch.float32, dtype, dtype]
    assert {value.dtype for value in (loss, low, *parts.values())} == {torch.float32}
    torch.testing.assert_close(low, full, rtol=0.1, atol=0.1)
    assert not torch.equal(low, full)


def test_features_stay_in_low_precision_between_the_layers_of_the_backbone(push_config):
    policy = push_config("metaworld_push_cam").build(stats_of("metaworld_push_cam"))
    seen = []
    policy.model.backbone.bn1.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        policy.predict_action_chunk(images_for(policy, 1))
    assert seen == [torch.bfloat16]


def test_batch_norms_learn_nothing_and_do_not_drift(push_config):
    policy = push_config("metaworld_push_cam").build(stats_of("metaworld_push_cam")).train()
    before = {key: value.clone() for key, value in policy.state_dict().items() if "bn" in key}
    assert before
    assert not [name for name, _ in policy.named_parameters() if "bn" in name]
    policy.model(policy.normalized_inputs(images_for(policy, 2)))
    assert all(torch.equal(policy.state_dict()[key], value) for key, value in before.items())


def test_cameras_of_one_size_share_a_pass_and_give_what_passes_apart_give(push_config):
    policy = push_config("metaworld_multi2_cam2").build(stats_of("metaworld_multi2_cam2")).eval()
    images = [image / 255 for key, image in images_for(policy, 2).items() if key in policy.model.cameras]
    assert len(images) == 2
    together = policy.model._image_tokens(images)
    apart = [policy.model._image_tokens([image])[0] for image in images]
    assert len(together) == 2
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_cameras_of_different_sizes_go_together(push_config):
    config = push_config("metaworld_multi2_cam2")
    config.input_features["observation.images.gripperPOV"].shape = [3, 64, 120]
    policy = config.build(stats_of("metaworld_multi2_cam2")).eval()
    observation = images_for(policy, 2)
    assert policy.predict_action_chunk(observation).shape == (2, 8, 4)
    assert policy.model.image_positions.shape == (3 * 3 + 2 * 4, 32)


def test_a_dilated_last_stage_has_twice_the_resolution(push_config):
    sizes = {"vision_backbone": "resnet50", "replace_final_stride_with_dilation": True}
    policy = push_config("metaworld_push_cam", **sizes).build(stats_of("metaworld_push_cam")).eval()
    assert len(policy.model.image_positions) == 6 * 6
    assert policy.predict_action_chunk(images_for(policy, 1)).shape == (1, 8, 4)


@pytest.mark.parametrize(("settings", "message"), [
    ({"replace_final_stride_with_dilation": True}, "add policy.vision_backbone=resnet50"),
    ({"vision_backbone": "vgg11"}, "type one of .*resnet18"),
    ({"pretrained_backbone_weights": "ResNet50_Weights.IMAGENET1K_V1"}, "type one of ResNet18_Weights.IMAGENET1K_V1"),
])  # fmt: skip
def test_a_backbone_that_cannot_be_built_is_refused(push_config, settings, message):
    with pytest.raises(ConfigError, match=message):
        push_config("metaworld_push_cam", **settings).build(stats_of("metaworld_push_cam"))


WEIGHTS = "ResNet18_Weights.IMAGENET1K_V1"


def test_trained_backbone_weights_are_taken_over(push_config, monkeypatch):
    import torchvision

    torch.manual_seed(3)
    trained = torchvision.models.resnet18().state_dict()
    assert any("num_batches_tracked" in key for key in trained)
    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", lambda self, **options: dict(trained))
    config = push_config("metaworld_push_cam", pretrained_backbone_weights=WEIGHTS)
    policy = config.build(stats_of("metaworld_push_cam"))
    for key, value in policy.model.backbone.state_dict().items():
        assert torch.equal(value, trained[key]), key


def test_backbone_weights_that_cannot_be_fetched_are_one_sentence(push_config, monkeypatch):
    def offline(self, **options):
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models.ResNet18_Weights.get_state_dict", offline)
    config = push_config("metaworld_push_cam", pretrained_backbone_weights=WEIGHTS)
    with pytest.raises(
        ConfigError, match=r"pretrained_backbone_weights=null, or put the file at .*resnet18-.*\.pth"
    ) as error:
        config.build(stats_of("metaworld_push_cam"))
    assert "\n" not in str(error.value)


def test_what_act_does_not_read_is_said_and_what_it_cannot_see_is_refused(push_config, push_stats, caplog):
    config = push_config()
    config.input_features["observation.velocity"] = config.input_features["observation.state"]
    config.build(push_stats | {"observation.velocity": push_stats["observation.state"]})
    assert "observation.velocity" in caplog.text
    config = push_config("metaworld_push_cam")
    config.input_features["observation.images.corner2"].shape = [1, 96, 96]
    config.normalization_mapping.pop("VISUAL")
    with pytest.raises(ConfigError, match=r"shape \[3, height, width\]"):
        config.build(stats_of("metaworld_push_cam"))


@pytest.mark.parametrize("coeff", [0.01, 0.0, -0.3])
def test_the_ensemble_is_the_weighted_mean_of_all_predictions_for_a_step(coeff):
    torch.manual_seed(0)
    chunk_size, num_steps = 5, 12
    chunks = torch.randn(num_steps, 2, chunk_size, 3)  # (step, b, k, a)
    ensemble = TemporalEnsemble(coeff, chunk_size)
    for _ in range(2):  # an episode, and another after reset
        ensemble.reset()
        for step in range(num_steps):
            # By the book: all chunks that reach this step, the oldest first, weighted by exp(-coeff * i).
            reach = [chunks[made][:, step - made] for made in range(max(0, step - chunk_size + 1), step + 1)]
            weights = torch.tensor([math.exp(-coeff * i) for i in range(len(reach))])
            expected = (torch.stack(reach) * weights[:, None, None]).sum(0) / weights.sum()
            torch.testing.assert_close(ensemble.add(chunks[step]), expected)


def test_a_policy_with_an_ensemble_predicts_at_every_step(make_policy, batch):
    policy = make_policy(temporal_ensemble_coeff=0.01, n_action_steps=1).eval()
    first = policy.select_action(batch)
    torch.testing.assert_close(first, policy.predict_action_chunk(batch)[:, 0])
    batch["observation.state"] = batch["observation.state"] + 0.05
    second = policy.select_action(batch)
    assert not torch.allclose(second, policy.predict_action_chunk(batch)[:, 0])
    policy.reset()
    torch.testing.assert_close(policy.select_action(batch), policy.predict_action_chunk(batch)[:, 0])


@pytest.mark.parametrize(("settings", "message"), [
    ({"n_action_steps": 9}, "type policy.n_action_steps=8 or less"),
    ({"n_action_steps": 0}, r"policy\.n_action_steps=0: type a whole number of at least 1"),
    ({"temporal_ensemble_coeff": 0.01}, "add policy.n_action_steps=1"),
    ({"n_obs_steps": 2}, "type policy.n_obs_steps=1"),
    ({"dim_model": 30}, "type a multiple of 4"),
    ({"feedforward_activation": "glu"}, "type relu or gelu"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(push_config, settings, message):
    with pytest.raises(ConfigError, match=message):
        push_config(**settings)


@pytest.mark.parametrize(("name", "values"), [
    ("chunk_size", [0, -1, "abc", True]),
    ("n_heads", [0, -2]),
    ("dim_model", [0, -4, 4.0]),
    ("dim_feedforward", [0]),
    ("latent_dim", [0]),
    ("n_encoder_layers", [-1]),
    ("n_decoder_layers", [0, -1]),
    ("n_vae_encoder_layers", [0]),
    ("dropout", [2, 1, -1, math.nan]),
    ("kl_weight", [-1, math.inf]),
    ("optimizer_lr", [-1e-3, math.nan]),
    ("optimizer_lr_backbone", [-1e-3]),
    ("optimizer_weight_decay", [-1.0]),
    ("temporal_ensemble_coeff", [math.nan]),
])  # fmt: skip
def test_senseless_sizes_are_refused_by_name(push_config, name, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"policy\.{name}={value}: type a (whole|finite) number"):
            push_config(use_vae=True, **{name: value})


def test_without_an_encoder_or_a_latent_it_still_learns(make_policy, batch):
    policy = make_policy(n_encoder_layers=0, n_vae_encoder_layers=0, use_vae=False).train()
    policy.loss(batch)[0].backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())
