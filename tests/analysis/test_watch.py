"""`watch` agrees with Jacobians by brute force, whatever the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdnn
from hdnn.analysis import monitor, watch
from hdnn.errors import HdnnError


def brute(rest: list[nn.Module], h: Tensor) -> Tensor:
    """``(samples, m_N, m_l)``: the Jacobian of what is still to come, sample by sample."""
    found = []
    for sample in h:
        J = torch.autograd.functional.jacobian(
            lambda x: nn.Sequential(*rest)(x[None])[0], sample.detach()
        )
        found.append(J.reshape(J[..., 0].numel() if sample.ndim == 1 else -1, sample.numel()))
    return torch.stack(found)


def check(blocks: list[nn.Module], x: Tensor, n: hdnn.analysis.Norms, every: int) -> None:
    states = [x]
    for block in blocks:
        states.append(block(states[-1]))
    for l in range(0, len(blocks), every):
        M = brute(blocks[l:], states[l])
        values = torch.linalg.svdvals(M)
        for name, right in (
            ("mean", values[:, 0].mean()),
            ("minimum", values[:, 0].min()),
            ("maximum", values[:, 0].max()),
            ("smallest", values[:, -1].min()),
            ("of_mean", torch.linalg.svdvals(M.mean(0))[0]),
        ):
            found = getattr(n, name)[l]
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-14, msg=f"{name} {l}")


def test_tanh_mlp_of_50_layers() -> None:
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(50)]
    model = nn.Sequential(*blocks)
    x = torch.randn(5, 8)
    found = watch(model)(x)
    assert found.exact
    assert found.layers == ("input", *map(str, range(50)))
    check(list(blocks), x, found, every=7)
    assert float(found.mean[0]) < 1e-6  # torch's initialization lets gradients vanish
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoder_of_torch(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=batch_first, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 6)  # 3 samples of 5 tokens
    watcher = watch(encoder, list(encoder.layers), batch_axis=0 if batch_first else 1)
    found = watcher(x if batch_first else x.transpose(0, 1))
    assert found.layers == ("input", *(f"layers.{k}" for k in range(4)))

    class BatchFirst(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if batch_first else self.inner(x.transpose(0, 1)).transpose(0, 1)

    check([BatchFirst(part) for part in encoder.layers], x, found, every=1)


def test_estimates_are_the_norms_from_below() -> None:
    blocks = [nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(3)]
    model, x = nn.Sequential(*blocks), torch.randn(6, 20)
    exact = watch(model)(x)
    found = watch(model, limit=5, iterations=500, tolerance=1e-9)(x)
    assert not found.exact
    for name in ("mean", "minimum", "maximum", "of_mean"):
        torch.testing.assert_close(getattr(found, name), getattr(exact, name), rtol=1e-3, atol=0)
        assert bool((getattr(found, name) <= getattr(exact, name) * (1 + 1e-12)).all())
    rough = watch(model, limit=5)(x)
    torch.testing.assert_close(rough.mean, exact.mean, rtol=0.05, atol=0)
    assert bool(found.smallest.isnan().all())


def test_residual_convolutions_with_batch_normalization() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return x + nn.functional.relu(self.norm(self.conv(x)), inplace=True)

    model, x = nn.Sequential(Block(), Block(), Block()), torch.randn(4, 2, 3, 3)
    with pytest.raises(HdnnError, match="samples mix after 'input'"):
        watch(model)(x)
    whole = watch(model, per_sample=False)(x)  # the batch as one state
    jacobian = torch.autograd.functional.jacobian(model, x).reshape(72, 72)
    torch.testing.assert_close(whole.maximum[0], torch.linalg.matrix_norm(jacobian, 2))
    check(list(model.eval()), x, watch(model)(x), every=1)


def test_widths_may_differ_and_layers_may_act_in_place() -> None:
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(inplace=True), nn.Linear(7, 2))
    x = torch.randn(4, 3)
    found = watch(model, ["0", "2"])(x)
    assert found.layers == ("input", "0", "2")
    W0, W2 = model[0].weight.detach(), model[2].weight.detach()
    D = (model[0](x) > 0).double()
    for l, M in enumerate([(W2 * D[:, None]) @ W0, W2 * D[:, None], torch.eye(2).expand(4, 2, 2)]):
        torch.testing.assert_close(found.mean[l], torch.linalg.matrix_norm(M, 2).mean())


def test_hamiltonian_blocks_and_layers_that_run_twice() -> None:
    net = hdnn.network("MS3", features=4, layers=6, T=1.0)  # fused: directions go one by one

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(self.net(x))

    x = torch.randn(5, 4)
    found = watch(Twice(), ["net"])(x)
    assert found.layers == ("input", "net", "net:2")
    second = hdnn.analysis.norms(hdnn.analysis.sensitivities(net, net(x)))
    torch.testing.assert_close(found.mean[1], second.mean[0])
    assert bool((found.minimum > 1 - 1e-12).all())  # symplectic, twice as well


@pytest.mark.parametrize(
    ("layers", "words"), [(["nope"], "'nope' is no submodule"), ([], "empty"), (None, "say which")]
)
def test_layers_that_are_not_there(layers: list[str] | None, words: str) -> None:
    with pytest.raises(HdnnError, match=words):
        watch(nn.TransformerEncoderLayer(4, 2), layers)


def test_layers_that_do_not_run_raise() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(HdnnError, match="no watched layer ran: unused"):
        watch(Lazy(), ["unused"])(torch.randn(3, 2))


# --- during a training ----------------------------------------------------------------------------


class Rings(nn.Module):
    """A classifier with a Hamiltonian block, as a user writes it; batch norm and dropout too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        block = hdnn.network("H1", features=8, layers=8, T=1.0, dtype=torch.float32)
        stem = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.02)).float()
        self.layers = nn.Sequential(stem, block, nn.Linear(8, 2).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def rings(samples: int = 512, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, generator=draw, dtype=torch.float32)
    return x, (x.norm(dim=1) > 1.18).long()


def train(model: nn.Module, epochs: int) -> None:
    x, labels = rings()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        for some in torch.arange(512).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[some]), labels[some]).backward()
            optimizer.step()


def test_a_monitored_training_is_the_same_to_the_last_bit() -> None:
    plain, watched = Rings(), Rings()
    logged: dict[int, dict[str, float]] = {}
    torch.manual_seed(0)
    train(plain, 2)
    torch.manual_seed(0)
    with monitor(watched.layers, every=5, log=lambda m, step: logged.update({step: m})) as seen:
        train(watched, 2)
    for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert list(logged) == [0, 5, 10, 15]
    assert set(logged[0]) == {
        f"gradient_norm{kind}/{layer}" for kind in ("", "_min", "_max") for layer in ("input", 0, 1)
    }
    first = watch(Rings().layers.eval())(rings()[0][:16])
    assert logged[0]["gradient_norm_max/1"] == pytest.approx(float(first.maximum[2]))
    train(watched, 1)
    assert len(seen) == 4  # the hook is gone
    with monitor(watched.layers, every=1) as seen, torch.no_grad():
        watched(rings()[0])  # no training
    assert not seen


@pytest.mark.parametrize("options", [{"every": 0}, {"samples": -1}, {"every": True}])
def test_a_monitor_of_nonsense_raises(options: dict[str, Any]) -> None:
    with pytest.raises(HdnnError, match="positive integer"), monitor(Rings().layers, **options):
        pass
