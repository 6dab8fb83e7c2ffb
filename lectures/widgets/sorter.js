// The sorter of lecture 02: prompt (1, 0, 2), a table of nine logits, the same after every prefix.
// Leaves out: other prompts.

// toy_models.exact.random_logits(3, 3, scale=0.3, seed=0)
const BASE = [
  [0.03771906632801799, -0.039631458987390566, 0.1921267951329846],
  [0.03147003514591191, -0.16070081194833327, 0.10847851647284541],
  [0.39120001353904116, 0.2841242889387726, -0.21112057074209778],
];
const PROMPT = [1, 0, 2];
const RIGHT = [0, 1, 2];

// The table of logits with `skill` nats added to those of the right tokens.
export const skilledTable = (skill) =>
  BASE.map((row, t) => row.map((x, v) => (v === RIGHT[t] ? x + skill : x)));

export const isRight = (tokens) => tokens.every((token, t) => token === RIGHT[t]);

// 0 to 5 points: entries of the prompt that occur in the answer, and neighbours in order.
export function partialCredit(tokens) {
  const included = PROMPT.filter((token) => tokens.includes(token)).length;
  return included + tokens.filter((token, t) => t > 0 && token >= tokens[t - 1]).length;
}
