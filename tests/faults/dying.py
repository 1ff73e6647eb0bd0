"""Lives that end at a failpoint, one after the other, under load."""

import random
import signal

from tests.faults.failpoints import POINTS
from tests.services.oracle import Traffic
from tests.services.sidecar_process import Sidecar
from tests.services.waiting import wait_until

REACHED_S = 60.0
FLOWING = 200  # records that arrive before a stop is asked for


def points(guarantee: str, slow: bool) -> list[str]:
    """Names of the points that a process of this mode reaches."""
    return [name for name, point in POINTS.items() if point.guarantee in ("", guarantee) and (slow or not point.slow)]


def die_at(name: str, sidecar: Sidecar, traffic: Traffic, chance: random.Random) -> int:
    """One life that ends at this point; returns at which call of it. AssertionError when it is never reached."""
    point = POINTS[name]
    nth = chance.randint(1, point.most)
    sidecar.failpoint = f"{name}:{nth}"
    sidecar.launch()
    try:
        if point.stopping:
            sidecar.wait_until_ready()
            goal = traffic.arrived + FLOWING
            wait_until(lambda: traffic.arrived >= goal, REACHED_S, lambda: f"nothing fires: {sidecar.last_words()}")
            sidecar.interrupt()
        status = sidecar.wait_until_ended(REACHED_S)
        assert status == -signal.SIGKILL, f"{name} (call {nth}) was not reached, status {status}"
    finally:
        sidecar.failpoint = ""
    return nth
