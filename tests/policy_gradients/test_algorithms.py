"""The table of algorithms: rows as published, losses put together right, errors that help."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import policy_gradients as pg

NAMES = ["reinforce", "rloo", "ppo", "grpo", "dr_grpo", "gspo", "cispo", "dapo", "sapo", "maxrl"]
EACH = pytest.mark.parametrize("name", NAMES)
TENSORS = (
    "logp", "logp_old", "logp_ref", "advantages", "mask", "values", "values_old", "returns",
)  # fmt: skip


def full(batch, **changes):
    fields = {name: getattr(batch, name) for name in TENSORS}
    return pg.Batch(**{**fields, "length": 7, **changes})


def by_hand(name, b):
    """Each published loss, written out once more without the table."""
    A, mask, args = b.advantages, b.mask, (b.logp, b.logp_old, b.advantages)
    match name:
        case "reinforce" | "rloo" | "maxrl":
            return pg.sum_per_sequence(-A * b.logp, mask)
        case "ppo":
            policy = pg.ppo_clip(*args, eps_low=0.2, eps_high=0.2)
            critic = pg.value_loss(b.values, b.values_old, b.returns, clip=0.2)
            return pg.mean_per_token(policy, mask) + 0.5 * pg.mean_per_token(critic, mask)
        case "grpo":
            policy = pg.grpo_loss(*args, mask, eps_low=0.2, eps_high=0.2)
            return policy + 0.04 * pg.mean_per_sequence(pg.k3(b.logp, b.logp_ref), mask)
        case "dr_grpo":
            policy = pg.ppo_clip(*args, eps_low=0.2, eps_high=0.2)
            return pg.mean_fixed_length(policy, mask, length=7)
        case "gspo":
            s = pg.sequence_ratio(b.logp, b.logp_old, mask)
            return -torch.minimum(s * A, s.clamp(1 - 3e-4, 1 + 4e-4) * A).mean()
        case "cispo":
            weight = (b.logp - b.logp_old).exp().clamp(max=1.28).detach()
            return pg.mean_per_token(-weight * A * b.logp, mask)
        case "dapo":
            return pg.mean_per_token(pg.ppo_clip(*args, eps_low=0.2, eps_high=0.28), mask)
        case "sapo":
            tau = torch.where(A > 0, torch.ones_like(A), 1.05 * torch.ones_like(A))
            gate = 4 / tau * torch.sigmoid(tau * ((b.logp - b.logp_old).exp() - 1))
            return pg.mean_per_sequence(-A * gate, mask)


def test_the_table_has_the_ten_rows_in_the_order_of_the_course():
    assert list(pg.ALGORITHMS) == NAMES
    assert all(row.name == name for name, row in pg.ALGORITHMS.items())


@EACH
def test_row_loss_is_the_published_loss(batch, name):
    batch.logp.requires_grad_()
    batch.values = batch.values.clone().requires_grad_()
    leaves = (batch.logp, batch.values)
    loss, expected = pg.ALGORITHMS[name].loss(full(batch)), by_hand(name, batch)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-14)
    for g, g_expected in zip(
        torch.autograd.grad(loss, leaves, allow_unused=True),
        torch.autograd.grad(expected, leaves, allow_unused=True),
        strict=True,
    ):
        assert (g is None) == (g_expected is None)
        if g is not None:
            torch.testing.assert_close(g, g_expected, rtol=0, atol=1e-14)


def test_published_choices():
    rows = pg.ALGORITHMS
    knobs = {name: dict(row.knobs) for name, row in rows.items()}
    assert knobs == {
        "reinforce": {},
        "rloo": {},
        "ppo": {"eps_low": 0.2, "eps_high": 0.2},
        "grpo": {"eps_low": 0.2, "eps_high": 0.2},
        "dr_grpo": {"eps_low": 0.2, "eps_high": 0.2},
        "gspo": {"eps_low": 3e-4, "eps_high": 4e-4},
        "cispo": {"eps_low": 1.0, "eps_high": 0.28},
        "dapo": {"eps_low": 0.2, "eps_high": 0.28},
        "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
        "maxrl": {},
    }
    placements = {name: row.kl for name, row in rows.items() if row.needs_reference}
    assert placements == {"rloo": "reward", "ppo": "reward", "grpo": "loss"}
    assert [name for name, row in rows.items() if row.dynamic_sampling] == ["dapo"]
    assert [name for name, row in rows.items() if row.needs_critic] == ["ppo"]
    assert [n for n, row in rows.items() if not row.needs_group] == ["reinforce", "ppo"]
    assert [n for n, row in rows.items() if not row.needs_old_logp] == [
        "reinforce",
        "rloo",
        "maxrl",
    ]
    assert [n for n, row in rows.items() if not row.zero_advantage_is_silent] == ["ppo", "grpo"]
    assert rows["dr_grpo"].advantage is pg.group_centered  # neither std …
    assert rows["dr_grpo"].aggregation is pg.mean_fixed_length  # … nor length


@EACH
def test_a_row_is_frozen(name):
    row = pg.ALGORITHMS[name]
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.kl_coefficient = 1.0
    with pytest.raises(TypeError):
        row.knobs["eps_low"] = 0.5


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(KeyError) as error:
        pg.ALGORITHMS["grop"]
    assert "unknown algorithm 'grop'" in str(error.value)
    assert all(name in str(error.value) for name in NAMES)
    assert "grop" not in pg.ALGORITHMS


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
@EACH
def test_padding_reaches_neither_value_nor_gradient(batch, name, garbage):
    results = []
    for filling in (0.0, garbage):
        dirty = {
            field: torch.where(batch.mask, getattr(batch, field).expand(4, 6), filling).clone()
            for field in TENSORS
            if field != "mask"
        }
        dirty["logp"].requires_grad_()
        dirty["values"].requires_grad_()
        loss = pg.ALGORITHMS[name].loss(full(batch, **dirty))
        grads = torch.autograd.grad(loss, (dirty["logp"], dirty["values"]), allow_unused=True)
        results.append((loss, *(g for g in grads if g is not None)))
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
@EACH
def test_the_mask_may_be_bool_integer_or_float(batch, name, dtype):
    row = pg.ALGORITHMS[name]
    assert torch.equal(row.loss(full(batch)), row.loss(full(batch, mask=batch.mask.to(dtype))))


@EACH
def test_float32_stays_float32_under_a_float64_default(batch, name):
    single = full(batch, **{f: getattr(batch, f).float() for f in TENSORS if f != "mask"})
    torch.set_default_dtype(torch.float64)
    try:
        loss = pg.ALGORITHMS[name].loss(single)
    finally:
        torch.set_default_dtype(torch.float32)
    assert loss.dtype == torch.float32
    expected = pg.ALGORITHMS[name].loss(full(batch))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("split", [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[3], [2], [1], [0]]])
@EACH
def test_micro_batches_and_one_big_batch_have_one_gradient(batch, name, split):
    row = pg.ALGORITHMS[name]
    batch.logp.requires_grad_()
    (whole,) = torch.autograd.grad(row.loss(full(batch)), batch.logp)
    for rows in split:
        slices = {field: getattr(batch, field)[rows] for field in TENSORS}
        row.loss(full(batch, **slices, sequences=4, tokens=int(batch.mask.sum()))).backward()
    torch.testing.assert_close(batch.logp.grad, whole, rtol=0, atol=1e-15)


@EACH
def test_an_empty_response_is_an_ordinary_row(batch, name):
    mask = batch.mask.clone()
    mask[2] = False
    batch.logp.requires_grad_()
    loss = pg.ALGORITHMS[name].loss(full(batch, mask=mask, sequences=4))
    (g,) = torch.autograd.grad(loss, batch.logp)
    assert g.isfinite().all()
    assert (g[2] == 0).all()
    others = [0, 1, 3]
    slices = {f: getattr(batch, f)[others] for f in TENSORS}
    torch.testing.assert_close(
        loss, pg.ALGORITHMS[name].loss(full(batch, **slices, sequences=4)), rtol=0, atol=1e-14
    )


def test_the_reference_gets_no_gradient(batch):
    batch.logp_ref.requires_grad_()
    batch.logp.requires_grad_()
    loss = pg.ALGORITHMS["grpo"].loss(full(batch))
    assert torch.autograd.grad(loss, batch.logp_ref, allow_unused=True) == (None,)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("grpo", "logp_old"),
        ("grpo", "logp_ref"),
        ("dr_grpo", "length"),
        ("ppo", "values"),
        ("ppo", "values_old"),
        ("ppo", "returns"),
        ("cispo", "logp_old"),
        ("rloo", "advantages"),
    ],
)
def test_a_missing_field_is_named(batch, name, field):
    with pytest.raises(ValueError, match=f"{name} needs {field}, which is None"):
        pg.ALGORITHMS[name].loss(full(batch, **{field: None}))


def test_fields_a_row_does_not_need_may_be_missing(batch):
    bare = pg.Batch(batch.logp, None, batch.advantages, batch.mask)
    for name in ("reinforce", "rloo", "maxrl"):
        pg.ALGORITHMS[name].loss(bare)
    without_kl = dataclasses.replace(pg.ALGORITHMS["grpo"], kl_coefficient=0.0)
    own = without_kl.loss(pg.Batch(batch.logp, batch.logp_old, batch.advantages, batch.mask))
    expected = pg.grpo_loss(
        batch.logp, batch.logp_old, batch.advantages, batch.mask, eps_low=0.2, eps_high=0.2
    )
    assert torch.equal(own, expected)
    assert not without_kl.needs_reference
    assert without_kl.zero_advantage_is_silent
    frozen_critic = dataclasses.replace(pg.ALGORITHMS["ppo"], value_coefficient=0.0)
    frozen_critic.loss(pg.Batch(batch.logp, batch.logp_old, batch.advantages, batch.mask))


@EACH
def test_any_object_with_the_needed_fields_is_a_batch(batch, name):
    row = pg.ALGORITHMS[name]
    needed = {"logp", "mask", "advantages"}
    needed |= {"logp_old"} if row.needs_old_logp else set()
    needed |= {"logp_ref"} if row.kl == "loss" else set()
    needed |= {"values", "values_old", "returns"} if row.needs_critic else set()
    own = SimpleNamespace(**{field: getattr(batch, field) for field in needed})
    if name == "dr_grpo":
        own.length = 7
    assert torch.equal(row.loss(own), row.loss(full(batch)))
    for field in needed - {"logp", "mask"}:
        lacking = SimpleNamespace(**{f: x for f, x in vars(own).items() if f != field})
        with pytest.raises(ValueError, match=f"{name} needs {field}, which is None or missing"):
            row.loss(lacking)


@pytest.mark.parametrize("field", ["logp_old", "advantages", "mask", "logp_ref"])
def test_a_wrong_shape_in_the_batch_is_named(batch, field):
    wrong = torch.ones(4, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match=field) as error:
        pg.ALGORITHMS["grpo"].loss(full(batch, **{field: wrong}))
    assert "(4, 5)" in str(error.value)
    assert "(4, 6)" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl": "rewards"}, r"kl must be one of .*'loss', 'reward'.*got 'rewards'"),
        ({"kl": "none"}, "kl_coefficient 0.04 has no effect"),
        ({"kl_coefficient": -1.0}, "kl_coefficient must be at least 0"),
        ({"knobs": {"epsilon": 0.2}}, r"takes the knobs \['dual_clip', 'eps_high', 'eps_low'\]"),
        ({"knobs": {"eps_low": 0.2}}, r"needs \['eps_high', 'eps_low'\]"),
        ({"surrogate": lambda logp, adv: logp, "knobs": {}}, r"asks for \['adv'\]"),
        ({"aggregation": lambda x, mask, *, count=None: x.sum()}, r"asks for \['count'\]"),
    ],
)
def test_an_impossible_row_is_refused_before_any_work(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(pg.ALGORITHMS["grpo"], **change)


def test_a_new_algorithm_is_a_new_row(batch):
    def mirror(logp, logp_old, advantages, *, strength):
        return pg.unclipped(logp, logp_old, advantages) + strength * pg.k2(logp, logp_old)

    mine = dataclasses.replace(
        pg.ALGORITHMS["dapo"],
        name="mine",
        advantage=partial(pg.group_standardized, ddof=0),
        surrogate=mirror,
        knobs={"strength": 0.3},
        aggregation=partial(pg.mean_fixed_length, length=9),
    )
    loss = mine.loss(pg.Batch(batch.logp, batch.logp_old, batch.advantages, batch.mask, length=9))
    per_token = mirror(batch.logp, batch.logp_old, batch.advantages, strength=0.3)
    assert torch.equal(loss, pg.mean_fixed_length(per_token, batch.mask, length=9))
    table = pg.algorithm_table({**pg.ALGORITHMS, "mine": mine})
    assert "| `mine` | `group_standardized` | `mirror` (strength=0.3) |" in table


def test_sequence_rewards_apply_the_penalty_only_where_the_row_puts_it(batch):
    scores = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    args = (scores, batch.logp.requires_grad_(), batch.logp_ref, batch.mask)
    for name in ("reinforce", "grpo", "dapo"):
        assert torch.equal(pg.ALGORITHMS[name].sequence_rewards(*args), scores)
        pg.ALGORITHMS[name].sequence_rewards(scores, batch.logp, None, batch.mask)
    rloo = pg.ALGORITHMS["rloo"]
    penalty = [(batch.logp - batch.logp_ref)[i, :n].sum() for i, n in enumerate((3, 1, 2, 4))]
    expected = scores - rloo.kl_coefficient * torch.stack(penalty)
    found = rloo.sequence_rewards(*args)
    torch.testing.assert_close(found, expected.detach())
    assert not found.requires_grad
    by_k3 = dataclasses.replace(rloo, kl_estimator=pg.k3).sequence_rewards(*args)
    assert (by_k3 - found).abs().max() > 1e-3  # the estimator is not ignored
    with pytest.raises(ValueError, match="rloo needs logp_ref"):
        rloo.sequence_rewards(scores, batch.logp, None, batch.mask)


def test_grpo_loss_takes_the_count_of_the_whole_step(batch):
    args = (batch.logp, batch.logp_old, batch.advantages, batch.mask)
    half = pg.grpo_loss(*args, **batch.eps, sequences=8)
    assert torch.equal(half, pg.grpo_loss(*args, **batch.eps) / 2)


def test_critic_free_advantages_take_prompts_by_group(batch):
    rewards = torch.rand(3, 4, dtype=torch.float64)
    for row in pg.ALGORITHMS.values():
        if not row.needs_critic:
            assert row.advantage(rewards).shape == rewards.shape


def test_the_table_as_markdown():
    lines = pg.algorithm_table().splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert len({line.count("|") for line in lines}) == 1
    for name, line in zip(NAMES, lines[2:], strict=True):
        row = pg.ALGORITHMS[name]
        assert line.startswith(f"| `{name}` |")
        assert row.paper in line
        assert all(f"{knob}={value:g}" in line for knob, value in row.knobs.items())


def test_the_palette_tells_all_rows_apart_in_colour_and_in_grey():
    assert list(pg.PALETTE) == NAMES
    okabe_ito = {
        "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    }  # fmt: skip
    assert {look["color"] for look in pg.PALETTE.values()} <= okabe_ito
    assert len({look["marker"] for look in pg.PALETTE.values()}) == len(NAMES)
    pairs = {(look["color"], look["linestyle"]) for look in pg.PALETTE.values()}
    assert len(pairs) == len(NAMES)


def test_titles_and_papers_are_there():
    for row in pg.ALGORITHMS.values():
        assert row.title
        assert any(year in row.paper for year in ("1992", "2017", "2024", "2025", "2026"))
