"""`watch` agrees with Jacobians by brute force, whatever the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hdnn
from hdnn.analysis import Norms, monitor, watch
from hdnn.errors import HdnnError


class Calls(nn.Module):
    """A module around a function, with some submodules."""

    def __init__(self, function: Callable[[Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def check(blocks: list[nn.Module], x: Tensor, norms: Norms, every: int = 1) -> None:
    """Against the Jacobians of the blocks that are still to come, sample by sample."""
    for l in range(0, len(blocks), every):
        rest = nn.Sequential(*blocks[l:])
        matrices = [torch.autograd.functional.jacobian(rest, h[None]) for h in x]
        M = torch.stack([J.reshape(rest(x[:1]).numel(), x[0].numel()) for J in matrices])
        values = torch.linalg.svdvals(M)
        for name, right in (
            ("mean", values[:, 0].mean()),
            ("minimum", values[:, 0].min()),
            ("maximum", values[:, 0].max()),
            ("smallest", values[:, -1].min()),
            ("of_mean", torch.linalg.svdvals(M.mean(0))[0]),
        ):
            value = getattr(norms, name)[l]
            torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-14, msg=f"{name} {l}")
        x = nn.Sequential(*blocks[l : l + every])(x).detach()


def test_tanh_mlp_of_50_layers() -> None:
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(50)]
    model, x = nn.Sequential(*blocks), torch.randn(5, 8)
    norms = watch(model)(x)
    assert norms.exact
    assert norms.layers == ("input", *map(str, range(50)))
    check(blocks, x, norms, every=7)
    assert float(norms.mean[0]) < 1e-6  # torch's initialization lets gradients vanish
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoder_of_torch(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=batch_first, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 6)  # 3 samples of 5 tokens
    layers, axis = list(encoder.layers), 0 if batch_first else 1
    batch = x if batch_first else x.transpose(0, 1)
    norms = watch(encoder, layers, batch_axis=axis)(batch)
    assert norms.layers == ("input", *(f"layers.{k}" for k in range(4)))

    def with_batch_first(part: nn.Module) -> nn.Module:
        return Calls(lambda x: part(x.transpose(0, axis)).transpose(0, axis))

    check([with_batch_first(part) for part in layers], x, norms)
    estimates = watch(encoder, layers, batch_axis=axis, limit=5)(batch)
    torch.testing.assert_close(estimates.mean, norms.mean, rtol=0.05, atol=0)


def test_estimates_are_the_norms_from_below() -> None:
    blocks = [nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(3)]
    model, x = nn.Sequential(*blocks), torch.randn(6, 20)
    exact = watch(model)(x)
    estimates = watch(model, limit=5, iterations=500, tolerance=1e-9)(x)
    assert not estimates.exact
    for name in ("mean", "minimum", "maximum", "of_mean"):
        estimate, norm = getattr(estimates, name), getattr(exact, name)
        torch.testing.assert_close(estimate, norm, rtol=1e-3, atol=0)
        assert bool((estimate <= norm * (1 + 1e-12)).all())
    assert bool(estimates.smallest.isnan().all())


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
    check(list(model.eval()), x, watch(model)(x))


def test_widths_may_differ_and_layers_may_act_in_place() -> None:
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(inplace=True), nn.Linear(7, 2))
    x = torch.randn(4, 3)
    norms = watch(model, ["0", "2"])(x)
    assert norms.layers == ("input", "0", "2")
    W0, W2 = model[0].weight.detach(), model[2].weight.detach()
    D = (model[0](x) > 0).double()
    for l, M in enumerate([(W2 * D[:, None]) @ W0, W2 * D[:, None], torch.eye(2).expand(4, 2, 2)]):
        torch.testing.assert_close(norms.mean[l], torch.linalg.matrix_norm(M, 2).mean())


def test_hamiltonian_blocks_and_layers_that_run_twice() -> None:
    net, x = hdnn.network("MS3", features=4, layers=6, T=1.0), torch.randn(5, 4)
    norms = watch(Calls(lambda x: net(net(x)), net=net), ["net"])(x)
    assert norms.layers == ("input", "net", "net:2")
    second = hdnn.analysis.norms(hdnn.analysis.sensitivities(net, net(x)))
    torch.testing.assert_close(norms.mean[1], second.mean[0])
    assert bool((norms.minimum > 1 - 1e-12).all())  # symplectic, twice as well


def test_operations_that_cannot_be_batched_over_directions() -> None:
    def square(x: Tensor) -> Tensor:
        y = x * x
        y.register_hook(lambda g: torch.from_numpy(g.numpy()))  # not in torch
        return y

    x = torch.randn(5, 4)
    norms = watch(nn.Sequential(Calls(square)))(x)
    torch.testing.assert_close(norms.mean[0], 2 * x.abs().amax(1).mean())


def test_layers_that_cannot_be_watched_raise() -> None:
    for layers, words in ((["nope"], "'nope' is no submodule"), ([], "say which"), (None, "say")):
        with pytest.raises(HdnnError, match=words):
            watch(nn.TransformerEncoderLayer(4, 2), layers)
    with pytest.raises(HdnnError, match="no watched layer ran: unused"):
        watch(Calls(lambda x: x, unused=nn.Linear(2, 2)), ["unused"])(torch.randn(3, 2))
    x, tokens = torch.randn(3, 2), nn.Sequential(Calls(lambda x: x.argmax(1)))
    with pytest.raises(HdnnError, match="layer '0' gives Tensor, not a tensor of numbers"):
        watch(tokens)(x)
    with pytest.raises(HdnnError, match=r"\[3, 2\] samples along axis 0"):
        watch(nn.Sequential(Calls(Tensor.t)))(x)


def test_a_model_that_has_diverged_has_norms_of_nan() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.constant_(model[1].weight, torch.nan)
    assert watch(model)(torch.randn(4, 3)).maximum.isnan().tolist() == [True, True, False]


# --- during a training ----------------------------------------------------------------------------


def classifier() -> nn.Sequential:
    """With a Hamiltonian block, as a user writes it; batch norm and dropout too."""
    torch.manual_seed(3)
    block = hdnn.network("H1", features=8, layers=8, T=1.0, dtype=torch.float32)
    stem = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.02)).float()
    return nn.Sequential(stem, block, nn.Linear(8, 2).float())


def train(model: nn.Module, x: Tensor) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in x.repeat(2, 1).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), (batch.norm(dim=1) > 1.18).long()).backward()
        optimizer.step()


def test_a_monitored_training_is_the_same_to_the_last_bit() -> None:
    x = torch.randn(512, 2, dtype=torch.float32)
    plain, watched = classifier(), classifier()
    logged: dict[int, dict[str, float]] = {}
    train(plain, x)
    with monitor(watched, every=5, log=lambda m, step: logged.update({step: m})) as norms:
        train(watched, x)
    for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert list(logged) == list(norms) == [0, 5, 10, 15]
    assert set(logged[0]) == {
        f"gradient_norm{kind}/{layer}" for kind in ("", "_min", "_max") for layer in ("input", 0, 1)
    }
    first = watch(classifier().eval())(x[:16])
    assert logged[0]["gradient_norm_max/1"] == pytest.approx(float(first.maximum[2]))
    train(watched, x)
    assert len(norms) == 4  # the hook is gone
    with monitor(watched, every=1) as norms, torch.no_grad():
        watched(x)  # no training
    assert not norms
    with pytest.raises(HdnnError, match="every must be positive"), monitor(watched, every=0):
        pass
