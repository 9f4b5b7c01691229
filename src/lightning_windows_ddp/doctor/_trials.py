"""Two ranks, a worker and a whole job, for real."""

from lightning_windows_ddp.doctor._check import Check
from lightning_windows_ddp.doctor._probe import Answer, Probe
from lightning_windows_ddp.doctor._torch import Facts


def reduce_over_two_ranks(probe: Probe, facts: Facts) -> Check:
    """Let two processes meet and add up a number over gloo, with torch alone."""
    name = "two ranks"
    if not facts.has_gloo:
        return Check(name, "skipped", "")
    answer = probe.run("two_ranks.py")
    remedy = "Look at the lines above. If they are all right: firewall, virus scanner, VPN."
    return _check(name, answer, "meet, and reduce over gloo", remedy)


def start_worker(probe: Probe, facts: Facts) -> tuple[Check, int | None]:
    """Let a spawned worker load data, with torch alone.

    Returns:
        The check, and the memory that the worker had for itself, in bytes: 0 if that is not known, or None if it did
        not come up.

    """
    name = "worker"
    if facts.torch is None:
        return Check(name, "skipped", ""), None
    answer = probe.run("worker.py")
    seconds = answer.facts.get("seconds", 0.0)
    remedy = "Virus scanners keep processes from starting, or slow them down: exempt the folder of the environment."
    return _check(name, answer, f"is there after {seconds:.1f} s", remedy), answer.facts.get("memory")


def run_job(probe: Probe, facts: Facts) -> Check:
    """Run a script without a main guard that trains with two ranks and a worker each."""
    name = "job"
    if not facts.has_gloo or not facts.patched:
        return Check(name, "skipped", "")
    uses_gpus = facts.gpus >= 2
    accelerator = "cuda" if uses_gpus else "cpu"
    if facts.patched == ["lightning_fabric"]:
        answer = probe.run("job_with_fabric.py", accelerator)
    else:
        answer = probe.run("job_with_trainer.py", accelerator, facts.patched[0])
    found = f"of two ranks on {'GPUs' if uses_gpus else 'the CPU'} with a worker each completes"
    return _check(name, answer, found, "Look at the lines above; --json shows all that it has printed.")


def _check(name: str, answer: Answer, found: str, remedy: str) -> Check:
    if answer.timed_out:
        remedy += " --time-limit gives it more time."
        return Check(name, "problem", "did not come to an end in time", remedy, answer.failure or "")
    if answer.failure is not None:
        return Check(name, "problem", f"failed: {answer.reason}", remedy, answer.failure)
    if not answer.facts.get("done"):
        return Check(name, "problem", "ended before it had done anything", remedy)
    return Check(name, "ok", found)
