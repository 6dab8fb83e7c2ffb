"""`sampler: vllm`: vLLM writes the responses. NOT RUN AGAINST vLLM YET, only against a stand-in.

Written from vLLM's documentation of its offline engine (0.10.2, the first that reports processed
log-probabilities, to 0.15); the tests' stand-in takes the documented arguments and no others. vLLM
runs in this process and keeps GPU_SHARE of the GPU's memory for its own copy of the weights and its
cache. It rounds otherwise than the learner, so the learner recomputes the old log-probabilities,
and `importance: token` or `sequence` corrects for who wrote the response.

Left out: several GPUs per copy, a server of its own, and sleep mode (lending memory to training).
"""

import os

import torch

from llm_trainer.batch import Prompts, Responses
from llm_trainer.config import Config, RunError
from llm_trainer.models import Policy

GPU_SHARE = 0.3
LONGEST_PROMPT = 1024  # tokens; vLLM refuses longer ones by name


class VllmSampler:
    """vLLM's engine with the policy's weights."""

    def __init__(self, policy: Policy, config: Config):
        # Read when vllm is imported: the engine is in this process, where `sync` can reach it.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm

        self.policy, self.params = policy, vllm.SamplingParams
        room = policy.model.config.max_position_embeddings
        self.engine = vllm.LLM(
            model=policy.model.name_or_path,
            dtype=config.dtype,
            seed=config.seed,
            gpu_memory_utilization=GPU_SHARE,
            max_model_len=min(room, LONGEST_PROMPT + config.max_new_tokens),
            generation_config="vllm",  # not the model's own top-p, top-k and temperature
            logprobs_mode="processed_logprobs",  # at the sampling temperature
        )

    def sample(
        self,
        prompts: Prompts,
        *,
        group: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> Responses:
        """As `rollout.sample`; a resumed run draws what the uninterrupted one would have drawn."""
        # vLLM gives response g of a prompt seed + g: the blocks of two prompts must not overlap.
        count, device = len(prompts.tokens), generator.device
        blocks = torch.randint(2**31 // group, (count,), generator=generator, device=device)
        rows = zip(prompts.tokens.tolist(), prompts.lengths.tolist(), strict=True)
        outputs = self.engine.generate(
            [{"prompt_token_ids": row[len(row) - length :]} for row, length in rows],
            [
                self.params(
                    n=group,
                    temperature=temperature,
                    top_p=1.0,
                    top_k=-1,
                    min_p=0.0,
                    repetition_penalty=1.0,
                    max_tokens=max_new_tokens,
                    stop_token_ids=[self.policy.end_id],  # stays in the response
                    ignore_eos=True,  # other end tokens do not end it, as in our own loop
                    logprobs=0,  # of the chosen token only
                    detokenize=False,
                    seed=block * group,
                )
                for block in blocks.tolist()
            ],
            use_tqdm=False,
        )
        return self.read([response for output in outputs for response in output.outputs])

    def read(self, written: list) -> Responses:
        """vLLM's responses, (batch,), as tensors on the policy's device."""
        time = max(len(response.token_ids) for response in written)
        tokens = torch.full((len(written), time), self.policy.pad_id)
        logp, mask = torch.zeros(tokens.shape), torch.zeros(tokens.shape, dtype=torch.bool)
        for row, response in enumerate(written):
            ids = list(response.token_ids)
            if response.finish_reason == "stop" and ids[-1] != self.policy.end_id:
                raise RunError(f"vLLM ended a response at token {ids[-1]}, not at its end token")
            tokens[row, : len(ids)] = torch.tensor(ids)
            mask[row, : len(ids)] = True
            chosen = [seen[i].logprob for i, seen in zip(ids, response.logprobs, strict=True)]
            logp[row, : len(ids)] = torch.tensor(chosen)
        to = self.policy.device
        return Responses(tokens.to(to), mask.to(to), logp.to(to))

    def sync(self) -> None:
        """Hand over the present weights, adapters merged in; forget what the old ones cached."""
        weights = self.policy.weights()
        self.engine.apply_model(lambda model: model.load_weights(weights.items()))
        self.engine.reset_prefix_cache()
