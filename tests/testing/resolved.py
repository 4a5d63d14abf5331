"""BEV config under each policy, as files whose changes a review shows.

::

    python -m tests.testing.resolved   # rewrite the files
"""

from __future__ import annotations

import json
from pathlib import Path

from mmengine.config import Config

from mmtempo.policies import POLICIES, apply_policy, load_policy

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py'
FOLDER = Path(__file__).parent / 'resolved_configs'


def resolve(policy: str) -> str:
    """Return the BEV config under a policy, as JSON."""
    cfg = Config.fromfile(str(CONFIG))
    apply_policy(cfg, load_policy(policy))
    return json.dumps(cfg.to_dict(), indent=1, sort_keys=True) + '\n'


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for policy in POLICIES:
        (FOLDER / f'{policy}.json').write_text(resolve(policy))


if __name__ == '__main__':
    main()
