"""Train a transformer of equal size on source code, a peer of the models of `experiments.code`.

    python -m benchmarks.transformer --run-dir DIR --pointer

It reads the same tokens, sees only the file that it is in, and has the same scores. It multiplies
in bfloat16 in training. The same command goes on with an interrupted training. It needs PyTorch
(the extra `bench`), and writes `DIR/result.json`.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from benchmarks import run_command
from dynskip_jax.config.flags import Positive, Seed
from dynskip_jax.data.language import LanguageCorpus
from dynskip_jax.data.source_code import read_code
from dynskip_jax.errors import UserError
from dynskip_jax.storage.files import write_atomically
from dynskip_jax.training.progress import Progress

# 4.7 million parameters with the vocabulary of the standard library, as many as the LSTM.
_WIDTH = 224
_LAYERS = 4
_HEADS = 4
_REACH = 500  # tokens that attention and pointer see, the newest included
_DROPOUT = 0.1
_ROWS = 2  # windows of a training batch
_TIME = 512  # tokens of a window
_WARM_UP = 100  # updates
_WEIGHT_DECAY = 0.1
_SAVE_EVERY = 200  # updates


class Output(NamedTuple):
    """Log-probabilities up to a constant, and what the pointer copies; None without a pointer."""

    logits_BTV: Tensor
    log_shares_BTT: Tensor | None = None  # of each earlier token
    gate_BT: Tensor | None = None  # log-odds of copying

    def log_likelihood(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return log p of the targets, in nats, where `tokens_BT` may be copied."""
        log_softmax = -nnf.cross_entropy(self.logits_BTV.mT, targets_BT, reduction="none")
        if self.gate_BT is None:
            return log_softmax
        is_hit = tokens_BT[:, None] == targets_BT[:, :, None]
        # A finite number: log 0 has no gradient.
        log_copied = self.log_shares_BTT.masked_fill(~is_hit, -1e4).logsumexp(-1)
        log_kept = nnf.logsigmoid(-self.gate_BT) + log_softmax
        return torch.logaddexp(log_kept, nnf.logsigmoid(self.gate_BT) + log_copied)

    def probabilities(self, tokens_BT: Tensor) -> Tensor:
        """Return p of every token of the vocabulary, (batch, time, vocabulary)."""
        p_BTV = self.logits_BTV.softmax(-1)
        if self.gate_BT is None:
            return p_BTV
        gate_BT1 = self.gate_BT.sigmoid()[..., None]
        copied_BTT = gate_BT1 * self.log_shares_BTT.exp()
        places_BTT = tokens_BT[:, None].expand(copied_BTT.shape)
        return ((1 - gate_BT1) * p_BTV).scatter_add(2, places_BTT, copied_BTT)


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what enters it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Dropout(_DROPOUT))
        inner = [nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU("tanh")]
        self.feed = nn.Sequential(*inner, nn.Linear(4 * _WIDTH, _WIDTH), nn.Dropout(_DROPOUT))

    def forward(self, x_BTD: Tensor, bias_BTT: Tensor) -> Tensor:
        """Return h of this layer; `bias_BTT` is -inf for tokens that a step does not see."""
        batch, steps, _ = x_BTD.shape
        projected = self.query_key_value(self.norm(x_BTD)).view(batch, steps, 3, _HEADS, -1)
        query_BHTE, key_BHTE, value_BHTE = projected.permute(2, 0, 3, 1, 4)
        bias_B1TT = bias_BTT[:, None].to(value_BHTE.dtype)
        attended_BHTE = nnf.scaled_dot_product_attention(
            rotated(query_BHTE), rotated(key_BHTE), value_BHTE, attn_mask=bias_B1TT
        )
        x_BTD = x_BTD + self.out(attended_BHTE.transpose(1, 2).reshape(x_BTD.shape))
        return x_BTD + self.feed(x_BTD)


class Transformer(nn.Module):
    """A decoder whose softmax shares the embedding; a pointer copies tokens of the same file.

    The pointer compares h(t) with the state before each earlier token and with the token, as
    `--agent-keys followed` does. `file` is read before the first token of each file.
    """

    def __init__(self, vocabulary: int, file: int, *, pointer: bool):
        super().__init__()
        self.file = file
        self.scale = math.sqrt(_WIDTH)
        self.embedding = nn.Embedding(vocabulary, _WIDTH)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.dropout = nn.Dropout(_DROPOUT)
        self.pointer = None
        if pointer:
            parts = {p: nn.Linear(_WIDTH, _WIDTH, bias=False) for p in ("query", "key", "token")}
            self.pointer = nn.ModuleDict(parts | {"gate": nn.Linear(_WIDTH, 1)})

        # The last product of each part is small, so that the sum of all layers is, too.
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                factor = 0.25 if name.endswith(("out.0.weight", "feed.3.weight")) else 1.0
                nn.init.normal_(parameter, 0, factor * parameter.shape[1] ** -0.5)
        nn.init.normal_(self.embedding.weight, 0, 0.02)

    def forward(self, tokens_BT: Tensor) -> Output:
        """Read windows of text."""
        visible_BTT = visible(tokens_BT, self.file)
        bias_BTT = torch.zeros(visible_BTT.shape).masked_fill_(~visible_BTT, -torch.inf)
        embedded_BTD = self.embedding(tokens_BT) * self.scale
        h_BTD = self.dropout(embedded_BTD)
        for block in self.blocks:
            h_BTD = block(h_BTD, bias_BTT)
        h_BTD = self.dropout(self.norm(h_BTD))

        logits_BTV = nnf.linear(h_BTD, self.embedding.weight).float() + self.bias
        if self.pointer is None:
            return Output(logits_BTV)

        # No state stands before the first token of a file.
        is_inside_BT1 = (tokens_BT != self.file)[..., None]
        before_BTD = nnf.pad(h_BTD[:, :-1], (0, 0, 1, 0)) * is_inside_BT1
        key_BTD = self.pointer["key"](before_BTD) + self.pointer["token"](embedded_BTD)
        scores_BTT = self.pointer["query"](h_BTD) @ key_BTD.mT / self.scale
        log_shares_BTT = (scores_BTT.float() + bias_BTT).log_softmax(-1)
        return Output(logits_BTV, log_shares_BTT, self.pointer["gate"](h_BTD)[..., 0].float())


def visible(tokens_BT: Tensor, file: int) -> Tensor:
    """Return which tokens each step sees: the last ones of its file, itself included."""
    file_BT = (tokens_BT == file).cumsum(1)
    step_T = torch.arange(tokens_BT.shape[1])
    back_TT = step_T[:, None] - step_T[None]
    is_near_TT = (back_TT >= 0) & (back_TT < _REACH)
    return (file_BT[:, :, None] == file_BT[:, None]) & is_near_TT


def rotated(x_BHTE: Tensor) -> Tensor:
    """Return queries or keys turned by angles that grow with the step (Su et al. 2021, RoPE)."""
    steps, features = x_BHTE.shape[2:]
    frequency_E = 10_000 ** (-torch.arange(0, features, 2) / features)
    angle_TE = torch.arange(steps)[:, None] * frequency_E
    cos_TE = angle_TE.cos().to(x_BHTE.dtype)
    sin_TE = angle_TE.sin().to(x_BHTE.dtype)
    left, right = x_BHTE.chunk(2, -1)
    return torch.cat([left * cos_TE - right * sin_TE, right * cos_TE + left * sin_TE], -1)


def train_batch(tokens: np.ndarray, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of an update; each epoch cuts and orders windows differently."""
    count = len(tokens) // _TIME
    epoch, number = divmod(step, count // _ROWS)
    rng = np.random.default_rng([seed, epoch])
    offset = rng.integers(_TIME)
    windows = rng.permutation(count)[number * _ROWS :][:_ROWS]
    places_BT = (offset + windows[:, None] * _TIME + np.arange(_TIME)) % len(tokens)
    # The last token, `<file>`, is read before the first one.
    inputs, targets = tokens[places_BT - 1], tokens[places_BT]
    return torch.from_numpy(inputs).long(), torch.from_numpy(targets).long()


@torch.no_grad()
def evaluate(model: Transformer, corpus: LanguageCorpus, split: str) -> dict[str, float]:
    """Return the perplexity, and the accuracies of all tokens, of names and of new names.

    Each window of `_TIME` tokens is read after the one before it, so that all tokens see as many.
    """
    model.eval()
    targets = torch.from_numpy(corpus.splits[split]).long()
    inputs = nnf.pad(targets.roll(1), (_TIME, 0), value=model.file)
    nats = []
    ranks = []
    for start in range(0, len(targets), _TIME):
        tokens_BT = inputs[None, start : start + 2 * _TIME]
        targets_T1 = targets[start : start + _TIME, None]
        p_TV = model(tokens_BT).probabilities(tokens_BT)[0, _TIME:]
        of_target_T1 = p_TV.gather(1, targets_T1)
        nats.append(-of_target_T1[:, 0].log())
        ranks.append(1 + (p_TV > of_target_T1).sum(-1))
    model.train()

    found = {"perplexity": torch.cat(nats).double().mean().exp()}
    groups = {"all": targets >= 0, **corpus.vocabulary.groups(targets)}
    for group, is_of_group in groups.items():
        for most in (1, 5):
            is_found = torch.cat(ranks)[is_of_group] <= most
            found[f"{group}_top{most}"] = is_found.double().mean()
    return {name: value.item() for name, value in found.items()}


def make_optimizer(model: Transformer) -> torch.optim.Optimizer:
    """Return AdamW; matrices decay, except for the embedding."""
    groups = {0.0: [], _WEIGHT_DECAY: []}
    for name, parameter in model.named_parameters():
        decays = parameter.dim() > 1 and not name.startswith("embedding")
        groups[decays * _WEIGHT_DECAY].append(parameter)
    of_groups = [dict(params=group, weight_decay=decay) for decay, group in groups.items()]
    return torch.optim.AdamW(of_groups, betas=(0.9, 0.98), fused=True)


def rate_factor(step: int, total: int) -> float:
    """Return the factor of the learning rate: a linear rise, then a cosine down to 0.02."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / total))
    return min(1, (step + 1) / _WARM_UP) * (0.02 + 0.98 * cosine)


def train(
    run_dir: Path,
    pointer: bool = False,
    epochs: Positive = 3.0,
    learning_rate: Positive = 0.002,
    seed: Seed = 0,
    test: bool = True,
) -> None:
    """Train a transformer and write its scores.

    Args:
        run_dir: Folder of the checkpoint and of the result.
        pointer: Copy tokens of the same file.
        epochs: Number of epochs; the learning rate falls over all of them.
        learning_rate: Largest learning rate.
        test: Evaluate test after training.
    """
    settings = {name: str(value) for name, value in locals().items() if name != "run_dir"}
    torch.manual_seed(seed)
    corpus, _ = read_code(None, max_tokens=1_200_000)
    model = Transformer(len(corpus.vocabulary), corpus.vocabulary.restart_token, pointer=pointer)
    optimizer = make_optimizer(model)
    per_epoch = len(corpus.train) // _TIME // _ROWS
    total = max(1, round(epochs * per_epoch))

    checkpoint = run_dir / "checkpoint.pt"
    unfinished = run_dir / "checkpoint.tmp"
    run_dir.mkdir(parents=True, exist_ok=True)
    state = dict(settings=settings, step=0, dev={})
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["settings"] != settings:
            raise UserError(f"{checkpoint} is of other settings: name another --run-dir")
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        torch.set_rng_state(state.pop("random"))

    def save() -> None:
        now = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
        torch.save(state | now | dict(random=torch.get_rng_state()), unfinished)
        unfinished.replace(checkpoint)

    with Progress(total, "training", start=state["step"]) as progress:
        for step in range(state["step"], total):
            inputs, targets = train_batch(corpus.train, step, seed)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * rate_factor(step, total)
            with torch.autocast("cpu", torch.bfloat16):
                output = model(inputs)
            loss = -output.log_likelihood(inputs, targets).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            state["step"] = done = step + 1
            progress.advance(perplexity=loss.exp().item)
            if done == total or done % per_epoch == 0:
                state["dev"][done / per_epoch] = evaluate(model, corpus, "dev")
            if done == total or done % _SAVE_EVERY == 0:
                save()

    parameters = sum(map(torch.numel, model.parameters()))
    result = dict(settings=settings, parameters=parameters, dev=state["dev"])
    if test:
        result["test"] = evaluate(model, corpus, "test")
    print(json.dumps(result, indent=1))
    write_atomically(run_dir / "result.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run_command(train)
