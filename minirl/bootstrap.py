# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The bootstrap anchor: which configuration a checkpoint folder's rollouts belong to.

`<checkpoint_dir>/bootstrap/manifest.json` is written by the run that starts there, and
demanded of every later one: rollouts go on only under the configuration that they were
begun with. What a restart may change, as where it logs, is not part of the identity.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minirl.config import MasterConfig

SCHEMA_VERSION = 6  # of the anchor's manifest and of a snapshot's
OPERATIONAL = [
    "async_rl.stall_watchdog",
    "checkpointing",
    "data.validation",
    "faults",
    "logger",
    "policy.optimizer",
    "rollout_checkpointing",
]


def _values(tree: dict[str, Any], parent: str = "") -> dict[str, Any]:
    """Every value by its dotted key, without the operational ones."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        key = parent + name
        if key in OPERATIONAL:
            continue
        if isinstance(value, dict) and value:
            values |= _values(value, f"{key}.")
        else:
            values[key] = value
    return values


def bootstrap_identity(config: MasterConfig) -> dict[str, Any]:
    """The config values that a restart must share, by their dotted keys."""
    return _values(asdict(config))


def bootstrap_fingerprint(config: MasterConfig) -> str:
    """Sha256 of the identity, as sorted JSON."""
    document = json.dumps(bootstrap_identity(config), sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def write_anchor(checkpoint_dir: Path, config: MasterConfig) -> None:
    """Create `bootstrap/` with its manifest in it; it is never there without."""
    partial = checkpoint_dir / ".bootstrap.partial"
    partial.mkdir(parents=True, exist_ok=True)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "base_train_step": 0,
        "trainer_version": 0,
        "bootstrap_fingerprint": bootstrap_fingerprint(config),
        "bootstrap_identity": bootstrap_identity(config),
    }
    (partial / "manifest.json").write_text(json.dumps(manifest))
    partial.rename(checkpoint_dir / "bootstrap")


def check_anchor(checkpoint_dir: Path, config: MasterConfig) -> None:
    """Demand the anchor, and that it is of this configuration.

    Raises:
        FileNotFoundError: the folder `bootstrap/` has no manifest.
        ValueError: the manifest can't be read, or its fingerprint is another one; the
            message names the keys that changed, with the old and the new value.
    """
    path = checkpoint_dir / "bootstrap" / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the bootstrap manifest is missing")
    try:
        manifest = json.loads(path.read_text())
        found = manifest["bootstrap_fingerprint"]
        old = manifest.get("bootstrap_identity", {})  # older heads do not write it
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no bootstrap manifest: {error!r}") from None
    expected = bootstrap_fingerprint(config)
    if found == expected:
        return
    new = json.loads(json.dumps(bootstrap_identity(config)))
    changed = [
        f"{key} was {_shown(old, key)}, is {_shown(new, key)}"
        for key in sorted({*old, *new})
        if old and _shown(old, key) != _shown(new, key)
    ]
    raise ValueError(
        f"{path}: its checkpoints belong to another configuration: "
        + ("; ".join(changed) or f"fingerprint {found}, expected {expected}")
    )


def _shown(identity: dict[str, Any], key: str) -> str:
    return json.dumps(identity[key]) if key in identity else "unset"
