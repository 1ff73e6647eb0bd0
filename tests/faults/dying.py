"""Lives that end at a failpoint, one after the other, under load."""

import random
import signal

from tests.faults.failpoints import POINTS
from tests.services.oracle import Traffic
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

REACHED_S = 180.0
FLOWING = 500  # records that arrive before it is asked to stop, or Redis is wiped


def points(guarantee: str, slow: bool) -> list[str]:
    """Names of the points that a process of this mode reaches while messages flow."""
    reached = {name: point for name, point in POINTS.items() if point.guarantee in ("", guarantee) and not point.job}
    return [name for name, point in reached.items() if slow or not point.slow]


def die_at(name: str, site: Site, sidecar: Sidecar, traffic: Traffic, chance: random.Random) -> int:
    """One life that ends at this point; returns at which call of it. AssertionError when it is never reached."""
    point = POINTS[name]
    nth = chance.randint(1, point.most)
    sidecar.failpoint = f"{name}:{nth}"
    sidecar.launch()
    try:
        if point.stopping or point.wiped:
            goal = traffic.arrived + FLOWING

            def flows_or_died() -> bool:  # died: a rebuild that its last life began goes on as soon as it starts
                return sidecar.ended or traffic.arrived >= goal

            wait_until(flows_or_died, REACHED_S, lambda: f"nothing fires: {sidecar.last_words()}")
            if not sidecar.ended:
                sidecar.interrupt() if point.stopping else site.wipe_redis()
        status = sidecar.wait_until_ended(REACHED_S)
        assert status == -signal.SIGKILL, f"{name} (call {nth}) was not reached, status {status}"
    finally:
        sidecar.failpoint = ""
    return nth
