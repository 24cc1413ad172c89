"""Uses an installed hdnn[app] as a newcomer would: a prediction, the demo, the playground."""

import csv
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np

import hdnn


def run(*arguments):
    """A command of hdnn, which must succeed."""
    subprocess.run([sys.executable, "-m", "hdnn", *arguments], check=True, stdout=subprocess.PIPE)


assert Path(hdnn.__file__).is_relative_to(sys.prefix), f"not the installed package: {hdnn.__file__}"

rng = np.random.default_rng(0)
with open("data.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["size", "color", "label"])
    for size, color in zip(rng.normal(size=200), rng.choice(["red", "blue"], 200), strict=True):
        writer.writerow([size, color, "yes" if (size > 0) == (color == "red") else "no"])
run("train", "data.csv", "--target", "label", "--out", "run", "--overwrite")
run("predict", "run", "data.csv", "--out", "predictions.csv")
with open("predictions.csv") as file:
    assert len(list(csv.reader(file))) == 201

run("report", "run", "--out", "report.html")
run("demo", "--epochs", "2", "--out", "demo.png")
assert Path("demo.png").stat().st_size > 10_000

command = [sys.executable, "-m", "hdnn", "play", "--no-open", "--port", "0", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        answer = "".join(iter(server.stdout.readline, "}\n")) + "}"
        with urllib.request.urlopen(json.loads(answer)["url"]) as page:
            assert b"<script" in page.read()
    finally:
        server.terminate()
