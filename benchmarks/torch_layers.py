"""Make the PyTorch candidates: its LSTM, and a dynamic skip written in PyTorch. Imports PyTorch."""

import collections
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks.candidate import Candidate, Ready
from benchmarks.jax_layers import torch_order
from benchmarks.shapes import Shape
from dynskip_jax import functional as F

Loss = Callable[[], torch.Tensor]


class DynamicSkipLSTM(nn.Module):
    """An LSTM with dynamic skips in eager PyTorch (Gui et al. 2019, Eq. 1 and 2).

    It is a Python loop over time with a queue of the last K states.

    Args:
        in_features: Size of an input.
        hidden: H, the size of h and c.
        max_skip: K, the largest skip.
        mix: λ, the weight of the chosen state.
        agent_features: Number of hidden units of the agent.
        hoist: Whether to project all inputs in one product before the loop, with explicit gates; otherwise
            `nn.LSTMCell` is used. Both are common in PyTorch code, and neither is always faster.
    """

    def __init__(
        self, in_features: int, hidden: int, max_skip: int, mix: float, agent_features: int, *, hoist: bool
    ):
        super().__init__()
        self.hidden, self.max_skip, self.mix, self.hoist = hidden, max_skip, mix, hoist
        self.cell = nn.LSTMCell(in_features, hidden)
        self.agent = nn.Sequential(
            nn.Linear(hidden + in_features, agent_features), nn.Tanh(), nn.Linear(agent_features, max_skip)
        )

    def forward(
        self, x: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run all steps.

        Args:
            x: Inputs, (time, batch, in).
            actions: k in 1..K to replay, (time, batch); None samples them.

        Returns:
            h, (time, batch, hidden), and the log-probabilities and k of the choices, both (time, batch).
        """
        time, batch, _ = x.shape
        rows = torch.arange(batch, device=x.device)
        h = c = x.new_zeros(batch, self.hidden)
        past_h = collections.deque([h] * self.max_skip, maxlen=self.max_skip)  # newest first
        past_c = collections.deque([c] * self.max_skip, maxlen=self.max_skip)
        # With unbind, the gradient of a step is not padded with zeros to the size of x, as for x[t].
        steps, seen = x.unbind(), x.detach().unbind()
        if self.hoist:
            steps = (x @ self.cell.weight_ih.T + (self.cell.bias_ih + self.cell.bias_hh)).unbind()
        hs, log_probs, chosen = [], [], []
        for t in range(time):
            logits = self.agent(torch.cat([h.detach(), seen[t]], dim=-1))
            policy = Categorical(logits=logits, validate_args=False)  # checks would synchronize the GPU
            slot = policy.sample() if actions is None else actions[t] - 1
            log_probs.append(policy.log_prob(slot))
            chosen.append(slot + 1)
            h_in = torch.stack(tuple(past_h))[slot, rows]
            c_in = torch.stack(tuple(past_c))[slot, rows]
            if self.mix != 1:
                h_in = self.mix * h_in + (1 - self.mix) * h
                c_in = self.mix * c_in + (1 - self.mix) * c
            if self.hoist:
                i, f, g, o = (steps[t] + h_in @ self.cell.weight_hh.T).chunk(4, dim=-1)
                c = torch.tanh(g) * torch.sigmoid(i) + c_in * torch.sigmoid(f)
                h = torch.sigmoid(o) * torch.tanh(c)
            else:
                h, c = self.cell(steps[t], (h_in, c_in))
            past_h.appendleft(h)
            past_c.appendleft(c)
            hs.append(h)
        return torch.stack(hs), torch.stack(log_probs), torch.stack(chosen)

    def load(self, params: F.LayerParams) -> "DynamicSkipLSTM":
        """Copy the weights of this project's layer into this module, and return the module."""
        agent = params.skip
        with torch.no_grad():
            for ours, theirs in _lstm_pairs(params.transition, self.cell, ""):
                theirs.copy_(ours)
            first, _, last = self.agent
            # The module has one matrix for h ⊕ x.
            first.weight.copy_(_tensor(np.concatenate([agent.w_h, agent.w_x])).T)
            first.bias.copy_(_tensor(agent.b))
            last.weight.copy_(_tensor(agent.w_out).T)
            last.bias.copy_(_tensor(agent.b_out))
        return self


def device() -> torch.device:
    """Return the device: the GPU if JAX uses one, and otherwise the CPU."""
    return torch.device("cuda" if jax.default_backend() == "gpu" else "cpu")


def makers(
    params: F.LayerParams, shape: Shape, x: Any, actions: Any = None
) -> dict[str, Callable[[str], Candidate]]:
    """Return the functions that make PyTorch's candidates, by name.

    Args:
        params: Weights of the dynamic skip; the plain LSTM uses those of the transition.
        shape: Sizes of the problem.
        x: Inputs, (batch, time, in).
        actions: k in 1..K to replay, (batch, time); None samples them.
    """
    where = device()
    x = _time_major(x, where).requires_grad_()
    actions = None if actions is None else _time_major(actions, where).long()

    def plain() -> tuple[nn.Module, Loss]:
        lstm = nn.LSTM(shape.features, shape.hidden)
        with torch.no_grad():
            for ours, theirs in _lstm_pairs(params.transition, lstm, "_l0"):
                theirs.copy_(ours)
        lstm.to(where)
        return lstm, lambda: (lstm(x)[0] ** 2).sum()

    def loop(hoist: bool) -> tuple[nn.Module, Loss]:
        units = params.skip.b.shape[0]
        layer = DynamicSkipLSTM(shape.features, shape.hidden, shape.max_skip, shape.mix, units, hoist=hoist)
        layer.load(params).to(where)

        def loss() -> torch.Tensor:
            h, log_prob, _ = layer(x, actions)
            return (h**2).sum() + log_prob.sum()

        return layer, loss

    def candidate(name: str, make: Callable[[], tuple[nn.Module, Loss]]) -> Candidate:
        module, loss = make()
        return Candidate(name, lambda: _ready(list(module.parameters()), x, loss, where))

    return {
        "torch.nn.LSTM": partial(candidate, make=plain),
        "torch loop, LSTMCell, dynamic:k": partial(candidate, make=partial(loop, hoist=False)),
        "torch loop, hoisted, dynamic:k": partial(candidate, make=partial(loop, hoist=True)),
    }


def _ready(weights: list[torch.Tensor], x: torch.Tensor, loss: Loss, device: torch.device) -> Ready:
    """Return the prepared candidate; its step computes the loss and the gradients of the weights and of x."""

    def step():
        value = loss()
        *of_weights, of_x = torch.autograd.grad(value, [*weights, x])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return value.detach(), (of_weights, of_x)

    def peak_bytes() -> int | None:
        if device.type != "cuda":
            return None
        step()  # after this step the libraries have allocated their workspaces
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before

    return Ready(step, peak_bytes)


def _lstm_pairs(lstm: F.LSTMParams, module: nn.Module, suffix: str):
    """Yield pairs of our weights, in PyTorch's layout, and PyTorch's weights; its second bias becomes 0."""
    w_x, w_h, b = (_tensor(torch_order(leaf)) for leaf in lstm)
    yield w_x.T, getattr(module, f"weight_ih{suffix}")
    yield w_h.T, getattr(module, f"weight_hh{suffix}")
    yield b, getattr(module, f"bias_ih{suffix}")
    yield torch.zeros_like(b), getattr(module, f"bias_hh{suffix}")


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _time_major(array: Any, device: torch.device) -> torch.Tensor:
    return _tensor(array).transpose(0, 1).contiguous().to(device)
