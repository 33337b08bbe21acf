import pytest
import torch

from sanarl.maths import draw
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import Mix, RewardError
from sanarl.rollout import generate as generating
from sanarl.rollout.collect import Request, collect, picture_statistics, thumbnail
from sanarl.rollout.evaluate import HeldOut, evaluate
from sanarl.rollout.generate import Sampler
from sanarl.runtime.world import World

PROMPTS = ["a red circle", "two blue squares", "a red circle left of a blue square"]
GROUP = 4
KEY = (0, 1)


def redness(media, prompts, _metadata):
    """A reward that differs from picture to picture and tells its arguments by what it adds."""
    return media[:, 0, 0].mean((1, 2)) + torch.tensor([float(len(p)) for p in prompts])


def place(_media, _prompts, metadata):
    return torch.tensor([float(m["row"]) for m in metadata])


def request(rows=range(12)):
    return Request(
        prompts=[PROMPTS[i // GROUP] for i in rows],
        metadata=[{"row": i} for i in rows],
        ids=torch.tensor(rows, dtype=torch.int64),
        groups=torch.tensor([i // GROUP for i in rows], dtype=torch.int64),
    )


def sampler(mini_batch, guidance=1.0):
    return Sampler(num_steps=3, guidance_scale=guidance, solver="euler", flow_shift=3.0, mini_batch=mini_batch)


@pytest.fixture
def scoring():
    with Scoring(Mix({"redness": (1.0, redness), "place": (0.0, place)}), workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def policy(make_policy):
    return make_policy(size=(32, 32))


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("mini_batch", [1, 5, 12])
def test_rows_follow_their_prompts_whatever_the_mini_batch(policy, scoring, mini_batch, guidance):
    # Reference: one batch of all 12 rows; 5 does not divide 12, nor do groups of 4.
    found = collect(policy, request(), sampler(mini_batch, guidance), KEY, scoring, 60.0, range(0, 12, 5))
    whole = collect(policy, request(), sampler(12, guidance), KEY, scoring, 60.0, range(0, 12, 5))
    rollout = found.rollout
    assert rollout.prompts == [PROMPTS[i // GROUP] for i in range(12)]
    assert rollout.ids.tolist() == list(range(12))
    assert rollout.groups.tolist() == [i // GROUP for i in range(12)]
    assert rollout.sigmas.shape == (12, 3)
    torch.testing.assert_close(rollout.sigmas[0].double(), sampler(1).sigmas[:-1], rtol=0, atol=1e-7)
    torch.testing.assert_close(rollout.latents, whole.rollout.latents, rtol=0, atol=1e-5 * guidance)
    torch.testing.assert_close(found.thumbnails, whole.thumbnails, rtol=0, atol=1e-5 * guidance)
    torch.testing.assert_close(found.shown, whole.shown, rtol=0, atol=1e-5 * guidance)
    for row, prompt in enumerate(rollout.prompts):
        alone = policy.model.encode_prompts([prompt])
        torch.testing.assert_close(rollout.cond.embeds[row], alone.embeds[0], rtol=0, atol=1e-5)
        assert torch.equal(rollout.cond.mask[row], alone.mask[0])


def test_scores_come_in_row_order_with_their_prompts_and_metadata(policy, scoring):
    # Reference: the rewards called by hand on the media of every row.
    found = collect(policy, request(), sampler(5), KEY, scoring, 60.0, range(12))
    assert found.scores.parts["place"].tolist() == list(range(12))
    expected = redness(found.shown, found.rollout.prompts, [])
    torch.testing.assert_close(found.scores.total, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.thumbnails, thumbnail(found.shown))


def rows_keep_their_prompts(policy):
    """Whether every row's latents are those of its own prompt, sampled alone."""
    found = collect(policy, request(), sampler(12), KEY, None, 60.0, range(0))
    alone = [collect(policy, request(range(i, i + 1)), sampler(1), KEY, None, 60.0, range(0)) for i in range(12)]
    expected = torch.cat([one.rollout.latents for one in alone])
    return torch.allclose(found.rollout.latents, expected, rtol=0, atol=1e-5)


def test_defect_wrong_group_slicing_is_caught(policy, monkeypatch):
    assert rows_keep_their_prompts(policy)
    encode = policy.model.encode_prompts

    def shifted(prompts):
        """Conditions of rows i : i + n in place of i * n : (i + 1) * n."""
        distinct = list(dict.fromkeys(prompts))
        return encode([distinct[row % len(distinct)] for row in range(len(prompts))])

    monkeypatch.setattr(policy.model, "encode_prompts", shifted)
    assert not rows_keep_their_prompts(policy)


def test_defect_order_dependent_noise_is_caught(policy, monkeypatch):
    monkeypatch.setattr(
        draw, "normal", lambda ids, shape, *key: torch.randn(len(ids), *shape, generator=draw.generator(*key))
    )
    assert not rows_keep_their_prompts(policy)


def test_noise_differs_between_samples_and_steps(policy):
    found = collect(policy, request(), sampler(12), KEY, None, 60.0, range(12))
    other = collect(policy, request(), sampler(12), (0, 2), None, 60.0, range(12))
    assert found.scores is None
    latents = found.rollout.latents
    assert min((latents[i] - latents[j]).abs().max() for i in range(12) for j in range(i)) > 1e-2
    assert (latents - other.rollout.latents).flatten(1).abs().amax(1).min() > 1e-2


def test_a_rank_without_rows_collects_nothing(policy, scoring):
    found = collect(policy, request(range(0)), sampler(4), KEY, scoring, 60.0, range(4))
    assert found.rollout is None
    assert found.scores is None
    assert len(found.shown) == len(found.thumbnails) == 0


def test_a_reward_that_fails_is_named(policy):
    def broken(_media, _prompts, _metadata):
        raise RuntimeError("no such thing")

    with Scoring(Mix({"broken": (1.0, broken)})) as failing, pytest.raises(RewardError, match="'broken' failed"):
        collect(policy, request(), sampler(5), KEY, failing, 60.0, range(0))


def test_no_graph_is_kept_and_gradients_stay_on(policy):
    found = list(generating.generate(policy, PROMPTS[:1], torch.arange(1), torch.arange(1), sampler(1), KEY))
    assert not found[0][1].latents.requires_grad
    for _ in generating.generate(policy, PROMPTS[:2], torch.arange(2), torch.arange(2), sampler(1), KEY):
        assert torch.is_grad_enabled()  # no_grad must not leak from the generator into its consumer


# ---- statistics


def test_picture_statistics_written_out():
    # Reference: by hand. Contrast: deviations 1, 0, 2, 0. Group 0 = {(0, 2), (1, 1)}: deviations per colour 0.5, 0.5;
    # group 7 = {(0, 4), (2, 2)}: 1, 1. Diversity is their mean, 0.75.
    pictures = torch.tensor([[0.0, 2.0], [1.0, 1.0], [0.0, 4.0], [2.0, 2.0]])
    s = picture_statistics(pictures, torch.tensor([0, 0, 7, 7]))
    assert s == {"contrast": pytest.approx(0.75), "diversity": pytest.approx(0.75)}


def test_groups_of_one_do_not_count_in_diversity_unless_there_are_only_such():
    # Reference: by hand; without groups of two the deviation is taken across all pictures.
    pictures = torch.tensor([[0.0, 2.0], [1.0, 1.0], [5.0, 9.0]])
    assert picture_statistics(pictures, torch.tensor([3, 3, 4]))["diversity"] == pytest.approx(0.5)
    every = pictures.double().std(0, correction=0).mean().item()
    assert picture_statistics(pictures, torch.tensor([1, 2, 3]))["diversity"] == pytest.approx(every)


def test_blank_pictures_have_neither():
    s = picture_statistics(torch.full((4, 192), 0.5), torch.tensor([0, 0, 1, 1]))
    assert s == {"contrast": 0.0, "diversity": 0.0}


@pytest.mark.parametrize(("frames", "looked_at"), [(1, [0]), (2, [0, 1]), (9, [0, 4, 8])])
def test_a_thumbnail_is_the_mean_of_every_cell(frames, looked_at):
    # Reference: means of 4 x 8 blocks of the first, middle and last frame, by reshaping.
    media = torch.rand(2, frames, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    expected = media[:, looked_at].reshape(2, len(looked_at), 3, 8, 4, 8, 8).mean((4, 6)).flatten(1)
    torch.testing.assert_close(thumbnail(media), expected)


def test_clips_that_part_after_their_first_frame_are_diverse():
    # By hand: equal first frames, then all black or all white: deviation 0, 1/2 and 1/2 across the two samples.
    media = torch.zeros(2, 9, 3, 32, 32)
    media[1, 1:] = 1
    assert picture_statistics(thumbnail(media), torch.zeros(2))["diversity"] == pytest.approx(1 / 3)


# ---- evaluation


def held_out(scoring, num_samples=2, mini_batch=4):
    return HeldOut(
        prompts=PROMPTS,
        metadata=[{"row": i} for i in range(3)],
        num_samples=num_samples,
        sampler=sampler(mini_batch),
        key=(0, "eval"),
        scoring=scoring,
        deadline_s=60.0,
        num_shown=3,
    )


def test_an_evaluation_gives_identical_numbers_twice(policy, scoring):
    first, again = (evaluate(policy, held_out(scoring), World()) for _ in range(2))
    assert first.metrics == again.metrics
    assert torch.equal(first.shown, again.shown)
    assert (first.prompts, first.rewards) == (again.prompts, again.rewards)
    assert set(first.metrics) == {f"eval/{n}" for n in ("reward", "avg", "redness", "place", "contrast", "diversity")}
    assert first.metrics["eval/place"] == 1.0
    assert first.metrics["eval/reward"] == pytest.approx(first.metrics["eval/redness"])


def test_diversity_is_within_a_prompt(policy):
    # Reference: the statistics by hand from samples collected with the same noise, two a prompt.
    asked = Request(
        prompts=[PROMPTS[i // 2] for i in range(6)],
        metadata=[{}] * 6,
        ids=torch.arange(6),
        groups=torch.arange(6) // 2,
    )
    thumbnails = collect(policy, asked, sampler(4), (0, "eval"), None, 60.0, range(0)).thumbnails
    expected = picture_statistics(thumbnails, torch.tensor([0, 0, 1, 1, 2, 2]))
    found = evaluate(policy, held_out(None), World()).metrics
    assert found == {f"eval/{name}": pytest.approx(value, rel=1e-6) for name, value in expected.items()}
    assert expected["diversity"] != pytest.approx(
        picture_statistics(thumbnails, torch.tensor([0, 1, 0, 1, 0, 1]))["diversity"], rel=1e-3
    )


def test_an_evaluation_shows_samples_with_their_prompts_and_rewards(policy, scoring):
    # Reference: the reward by hand on the pictures that are shown.
    found = evaluate(policy, held_out(scoring), World())
    assert found.prompts == PROMPTS
    assert found.rewards == pytest.approx(redness(found.shown, found.prompts, []).tolist(), abs=1e-5)


def test_an_evaluation_does_not_depend_on_its_mini_batch(policy, scoring):
    # Reference: all six samples at once.
    whole = evaluate(policy, held_out(scoring, mini_batch=6), World()).metrics
    assert evaluate(policy, held_out(scoring, mini_batch=4), World()).metrics == pytest.approx(whole, abs=1e-5)


def test_an_evaluation_sees_the_values_in_use(policy, scoring):
    before = evaluate(policy, held_out(scoring), World()).metrics
    with policy.using([m.detach() + 0.3 for m in policy.masters]):
        assert evaluate(policy, held_out(scoring), World()).metrics["eval/reward"] != before["eval/reward"]
    assert evaluate(policy, held_out(scoring), World()).metrics == before


def test_without_rewards_an_evaluation_describes_pictures(policy):
    found = evaluate(policy, held_out(None), World())
    assert set(found.metrics) == {"eval/contrast", "eval/diversity"}
    assert found.rewards is None
