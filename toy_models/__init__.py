"""Problems small enough to know the exact answer.

    sorting.py    the task: prompts, right answers, three rewards
    policies.py   four policies, from a table of logits to a tree over prefixes
    exact.py      the laboratory: expectations, gradients and variances by enumeration
    critics.py    what a state is worth: by table, by features, by enumeration
    train.py      one short loop for every row of `policy_gradients.ALGORITHMS`
    trust_region.py  natural gradient, TRPO and PPO-penalty on any of the policies
    silent_bugs.py   a trainer of replaceable parts, and the mistakes people plant in it
    race.py       rows of the table at equal samples, over seeds
    routing.py    the router of a sparse model
    actor_learner.py   samplers, a queue and a learner in simulated time
    stale_learning.py  what their staleness does to J
    serving.py    lengths, shared prefixes, packing, speculative decoding in closed form
    preferences.py  reward models, DPO, IPO and KTO from comparisons, against exact optima
    preference_race.py  PPO, GRPO, a reward model and DPO at equal budgets of judged responses
    rewards.py    rules, rubrics, judges, shaping, several objectives, demonstrations
    sparse_rewards.py  curriculum, hindsight, novelty where a reward is hardly ever met
    tool_use.py   several turns with a tool in a limited child process
    soft_control.py    control as inference: messages, their cure, Gibbs on a tree of tokens
    planning.py   search with a known score: shooting, cross-entropy, best-of-n, beams, trees
    finite_mdp.py   exact action values of a finite process, and tables that learn them
    sorting_env.py  the sorting task as a gymnasium environment, a token per step
    value_based.py  deep Q-learning: DQN, Double, Dueling, prioritised replay
    linear_quadratic.py    a task with continuous actions and closed-form answers
    continuous_control.py  DDPG, TD3 and SAC: one agent, a few switches
    state_distributions.py discounted, average-reward and finite-horizon forms of the theorem

    task = SortingTask(vocab_size=3, length=3)
    policy = PositionalPolicy(3, 3, seed=0)
    history = train(policy, task.distinct_prompts(), task.reward, "grpo", steps=60, seed=0)

Everything runs in seconds on one CPU core. Imports `policy_gradients` and nothing else of ours.
"""
