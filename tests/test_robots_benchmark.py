"""The twelve robots: the page says what the records say, the loop is what it describes."""

from __future__ import annotations

import pandas as pd
import pytest
import robots
import torch

PAGE = robots.OUT / "README.md"
TRAINED = pd.DataFrame(robots.records("trained")).set_index(["controller", "seed"])
UNTRAINED = pd.DataFrame(robots.records("untrained")).set_index(["controller", "scale"])
GAINS = pd.DataFrame(robots.records("gains")).set_index(["scale", "gain"])
OTHERS = [name for name in robots.CONTROLLERS if name != "state space"]


def test_the_tables_of_the_page_come_from_the_records() -> None:
    text, parts = PAGE.read_text(), robots.pages()
    assert all(f"<!-- {name} -->" in text for name in parts)
    assert robots.fill(text, parts) == text, "run: python benchmarks/robots.py --page"


def test_there_is_one_record_for_every_job() -> None:
    wanted = [(name, tuple(key.values())) for name, key, _ in robots.jobs(None, len(robots.SEEDS))]
    held = [("trained", key) for key in TRAINED.index] + [
        ("untrained", key) for key in UNTRAINED.index
    ]
    held += [("gains", key[::-1]) for key in GAINS.index]
    assert sorted(held, key=str) == sorted(wanted, key=str)


def test_the_sentences_of_the_page_hold() -> None:
    grows = TRAINED.cost_10T / TRAINED.cost_T
    middle = TRAINED.groupby("controller").median(numeric_only=True)
    assert round(middle.cost_T["state space"] / middle.cost_T["MLP"], 2) == 0.96
    assert (middle.cost_T[["GRU", "linear"]] > 1.05 * middle.cost_T["state space"]).all()
    assert (grows["state space"] < 1.005).all()
    assert (TRAINED.end["state space"] < 0.01).all()
    assert all((TRAINED.end[name] > 1).all() for name in OTHERS)  # they leave again
    ratio = middle.cost_10T / middle.cost_T
    assert [round(ratio["MLP, trained on 2T"], 1), round(ratio["MLP"])] == [1.4, 28]
    assert (TRAINED.collisions["MLP, trained on 2T"] == 0).sum() == 4
    assert ratio["MLP with damping"] > ratio["MLP, trained on 2T"]
    ends = ["end_half_mass_quarter_friction", "end_delay_2", "end_delay_5"]
    assert (TRAINED.loc["state space", ends] < 0.01).all(axis=None)
    assert (TRAINED.perturbed_collisions > 1).all()  # of every controller
    assert middle.perturbed_collisions.idxmin() == "state space"
    assert (UNTRAINED.left[["state space", "MLP with damping"]] == 0).all()
    assert UNTRAINED.worst_of_others["state space"].max() < 2
    assert round(UNTRAINED.worst_of_others["MLP with damping"].max()) == 50
    assert (GAINS.left[3.0][:50.0] == 0).all()
    assert (GAINS.left[10.0][:41.0] == 0).all()
    assert (GAINS.left[10.0][45.0:] == 1).all()


def test_costs_by_hand() -> None:
    """Squared states, half of the squared forces, and 50 / (d^2 + 0.001) for pairs within 0.7 m."""
    controller = robots.CONTROLLERS["MLP"](0)
    with torch.no_grad():
        states, forces = robots.simulate(controller, 30)
        _, targets = robots.starts_and_targets()
        expected = float(states.square().sum() + 0.5 * forces.square().sum())
        for state in states[:, 0]:
            q = state[:, 2:] + targets[:, 2:]
            for i in range(robots.ROBOTS):
                for j in range(robots.ROBOTS):
                    d2 = float((q[i] - q[j]).square().sum())
                    expected += 50 / (d2 + 1e-3) if i != j and d2 < 0.49 else 0.0
        assert float(robots.costs(states, forces)) == pytest.approx(expected, rel=1e-9)
        late, early = states.clone(), states.clone()
        late[-1] += 1
        early[0] += 1
        discounted = [float(robots.costs(s, forces, discount=0.5)) for s in (late, early)]
        assert discounted[0] > discounted[1]  # later states count more
        delayed = robots.simulate(controller, 30, delay=3)[1]
        assert not bool(delayed[:3].any())
        assert torch.equal(delayed[3], forces[0])


def test_a_robot_is_a_mass_with_spring_and_friction() -> None:
    """Momentum and position by small explicit steps, with a force that is held."""
    plant = robots.robot(mass=2.0, spring=3.0, friction=0.4)
    p, q = force = torch.tensor([[1.0, -0.5], [0.3, 0.7]])
    expected = torch.cat([p, q])
    assert torch.equal(plant.measure(expected), p / 2)
    after = plant.advance(expected, force[0])
    for _ in range(10_000):
        h = robots.STEP / 10_000
        p, q = p + h * (-3 * q - 0.4 / 2 * p + force[0]), q + h * p / 2
    torch.testing.assert_close(after, torch.cat([p, q]), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_records_are_those_of_this_code() -> None:
    """The first training again, in about ten seconds."""
    torch.set_num_threads(1)
    record = robots.examine("state space", 0, *robots.train("state space", 0))
    for name in ("cost_T", "cost_10T", "end", "perturbed_mean"):
        assert record[name] == pytest.approx(TRAINED[name]["state space", 0], rel=1e-4)
