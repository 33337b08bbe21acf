"""[train.train_policy.remote_reward] and [validation.remote_reward], with a service in threads of this process."""

import importlib.util
import json
from pathlib import Path

import pytest

from sanarl.errors import UserError

honours = pytest.mark.honours
TASK = "train.train_policy"
PEER = Path(__file__).parents[2] / "rewards" / "service" / "peer.py"
SCORES = {"a": {"a": [0.5, 3.0], "b": [0.25, 0.25]}, "c": {"c": [1.0, 1.0]}}


@pytest.fixture
def make_peer():
    """A function that gives a service whose scores are these for every pair of pictures."""
    spec = importlib.util.spec_from_file_location("reward_peer", PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []

    def make(scores):
        made.append(module.Peer(scores))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def peer(monkeypatch, make_peer):
    """The service of the environment, whose scores are SCORES."""
    one = make_peer(SCORES)
    monkeypatch.setenv("REMOTE_REWARD_ENQUEUE_URL", f"{one.url}/enqueue")
    monkeypatch.setenv("REMOTE_REWARD_FETCH_URL", f"{one.url}/pull")
    return one


def functions(key, **fields):
    """A --set argument for the only entry of reward_fns."""
    entry = {"name": "a", **fields}
    inside = ", ".join(f"{name} = {json.dumps(value)}" for name, value in entry.items())
    return f"{key}.reward_fns=[{{ {inside} }}]"


@pytest.fixture
def totals(lab, peer):  # noqa: ARG001  (its addresses are in the environment)
    """A function that gives the rewards of two pictures under a configuration."""
    import torch

    from sanarl.training import rewarding

    def score(table, *overrides):
        asked = [f"{TASK}.use_remote_reward=true", f"{table}.batch_size=2"]
        asked += ["validation.enable=true", "validation.use_remote_reward=true"]
        config = lab.loaded("nft", *asked, functions(f"{TASK}.remote_reward"), *overrides).config
        which = {TASK: rewarding.training_rewards, "validation": rewarding.evaluation_rewards}[table.rpartition(".")[0]]
        scoring = rewarding.scoring(which(config), rests=False)
        item = {"tag": "colors", "include": []}
        scoring.submit([0, 1], torch.rand(2, 1, 3, 8, 8), ["x", "y"], [item, item])
        found = scoring.collect(30).total.tolist()
        scoring.close()
        return found

    return score


def cases(table):
    """Overrides and the rewards they give. Reference: by hand from SCORES; without overrides 0.5 and 3."""
    return [
        ([functions(table)], [0.5, 3.0]),
        ([functions(table, name="c")], [1.0, 1.0]),
        ([functions(table, weight=0.5)], [0.25, 1.5]),
        ([functions(table, score_key="b")], [0.25, 0.25]),
        ([functions(table, score_key="a+b")], [0.75, 3.25]),
        ([functions(table, clip_min=1.0)], [1.0, 3.0]),
        ([functions(table, clip_max=2.0)], [0.5, 2.0]),
        ([functions(table), f"{table}.scale=2.0"], [1.0, 6.0]),
        ([functions(table), f"{table}.reward_clip_min=1.0"], [1.0, 3.0]),
        ([functions(table), f"{table}.reward_clip_max=1.0"], [0.5, 1.0]),
    ]


KEYS = ("scale", "reward_clip_min", "reward_clip_max")
ENTRY = ("name", "weight", "score_key", "clip_min", "clip_max")
TABLES = (f"{TASK}.remote_reward", "validation.remote_reward")
ALL = [f"{table}.{key}" for table in TABLES for key in (*KEYS, *(f"reward_fns.*.{key}" for key in ENTRY))]


@honours(f"{TASK}.use_remote_reward", "validation.use_remote_reward", *ALL)
@pytest.mark.parametrize("table", TABLES)
def test_scores_become_a_reward(totals, table):
    assert [totals(table, *overrides) for overrides, _ in cases(table)] == [wanted for _, wanted in cases(table)]


@honours(*(f"{table}.reward_fns.*.{key}" for table in TABLES for key in ("url", "only_strict")))
@pytest.mark.parametrize("table", TABLES)
def test_where_and_how_strictly(totals, peer, make_peer, table):
    other = make_peer({"a": {"a": [2.0, 1.0]}})
    assert totals(table, functions(table, url=other.url)) == [2.0, 1.0]
    assert peer.requests == []
    peer.scores = {"gen_eval": {"gen_eval_score": [1.0, 0.0]}}
    for strict in (True, False):
        totals(table, functions(table, name="gen_eval", only_strict=strict))
        assert peer.requests[-1][0]["geneval_only_strict"] is strict


@honours(*(f"{table}.{key}" for table in TABLES for key in ("batch_size", "deadline_s", "patience_s")))
@pytest.mark.parametrize("table", TABLES)
def test_requests(totals, peer, table):
    peer.scores = {"a": {"a": [1.0]}}
    totals(table, functions(table), f"{table}.batch_size=1")
    assert [len(head["prompts"]) for head, _ in peer.requests] == [1, 1]
    peer.polls = 10**6
    with pytest.raises(UserError, match=r"no scores of 'a' within 0\.05 s, 3 times"):
        totals(table, functions(table), f"{table}.deadline_s=0.05")
    peer.script["enqueue"] = ["drop"] * 99
    with pytest.raises(UserError, match=r"did not take a request for [0-9] s; last: .*disconnected"):
        totals(table, functions(table), f"{table}.patience_s=0.05")


def test_the_tables_alone_have_no_effect(lab):
    for key in ("scale=2.0", "reward_clip_min=0.0", "reward_clip_max=1.0", "batch_size=2"):
        for table in TABLES:
            assert lab.idle("nft", f"{table}.{key}") == [table]


def test_an_evaluation_is_scored_as_the_training_unless_it_names_its_own(lab):
    from sanarl.training import rewarding

    remote = [f"{TASK}.use_remote_reward=true", functions(f"{TASK}.remote_reward"), "validation.enable=true"]
    none, own = "validation.reward_function={}", 'validation.reward_function={ "shapes" = 2.0 }'

    def found(*overrides):
        return rewarding.evaluation_rewards(lab.loaded("nft", *remote, *overrides).config)

    assert found(none).reward_fns[0].name == "a"
    assert found(own)[0][:2] == ("shapes", 2.0)
    assert found(none, functions("validation.remote_reward", name="c")).reward_fns[0].name == "c"
    assert found(none, "validation.use_remote_reward=false") == ()
    sft = lab.loaded("sft", "validation.enable=true", "validation.use_remote_reward=true", none).config
    with pytest.raises(UserError, match=r"validation\.remote_reward names no reward"):
        rewarding.evaluation_rewards(sft)
