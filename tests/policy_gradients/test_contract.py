"""What holds for every public function: dtypes, masks, named errors, no side effects.

One table of calls with valid inputs; each test changes one thing in it.
"""

import inspect

import pytest
import torch

import policy_gradients as pg

P, G, T, V = 2, 3, 5, 7
B = P * G
MASK = torch.arange(T) < torch.tensor([5, 3, 1, 4, 0, 2]).unsqueeze(1)
DONE = MASK & ~torch.cat([MASK[:, 1:], torch.zeros(B, 1, dtype=torch.bool)], 1)
FLOAT = {torch.float32: 1e-4, torch.float64: 1e-10}


def draw(*shape, seed, positive=False):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.abs() if positive else x


LOGP, LOGP_OLD, LOGP_REF = (-draw(B, T, seed=s, positive=True) for s in (1, 2, 3))
REWARDS = draw(P, G, seed=4, positive=True)
ADVANTAGES = draw(B, 1, seed=5)
TOKENS = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(6))
ROOT = draw(4, 4, seed=7)
CLIP = {"eps_low": 0.2, "eps_high": 0.3}
PAIRS = {
    name: draw(B, seed=seed)
    for seed, name in enumerate(("chosen", "rejected", "chosen_ref", "rejected_ref"))
}
OLD_AND_NEW = {"logp": LOGP, "logp_old": LOGP_OLD}
AND_REF = {"logp": LOGP, "logp_ref": LOGP_REF}

# function → (tensors in order, knobs)
CALLS = {
    pg.token_log_probs: ({"logits": draw(B, T, V, seed=8), "tokens": TOKENS}, {"temperature": 0.7}),
    pg.entropy: ({"logits": draw(B, T, V, seed=8)}, {"temperature": 0.7}),
    pg.response_mask: ({"tokens": TOKENS}, {"eos_id": 3}),
    pg.batch_centered: ({"rewards": REWARDS}, {}),
    pg.group_centered: ({"rewards": REWARDS}, {}),
    pg.group_standardized: ({"rewards": REWARDS}, {}),
    pg.leave_one_out: ({"rewards": REWARDS}, {}),
    pg.max_only: ({"rewards": REWARDS}, {}),
    pg.maxrl: ({"rewards": REWARDS}, {}),
    pg.optimal_baseline: ({"rewards": draw(B, seed=9), "scores": draw(B, 4, seed=10)}, {}),
    pg.reward_to_go: ({"rewards": draw(B, T, seed=11), "done": DONE}, {"gamma": 0.9}),
    pg.gae: (
        {"rewards": draw(B, T, seed=11), "values": draw(B, T, seed=12), "done": DONE},
        {"gamma": 0.9, "lam": 0.8},
    ),
    pg.whiten: ({"advantages": draw(B, T, seed=13), "mask": MASK}, {}),
    pg.shape_rewards_with_kl: (
        {"scores": draw(B, seed=14), **AND_REF, "mask": MASK},
        {"beta": 0.1},
    ),
    pg.token_ratio: (OLD_AND_NEW, {}),
    pg.sequence_ratio: ({**OLD_AND_NEW, "mask": MASK}, {}),
    pg.truncated_importance_weight: (
        {"logp_learner": LOGP, "logp_sampler": LOGP_OLD},
        {"cap": 2.0},
    ),
    pg.reinforce: ({"logp": LOGP, "advantages": ADVANTAGES}, {}),
    pg.unclipped: ({**OLD_AND_NEW, "advantages": ADVANTAGES}, {}),
    pg.ppo_clip: ({**OLD_AND_NEW, "advantages": ADVANTAGES}, {**CLIP, "dual_clip": 1.5}),
    pg.gspo: ({**OLD_AND_NEW, "advantages": ADVANTAGES, "mask": MASK}, CLIP),
    pg.cispo: ({**OLD_AND_NEW, "advantages": ADVANTAGES}, CLIP),
    pg.sapo: ({**OLD_AND_NEW, "advantages": ADVANTAGES}, {}),
    pg.mean_per_sequence: ({"x": LOGP, "mask": MASK}, {}),
    pg.mean_per_token: ({"x": LOGP, "mask": MASK}, {}),
    pg.mean_fixed_length: ({"x": LOGP, "mask": MASK}, {"length": 4}),
    pg.sum_per_sequence: ({"x": LOGP, "mask": MASK}, {}),
    pg.k1: (AND_REF, {}),
    pg.k2: (AND_REF, {}),
    pg.k3: (AND_REF, {}),
    pg.exact_kl: ({"logits": draw(B, T, V, seed=8), "logits_ref": draw(B, T, V, seed=15)}, {}),
    pg.value_loss: (
        {"values": LOGP, "values_old": LOGP_OLD, "returns": draw(B, T, seed=16)},
        {"clip": 0.4},
    ),
    pg.bradley_terry: ({"chosen": PAIRS["chosen"], "rejected": PAIRS["rejected"]}, {"margin": 0.3}),
    pg.dpo: (PAIRS, {"beta": 0.3, "label_smoothing": 0.1}),
    pg.ipo: (PAIRS, {"tau": 0.3}),
    pg.kto: (
        {
            "logp": PAIRS["chosen"],
            "logp_ref": PAIRS["chosen_ref"],
            "desirable": torch.arange(B) % 2,
            "kl_logp": PAIRS["rejected"],
            "kl_logp_ref": PAIRS["rejected_ref"],
        },
        {"beta": 0.3, "lambda_d": 1.2, "lambda_u": 0.7},
    ),
    pg.overlong_penalty: (
        {"lengths": draw(B, seed=17, positive=True) * 9},
        {"max_length": 12, "cache": 7},
    ),
    pg.dapo_filter: ({"correctness": (REWARDS > 0.5).double()}, {}),
    pg.natural_gradient_step: (
        {"grad": draw(4, seed=18), "fisher": ROOT @ ROOT.T},
        {"delta": 0.1},
    ),
    pg.grpo_loss: ({**OLD_AND_NEW, "advantages": ADVANTAGES, "mask": MASK}, CLIP),
    pg.clip_fraction: ({**OLD_AND_NEW, "advantages": ADVANTAGES, "mask": MASK}, CLIP),
    pg.ratio_quantiles: ({**OLD_AND_NEW, "mask": MASK}, {}),
    pg.approximate_kl: ({**OLD_AND_NEW, "mask": MASK}, {}),
    pg.sampled_entropy: ({"logp": LOGP, "mask": MASK}, {}),
    pg.mean_over_tokens: ({"x": LOGP, "mask": MASK}, {}),
    pg.zero_contrast_share: ({"rewards": REWARDS}, {}),
    pg.effective_sample_size: ({"log_weights": PAIRS["chosen"]}, {}),
    pg.length_statistics: ({"mask": MASK}, {}),
}
NOT_ON_TENSORS = {
    pg.adaptive_beta,
    pg.adaptive_beta_dual_ascent,
    pg.adaptive_beta_proportional,
    pg.algorithm_table,
}
MASKS = {"mask", "done", "desirable"}
REPORTS = {  # functions that return Python numbers
    pg.clip_fraction,
    pg.ratio_quantiles,
    pg.approximate_kl,
    pg.sampled_entropy,
    pg.mean_over_tokens,
    pg.zero_contrast_share,
    pg.effective_sample_size,
    pg.length_statistics,
}
EACH = pytest.mark.parametrize("function", CALLS, ids=lambda f: f.__name__)


def call(function, tensors=None, **knobs):
    own, own_knobs = CALLS[function]
    return function(*{**own, **(tensors or {})}.values(), **{**own_knobs, **knobs})


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def cast(tensors, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}


def test_the_table_holds_every_public_function():
    public = [getattr(pg, name) for name in pg.__all__]
    functions = {f for f in public if inspect.isfunction(f)}
    assert functions == set(CALLS) | NOT_ON_TENSORS


@EACH
def test_tensors_are_positional_and_knobs_keyword_only(function):
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    positional = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert positional == len(CALLS[function][0])
    assert len(kinds) - positional == kinds.count(inspect.Parameter.KEYWORD_ONLY)


@EACH
def test_docstring_names_shapes_and_errors(function):
    for part in ("Args:", "Returns:", "Raises:"):
        assert part in function.__doc__, f"{function.__name__} has no {part}"
    for name in inspect.signature(function).parameters:
        assert name in function.__doc__, f"{function.__name__} does not explain {name}"


@pytest.mark.parametrize(
    "function",
    [f for f in CALLS if f not in REPORTS | {pg.response_mask, pg.dapo_filter}],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("default", FLOAT)
def test_the_result_has_the_dtype_of_the_inputs_whatever_the_default(function, dtype, default):
    truth = outputs(call(function))
    torch.set_default_dtype(default)
    try:
        results = outputs(call(function, cast(CALLS[function][0], dtype)))
    finally:
        torch.set_default_dtype(torch.float32)
    for result, true in zip(results, truth, strict=True):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), true, rtol=FLOAT[dtype], atol=FLOAT[dtype])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function",
    [f for f, (tensors, _) in CALLS.items() if MASKS & set(tensors)],
    ids=lambda f: f.__name__,
)
def test_masks_may_be_bool_integer_or_float(function, kind):
    tensors = CALLS[function][0]
    boolean = {name: x.bool() for name, x in tensors.items() if name in MASKS}
    other = {name: x.to(kind) for name, x in boolean.items()}
    for a, b in zip(outputs(call(function, boolean)), outputs(call(function, other)), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@EACH
def test_inputs_are_not_modified_and_a_second_call_agrees(function):
    tensors = {name: x.clone() for name, x in CALLS[function][0].items()}
    first, second = outputs(call(function, tensors)), outputs(call(function, tensors))
    for name, x in CALLS[function][0].items():
        assert torch.equal(tensors[name], x)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


TENSORS = [(f, name) for f, (tensors, _) in CALLS.items() for name in tensors]
EACH_TENSOR = pytest.mark.parametrize(
    ("function", "name"), TENSORS, ids=[f"{f.__name__}-{name}" for f, name in TENSORS]
)


@EACH_TENSOR
def test_a_wrong_shape_is_named(function, name):
    x = CALLS[function][0][name]
    wrong = x.unsqueeze(0)
    if function is pg.overlong_penalty:
        assert call(function, {name: wrong}).shape == wrong.shape  # any shape is right
        return
    with pytest.raises(ValueError, match=name) as error:
        call(function, {name: wrong})
    assert str(tuple(wrong.shape)) in str(error.value)


@pytest.mark.parametrize(
    ("function", "name"),
    [(f, name) for f, name in TENSORS if len(CALLS[f][0]) > 1 and name != "kl_logp"],
)
def test_a_batch_of_another_size_is_named_with_both_shapes(function, name):
    x = CALLS[function][0][name]
    wrong = torch.cat([x, x[:1]])
    with pytest.raises(ValueError, match=name) as error:
        call(function, {name: wrong})
    assert str(tuple(wrong.shape)) in str(error.value)
    assert any(
        str(tuple(other.shape)) in str(error.value)
        for key, other in CALLS[function][0].items()
        if key != name
    )


@EACH_TENSOR
def test_a_wrong_dtype_is_named(function, name):
    x = CALLS[function][0][name]
    if name in MASKS:
        with pytest.raises(ValueError, match=f"{name}.*only 0 and 1"):
            call(function, {name: x.double() * 2})
        return
    if name in ("correctness", "lengths"):
        call(function, {name: x.long()})  # counts and 0/1 scores may be integers
    else:
        wrong = x.double() if name == "tokens" else x.long()
        with pytest.raises(TypeError, match=f"{name}.*{wrong.dtype}"):
            call(function, {name: wrong})
    with pytest.raises(TypeError, match=f"{name}.*list"):
        call(function, {name: x.tolist()})


MIXED = [
    (f, name)
    for f, name in TENSORS
    if sum(x.is_floating_point() for x in CALLS[f][0].values()) > 1
    and CALLS[f][0][name].is_floating_point()
]


@pytest.mark.parametrize(("function", "name"), MIXED)
def test_float32_among_float64_is_refused_with_both_named(function, name):
    wrong = CALLS[function][0][name].float()
    with pytest.raises((TypeError, ValueError), match=r"float32") as error:
        call(function, {name: wrong})
    assert name in str(error.value)
    assert "float64" in str(error.value)


BAD_KNOBS = [
    (pg.token_log_probs, "temperature", 0.0),
    (pg.entropy, "temperature", -1.0),
    (pg.group_standardized, "ddof", 2),
    (pg.group_standardized, "eps", -1e-4),
    (pg.reward_to_go, "gamma", 1.5),
    (pg.gae, "gamma", -0.1),
    (pg.gae, "lam", float("nan")),
    (pg.whiten, "ddof", 3),
    (pg.whiten, "eps", -1.0),
    (pg.shape_rewards_with_kl, "beta", -0.1),
    (pg.truncated_importance_weight, "cap", 0.0),
    (pg.ppo_clip, "eps_low", -0.2),
    (pg.ppo_clip, "eps_high", float("nan")),
    (pg.ppo_clip, "dual_clip", 1.0),
    (pg.gspo, "eps_low", -0.2),
    (pg.cispo, "eps_high", -0.2),
    (pg.sapo, "tau_pos", 0.0),
    (pg.sapo, "tau_neg", -1.0),
    (pg.mean_per_sequence, "sequences", 0),
    (pg.mean_per_token, "tokens", -3),
    (pg.mean_fixed_length, "length", 0),
    (pg.mean_fixed_length, "sequences", 0),
    (pg.sum_per_sequence, "sequences", 0),
    (pg.value_loss, "clip", 0.0),
    (pg.dpo, "beta", 0.0),
    (pg.dpo, "label_smoothing", 0.5),
    (pg.dpo, "label_smoothing", -0.1),
    (pg.ipo, "tau", 0.0),
    (pg.kto, "beta", 0.0),
    (pg.kto, "lambda_d", -1.0),
    (pg.kto, "lambda_u", -1.0),
    (pg.dapo_filter, "low", 1.0),
    (pg.overlong_penalty, "cache", 0),
    (pg.overlong_penalty, "max_length", 3),
    (pg.natural_gradient_step, "delta", 0.0),
    (pg.clip_fraction, "eps_low", -0.1),
    (pg.ratio_quantiles, "quantiles", (0.5, 1.1)),
]


@pytest.mark.parametrize(("function", "knob", "value"), BAD_KNOBS)
def test_an_impossible_knob_is_named_with_its_value(function, knob, value):
    with pytest.raises(ValueError, match=knob) as error:
        call(function, **{knob: value})
    shown = value if isinstance(value, tuple) else f"{value:g}"
    assert str(shown) in str(error.value)
