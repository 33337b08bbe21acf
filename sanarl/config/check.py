"""Rules between keys. What one key alone may be, the schema says."""

import re
from collections.abc import Callable, Iterator, Set

from sanarl.config import check_rollout, check_steps
from sanarl.config.faults import Finding, fault, shown, split
from sanarl.config.schema.base import Arguments, Weights
from sanarl.config.schema.root import Config

_TASK = "train.train_policy"
_IMAGE_ID = re.compile(r"\d+px|sprint")


def findings(config: Config, given: Set[str]) -> list[Finding]:
    """Everything that cannot work, all rules at once."""
    rules: list[Callable[[Config, Set[str]], Iterator[Finding]]] = [_model, _schedule, _loading, _validation]
    if config.is_rl:
        rules += [
            check_rollout.pools,
            check_rollout.engines,
            _adapter_rl,
            _groups,
            _advantages,
            _rewards,
            _old_policy,
            _guards,
        ]
        rules.append(check_steps.stochastic if config.task == "flowgrpo" else check_steps.deterministic)
    else:
        rules += [_adapter_sft, check_steps.deterministic]
    return [finding for rule in rules for finding in rule(config, given)]


def _model(config: Config, _: Set[str]) -> Iterator[Finding]:
    name, is_video = config.policy.model_name_or_path.lower(), config.policy.diffusers.is_video
    key, about = "policy.diffusers.is_video", "policy.model_name_or_path"
    named = f"{about} = {shown(config.policy.model_name_or_path)}"
    last = name.rstrip("/").rpartition("/")[2]
    if config.family in ("sd3", "flux") and is_video:
        yield fault(key, f"found true; accepted false: {named} makes images", about)
    if config.family == "sana" and "video" in last and not is_video:
        yield fault(key, f"found false; accepted true: {named} makes video", about)
    image_only = "video" not in last and (config.is_tiny or _IMAGE_ID.search(last) is not None)
    if config.family == "sana" and image_only and is_video:
        yield fault(key, f"found true; accepted false: {named} makes images", about)
    if config.policy.diffusers.image_to_video:
        yield from _image_to_video(config)
    yield from _native(config)
    yield from _upload(config)
    if config.train.compile and config.policy.lora is None and config.policy.parallelism.dp_shard_size > 1:
        text = "found true; accepted false: weights that ranks share are not compiled"
        yield fault("train.compile", text, "policy.parallelism.dp_shard_size")
    yield from _encode_ahead(config)
    if config.policy.lora is None and config.is_rl:
        text = f"missing: {config.grpo.trainer_type} trains an adapter; write the table [policy.lora]"
        yield fault("policy.lora", text)


def _encode_ahead(config: Config) -> Iterator[Finding]:
    key, why = "train.encode_ahead", "found true; accepted false: "
    if not config.train.encode_ahead:
        return
    if config.is_rl:
        yield fault(key, f"{why}only fine-tuning encodes items", "train.train_policy.trainer_type")
    if config.data.cache is not None:
        yield fault(key, f"{why}what is cached is not encoded again", "data.cache")
    if config.policy.diffusers.offload:
        yield fault(key, f"{why}the encoders wait on the CPU", "policy.diffusers.offload")


def _upload(config: Config) -> Iterator[Finding]:
    ckpt, key = config.train.ckpt, "train.ckpt.upload_hf"
    if not ckpt.upload_hf:
        return
    if ckpt.hf_repo_name is None:
        yield fault("train.ckpt.hf_repo_name", "missing: the name of the repository to upload to", key)
    for name in ("enable_checkpoint", "export_safetensors"):
        if not getattr(ckpt, name):
            yield fault(
                key, f"found true; accepted false: nothing is exported with {name} = false", f"train.ckpt.{name}"
            )


def _image_to_video(config: Config) -> Iterator[Finding]:
    key, diffusers = "policy.diffusers.image_to_video", config.policy.diffusers
    if not diffusers.is_video:
        yield fault(key, "found true; accepted false: pictures are made, not clips", "policy.diffusers.is_video")
        return
    if config.is_rl:
        yield fault(key, "found true; accepted false: clips that start from a picture are for sft", f"{_TASK}.type")
    for name in ("inference_frames", "train_frames"):
        if getattr(diffusers, name) == 1:
            about = f"policy.diffusers.{name}"
            yield fault(about, "found 1; accepted 5 or more: the first frame is given, the others are made", key)


def _native(config: Config) -> Iterator[Finding]:
    """A checkpoint in NVlabs/Sana's names is a transformer alone, for pictures."""
    policy, about = config.policy, "policy.model_name_or_path"
    named = shown(policy.model_name_or_path)
    if config.is_native:
        if policy.base_pipeline is None:
            text = f"missing: {named} has no text encoder and no autoencoder; name a diffusers pipeline of its size"
            yield fault("policy.base_pipeline", text, about)
        if policy.diffusers.is_video:
            text = f"found true; accepted false: native checkpoints are those for pictures, and {named} is one"
            yield fault("policy.diffusers.is_video", text, about)
        return
    if policy.model_name_or_path.startswith("hf://"):
        yield fault(about, f"found {named}; after hf://owner/repo/ accepted a file that ends in .pth")


def _adapter_sft(config: Config, _: Set[str]) -> Iterator[Finding]:
    lora = config.policy.lora
    if lora is not None and lora.lora_names != ("default",):
        yield fault(
            "policy.lora.lora_names", f'found {shown(lora.lora_names)}; accepted ["default"] for sft', f"{_TASK}.type"
        )


def _adapter_rl(config: Config, _: Set[str]) -> Iterator[Finding]:
    lora = config.policy.lora
    if lora is not None and (len(lora.lora_names) != 2 or set(lora.lora_names) != {"default", "old"}):
        yield fault(
            "policy.lora.lora_names",
            f'found {shown(lora.lora_names)}; accepted ["default", "old"]: {config.grpo.trainer_type} rolls out with '
            "the old values",
            f"{_TASK}.trainer_type",
        )
    if config.policy.diffusers.caption_dropout:
        yield fault(
            "policy.diffusers.caption_dropout",
            f"found {config.policy.diffusers.caption_dropout}; accepted 0: prompts are dropped in sft only",
            f"{_TASK}.type",
        )


def _groups(config: Config, given: Set[str]) -> Iterator[Finding]:
    group, samples, update = config.rollout.n_generation, config.samples_per_step, config.samples_per_update
    rollout, batch = "rollout.n_generation", "train.train_batch_per_replica"
    replicas = "policy.parallelism.n_init_replicas"
    sizes = ("policy.parallelism.dp_shard_size", "policy.parallelism.dp_replicate_size", replicas)
    if group < 2:
        yield fault(rollout, f"found {group}; accepted 2 or more: advantages compare the samples of a prompt")
    if samples % group:
        unset = "" if batch in given else " (default)"
        yield fault(
            batch,
            f"found {config.train.train_batch_per_replica}{unset}, {samples} samples a rollout over all replicas; "
            f"accepted a multiple of {rollout} = {group}; nearest {max(1, round(samples / group)) * group}",
            rollout,
            replicas,
        )
    per_gpu = config.grpo.batch_size_per_optimize
    if per_gpu is None or samples % group or group < 2:
        return
    key = f"{_TASK}.batch_size_per_optimize"
    about = f"found {per_gpu}, {update} samples an optimiser step over {config.gpus} GPU{'s' * (config.gpus > 1)}"
    involved = (rollout, batch, *sizes)
    if samples % update:
        yield fault(key, f"{about}; accepted a share of the rollout's {samples} samples without remainder", *involved)
    elif group % (samples // update):
        yield fault(
            key,
            f"{about}, so {samples // update} steps a rollout; accepted a number of steps that divides "
            f"{rollout} = {group}, so that each takes the same share of every group",
            *involved,
        )


def _advantages(config: Config, _: Set[str]) -> Iterator[Finding]:
    low, high = config.grpo.advantage_low, config.grpo.advantage_high
    if -low != high:
        key = f"{_TASK}.advantage_low"
        text = f"found {low} with advantage_high = {high}; accepted {-high}: the loss has a single clip for both signs"
        yield fault(key, text, f"{_TASK}.advantage_high")


def _rewards(config: Config, _: Set[str]) -> Iterator[Finding]:
    task = config.grpo
    if task.use_remote_reward:
        key = f"{_TASK}.remote_reward.reward_fns"
        involved = f"{_TASK}.use_remote_reward"
        if not task.remote_reward.reward_fns:
            yield fault(key, "empty; accepted at least one reward while use_remote_reward is true", involved)
        elif all(reward.weight <= 0 for reward in task.remote_reward.reward_fns):
            yield fault(key, "no weight above 0; accepted at least one: weights of 0 or less skip a reward", involved)
    elif not any(task.reward_function.values()):
        found = "no weight other than 0" if task.reward_function else "empty"
        text = f"{found}; accepted at least one reward, such as {{ shapes = 1.0 }}, or use_remote_reward = true"
        yield fault(f"{_TASK}.reward_function", text, f"{_TASK}.use_remote_reward")
    yield from _arguments(f"{_TASK}.reward_args", task.reward_args, task.reward_function)
    for index, reward in enumerate(task.remote_reward.reward_fns):
        if reward.clip_min > reward.clip_max:
            path = (*split(f"{_TASK}.remote_reward.reward_fns"), index, "clip_min")
            yield Finding(path, f"found {reward.clip_min}; accepted at most clip_max = {reward.clip_max}")
    if task.remote_reward.reward_clip_min > task.remote_reward.reward_clip_max:
        yield fault(
            f"{_TASK}.remote_reward.reward_clip_min",
            f"found {task.remote_reward.reward_clip_min}; "
            f"accepted at most reward_clip_max = {task.remote_reward.reward_clip_max}",
            f"{_TASK}.remote_reward.reward_clip_max",
        )


def _old_policy(config: Config, _: Set[str]) -> Iterator[Finding]:
    diffusers = config.policy.diffusers
    kind = "policy.diffusers.weight_copy_decay_type"
    for name in ("weight_copy_decay_value", "weight_copy_decay_steps"):
        value = getattr(diffusers, name)
        if diffusers.weight_copy_decay_type == 3 and value is None:
            yield fault(f"policy.diffusers.{name}", f"missing: {kind} = 3 rises to a value at an update", kind)
        if diffusers.weight_copy_decay_type != 3 and value is not None:
            yield fault(f"policy.diffusers.{name}", f"found {value}; only with {kind} = 3", kind)


def _schedule(config: Config, given: Set[str]) -> Iterator[Finding]:
    train = config.train
    decays = train.optm_decay_type not in (None, "none")
    if train.optm_decay_ratio and not decays:
        text = f"found {train.optm_decay_ratio}; needs optm_decay_type: sqrt, cosine or linear"
        yield fault("train.optm_decay_ratio", text, "train.optm_decay_type")
    if train.optm_min_lr_factor and not decays:
        text = f"found {train.optm_min_lr_factor}; needs optm_decay_type: sqrt, cosine or linear"
        yield fault("train.optm_min_lr_factor", text, "train.optm_decay_type")
    warmup, steps = train.optm_warmup_steps, train.max_num_steps
    if "train.optm_warmup_steps" not in given:
        return
    share = warmup if isinstance(warmup, float) else warmup / steps if steps and not config.is_rl else 0.0
    involved = ("train.optm_decay_ratio", "train.max_num_steps")
    if share > 1:
        text = f"found {warmup}; accepted at most train.max_num_steps = {steps}"
        yield fault("train.optm_warmup_steps", text, *involved)
    elif decays and share + (train.optm_decay_ratio or 0.0) > 1 + 1e-9:
        text = f"found {warmup}: warm-up and decay take {share:g} + {train.optm_decay_ratio:g} of all steps; accepted 1"
        yield fault("train.optm_warmup_steps", text, *involved)


def _loading(config: Config, _: Set[str]) -> Iterator[Finding]:
    if config.is_rl:
        return
    prefetch, workers = config.sft.dataloader_prefetch_factor, f"{_TASK}.dataloader_num_workers"
    if prefetch is not None and config.sft.dataloader_num_workers == 0:
        text = f"found {prefetch}; needs dataloader_num_workers of 1 or more"
        yield fault(f"{_TASK}.dataloader_prefetch_factor", text, workers)


def _arguments(key: str, arguments: Arguments, rewards: Weights) -> Iterator[Finding]:
    """Arguments belong to rewards that are named, and keys of services in the environment."""
    for name, given in arguments.items():
        if name not in rewards:
            known = ", ".join(rewards) or "none there"
            yield Finding((*split(key), name), f"no such reward in reward_function; accepted {known}")
        if "endpoint_api_key" in given:
            text = "a key would be written into config.json; set the environment variable that docs/rewards.md names"
            yield Finding((*split(key), name, "endpoint_api_key"), text)


def _validation(config: Config, _: Set[str]) -> Iterator[Finding]:
    validation = config.validation
    yield from _arguments("validation.reward_args", validation.reward_args, validation.reward_function)
    if validation.reward_function and not any(validation.reward_function.values()):
        yield fault("validation.reward_function", "no weight other than 0; accepted at least one, or no table")
    if validation.use_remote_reward and config.is_rl:
        remote = validation.remote_reward or config.grpo.remote_reward
        if not remote.reward_fns:
            key = "validation.remote_reward.reward_fns"
            yield fault(key, "empty; accepted at least one reward while use_remote_reward is true")


def _guards(config: Config, _: Set[str]) -> Iterator[Finding]:
    guards = config.guards
    yield from _arguments("guards.reward_args", guards.reward_args, guards.reward_function)
    if guards.reward_function and not any(weight > 0 for weight in guards.reward_function.values()):
        yield fault("guards.reward_function", "no weight above 0; accepted at least one, or no table")
