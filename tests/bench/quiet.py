"""Keeps other work on the machine out of a measurement, as far as a program can.

On a busy machine it is better still to start the measurement in a scheduling group of its own with a high priority.
"""

import os
import resource
import time

# Share of the machine's CPU time, in percent, that others may use before a measurement is made again.
LIMIT = 6.0


def _busy():
    """CPU seconds that the whole machine has worked."""
    fields = open("/proc/stat").readline().split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own():
    """CPU seconds of this process and of its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


class Noise:
    """The CPU time of others since this was made; children that count as ours must have ended before it is read."""

    def __init__(self):
        self.start = (time.perf_counter(), _busy(), _own())

    def percent(self):
        wall, busy, own = self.start
        spent = time.perf_counter() - wall
        return max(0.0, 100 * ((_busy() - busy) - (_own() - own)) / (spent * os.cpu_count()))


def wait(seconds):
    """Waits until others are quiet for two seconds, `seconds` at most."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        noise = Noise()
        time.sleep(2)
        if noise.percent() < LIMIT:
            return


def measured(action, seconds, tries=4):
    """The result of `action` and the noise during it: of the first quiet try, or of the quietest one."""
    best = None
    for _ in range(tries if seconds else 1):
        wait(seconds)
        noise = Noise()
        result = action()
        percent = noise.percent()
        if best is None or percent < best[1]:
            best = (result, percent)
        if percent < LIMIT:
            break
    return best
