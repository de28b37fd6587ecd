"""Check the transformer's probabilities, what it sees, and that an interrupted training goes on."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # threads that wait for each other cost more than they help

from benchmarks import transformer  # noqa: E402
from dynskip_jax.data.source_code import read_code  # noqa: E402

FILE = 0


def model_of(vocabulary=40):
    torch.manual_seed(0)
    return transformer.Transformer(vocabulary, FILE, pointer=True).eval()


def tokens_of(time, *starts):
    tokens = torch.from_numpy(np.random.default_rng(0).integers(1, 40, (1, time)))
    tokens[:, [0, *starts]] = FILE
    return tokens


@torch.no_grad()
def test_probabilities_sum_to_one_and_the_loss_is_theirs():
    model, tokens = model_of(), tokens_of(60, 30)
    targets = tokens.roll(-1, 1)
    output = model(tokens)
    p = output.probabilities(tokens)
    torch.testing.assert_close(p.sum(-1), torch.ones(1, 60))
    torch.testing.assert_close(
        p.gather(2, targets[..., None])[..., 0].log(), output.log_likelihood(tokens, targets)
    )


@torch.no_grad()
def test_a_step_sees_its_own_file_up_to_itself():
    model, tokens = model_of(), tokens_of(60, 30)
    before = model(tokens).probabilities(tokens)[0]
    changed = tokens.clone()
    changed[0, 10:30] = 7
    changed[0, 50:] = 7
    after = model(changed).probabilities(changed)[0]
    is_same = (before - after).abs().amax(-1) < 1e-6
    assert is_same.tolist() == [True] * 10 + [False] * 20 + [True] * 20 + [False] * 10


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Replace the standard library by packages of files that are shorter than a window."""
    for package in ("first", "second", "third"):
        (tmp_path / package).mkdir()
        for file in range(8):
            lines = [f"{package}_{file} = value_{line % 3} + {line}" for line in range(8)]
            (tmp_path / package / f"{file}.py").write_text("\n".join(lines))
    corpus, _ = found = read_code(tmp_path, 10_000)
    monkeypatch.setattr(transformer, "read_code", lambda *_, **__: found)
    monkeypatch.setattr(transformer, "_TIME", 64)
    monkeypatch.setattr(transformer, "_WIDTH", 16)
    return corpus


def test_evaluation_in_windows_equals_reading_at_once(code):
    model = model_of(len(code.vocabulary))
    targets = torch.from_numpy(code.dev).long()[None]
    inputs = targets.roll(1)
    with torch.no_grad():
        nats = -model(inputs).log_likelihood(inputs, targets)
    perplexity = transformer.evaluate(model, code, "dev")["perplexity"]
    assert perplexity == pytest.approx(nats.mean().exp().item(), rel=1e-5)


def test_an_interrupted_training_goes_on_as_if_it_had_not_been(code, tmp_path, monkeypatch):
    results = [tmp_path / name / "result.json" for name in ("whole", "interrupted")]
    transformer.train(results[0].parent, pointer=True, epochs=2)

    def interrupted(tokens, step, seed):
        if step == 3:
            raise KeyboardInterrupt
        return read(tokens, step, seed)

    read = transformer.train_batch
    monkeypatch.setattr(transformer, "_SAVE_EVERY", 1)
    with monkeypatch.context() as patched:
        patched.setattr(transformer, "train_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transformer.train(results[1].parent, pointer=True, epochs=2)
    transformer.train(results[1].parent, pointer=True, epochs=2)
    assert results[0].read_text() == results[1].read_text()
