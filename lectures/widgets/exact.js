// Expectations over every response of a small softmax policy, as toy_models.exact has them.
//
// A policy is a table of logits, one row per state. Either a state is a position (the same row
// whatever stands before it, `tree: false`), or a prefix (`tree: true`; rows by length, then in
// dictionary order, as AutoregressivePolicy.states lists them). Responses come in dictionary
// order, as toy_models.exact.enumerate_responses lists them.
// Leaves out: groups of responses, and several prompts.

// { responses: [{ tokens, rows, logp, prob }], probs } — rows[t] is the row of the table that
// predicts tokens[t]; logp is per token, nats; probs is the table after the softmax.
export function enumerate({ table, length, end = null, tree = false }) {
  const probs = table.map(softmax);
  const vocab = table[0].length;
  const branching = vocab - (end === null ? 0 : 1);
  const starts = [0];
  for (let t = 1; t < length; t += 1) starts.push(starts[t - 1] + branching ** (t - 1));
  const responses = [];
  const extend = (tokens, rows, logp, prob, within) => {
    const t = tokens.length;
    if (t === length || (t > 0 && tokens[t - 1] === end)) {
      responses.push({ tokens, rows, logp, prob });
      return;
    }
    const row = tree ? starts[t] + within : t;
    for (let token = 0; token < vocab; token += 1) {
      const p = probs[row][token];
      const rank = end !== null && token > end ? token - 1 : token; // among those that go on
      const next = within * branching + rank;
      extend([...tokens, token], [...rows, row], [...logp, Math.log(p)], prob * p, next);
    }
  };
  extend([], [], [], 1, 0);
  return { responses, probs };
}

export function softmax(logits) {
  const top = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - top));
  const total = powers.reduce((sum, x) => sum + x, 0);
  return powers.map((x) => x / total);
}

// Σ_y π(y) f(y): `value` takes a response and its index.
export function expectation({ responses }, value) {
  return responses.reduce((sum, response, i) => sum + response.prob * value(response, i), 0);
}

// ‖u‖² of a whole response: no response visits a row twice, so it is the sum over its tokens of
// |e_token − p|² = 1 − 2 p_token + |p|².
export function squaredScore({ probs }, { tokens, rows }) {
  return rows.reduce((sum, row, t) => sum + 1 - 2 * probs[row][tokens[t]] + dot(probs[row], probs[row]), 0);
}

// Mean (flat, row after row of the table) and trace of the covariance of the gradient estimate
// g(y) = Σ_t w_t(y) u_t(y), where u_t is the gradient of the t-th token's log-probability by the
// table and `weights` takes a response and its index and returns w, one number per token.
// A response never visits a row twice, so |g|² = Σ_t w_t² |u_t|².
export function moments({ responses, probs }, weights) {
  const mean = probs.map((row) => row.map(() => 0));
  let second = 0;
  responses.forEach((response, i) => {
    const w = weights(response, i);
    response.rows.forEach((row, t) => {
      const p = probs[row];
      const token = response.tokens[t];
      const push = response.prob * w[t];
      let norm = 1 - 2 * p[token];
      for (let v = 0; v < p.length; v += 1) {
        mean[row][v] -= push * p[v];
        norm += p[v] * p[v];
      }
      mean[row][token] += push;
      second += push * w[t] * norm;
    });
  });
  const flat = mean.flat();
  return { mean: flat, trace: second - dot(flat, flat) };
}

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
export const norm = (a) => Math.sqrt(dot(a, a));
export const cosine = (a, b) => dot(a, b) / (norm(a) * norm(b));
