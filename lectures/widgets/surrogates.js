// One token under each surrogate of policy_gradients.surrogates: the same formulas, for the
// browser; both are tested on one set of numbers.
//
// Each function takes a token { ratio, advantage, logp } and the surrogate's knobs and returns
//   term    what the token adds to the objective that is maximised, −loss of the token
//   weight  the derivative of that term by log π, the factor on ∇log π
// ratio is ρ = π_θ / π_old, for gspo the sequence's ρ(y); logp is log π_θ in nats, needed by
// reinforce and cispo only. Advantages are constants. Knobs have Python's names.
// Leaves out: averaging over tokens, and KL terms.

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// A log π: no ratio.
export const reinforce = ({ advantage, logp }) => ({ term: advantage * logp, weight: advantage });

// ρA: no bound.
export function unclipped({ ratio, advantage }) {
  return { term: ratio * advantage, weight: ratio * advantage };
}

// min(ρA, clamp(ρ, 1 − ε_low, 1 + ε_high) A), and for A < 0 not below cA if dual_clip = c is given.
export function ppoClip({ ratio, advantage }, { eps_low, eps_high, dual_clip = null }) {
  const plain = ratio * advantage;
  const bounded = clamp(ratio, 1 - eps_low, 1 + eps_high) * advantage;
  const floor = dual_clip !== null && advantage < 0 ? dual_clip * advantage : -Infinity;
  if (plain > bounded) return { term: Math.max(bounded, floor), weight: 0 };
  return plain < floor ? { term: floor, weight: 0 } : { term: plain, weight: plain };
}

// PPO's clip on the sequence's ratio ρ(y). The weight is that of each token of the sequence, before
// the average over its tokens.
export const gspo = (token, { eps_low, eps_high }) => ppoClip(token, { eps_low, eps_high });

// sg[clamp(ρ, 1 − ε_low, 1 + ε_high)] A log π: the weight is bounded, never 0.
export function cispo({ ratio, advantage, logp }, { eps_low, eps_high }) {
  const weight = clamp(ratio, 1 - eps_low, 1 + eps_high) * advantage;
  return { term: weight * logp, weight };
}

// A (4/τ) σ(τ(ρ − 1)): a soft gate, whose τ follows the sign of A.
export function sapo({ ratio, advantage }, { tau_pos, tau_neg }) {
  const tau = advantage > 0 ? tau_pos : tau_neg;
  const gate = sigmoid(tau * (ratio - 1));
  return { term: (4 / tau) * gate * advantage, weight: 4 * gate * (1 - gate) * ratio * advantage };
}
