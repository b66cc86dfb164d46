"""The port against the vectors that the TypeScript port runs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandport.errors import LocalError
from sandport.port import Delivery, PortCore, PortLimits

VECTORS = Path(__file__).parent.parent / "vectors" / "port"
SCENARIOS = [
    pytest.param(scenario, id=f"{path.stem}: {scenario['name']}")
    for path in sorted(VECTORS.glob("*.json"))
    for scenario in json.loads(path.read_text(encoding="utf-8"))
]


def run_step(port: PortCore, step: dict[str, Any]) -> tuple[str, list[Delivery]]:
    if "attach" in step:
        port.attach(step["attach"], step["prefix"])
    elif "declare" in step:
        port.declare(step["declare"], step["server"])
    elif "withdraw" in step:
        return "", port.withdraw(step["withdraw"])
    elif "stop" in step:
        return "", port.stop(step["stop"])
    elif "suspend" in step:
        return "", port.suspend(step["suspend"], step["reason"])
    elif "resume" in step:
        return "", port.resume(step["resume"], step["prefix"])
    elif "detach" in step:
        return "", port.detach(step["detach"], step["reason"])
    elif "close" in step:
        return "", port.close()
    else:
        text = step["text"] if "text" in step else json.dumps(step["message"], separators=(",", ":"))
        if "overflow" in step:
            return text, port.overflow(step["overflow"], text, step["limit"], 10)
        source = step["from"]
        if source == "channel":
            return text, port.from_channel(text)
        if source == "acp":
            return text, port.from_acp(text)
        return text, port.from_sandbox(source.removeprefix("sandbox:"), text, step.get("now", 0.0))
    return "", []


def without_error_text(message: dict[str, Any]) -> dict[str, Any]:
    error = message.get("error")
    if isinstance(error, dict):
        return {**message, "error": {key: value for key, value in error.items() if key != "message"}}
    return message


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_vector(scenario: dict[str, Any]) -> None:
    port = PortCore(PortLimits(**scenario.get("limits", {})))
    for number, step in enumerate(scenario["steps"]):
        where = f"step {number}: {json.dumps(step)[:200]}"
        if step.get("refused"):
            with pytest.raises(LocalError):
                run_step(port, step)
            continue
        text, out = run_step(port, step)
        expected = step.get("expect", [])
        assert [delivery.to for delivery in out] == [entry["to"] for entry in expected], f"{where}: {out}"
        for delivery, entry in zip(out, expected, strict=True):
            if entry.get("same"):
                assert delivery.text == text, where
            if "message" in entry:
                got = without_error_text(json.loads(delivery.text))
                assert got == without_error_text(entry["message"]), where
            if "textHas" in entry:
                assert entry["textHas"] in delivery.text, where
        if "dropped" in step:
            assert port.dropped == step["dropped"], where
        if "open" in step:
            assert port.open_requests == step["open"], where
        for sandbox, connections in step.get("connections", {}).items():
            assert [list(connection) for connection in port.connections(sandbox)] == connections, where


def test_there_are_vectors() -> None:
    assert len(SCENARIOS) >= 30
