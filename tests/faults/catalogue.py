"""Faults by name. Each is done to a scene and undone again; the scene waits for the recovery."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from tests.faults.dying import REACHED_S, points
from tests.faults.failpoints import EXACTLY_ONCE, POINTS
from tests.faults.scene import Scene
from tests.services.hanging_transactions import end_hanging_transactions
from tests.services.kafka_servers import ChildServer
from tests.services.sidecar_process import Sidecar
from tests.services.waiting import wait_until

SESSION_S: Final = 6.0  # the group's: who is silent for longer is given up
FROZEN_S: Final = (4.0, 30.0)  # beyond the session
SHORT_S: Final = (0.5, 3.0)
HUNG_S: Final = (5.0, 15.0)  # around the session, and the transaction's timeout
STORM_S: Final = 120.0
STORM_STEP_S: Final = 2.0
FULL_BYTES: Final = 1 << 20
CLOCK_STEPS_S: Final = (3_600.0, -600.0, 0.5, -0.5)


@dataclass(frozen=True, slots=True)
class Fault:
    """`guarantee`: promised to be harmless in this mode only. `brokers`: needs one broker, or several; 0: either."""

    do: Callable[[Scene], None]
    guarantee: str = ""
    brokers: int = 0


def wait_for(seconds: float) -> None:
    """Let a fault last. Nothing signals that it has lasted long enough."""
    threading.Event().wait(seconds)


def between(scene: Scene, bounds: tuple[float, float]) -> float:
    return scene.chance.uniform(*bounds)


# --- processes ----------------------------------------------------------------------------------------------------


def kill(scene: Scene) -> None:
    victim = scene.victim()
    victim.kill()
    victim.launch()


def kill_while_starting(scene: Scene) -> None:
    victim = scene.victim()
    victim.kill()
    victim.launch()
    wait_for(between(scene, (0.3, 2.5)))
    victim.kill()
    victim.launch()


def kill_all(scene: Scene) -> None:
    for sidecar in scene.sidecars:
        sidecar.kill()
    for sidecar in scene.sidecars:
        sidecar.launch()


def die_at_failpoint(scene: Scene) -> None:
    victim = scene.victim()
    names = [name for name in points(scene.guarantee, slow=False) if not (POINTS[name].stopping or POINTS[name].wiped)]
    name = scene.chance.choice(names)
    victim.kill()
    victim.failpoint = f"{name}:{scene.chance.randint(1, POINTS[name].most)}"
    victim.launch()
    victim.failpoint = ""
    wait_until(lambda: victim.ended, REACHED_S, lambda: f"{name} was not reached")
    victim.wait_until_ended()
    victim.launch()


def stop_and_start(scene: Scene) -> None:
    restart(scene.victim())


def restart(sidecar: Sidecar) -> None:
    status = sidecar.stop()
    assert status == 0, f"a clean stop ended with {status}: {sidecar.last_words()}"
    sidecar.launch()


def rolling_restart(scene: Scene) -> None:
    for sidecar in scene.sidecars:
        restart(sidecar)
        sidecar.wait_until_ready()


def pause_shortly(scene: Scene) -> None:
    victim = scene.victim()
    victim.freeze()
    wait_for(between(scene, SHORT_S))
    victim.thaw()


def zombie(scene: Scene) -> None:
    """Silent for longer than its session: others take over, then it wakes and goes on where it was."""
    victim = scene.victim()
    victim.freeze()
    wait_for(SESSION_S + between(scene, FROZEN_S))
    victim.thaw()


def rebalance_storm(scene: Scene) -> None:
    """A member joins or leaves every two seconds."""
    guest = scene.site.sidecar("", GUARANTEE=scene.guarantee)
    for _ in range(int(STORM_S / STORM_STEP_S)):
        if guest.runs:
            guest.kill() if scene.chance.random() < 0.3 else guest.stop()
        else:
            guest.wait_until_ended()
            guest.launch()
        wait_for(STORM_STEP_S)
    guest.kill()


# --- Redis --------------------------------------------------------------------------------------------------------


def redis_killed(scene: Scene) -> None:
    scene.servers.valkey.kill()
    wait_for(between(scene, SHORT_S))
    scene.servers.valkey.start()


def redis_restarted(scene: Scene) -> None:
    scene.servers.valkey.stop()
    scene.servers.valkey.start()


def redis_frozen(scene: Scene) -> None:
    process_id = scene.servers.valkey.process_id
    os.kill(process_id, signal.SIGSTOP)
    wait_for(between(scene, (1.0, 8.0)))
    os.kill(process_id, signal.SIGCONT)


def redis_full(scene: Scene) -> None:
    with Redis.from_url(scene.servers.valkey.url, protocol=2) as client:
        answer: Any = client.config_get("maxmemory")
        client.config_set("maxmemory", FULL_BYTES)
        wait_for(between(scene, SHORT_S))
        client.config_set("maxmemory", answer["maxmemory"])


def redis_wiped(scene: Scene) -> None:
    with Redis.from_url(scene.servers.valkey.url, protocol=2) as client:
        client.flushall()


def redis_cut(scene: Scene) -> None:
    """Redis' file ends somewhere: what came after has been acknowledged and is gone."""
    scene.servers.valkey.kill()
    for part in scene.servers.redis_files.glob("**/*.incr.aof"):
        os.truncate(part, int(part.stat().st_size * scene.chance.random()))
    scene.servers.valkey.start()


def redis_older_copy(scene: Scene) -> None:
    """Somebody restores a backup."""
    servers = scene.servers
    copy = servers.directory / "redis-copy"
    servers.valkey.stop()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(servers.redis_files, copy)
    servers.valkey.start()
    scene.wait_until_flowing()
    wait_for(between(scene, SHORT_S))
    servers.valkey.kill()
    shutil.rmtree(servers.redis_files)
    shutil.copytree(copy, servers.redis_files)
    servers.valkey.start()


def redis_answers_lost(scene: Scene) -> None:
    proxy = scene.servers.proxy
    proxy.lost.clear()
    proxy.lose_each_once = True
    wait_for(between(scene, SHORT_S))
    proxy.lose_each_once = False


def redis_connections_cut(scene: Scene) -> None:
    for _ in range(5):
        scene.servers.proxy.cut()
        wait_for(between(scene, (0.05, 0.5)))


def redis_slow(scene: Scene) -> None:
    scene.servers.proxy.delay_s = 0.3
    wait_for(between(scene, SHORT_S))
    scene.servers.proxy.delay_s = 0.0


# --- Kafka --------------------------------------------------------------------------------------------------------


def broker_restarted(scene: Scene) -> None:
    scene.servers.kafka.restart()
    end_hanging_transactions(scene.servers.kafka)


def broker_killed(scene: Scene) -> None:
    scene.servers.kafka.kill()
    wait_for(between(scene, SHORT_S))
    scene.servers.kafka.start()
    end_hanging_transactions(scene.servers.kafka)


def broker_and_sidecar_killed(scene: Scene) -> None:
    victim = scene.victim()
    scene.servers.kafka.kill()
    victim.kill()
    scene.servers.kafka.start()
    victim.launch()
    end_hanging_transactions(scene.servers.kafka)


@contextmanager
def frozen(scene: Scene) -> Iterator[None]:
    broker = scene.servers.broker
    assert isinstance(broker, ChildServer)
    broker.freeze()
    try:
        yield
        wait_for(between(scene, HUNG_S))
    finally:
        broker.thaw()
    end_hanging_transactions(scene.servers.kafka)


def broker_frozen(scene: Scene) -> None:
    """The broker hangs, or the network does: sessions and transactions end by their timeouts, and nobody is told."""
    with frozen(scene):
        pass


def broker_frozen_and_kill(scene: Scene) -> None:
    with frozen(scene):
        wait_for(between(scene, SHORT_S))
        kill(scene)


def broker_frozen_and_redis_wiped(scene: Scene) -> None:
    with frozen(scene):
        wait_for(between(scene, SHORT_S))
        redis_wiped(scene)


def one_broker_stopped(scene: Scene) -> None:
    """Leaders and coordinators of a stopped broker move to the others, and back when it has caught up."""
    node = scene.chance.choice(scene.servers.nodes)
    node.stop()
    wait_for(between(scene, SHORT_S))
    scene.wait_until_flowing()  # with two of three
    node.start()


def one_broker_killed(scene: Scene) -> None:
    node = scene.chance.choice(scene.servers.nodes)
    node.kill()
    wait_for(between(scene, SHORT_S))
    scene.wait_until_flowing()
    node.start()


def brokers_restarted_one_by_one(scene: Scene) -> None:
    for node in scene.servers.nodes:
        node.stop()
        node.start()
        scene.wait_until_flowing()


# --- clock --------------------------------------------------------------------------------------------------------


def clock_steps(scene: Scene) -> None:
    """The wall clock of one process jumps and comes back, while its other clocks go on evenly."""
    victim = scene.victim()
    victim.kill()
    victim.prefix = scene.clock.prefix
    victim.launch()
    scene.wait_until_ready()
    scene.clock.set(scene.chance.choice(CLOCK_STEPS_S))
    wait_for(between(scene, (2.0, 6.0)))
    scene.clock.set(0)
    wait_for(1.0)
    victim.kill()
    victim.prefix = ()
    victim.launch()


FAULTS: Final[dict[str, Fault]] = {
    "kill -9": Fault(kill),
    "kill -9 while starting": Fault(kill_while_starting),
    "kill -9 of all": Fault(kill_all),
    "killed at a failpoint": Fault(die_at_failpoint),
    "stop and start": Fault(stop_and_start),
    "rolling restart": Fault(rolling_restart),
    "paused shortly": Fault(pause_shortly),
    "zombie": Fault(zombie, EXACTLY_ONCE),
    "rebalance storm": Fault(rebalance_storm),
    "Redis killed": Fault(redis_killed),
    "Redis restarted": Fault(redis_restarted),
    "Redis frozen": Fault(redis_frozen),
    "Redis full": Fault(redis_full),
    "Redis wiped": Fault(redis_wiped),
    "Redis file cut": Fault(redis_cut),
    "Redis older copy": Fault(redis_older_copy),
    "Redis answers lost": Fault(redis_answers_lost),
    "Redis connections cut": Fault(redis_connections_cut),
    "Redis slow": Fault(redis_slow),
    "broker restarted": Fault(broker_restarted, brokers=1),
    "broker killed": Fault(broker_killed, brokers=1),
    "broker frozen": Fault(broker_frozen, brokers=1),
    "broker frozen, then kill -9": Fault(broker_frozen_and_kill, brokers=1),
    "broker frozen, then Redis wiped": Fault(broker_frozen_and_redis_wiped, brokers=1),
    "broker and sidecar killed": Fault(broker_and_sidecar_killed, brokers=1),
    "one broker of three stopped": Fault(one_broker_stopped, brokers=3),
    "one broker of three killed": Fault(one_broker_killed, brokers=3),
    "three brokers restarted one by one": Fault(brokers_restarted_one_by_one, brokers=3),
    "clock steps": Fault(clock_steps),
}


def promised(guarantee: str, brokers: int = 1) -> dict[str, Fault]:
    """Faults that this mode promises to bear, with so many brokers."""
    return {
        name: fault
        for name, fault in FAULTS.items()
        if fault.guarantee in ("", guarantee) and fault.brokers in (0, brokers)
    }
