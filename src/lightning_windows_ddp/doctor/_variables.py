"""Environment variables that make a job another one than its script says."""

from collections.abc import Mapping

from lightning_windows_ddp.doctor._check import Check

_NAME = "environment"
# Lightning takes each of them as a sign that something else has started the ranks, and starts none itself
_OTHER_LAUNCHERS = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "GROUP_RANK", "SLURM_NTASKS", "LSB_JOBID", "KUBERNETES_PORT")
_MEETING_POINT = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


def check(environment: Mapping[str, str]) -> Check:
    """Check the variables that Lightning and torch read.

    Args:
        environment: The environment variables.

    """
    rank = [name for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE") if name in environment]
    if "LOCAL_RANK" in rank:
        remedy = "Unset them: Lightning takes them for those of another launcher, and waits for ranks that it starts."
        return Check(_NAME, "problem", f"set: {', '.join(rank)}", remedy)
    port = environment.get("MASTER_PORT")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return Check(_NAME, "problem", "MASTER_PORT is not the number of a port", "Unset it, or give it one.")
    notes, remedies = [], []
    others = [name for name in _OTHER_LAUNCHERS if name in environment]
    if others:
        notes.append(f"set: {', '.join(others)}")
        remedies.append("Something else than Lightning may be meant to start the ranks.")
    meeting = [name for name in _MEETING_POINT if name in environment]
    if meeting:
        notes.append(f"set: {', '.join(meeting)}")
        remedies.append("With one machine, unset them: Lightning then chooses what is free.")
    if "PL_TORCH_DISTRIBUTED_BACKEND" in environment:
        notes.append("PL_TORCH_DISTRIBUTED_BACKEND is set and has no effect")
        remedies.append('Use DDPStrategy(process_group_backend="gloo") instead.')
    if notes:
        return Check(_NAME, "note", "; ".join(notes), " ".join(remedies))
    return Check(_NAME, "ok", "no variable that changes how ranks meet")
