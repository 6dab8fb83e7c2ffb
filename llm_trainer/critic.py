"""The critic: what is the state before each token worth? V(s_t), in the unit of the rewards.

`critic: head` is a value head on the policy's own last hidden states, *detached*: the head learns
from them, but its error does not move the network. PPO's classic shares the states, and the value
error then pulls at the same weights as the policy; for a language model that starts out trained,
that disturbs what it already knows and makes the policy's step depend on the value coefficient.
Here the policy's gradient is the same whatever the critic says. The price: the head can only use
what the policy represents anyway.

`critic: model` is a network of its own, a copy of the starting policy below the same kind of head,
all of it trained: memory of a second model, and no such limit. With adapters, only those of the
copy are trained.

The head starts at zero, so V = 0 everywhere and the first advantages are the sums of the rewards to
come, discounted by γλ: with λ below 1 early tokens get less.
"""

import copy
from dataclasses import replace

from torch import Tensor, nn

from llm_trainer.models import Policy


class Critic(nn.Module):
    """LayerNorm and one linear map from a hidden state to a value; `body`: a network of its own."""

    def __init__(self, width: int, body: Policy | None = None):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.body = body  # a Policy is no module: its weights are listed by `weights`
        if body is not None:
            self.network = body.model

    def forward(self, states: Tensor) -> Tensor:
        """(batch, time, width) states before each token → (batch, time) values.

        Without a body the states are the policy's, and no gradient flows into them.
        """
        states = states.float() if self.body else states.detach().float()
        return self.out(self.norm(states)).squeeze(-1)

    def weights(self) -> list[nn.Parameter]:
        """What learns: the head, and the body if there is one."""
        return [weight for weight in self.parameters() if weight.requires_grad]


def make_critic(policy: Policy, *, own_body: bool) -> Critic:
    """A critic for this policy, on its device. Call it before anything is learned."""
    body = replace(policy, model=copy.deepcopy(policy.model)) if own_body else None
    return Critic(policy.head_weight.shape[1], body).to(policy.device)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 − Var(returns − values)/Var(returns) over the response tokens; 0 where returns are equal.

    1 for a critic that is never wrong, 0 for a constant, negative for one that is worse. Blind to
    an error that is the same everywhere. With λ below 1 the returns contain the values themselves.
    """
    values, returns = values[mask], returns[mask]
    spread = returns.var(correction=0)
    return (1 - (returns - values).var(correction=0) / spread).item() if spread > 0 else 0.0
